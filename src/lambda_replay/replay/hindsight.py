"""Hindsight: blocks replayed as if what was achieved later had been the goal (Andrychowicz et al. 2017)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Booleans, Integers, Transitions
from lambda_replay.replay.goals import Goals, Relabelled
from lambda_replay.replay.memory import ReplayMemory

Strategy = Literal["future", "final"]


def relabel(blocks: Promoted, goals: Goals, *, share: float, strategy: Strategy, rng: np.random.Generator) -> Promoted:
    """The same blocks, a share of them with other goals, and with the rewards and terminations of those.

    The blocks are independent draws, so the first ones are as random as any. Newest blocks, which are no draws, come
    last, and keep their goals as long as there are others.
    """
    count = round(share * len(blocks.slots))
    if count == 0:
        return blocks
    slots, is_step = blocks.slots[:count], blocks.transitions.is_step[:count]  # [n, L+1] each
    observations = blocks.memory.observations
    sources = goal_slots(blocks.memory, slots, is_step, strategy=strategy, rng=rng)  # [n, L+1]
    desired = observations[sources][..., goals.achieved]  # [n, L+1, G]
    taken = is_step[:, :-1]  # [n, L]
    achieved = observations[slots[:, 1:]][..., goals.achieved]  # [n, L, G]  after each step
    rewards, terminated = goals.outcomes(achieved[taken], desired[:, :-1][taken])
    transitions = _copied(blocks.transitions)
    transitions.rewards[:count, :-1][taken] = rewards
    if terminated is not None:
        transitions.terminated[:count, :-1][taken] = terminated
    shown = Relabelled(desired.reshape(-1, desired.shape[-1]), goals.desired)
    return blocks._replace(transitions=transitions, relabelled=shown)


def goal_slots(
    memory: ReplayMemory, slots: Integers, is_step: Booleans, *, strategy: Strategy, rng: np.random.Generator
) -> Integers:
    """For every slot [n, L+1], the slot whose achieved goal becomes its goal.

    A block consists of pieces of episodes. One return must be about one goal, so a piece has one: what was achieved in
    its last slot or later in its episode, which is the future of all its steps. The memory may hold that beyond the
    block's end. ``future`` draws it uniformly; ``final`` takes the last slot that the episode has so far.
    """
    lasts = _last_of_piece(is_step)  # [n, L+1]
    ends = np.take_along_axis(slots, lasts, axis=1)  # [n, L+1]  the last slot of each slot's piece
    left = memory.steps_left(ends)
    if strategy == "final":
        return memory.ring.after(ends, left)
    drawn = np.take_along_axis(rng.random(slots.shape), lasts, axis=1)  # the same number throughout a piece
    return memory.ring.after(ends, (drawn * (left + 1)).astype(np.int64))


def _last_of_piece(is_step: Booleans) -> Integers:
    """For every position [n, L+1], the last one of its episode in the block: a slot without a step, or the end."""
    length = is_step.shape[1]
    ends = np.where(is_step, length - 1, np.arange(length))
    return np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]


def _copied(transitions: Transitions) -> Transitions:
    """With rewards and terminations of its own."""
    return transitions._replace(rewards=transitions.rewards.copy(), terminated=transitions.terminated.copy())
