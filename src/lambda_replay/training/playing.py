"""Playing: storing a step of any environment in a memory, and playing whole games with a trained policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from lambda_replay.agents.protocol import Policy, following
from lambda_replay.envs import Environment, Step
from lambda_replay.errors import EnvironmentFault
from lambda_replay.replay.memory import ReplayMemory

LARGEST_SEED = 2**31 - 1  # what every environment accepts
# Separates a policy's random numbers from those of its game: Gymnasium's would be the very same ones, as both have the
# same seed. The value is arbitrary.
POLICY_STREAM = 0xAC7


@contextmanager
def faults_told(when: Callable[[], str]) -> Iterator[None]:
    """Add to an environment's fault when it happened, which the environment itself does not know."""
    try:
        yield
    except EnvironmentFault as fault:
        fault.when = when()
        raise


def store(memory: ReplayMemory, stream: int, action: Any, prob: float, step: Step, **columns: Any) -> None:
    """Store the result of an action in the memory, where a lost life ends one episode and begins another."""
    memory.append(action, step.reward, step.observation, step.terminated, step.truncated, prob, stream, **columns)
    if (step.terminated or step.truncated) and not step.game_over:
        memory.begin(step.observation, stream)


class PlayedGame(NamedTuple):
    """One game played by a fixed policy."""

    score: float
    length: int
    seed: int
    ended: str  # "terminated", "truncated", or "stopped" after max_steps
    is_success: bool | None = None  # whether its last step reached the goal; None: the environment does not say


def play(
    environment: Environment,
    policy: Policy,
    *,
    history: int,
    epsilon: float,
    seed: int,
    max_steps: int | None = None,
    on_frame: Callable[[], None] | None = None,
) -> PlayedGame:
    """Play one game without learning; ``on_frame`` is called at every state, including the last.

    A game longer than ``max_steps`` is stopped there.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, POLICY_STREAM]))
    memory = make_memory(environment, history + 1, history)
    policy = following(policy, memory)
    score, length, ended = 0.0, 0, ""
    with faults_told(lambda: f"at step {length:,} of the game with seed {seed}"):
        memory.begin(environment.reset(seed))
        while not ended:
            if on_frame is not None:
                on_frame()
            step = play_step(environment, policy, memory, epsilon, rng)
            score, length = score + step.score, length + 1
            if step.game_over:
                ended = "terminated" if step.terminated else "truncated"
            elif length == max_steps:
                ended = "stopped"
        if on_frame is not None:
            on_frame()
    return PlayedGame(score, length, seed, ended, step.is_success)


def play_block(
    environment: Environment, policy: Policy, *, length: int, history: int, epsilon: float, rng: np.random.Generator
) -> ReplayMemory:
    """A memory with one block of ``length`` steps, from as many games as that takes."""
    memory = make_memory(environment, length + history + 1, history)
    policy = following(policy, memory)
    memory.begin(environment.reset(int(rng.integers(LARGEST_SEED))))
    while memory.written[0] < length + 1:
        if play_step(environment, policy, memory, epsilon, rng).game_over:
            memory.begin(environment.reset(int(rng.integers(LARGEST_SEED))))
    return memory


def make_memory(environment: Environment, capacity: int, history: int) -> ReplayMemory:
    """A small memory for an environment's observations."""
    spec = environment.spec
    shape, dtype = spec.observation_shape, spec.observation_dtype
    return ReplayMemory(capacity, shape, dtype, history, action_shape=spec.action_shape)


def play_step(
    environment: Environment, policy: Policy, memory: ReplayMemory, epsilon: float, rng: np.random.Generator
) -> Step:
    """One step of a policy, which follows the memory, from its newest state."""
    acted = policy.act(memory.newest_states(), epsilon, rng)
    acted.check_finite()
    action = acted.actions[0].tolist()
    step = environment.step(action)
    store(memory, 0, action, float(acted.behaviour_probs[0]), step)
    return step
