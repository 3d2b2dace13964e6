"""Blocks promoted from the memory, and critics that evaluate them: the interface between the memory and any network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lambda_replay.checks import require_whole
from lambda_replay.errors import ConfigError, diverged
from lambda_replay.replay.data import Before, Block, Booleans, Evaluation, Floats, Integers, Transitions, as_floats
from lambda_replay.replay.goals import Relabelled
from lambda_replay.replay.memory import ReplayMemory

CHUNK_SIZE = 1024  # states per call of a Q-function

QFunction = Callable[[NDArray[Any]], NDArray[Any]]  # states [n, F, *observation] -> Q-values [n, A]


HIDDEN = "hidden"  # the column with the hidden state in which an agent that remembers left a slot


class BurnIn(NamedTuple):
    """The H slots before each block, on which a critic that remembers warms up."""

    slots: Integers  # [K, H]
    transitions: Transitions  # [K, H] each


class Promoted(NamedTuple):
    """Blocks of the memory as they were when drawn; only their states, which do not change, are read later."""

    memory: ReplayMemory
    slots: Integers  # [K, L+1]
    transitions: Transitions  # [K, L+1] each
    ages: Integers  # [K, L+1]  number of newer slots in the same stream
    lifetimes: dict[int, int]  # per stream: how many slots it may have written while all these states are still stored
    discount: float
    length: int  # steps kept of each block; a tail beyond them is computed and discarded
    burn_in: BurnIn | None = None
    relabelled: Relabelled | None = None  # goals that the first of the K·(L+1) states show in place of their own

    def states(self, rows: slice) -> NDArray[Any]:
        """States [n, F, *observation] of some of the K·(L+1) slots, as a critic must see them."""
        slots = self.slots.reshape(-1)[rows]
        states = self.memory.states(slots)
        if self.relabelled is None:
            return states
        return self.relabelled.show(states, np.arange(self.slots.size)[rows], self.memory.frames[slots])

    @property
    def actions(self) -> NDArray[Any]:  # [n] or [n, D]
        """The action of each of the n = K·(L+1) slots, as ``states`` numbers them."""
        return self.transitions.actions.reshape(-1, *self.memory.action_shape)

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

    @property
    def unrolled_slots(self) -> Integers:  # [K, H+L+1]
        """The slots over which a critic that remembers is unrolled: burn-in and block."""
        return self.slots if self.burn_in is None else np.concatenate([self.burn_in.slots, self.slots], axis=1)

    @property
    def stored_states(self) -> Floats | None:  # [K, size]
        """The hidden state in which the agent left the first slot of each burn-in; None if the memory has none."""
        if self.burn_in is None or HIDDEN not in self.burn_in.transitions.columns:
            return None
        return self.burn_in.transitions.columns[HIDDEN][:, 0]

    @property
    def before(self) -> Before:  # [K, H+L+1] each
        """What came before each unrolled slot; the first one counts as a start, whatever came before it.

        The slot before an episode's first closes another episode, so it is not a step.
        """
        parts = [self.transitions] if self.burn_in is None else [self.burn_in.transitions, self.transitions]
        is_step, actions, rewards = (
            np.concatenate([getattr(part, name) for part in parts], axis=1)[:, :-1]
            for name in ("is_step", "actions", "rewards")
        )  # [K, H+L] each
        one_earlier = ((0, 0), (1, 0))
        return Before(
            np.pad(~is_step, one_earlier, constant_values=True),
            np.pad(np.where(is_step, actions, 0), one_earlier),
            np.pad(np.where(is_step, rewards, np.float32(0)), one_earlier),
        )


def promote_slots(memory: ReplayMemory, slots: Integers, *, discount: float, length: int, burn_in: int = 0) -> Promoted:
    """Blocks at given slots [K, H+L+1], of which the first H = ``burn_in`` only lead up to the block.

    ``length`` steps of each block are kept.
    """
    first = slots[:, 0]  # its state needs the oldest frame
    warm_up, slots = slots[:, :burn_in], slots[:, burn_in:]
    return Promoted(
        memory,
        slots,
        transitions=memory.transitions(slots),
        ages=memory.ages(slots),
        lifetimes=memory.lifetimes(first),
        discount=discount,
        length=length,
        burn_in=BurnIn(warm_up, memory.transitions(warm_up)) if burn_in else None,
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
    burn_in: int = 0,
    newest: bool = False,
) -> Promoted:
    """Random blocks of the memory (Algorithm 1, "Sample block … from D"), which stay unchanged while it grows.

    ``tail`` more steps per block are computed and discarded; ``reserve`` is that of ``sample_blocks``. A critic that
    remembers warms up on the ``burn_in`` slots before each block. With ``newest``, one of the blocks per stream is its
    newest (combined experience replay, Zhang & Sutton 2017).
    """
    require_whole(size=(size, 1), block_length=(block_length, 1), tail=(tail, 0), burn_in=(burn_in, 0))
    if size % block_length:
        raise ConfigError(
            f"size ({size}) must be a multiple of block_length ({block_length}); "
            f"{max(1, round(size / block_length)) * block_length} is the nearest."
        )
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount is {discount}; give a number from 0 to 1.")
    if newest and tail:
        raise ConfigError(f"tail ({tail}) would discard the newest steps; set it to 0, or newest to False.")
    length, num_blocks = burn_in + block_length + tail, size // block_length
    fresh = memory.newest_blocks(length) if newest else np.empty((0, length + 1), dtype=np.int64)  # [streams, H+L+1]
    if len(fresh) > num_blocks:
        raise ConfigError(
            f"size ({size}) must hold the newest block of each of the {len(fresh)} streams; "
            f"raise it to {len(fresh) * block_length}."
        )
    drawn = memory.sample_blocks(num_blocks - len(fresh), length, rng, reserve)
    slots = np.concatenate([drawn, fresh])  # [K, H+L+1]
    return promote_slots(memory, slots, discount=discount, length=block_length, burn_in=burn_in)


class Critic(Protocol):
    """Anything that can evaluate blocks; ``QCritic`` wraps a plain Q-function."""

    def evaluate(self, blocks: Promoted) -> Evaluation: ...


@dataclass(frozen=True)
class QCritic:
    """A row of Q-values per state, computed in chunks of bounded size over many blocks."""

    q_function: QFunction
    chunk_size: int = CHUNK_SIZE  # states per call

    def evaluate(self, blocks: Promoted) -> Block:
        starts = range(0, blocks.slots.size, self.chunk_size)
        chunks = [self.q_function(blocks.states(slice(start, start + self.chunk_size))) for start in starts]
        return q_block(blocks, np.concatenate(chunks))


def q_block(blocks: Promoted, q_rows: NDArray[Any]) -> Block:
    """Blocks with the Q-values [K·(L+1), A] of their states, which must be finite."""
    q_values = as_floats("the Q-function's result", q_rows)
    actions, _, behaviour_probs, _, is_step, _ = blocks.transitions  # [K, L+1] each
    highest, num_states = int(actions.max()), blocks.slots.size
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
