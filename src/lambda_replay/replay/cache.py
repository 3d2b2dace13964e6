"""The cache: random blocks of the memory with precomputed returns, to draw minibatches from; it never copies states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.errors import ConfigError, DivergenceError, diverged
from lambda_replay.replay.data import (
    NO_ACTION,
    Block,
    Booleans,
    Explanation,
    Floats,
    Integers,
    Minibatch,
    Transitions,
    as_floats,
)
from lambda_replay.replay.estimators import Estimator, explain
from lambda_replay.replay.memory import ReplayMemory

QFunction = Callable[[NDArray[Any]], NDArray[Any]]  # states [n, F, *observation] -> Q-values [n, A]


class Cache:
    """S rows (slot, action, return, TD error) in block order; a closing slot's row has no action and is never drawn."""

    def __init__(self, memory: ReplayMemory, slots: Integers, block: Block, explanation: Explanation) -> None:
        returns = as_floats("the estimator's result", explanation.returns)  # [K, L]
        if returns.shape != block.rewards.shape:
            raise ConfigError(
                f"the estimator returned shape {returns.shape} for blocks of {block.rewards.shape}; "
                "it must give one return per step."
            )
        length = slots.shape[1]  # a block may have a tail beyond it
        self._memory = memory
        self._lifetimes = memory.lifetimes(slots[:, 0])  # the first state of a block needs its oldest frame
        self.slots = slots.reshape(-1)  # [S]
        self.actions = block.actions[:, :length].reshape(-1)  # [S]
        kept = np.where(self.actions != NO_ACTION, returns[:, :length].reshape(-1), np.float32(0))  # [S]
        td_errors = kept - block.action_values[:, :length].reshape(-1)  # [S]  both are 0 in closing slots
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
            self.returns: Floats = kept.astype(np.float32, copy=False)
            self.td_errors: Floats = td_errors.astype(np.float32, copy=False)
        is_finite = np.isfinite(self.returns) & np.isfinite(self.td_errors)
        if not is_finite.all():
            raise DivergenceError(
                f"the estimator returned {kept[np.argmin(is_finite)]} for a transition; "
                "it must give returns that are finite as float32."
            )

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.actions.nbytes + self.returns.nbytes + self.td_errors.nbytes

    @property
    def is_transition(self) -> Booleans:  # [S]
        """Which rows can be drawn."""
        return self.actions != NO_ACTION

    def minibatches(
        self,
        batch_size: int,
        updates: int,
        priority: float = 0.0,
        priority_quantile: float = 0.5,
        *,
        rng: np.random.Generator,
    ) -> Iterator[Minibatch]:
        """``updates`` minibatches of rows drawn independently with the probabilities of ``prioritized``."""
        for rows in self.sample_rows(batch_size, updates, priority, priority_quantile, rng=rng):
            yield self.minibatch(rows)

    def sample_rows(
        self,
        batch_size: int,
        updates: int,
        priority: float = 0.0,
        priority_quantile: float = 0.5,
        *,
        rng: np.random.Generator,
    ) -> Integers:
        """Rows [updates, B] of all the minibatches of one refresh."""
        rows = np.flatnonzero(self.is_transition)
        if len(rows) == 0:
            raise ConfigError("the cache holds no transition; store some in the memory before a refresh.")
        cumulative = np.cumsum(prioritized(self.td_errors[rows], priority, priority_quantile))
        drawn = rng.random((updates, batch_size)) * cumulative[-1]
        # The product may round up to the last bound itself, which lies behind the last row.
        return rows[np.minimum(np.searchsorted(cumulative, drawn, side="right"), len(rows) - 1)]

    def minibatch(self, rows: Integers) -> Minibatch:
        """The rows with their states gathered from memory, while it holds those that the cache was made of."""
        written = self._memory.written
        for stream, last in self._lifetimes.items():
            if written[stream] > last:
                raise ConfigError(
                    f"the cache is stale: stream {stream} has now written {written[stream]} slots and overwritten a "
                    "state that the cache reads; refresh again, or give refresh as reserve the number of slots that "
                    "each stream writes before the next refresh."
                )
        return Minibatch(self._memory.states(self.slots[rows]), self.actions[rows], self.returns[rows], rows)


def prioritized(td_errors: Floats, priority: float, quantile: float = 0.5) -> NDArray[np.float64]:
    """Sampling probabilities [n]: a mixture of uniform and uniform above a quantile of |TD error| (paper §3.3).

    P(x_i) = (1−p)/n + p · m_i / Σm,     m_i = 1 above the quantile, 0 below,

    and ties at the quantile share what is missing to a total of (1−q)·n. At the median this is the paper's
    (1+p)/n above, 1/n at (where as many rows lie above as below) and (1−p)/n below. See deviations.md #7.
    """
    if not 0 <= priority <= 1 or not 0 <= quantile < 1:
        raise ConfigError(
            f"priority is {priority} and quantile {quantile}; give a priority in [0, 1], a quantile in [0, 1)."
        )
    errors = np.abs(td_errors)
    if not (len(errors) and np.isfinite(errors).all()):
        raise ConfigError(
            "td_errors is empty or holds a value that is not finite; give the errors of some transitions."
        )
    threshold = np.quantile(errors, quantile)
    is_above, is_tied = errors > threshold, errors == threshold
    num_above, num_tied = int(is_above.sum()), int(is_tied.sum())
    missing = np.clip((1 - quantile) * len(errors) - num_above, 0, num_tied)
    members = is_above + is_tied * (missing / max(1, num_tied))  # [n]  m
    return (1 - priority) / len(errors) + priority * members / members.sum()


def refresh(
    memory: ReplayMemory,
    q_function: QFunction,
    estimator: Estimator,
    *,
    discount: float,
    size: int,
    block_length: int,
    rng: np.random.Generator,
    tail: int = 0,
    reserve: int = 0,
    chunk_size: int = 1024,
) -> Cache:
    """A cache of ``size`` rows with returns computed by the present Q-function (paper, Algorithm 1, BUILD-CACHE).

    ``tail`` more steps per block are computed and dropped; ``reserve`` is that of ``sample_blocks``; ``q_function``
    is never called with more than ``chunk_size`` states.
    """
    if size < 1 or block_length < 1 or size % block_length or tail < 0:
        raise ConfigError(
            f"size ({size}) must be a multiple of block_length ({block_length}), tail ({tail}) 0 or more."
        )
    if not 0 <= discount <= 1 or chunk_size < 1:
        raise ConfigError(f"discount is {discount} and chunk_size {chunk_size}; give a number from 0 to 1, 1 or more.")
    slots = memory.sample_blocks(size // block_length, block_length + tail, rng, reserve)  # [K, L+1]
    transitions = memory.transitions(slots)
    block = make_block(memory, slots, transitions, q_function, discount=discount, chunk_size=chunk_size)
    return Cache(memory, slots[:, :block_length], block, explain(estimator, block))


def make_block(
    memory: ReplayMemory,
    slots: Integers,
    transitions: Transitions,
    q_function: QFunction,
    *,
    discount: float,
    chunk_size: int = 1024,
) -> Block:
    """The blocks of slots [K, L+1] with the Q-values of all their states, computed in chunks of bounded size."""
    flat = slots.reshape(-1)
    starts = range(0, len(flat), chunk_size)
    chunks = [q_function(memory.states(flat[start : start + chunk_size])) for start in starts]
    q_values = as_floats("the Q-function's result", np.concatenate(chunks))
    actions, rewards, behaviour_probs, terminated = transitions  # [K, L+1] each
    if q_values.ndim != 2 or len(q_values) != len(flat) or q_values.shape[1] <= actions.max():
        raise ConfigError(
            f"the Q-function gave shape {q_values.shape} for {len(flat)} states and actions up to {actions.max()}; "
            "it must give one row per state and one column per action."
        )
    if not np.isfinite(q_values).all():
        raise diverged("the Q-values are")
    is_action = actions != NO_ACTION
    has_future = is_action[:, :-1] & ~terminated[:, :-1]
    return Block(
        rewards=rewards[:, :-1],
        discounts=np.where(has_future, np.float32(discount), np.float32(0)),
        q_values=q_values.reshape(*slots.shape, -1),
        actions=actions,
        behaviour_probs=behaviour_probs,
        continues=has_future & is_action[:, 1:],
    )
