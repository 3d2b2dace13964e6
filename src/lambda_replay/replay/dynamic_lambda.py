"""Estimators that choose λ from the data: the median of many, or the largest that satisfies an error bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lambda_replay.replay.data import Booleans, Evaluation, Explanation, Floats
from lambda_replay.replay.estimators import peng, returns_alone, short_number, watkins

BOUNDED_SEARCH_DEPTH = 7  # halvings of the λ interval; paper, appendix C

_FAMILIES: dict[str, Callable[[Evaluation, Floats], Explanation]] = {"": peng, "watkins-": watkins}


@dataclass(frozen=True, repr=False)
class Median:
    """At each step the median of the k+1 returns with λ = 0/k, 1/k, …, k/k; k is 20 if left out. Paper §3.4"""

    k: int = 20
    family: str = ""
    __call__ = returns_alone

    def __repr__(self) -> str:
        return f"{self.family}median" + ("" if self.k == 20 else f"/{self.k}")

    def explain(self, block: Evaluation) -> Explanation:
        values = block.shared_action_values  # [..., K, L+1]
        lambdas = (np.arange(self.k + 1) / self.k).astype(values.dtype)  # [k+1]
        along_first = lambdas.reshape(-1, *[1] * values.ndim)
        candidates = _FAMILIES[self.family](block, along_first).returns  # [k+1, ..., K, L]
        returns = np.partition(candidates, self.k // 2, axis=0)[self.k // 2]  # k is even: one of the candidates
        chosen = lambdas[np.argmax(candidates == returns, axis=0)]  # the smallest λ that gives the median
        return Explanation(returns, lambdas=chosen)


@dataclass(frozen=True, repr=False)
class Bounded:
    """For each block the largest λ found with mean |G_t − Q(s_t,a_t)| ≤ δ, or 0 if there is none. Paper, appendix C"""

    bound: float
    family: str = ""
    __call__ = returns_alone

    def __repr__(self) -> str:
        return f"{self.family}bounded:{short_number(self.bound)}"

    def explain(self, block: Evaluation) -> Explanation:
        shape = block.shared_action_values.shape[:-1]
        zeros, ones = np.zeros(shape), np.ones(shape)  # [..., K]
        is_free = self._satisfies(block, ones)  # where λ = 1 satisfies the bound, λ is 1
        has_search = ~is_free & self._satisfies(block, zeros)  # where even λ = 0 breaks the bound, λ is 0
        low, high = np.where(is_free, ones, zeros), np.where(is_free | has_search, ones, zeros)
        for _ in range(BOUNDED_SEARCH_DEPTH):
            middle = (low + high) / 2
            is_satisfied = self._satisfies(block, middle) | ~has_search
            low, high = np.where(is_satisfied, middle, low), np.where(is_satisfied, high, middle)
        chosen = low.astype(block.action_values.dtype)[..., None]
        lambdas = np.broadcast_to(chosen, (*low.shape, block.rewards.shape[1]))
        return self._with(block, low)._replace(lambdas=lambdas)

    def _with(self, block: Evaluation, lambdas: Floats) -> Explanation:
        return _FAMILIES[self.family](block, lambdas.astype(block.action_values.dtype)[..., None])

    def _satisfies(self, block: Evaluation, lambdas: Floats) -> Booleans:  # [..., K]
        errors = np.abs(self._with(block, lambdas).returns - block.shared_action_values[..., :-1])
        totals = np.where(block.is_transition, errors, 0).sum(axis=-1, dtype=np.float64)
        return totals <= self.bound * block.is_transition.sum(axis=1)
