"""The cache: random blocks of the memory with precomputed returns, to draw minibatches from; it never copies states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.checks import require_whole
from lambda_replay.config import Sampling
from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.replay.critic import CHUNK_SIZE, Critic, Promoted, QFunction, as_critic, promote
from lambda_replay.replay.data import Booleans, Evaluation, Explanation, Floats, Integers, Minibatch, as_floats
from lambda_replay.replay.diagnostics import Metrics, describe_refresh, describe_relabelled
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator, explain
from lambda_replay.replay.goals import Relabelled
from lambda_replay.replay.memory import ReplayMemory


class Cache:
    """S rows (slot, action, return, TD error) in block order; the row of a closing slot is never drawn.

    ``metrics`` describes the refresh; names as in docs/metrics.md.
    """

    def __init__(self, blocks: Promoted, evaluation: Evaluation, explanation: Explanation) -> None:
        """With several critics, keep the minimum return (Kozuno et al. 2021), and TD errors against the mean value."""
        length = blocks.length
        if evaluation.rewards.shape != blocks.rewards.shape:
            raise ConfigError(
                f"the critic returned blocks of {evaluation.rewards.shape} for {blocks.rewards.shape}; "
                "it must evaluate every step."
            )
        is_step = blocks.transitions.is_step[:, :-1]  # [K, L]
        if not np.array_equal(evaluation.is_transition, is_step):
            raise ConfigError(
                "the critic's blocks and the memory disagree on where an action was taken; give "
                "is_step=blocks.transitions.is_step."
            )
        returns = as_floats("the estimator's result", explanation.returns)  # [..., K, L]
        num_axes = max(evaluation.next_values().ndim, evaluation.action_values.ndim)  # several critics: more than two
        if returns.shape[-2:] != evaluation.rewards.shape or returns.ndim > num_axes:
            raise ConfigError(
                f"the estimator returned shape {returns.shape} for blocks of {evaluation.rewards.shape}; "
                "it must return one number per step."
            )
        values = evaluation.action_values[..., :length]
        if returns.ndim > 2:  # several critics
            returns = returns.min(axis=tuple(range(returns.ndim - 2)))
        if values.ndim > 2:
            values = values.mean(axis=tuple(range(values.ndim - 2)))
        self._memory, self._lifetimes, self._relabelled = blocks.memory, blocks.lifetimes, _kept_goals(blocks)
        self.slots = blocks.slots[:, :length].reshape(-1)  # [S]
        actions = blocks.transitions.actions[:, :length]
        self.actions = actions.reshape(-1, *actions.shape[2:])  # [S] or [S, D]
        self.is_transition: Booleans = is_step[:, :length].reshape(-1)  # [S]  which rows can be drawn
        kept = np.where(self.is_transition, returns[:, :length].reshape(-1), np.float32(0))  # [S]
        td_errors = kept - values.reshape(-1)  # [S]  both are 0 in closing slots
        with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are rejected
            self.returns: Floats = kept.astype(np.float32, copy=False)
            self.td_errors: Floats = td_errors.astype(np.float32, copy=False)
        is_finite = np.isfinite(self.returns) & np.isfinite(self.td_errors)
        if not is_finite.all():
            raise DivergenceError(
                f"the estimator returned {kept[np.argmin(is_finite)]} for a transition; "
                "its returns must be finite as float32."
            )
        drawn = self.is_transition
        self.metrics: Metrics = describe_refresh(self.returns[drawn], self.td_errors[drawn], evaluation, explanation)
        if self._relabelled is not None:
            self.metrics |= describe_relabelled(self.returns, drawn, len(self._relabelled.goals))

    @property
    def nbytes(self) -> int:
        held = (self.slots, self.actions, self.returns, self.td_errors, self.is_transition)
        goals_bytes = 0 if self._relabelled is None else self._relabelled.goals.nbytes
        return sum(array.nbytes for array in held) + goals_bytes

    def minibatches(
        self,
        batch_size: int,
        updates: int,
        priority: float = 0.0,
        priority_quantile: float = 0.5,
        *,
        rng: np.random.Generator,
        sampling: Sampling = "independent",
    ) -> Iterator[Minibatch]:
        """``updates`` minibatches of rows drawn with the probabilities of ``prioritized``.

        ``sampling`` is independent, or systematic: each row as often as its probability says, to within one draw.
        """
        for rows in self.sample_rows(batch_size, updates, priority, priority_quantile, rng=rng, sampling=sampling):
            yield self.minibatch(rows)

    def sample_rows(
        self,
        batch_size: int,
        updates: int,
        priority: float = 0.0,
        priority_quantile: float = 0.5,
        *,
        rng: np.random.Generator,
        sampling: Sampling = "independent",
    ) -> Integers:
        """Rows [updates, B] of all the minibatches of one refresh."""
        require_whole(batch_size=(batch_size, 1), updates=(updates, 1))
        rows = np.flatnonzero(self.is_transition)
        if len(rows) == 0:
            raise ConfigError("the cache holds no transition; store some in the memory before a refresh.")
        probabilities = prioritized(self.td_errors[rows], priority, priority_quantile)
        return rows[draw(probabilities, (updates, batch_size), sampling, rng=rng)]

    def minibatch(self, rows: Integers) -> Minibatch:
        """The rows with their states gathered from memory; they must be transitions."""
        if not self.is_transition[rows].all():
            raise ConfigError(
                "rows holds slots in which an episode ended, which have no return; draw from "
                "np.flatnonzero(cache.is_transition)."
            )
        slots = self.slots[rows]
        states = self.states(slots)
        if self._relabelled is not None:
            states = self._relabelled.show(states, rows, self._memory.frames[slots])
        return Minibatch(states, self.actions[rows], self.returns[rows], rows)

    def states(self, slots: Integers) -> NDArray[Any]:
        """States [n, F, *observation] of slots [n] of the blocks, as long as the memory still holds them."""
        written = self._memory.written
        for stream, last in self._lifetimes.items():
            if written[stream] > last:
                raise ConfigError(
                    f"the cache is stale: stream {stream} has now written {written[stream]} slots and overwritten a "
                    "state that the cache reads; refresh again, or set refresh's reserve to the number of slots that "
                    "each stream writes between refreshes."
                )
        return self._memory.states(slots)


def _kept_goals(blocks: Promoted) -> Relabelled | None:
    """The goals of relabelled blocks by the cache's rows, which leave out each block's last slot and its tail."""
    if blocks.relabelled is None:
        return None
    goals = blocks.relabelled.goals  # [n·(L+1), G]
    by_block = goals.reshape(-1, blocks.slots.shape[1], goals.shape[-1])
    return blocks.relabelled._replace(goals=by_block[:, : blocks.length].reshape(-1, goals.shape[-1]))


def prioritized(td_errors: Floats, priority: float, quantile: float = 0.5) -> NDArray[np.float64]:
    """Sampling probabilities [n]: a mixture of uniform and uniform above a quantile of |TD error| (paper §3.3).

    P(x_i) = (1−p)/n + p · m_i / Σm,     m_i = 1 above the quantile, 0 below,

    and ties at the quantile share what is left of the total (1−q)·n. At the median this is the paper's
    (1+p)/n above, 1/n at it (if as many rows are above as below) and (1−p)/n below. See deviations.md #7.
    """
    if not 0 <= priority <= 1 or not 0 <= quantile < 1:
        raise ConfigError(
            f"priority is {priority} and quantile {quantile}; give a priority in [0, 1] and a quantile in [0, 1)."
        )
    errors = np.abs(as_floats("td_errors", td_errors))
    if errors.ndim != 1 or not (len(errors) and np.isfinite(errors).all()):
        raise ConfigError(
            f"td_errors has shape {errors.shape}, or holds a value that is not finite; give the errors [n] of some "
            "transitions."
        )
    threshold = np.quantile(errors, quantile)
    is_above, is_tied = errors > threshold, errors == threshold
    num_above, num_tied = int(is_above.sum()), int(is_tied.sum())
    missing = np.clip((1 - quantile) * len(errors) - num_above, 0, num_tied)
    members = is_above + is_tied * (missing / max(1, num_tied))  # [n]  m
    return (1 - priority) / len(errors) + priority * members / members.sum()


def draw(
    probabilities: NDArray[np.float64], shape: tuple[int, int], sampling: Sampling, *, rng: np.random.Generator
) -> Integers:
    """Indices [*shape] drawn with these probabilities [n]."""
    if sampling not in _DRAWS:
        raise ConfigError(f"sampling is {sampling!r}; choose one of {', '.join(_DRAWS)}.")
    return _DRAWS[sampling](probabilities, math.prod(shape), rng).reshape(shape)


def draw_independent(probabilities: NDArray[np.float64], count: int, rng: np.random.Generator) -> Integers:
    """``count`` indices, each drawn with these probabilities [n] whatever the others are."""
    return _places(np.cumsum(probabilities), rng.random(count))


def draw_systematic(probabilities: NDArray[np.float64], count: int, rng: np.random.Generator) -> Integers:
    """``count`` indices in random order, index i as often as count · P(i) says, to within one draw per pass.

    In passes of up to n draws, (j + u) / n for j = 0 … n−1 and one u ~ U[0, 1) hit a cumulative distribution over the
    indices in random order: systematic sampling (Madow 1949). With equal probabilities, every pass is an epoch.
    """
    size, passes = len(probabilities), []
    for start in range(0, count, size):
        order, draws = rng.permutation(size), min(size, count - start)
        points = (np.arange(draws) + rng.random()) / draws
        passes.append(rng.permutation(order[_places(np.cumsum(probabilities[order]), points)]))
    return np.concatenate(passes)


def _places(cumulative: NDArray[np.float64], points: NDArray[np.float64]) -> Integers:
    """The index of the step of a cumulative distribution [n] that each point in [0, 1) falls on."""
    # The product may round up to the last bound itself, which would be past the last index.
    places: Integers = np.searchsorted(cumulative, points * cumulative[-1], side="right")
    return np.minimum(places, len(cumulative) - 1)


_DRAWS: dict[str, Callable[[NDArray[np.float64], int, np.random.Generator], Integers]] = {
    "independent": draw_independent,
    "systematic": draw_systematic,
}


def refresh(
    memory: ReplayMemory,
    critic: Critic | QFunction,
    estimator: Estimator | str,
    *,
    discount: float,
    size: int,
    block_length: int,
    rng: np.random.Generator,
    tail: int = 0,
    reserve: int = 0,
    newest: bool = False,
    chunk_size: int = CHUNK_SIZE,
) -> Cache:
    """A cache of ``size`` rows with returns from the critic's current values (paper, Algorithm 1, BUILD-CACHE).

    ``critic`` is a ``Critic`` or a Q-function, states [n, F, *observation] -> Q-values [n, A], which is called with at
    most ``chunk_size`` states at a time; ``estimator`` is a callable, or a name such as peng:0.7. The other arguments
    are those of ``promote``.
    """
    require_whole(chunk_size=(chunk_size, 1))
    blocks = promote(
        memory,
        discount=discount,
        size=size,
        block_length=block_length,
        rng=rng,
        tail=tail,
        reserve=reserve,
        newest=newest,
    )
    return build_cache(blocks, as_critic(critic, chunk_size), estimator)


def build_cache(blocks: Promoted, critic: Critic | QFunction, estimator: Estimator | str) -> Cache:
    """BUILD-CACHE of Algorithm 1 for all blocks at once: values, one recursion, rows to draw from."""
    computes = parse_estimator(estimator) if isinstance(estimator, str) else estimator
    if not callable(computes):
        raise ConfigError(
            f"the estimator is of type {type(computes).__name__}; give a name such as peng:0.7, or a callable."
        )
    return fill_cache(blocks, as_critic(critic).evaluate(blocks), computes)


def fill_cache(blocks: Promoted, evaluation: Evaluation, estimator: Estimator) -> Cache:
    """The second half of ``build_cache``, for values that are already there."""
    if not hasattr(evaluation, "is_transition"):
        raise ConfigError(
            f"the critic's evaluate returned {type(evaluation).__name__}; it must return a Block or a ValueBlock. A "
            "Q-function with another method of that name can be passed as lambda states: model(states)."
        )
    return Cache(blocks, evaluation, explain(estimator, evaluation))
