"""From promoted blocks to what a critic thinks of them: the seam between the memory and anybody's networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lambda_replay.errors import ConfigError, diverged
from lambda_replay.replay.data import Block, Booleans, Evaluation, Floats, Integers, Transitions, as_floats
from lambda_replay.replay.memory import ReplayMemory

CHUNK_SIZE = 1024  # states per call of a Q-function

QFunction = Callable[[NDArray[Any]], NDArray[Any]]  # states [n, F, *observation] -> Q-values [n, A]


class Promoted(NamedTuple):
    """Blocks of the memory as they were when they were drawn; only their states are read later, which do not change."""

    memory: ReplayMemory
    slots: Integers  # [K, L+1]
    transitions: Transitions  # [K, L+1] each
    ages: Integers  # [K, L+1]  slots that came after each in its stream
    lifetimes: dict[int, int]  # per stream: the slots it may ever have written while all these states are stored
    discount: float
    length: int  # of each block, how many steps are kept; a tail beyond them is computed and dropped

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
        """Where the episode goes on: the next slot is a step too."""
        return self.has_future & self.transitions.is_step[:, 1:]


def promote_slots(memory: ReplayMemory, slots: Integers, *, discount: float, length: int) -> Promoted:
    """Blocks of given slots [K, L+1], of which ``length`` steps are kept."""
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
    """Random blocks of the memory (Algorithm 1, "Sample block … from D"), which stay as they are while it grows.

    ``tail`` more steps per block are computed and dropped; ``reserve`` is that of ``sample_blocks``.
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
    """Whoever can evaluate blocks; a plain Q-function is one too, through ``QCritic``."""

    def evaluate(self, blocks: Promoted) -> Evaluation: ...


@dataclass(frozen=True)
class QCritic:
    """A row of Q-values per state, computed in chunks of bounded size over many blocks."""

    q_function: QFunction
    chunk_size: int = CHUNK_SIZE  # states per call

    def evaluate(self, blocks: Promoted) -> Block:
        flat = blocks.slots.reshape(-1)
        starts = range(0, len(flat), self.chunk_size)
        chunks = [self.q_function(blocks.memory.states(flat[start : start + self.chunk_size])) for start in starts]
        q_values = as_floats("the Q-function's result", np.concatenate(chunks))
        actions, _, behaviour_probs, _, is_step, _ = blocks.transitions  # [K, L+1] each
        highest = int(actions.max())
        if q_values.ndim != 2 or len(q_values) != len(flat) or q_values.shape[1] <= highest:
            raise ConfigError(
                f"the Q-function gave shape {q_values.shape} for {len(flat)} states and actions up to {highest}; "
                "it must give one row per state and one column per action."
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
    """A plain Q-function as a critic; a critic as it is."""
    evaluate: Any = getattr(critic, "evaluate", None)
    return QCritic(critic, chunk_size) if evaluate is None else critic  # type: ignore[arg-type,return-value]
