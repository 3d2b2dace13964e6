"""Literal float64 definitions of the returns of critics without a row of Q-values, one start step at a time.

Slow on purpose and blind to the backward recursion under test. They read one critic's values, [K, L+1] each; entries at
closing slots are NaN: they have no meaning, and a comparison that reads one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.data import ValueBlock

Returns = NDArray[np.float64]  # [K, L]
SEARCH_DEPTH = 7  # Daley & Amato (2019), appendix on bounded TD error


def n_step_returns(block: ValueBlock, k: int, start: int) -> list[float]:
    """R⁽¹⁾ … R⁽ᴺ⁾ from one step to the end of its episode or block; the entropies V − b of the states passed count.

    R⁽ⁿ⁾ = Σ_{i<n} γⁱ·r_{t+i} + Σ_{0<i<n} γⁱ·(V − b)(s_{t+i}) + γⁿ·V(s_{t+n}); b is V for a critic that is not soft.
    """
    rewards, discounts = block.rewards[k].astype(np.float64), block.discounts[k].astype(np.float64)
    values = block.values[k].astype(np.float64)
    baselines = values if block.baselines is None else block.baselines[k].astype(np.float64)
    found, total, weight, t = [], 0.0, 1.0, start
    while True:
        total += weight * rewards[t]
        weight *= discounts[t]
        found.append(float(total + weight * values[t + 1]))
        if t == len(rewards) - 1 or not block.continues[k, t]:
            return found
        t += 1
        total += weight * (values[t] - baselines[t])


def of_every_start(block: ValueBlock, start_return: Callable[[list[float]], float]) -> Returns:
    """A function of the n-step returns of each step; NaN at closing slots."""
    returns = np.full(block.rewards.shape, np.nan)
    for k, start in np.argwhere(block.is_transition):
        returns[k, start] = start_return(n_step_returns(block, k, start))
    return returns


def literal_n_step(block: ValueBlock, n: int) -> Returns:
    """R⁽ⁿ⁾, or the longest shorter one where the episode or the block ends before."""
    return of_every_start(block, lambda returns: returns[min(n, len(returns)) - 1])


def lambda_average(returns: list[float], lambda_: float) -> float:
    """(1−λ)·Σ_{n<N} λⁿ⁻¹·R⁽ⁿ⁾ + λᴺ⁻¹·R⁽ᴺ⁾."""
    last = len(returns)
    shorter = sum(lambda_ ** (n - 1) * returns[n - 1] for n in range(1, last))
    return (1 - lambda_) * shorter + lambda_ ** (last - 1) * returns[-1]


def literal_lambda(block: ValueBlock, lambda_: float) -> Returns:
    """The λ-average of the n-step returns."""
    return of_every_start(block, lambda returns: lambda_average(returns, lambda_))


def literal_retrace(block: ValueBlock, lambda_: float) -> Returns:
    """Q(s_t,a_t) + Σ_{s≥t} γ^{s−t}·(Π_{i=t+1}^{s} c_i)·[r_s + γ·V(s_{s+1}) − Q(s_s,a_s)], c_i = λ·min(1, π/μ).

    Munos et al. (2016), equation 3, one start at a time.
    """
    assert block.ratios is not None
    arrays = (block.rewards, block.discounts, block.values, block.action_values, block.ratios)
    rewards, discounts, values, taken, ratios = (array.astype(np.float64) for array in arrays)
    num_blocks, length = rewards.shape
    returns = np.full((num_blocks, length), np.nan)
    for k, start in np.argwhere(block.is_transition):
        total, weight, t = taken[k, start], 1.0, start
        while True:
            total += weight * (rewards[k, t] + discounts[k, t] * values[k, t + 1] - taken[k, t])
            if t == length - 1 or not block.continues[k, t]:
                break
            weight *= discounts[k, t] * lambda_ * min(1.0, ratios[k, t + 1])
            t += 1
        returns[k, start] = total
    return returns


def literal_median(block: ValueBlock, k: int) -> Returns:
    """The median of the returns with λ = 0/k, 1/k, …, k/k at each step."""
    return of_every_start(
        block, lambda returns: float(np.median([lambda_average(returns, i / k) for i in range(k + 1)]))
    )


class Bounded(NamedTuple):
    """Returns with the λ that is chosen for each block."""

    returns: Returns
    lambdas: NDArray[np.float64]  # [K]
    margins: NDArray[np.float64]  # [K]  how near to the bound the closest error was that the choice looked at


def literal_bounded(block: ValueBlock, bound: float) -> Bounded:
    """Per block λ = 1 if mean |G − Q(s, a)| ≤ δ with it, 0 if even that breaks the bound, else by a binary search."""
    num_blocks = len(block.rewards)
    found = Bounded(np.full(block.rewards.shape, np.nan), np.zeros(num_blocks), np.full(num_blocks, np.inf))
    for k in range(num_blocks):
        steps = np.flatnonzero(block.is_transition[k])
        candidates = [n_step_returns(block, k, int(start)) for start in steps]
        taken = block.action_values[k, steps].astype(np.float64)

        def satisfies(lambda_: float, k: int = k, candidates: Any = candidates, taken: Any = taken) -> bool:
            errors = [abs(lambda_average(own, lambda_) - value) for own, value in zip(candidates, taken, strict=True)]
            error = float(np.mean(errors)) if errors else 0.0
            found.margins[k] = min(found.margins[k], abs(error - bound))
            return error <= bound

        low, high = (1.0, 1.0) if satisfies(1.0) else (0.0, 1.0 if satisfies(0.0) else 0.0)
        for _ in range(SEARCH_DEPTH if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if satisfies(middle) else (low, middle)
        found.lambdas[k] = low
        found.returns[k, steps] = [lambda_average(own, low) for own in candidates]
    return found


def literal_returns(block: ValueBlock, spelling: str) -> Returns:
    """The returns of an estimator by its name; NaN in blocks where ``bounded`` could as well have chosen another λ."""
    name, _, argument = spelling.replace("/", ":").partition(":")
    if name == "bounded":
        returns, _, margins = literal_bounded(block, float(argument))
        return np.where(margins[:, None] > 1e-5, returns, np.nan)
    if name in ("nstep", "median"):
        return {"nstep": literal_n_step, "median": literal_median}[name](block, int(argument))
    return {"peng": literal_lambda, "retrace": literal_retrace}[name](block, float(argument))


# --- through an agent's critic ----------------------------------------------------------------------------------------


def valued(
    blocks: lr.Promoted,
    values: NDArray[Any],
    taken: NDArray[Any],
    *,
    baselines: NDArray[Any] | None = None,
    ratios: NDArray[Any] | None = None,
) -> ValueBlock:
    """The steps of some blocks, read from what the memory holds, with one critic's values [K, L+1]."""
    found = blocks.transitions
    return ValueBlock(
        rewards=found.rewards[:, :-1],
        discounts=np.where(found.terminated[:, :-1], 0.0, blocks.discount),
        values=values,
        action_values=taken,
        continues=found.is_step[:, :-1] & found.is_step[:, 1:],  # every episode closes with a slot that is no step
        baselines=baselines,
        ratios=ratios,
        is_step=found.is_step,
    )


def assert_literal(cache: lr.Cache, spelling: str, critics: Sequence[ValueBlock], taken: NDArray[Any]) -> None:
    """The cache has the smallest of the returns of these critics, and TD errors R − Q(s, a) with Q(s, a) [K, L+1]."""
    is_step = critics[0].is_transition
    expected = np.min([literal_returns(critic, spelling) for critic in critics], axis=0)
    returns, errors = (array.reshape(is_step.shape) for array in (cache.returns, cache.td_errors))
    known = ~np.isnan(expected)
    assert known[is_step].mean() > 0.8  # all of them, but for a choice of λ on the border
    assert_allclose(returns[known], expected[known], rtol=1e-4, atol=1e-4)
    assert_allclose(errors[known], (expected - taken[:, :-1])[known], rtol=1e-3, atol=2e-4)
