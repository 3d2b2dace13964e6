"""Blocks promoted from the memory, and critics that evaluate them: the interface between the memory and any network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lambda_replay.errors import ConfigError, diverged
from lambda_replay.replay.data import Block, Booleans, Evaluation, Floats, Integers, Transitions, as_floats
from lambda_replay.replay.goals import Relabelled
from lambda_replay.replay.memory import ReplayMemory

CHUNK_SIZE = 1024  # states per call of a Q-function

QFunction = Callable[[NDArray[Any]], NDArray[Any]]  # states [n, F, *observation] -> Q-values [n, A]


class Promoted(NamedTuple):
    """Blocks of the memory as they were when drawn; only their states, which do not change, are read later."""

    memory: ReplayMemory
    slots: Integers  # [K, L+1]
    transitions: Transitions  # [K, L+1] each
    ages: Integers  # [K, L+1]  number of newer slots in the same stream
    lifetimes: dict[int, int]  # per stream: how many slots it may have written while all these states are still stored
    discount: float
    length: int  # steps kept of each block; a tail beyond them is computed and discarded
    relabelled: Relabelled | None = None  # goals that the first of the K·(L+1) states show in place of their own

    def states(self, rows: slice) -> NDArray[Any]:
        """States [n, F, *observation] of some of the K·(L+1) slots, as a critic must see them."""
        slots = self.slots.reshape(-1)[rows]
        states = self.memory.states(slots)
        if self.relabelled is None:
            return states
        return self.relabelled.show(states, np.arange(self.slots.size)[rows], self.memory.frames[slots])

    @property
    def rewards(self) -> Floats:  # [K, L]
        return self.transitions.rewards[:, :-1]

    @property
    def has_future(self) -> Booleans:  # [K, L]
        """Where a step was taken and did not terminate its episode."""
        return self.transitions.is_step[:, :-1] & ~self.transitions.terminated[:, :-1]

    @property
    def discounts(self) -> Floats:  # [K, L]
        return np.where(self.has_future, np.float32(self.discount), np.float32(0))

    @property
    def continues(self) -> Booleans:  # [K, L]
        """Where the episode continues: the next slot is a step too."""
        return self.has_future & self.transitions.is_step[:, 1:]


def promote_slots(memory: ReplayMemory, slots: Integers, *, discount: float, length: int) -> Promoted:
    """Blocks at given slots [K, L+1], keeping ``length`` steps of each."""
    return Promoted(
        memory,
        slots,
        transitions=memory.transitions(slots),
        ages=memory.ages(slots),
        lifetimes=memory.lifetimes(slots[:, 0]),  # the first state of a block needs its oldest frame
        discount=discount,
        length=length,
    )


def promote(
    memory: ReplayMemory,
    *,
    discount: float,
    size: int,
    block_length: int,
    rng: np.random.Generator,
    tail: int = 0,
    reserve: int = 0,
) -> Promoted:
    """Random blocks of the memory (Algorithm 1, "Sample block … from D"), which stay unchanged while it grows.

    ``tail`` more steps per block are computed and discarded; ``reserve`` is that of ``sample_blocks``.
    """
    if size < 1 or block_length < 1 or size % block_length or tail < 0:
        raise ConfigError(
            f"size ({size}) must be a multiple of block_length ({block_length}), tail ({tail}) 0 or more."
        )
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount is {discount}; give a number from 0 to 1.")
    slots = memory.sample_blocks(size // block_length, block_length + tail, rng, reserve)  # [K, L+1]
    return promote_slots(memory, slots, discount=discount, length=block_length)


class Critic(Protocol):
    """Anything that can evaluate blocks; ``QCritic`` wraps a plain Q-function."""

    def evaluate(self, blocks: Promoted) -> Evaluation: ...


@dataclass(frozen=True)
class QCritic:
    """A row of Q-values per state, computed in chunks of bounded size over many blocks."""

    q_function: QFunction
    chunk_size: int = CHUNK_SIZE  # states per call

    def evaluate(self, blocks: Promoted) -> Block:
        num_states = blocks.slots.size
        starts = range(0, num_states, self.chunk_size)
        chunks = [self.q_function(blocks.states(slice(start, start + self.chunk_size))) for start in starts]
        q_values = as_floats("the Q-function's result", np.concatenate(chunks))
        actions, _, behaviour_probs, _, is_step, _ = blocks.transitions  # [K, L+1] each
        highest = int(actions.max())
        if q_values.ndim != 2 or len(q_values) != num_states or q_values.shape[1] <= highest:
            raise ConfigError(
                f"the Q-function returned shape {q_values.shape} for {num_states} states and actions up to {highest}; "
                "it must return one row per state and one column per action."
            )
        if not np.isfinite(q_values).all():
            raise diverged("the Q-values are")
        return Block(
            rewards=blocks.rewards,
            discounts=blocks.discounts,
            q_values=q_values.reshape(*blocks.slots.shape, -1),
            actions=actions,
            behaviour_probs=behaviour_probs,
            continues=blocks.continues,
            is_step=is_step,
        )


def as_critic(critic: Critic | QFunction, chunk_size: int = CHUNK_SIZE) -> Critic:
    """Wrap a plain Q-function; return a critic unchanged."""
    evaluate: Any = getattr(critic, "evaluate", None)
    return QCritic(critic, chunk_size) if evaluate is None else critic  # type: ignore[arg-type,return-value]
