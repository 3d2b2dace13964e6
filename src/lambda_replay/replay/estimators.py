"""Return estimators as frozen callables ``Block -> returns``; the recursions are in returns.py, names in spellings.py.

A user's own estimator is any callable from a Block to returns [K, L]. Ours also ``explain`` themselves: the traces
they used and the λ they chose, for the metrics and for ``lambda-replay inspect``. Each docstring gives its source and

    V, b, c of  G_t = r_t + γ_t · [ V_{t+1} + c_{t+1} · (G_{t+1} − b_{t+1}) ],      s' and a' being s_{t+1} and a_{t+1}.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from lambda_replay.replay.data import NO_ACTION, Block, Booleans, Explanation, Floats
from lambda_replay.replay.returns import backward_returns, nstep_returns

BOUNDED_SEARCH_DEPTH = 7  # halvings of the λ interval; paper, appendix C


class Estimator(Protocol):
    """Anything that turns blocks into returns [K, L]."""

    def __call__(self, block: Block) -> Floats: ...


def explain(estimator: Estimator, block: Block) -> Explanation:
    """Returns with what the estimator can say about them; a user's callable says nothing more."""
    explains: Callable[[Block], Explanation] | None = getattr(estimator, "explain", None)
    return Explanation(estimator(block)) if explains is None else explains(block)


def policy_values(block: Block, epsilon: float) -> Floats:  # [K, L]
    """Σ_a π(a|s') Q(s', a) for the ε-greedy π, which is (1−ε)·max Q + ε·mean Q."""
    greedy, mean = block.greedy_values[:, 1:], block.q_values[:, 1:].mean(axis=-1)
    return greedy if epsilon == 0 else _like(block, 1 - epsilon) * greedy + _like(block, epsilon) * mean


def policy_probs(block: Block, epsilon: float) -> Floats:  # [K, L]
    """π(a'|s') for the ε-greedy π, tied greedy actions sharing the greedy mass."""
    num_greedy = (block.q_values == block.greedy_values[..., None]).sum(axis=-1)[:, 1:]
    greedy_share = is_greedy(block)[:, 1:] / num_greedy
    return (epsilon / block.q_values.shape[-1] + (1 - epsilon) * greedy_share).astype(block.q_values.dtype)


def is_greedy(block: Block) -> Booleans:  # [K, L+1]
    """Whether a_t maximises Q(s_t, ·). Values are compared, not indices, so that a tied action is greedy too."""
    return block.action_values == block.greedy_values


def _like(block: Block, number: float) -> Floats:
    return np.asarray(number, dtype=block.q_values.dtype)


def _traced(block: Block, values: Floats, baselines: Floats, traces: Floats) -> Explanation:
    """The recursion with the trace cut at every end of an episode; ``traces`` may have leading candidate axes."""
    next_traces = np.where(block.continues, traces, _like(block, 0))
    return Explanation(backward_returns(block.rewards, block.discounts, values, baselines, next_traces), next_traces)


def _peng(block: Block, lambdas: Floats) -> Explanation:
    values = block.greedy_values[:, 1:]
    return _traced(block, values, values, lambdas)


def _watkins(block: Block, lambdas: Floats) -> Explanation:
    return _peng(block, np.where(is_greedy(block)[:, 1:], lambdas, _like(block, 0)))


def _returns_alone(self: Any, block: Block) -> Floats:
    """``__call__`` of every estimator below."""
    returns: Floats = self.explain(block).returns
    return returns


def _lambda_spelling(self: Any) -> str:
    """``__repr__`` of every estimator with a fixed λ and, perhaps, an ε-greedy target policy."""
    epsilon = getattr(self, "epsilon", 0.0)
    return f"{self.name}:{_number(self.lambda_)}" + ("" if epsilon == 0 else f"@{_number(epsilon)}")


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


@dataclass(frozen=True, repr=False)
class Peng:
    """V = max Q(s',·), b = V, c = λ. Peng & Williams 1994; paper eq. (3)"""

    lambda_: float
    name: ClassVar[str] = "peng"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        return _peng(block, _like(block, self.lambda_))


@dataclass(frozen=True, repr=False)
class Watkins:
    """V = max Q(s',·), b = V, c = λ·[a' greedy in s']. Watkins 1989; Sutton & Barto 1st ed. §7.6"""

    lambda_: float
    name: ClassVar[str] = "watkins"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        return _watkins(block, _like(block, self.lambda_))


@dataclass(frozen=True, repr=False)
class WatkinsPublished:
    """V = max Q(s',·), b = V, c = λ·[a greedy in s]. The paper's released code, one step early; see deviations.md #4"""

    lambda_: float
    name: ClassVar[str] = "watkins-published"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        return _peng(block, np.where(is_greedy(block)[:, :-1], _like(block, self.lambda_), _like(block, 0)))


@dataclass(frozen=True, repr=False)
class NStep:
    """r_t + γ·r_{t+1} + … + γⁿ·max Q(s_{t+n},·). Paper eq. (1)"""

    n: int
    __call__ = _returns_alone

    def __repr__(self) -> str:
        return f"nstep:{self.n}"

    def explain(self, block: Block) -> Explanation:
        values = block.greedy_values[:, 1:]
        return Explanation(nstep_returns(block.rewards, block.discounts, values, block.continues, self.n))


@dataclass(frozen=True, repr=False)
class TreeBackup:
    """V = Σπ Q(s',·), b = Q(s',a'), c = λ·π(a'|s'); π is ε-greedy. Tree Backup: Precup, Sutton & Singh 2000"""

    lambda_: float
    epsilon: float = 0.0
    name: ClassVar[str] = "tree"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        traces = _like(block, self.lambda_) * policy_probs(block, self.epsilon)
        return _traced(block, policy_values(block, self.epsilon), block.action_values[:, 1:], traces)


@dataclass(frozen=True, repr=False)
class Retrace:
    """V = Σπ Q(s',·), b = Q(s',a'), c = λ·min(1, π(a'|s') / μ(a'|s')); π is ε-greedy. Munos et al. 2016"""

    lambda_: float
    epsilon: float = 0.0
    name: ClassVar[str] = "retrace"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        behaviour = np.where(block.actions[:, 1:] == NO_ACTION, _like(block, 1), block.behaviour_probs[:, 1:])
        ratios = policy_probs(block, self.epsilon) / behaviour
        traces = _like(block, self.lambda_) * np.minimum(_like(block, 1), ratios)
        return _traced(block, policy_values(block, self.epsilon), block.action_values[:, 1:], traces)


@dataclass(frozen=True, repr=False)
class QStar:
    """V = max Q(s',·), b = Q(s',a'), c = λ; contracts only for λ < (1−γ)/(2γ). Q*(λ): Harutyunyan et al. 2016"""

    lambda_: float
    name: ClassVar[str] = "qstar"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        discount = float(block.discounts.max())
        if 2 * discount * self.lambda_ >= 1 - discount > 0:
            limit = (1 - discount) / (2 * discount)
            warnings.warn(f"{self!r} may diverge: it contracts only for λ below {limit:.4g}; lower λ.", stacklevel=3)
        return _traced(block, block.greedy_values[:, 1:], block.action_values[:, 1:], _like(block, self.lambda_))


@dataclass(frozen=True, repr=False)
class ExpectedSarsa:
    """V = Σπ Q(s',·), b = V, c = λ; π is ε-greedy. Expected Sarsa(λ): Van Seijen et al. 2009; Sutton & Barto §12.7"""

    lambda_: float
    epsilon: float = 0.0
    name: ClassVar[str] = "sarsa"
    __call__, __repr__ = _returns_alone, _lambda_spelling

    def explain(self, block: Block) -> Explanation:
        values = policy_values(block, self.epsilon)
        return _traced(block, values, values, _like(block, self.lambda_))


_FAMILIES: dict[str, Callable[[Block, Floats], Explanation]] = {"": _peng, "watkins-": _watkins}


@dataclass(frozen=True, repr=False)
class Median:
    """At each step the median of the k+1 returns with λ = 0/k, 1/k, …, k/k; k is 20 if left out. Paper §3.4"""

    k: int = 20
    family: str = ""
    __call__ = _returns_alone

    def __repr__(self) -> str:
        return f"{self.family}median" + ("" if self.k == 20 else f"/{self.k}")

    def explain(self, block: Block) -> Explanation:
        lambdas = (np.arange(self.k + 1) / self.k).astype(block.q_values.dtype)  # [k+1]
        candidates = _FAMILIES[self.family](block, lambdas[:, None, None]).returns  # [k+1, K, L]
        returns = np.partition(candidates, self.k // 2, axis=0)[self.k // 2]  # [K, L]; k is even: one of the candidates
        chosen = lambdas[np.argmax(candidates == returns, axis=0)]  # the smallest λ that gives the median
        return Explanation(returns, lambdas=chosen)


@dataclass(frozen=True, repr=False)
class Bounded:
    """For each block the largest λ found with mean |G_t − Q(s_t,a_t)| ≤ δ, or 0 if λ = 0 has more. Paper, appendix C"""

    bound: float
    family: str = ""
    __call__ = _returns_alone

    def __repr__(self) -> str:
        return f"{self.family}bounded:{_number(self.bound)}"

    def explain(self, block: Block) -> Explanation:
        zeros, ones = np.zeros(len(block.rewards)), np.ones(len(block.rewards))  # [K]
        is_free = self._satisfies(block, ones)  # where λ = 1 keeps the bound, λ is 1
        has_search = ~is_free & self._satisfies(block, zeros)  # where even λ = 0 breaks the bound, λ is 0
        low, high = np.where(is_free, ones, zeros), np.where(is_free | has_search, ones, zeros)
        for _ in range(BOUNDED_SEARCH_DEPTH):
            middle = (low + high) / 2
            is_satisfied = self._satisfies(block, middle) | ~has_search
            low, high = np.where(is_satisfied, middle, low), np.where(is_satisfied, high, middle)
        lambdas = np.broadcast_to(low.astype(block.q_values.dtype)[:, None], block.rewards.shape)
        return self._with(block, low)._replace(lambdas=lambdas)

    def _with(self, block: Block, lambdas: Floats) -> Explanation:
        return _FAMILIES[self.family](block, lambdas.astype(block.q_values.dtype)[:, None])

    def _satisfies(self, block: Block, lambdas: Floats) -> Booleans:  # [K]
        errors = np.abs(self._with(block, lambdas).returns - block.action_values[:, :-1])
        totals = np.where(block.is_transition, errors, 0).sum(axis=1, dtype=np.float64)
        return totals <= self.bound * block.is_transition.sum(axis=1)
