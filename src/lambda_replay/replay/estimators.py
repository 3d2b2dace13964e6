"""Return estimators: frozen callables ``blocks -> returns``. Recursions are in returns.py, names in estimator_names.py.

A user's own estimator is any callable from a Block to returns [K, L]. Ours also ``explain`` the traces they
used and the λ they chose, for the metrics and for ``lambda-replay inspect``. Each docstring gives its source and

    V, b, c of  G_t = r_t + γ_t · [ V_{t+1} + c_{t+1} · (G_{t+1} − b_{t+1}) ],      with s' = s_{t+1} and a' = a_{t+1}.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Evaluation, Explanation, Floats
from lambda_replay.replay.returns import backward_returns, nstep_returns


class Estimator(Protocol):
    """Anything that turns blocks into returns [..., K, L]."""

    def __call__(self, block: Evaluation) -> Floats: ...


def check_fits(estimator: Estimator, block: Evaluation) -> None:
    """Reject an estimator that asks for what this block's critic does not know, by trying it."""
    try:
        estimator(block)
    except AttributeError as error:  # a user's own, written for a Block
        if error.obj is not block:
            raise
        raise ConfigError(
            f"it reads {error.name}, which is not known here; let it use next_values() and action_values."
        ) from error


def explain(estimator: Estimator, block: Evaluation) -> Explanation:
    """Returns with the estimator's explanation; a user's callable may have none."""
    explains: Callable[[Evaluation], Explanation] | None = getattr(estimator, "explain", None)
    return Explanation(estimator(block)) if explains is None else explains(block)


def _like(block: Evaluation, number: float) -> Floats:
    return np.asarray(number, dtype=block.action_values.dtype)


def _traced(block: Evaluation, values: Floats, baselines: Floats, traces: Floats) -> Explanation:
    """The recursion with the trace cut at the end of every episode; ``traces`` may have leading candidate axes."""
    next_traces = np.where(block.continues, traces, _like(block, 0))
    return Explanation(backward_returns(block.rewards, block.discounts, values, baselines, next_traces), next_traces)


def peng(block: Evaluation, lambdas: Floats) -> Explanation:
    values, baselines = block.next_values(), block.next_baselines()
    return _traced(block, values, values if baselines is None else baselines, lambdas)


def watkins(block: Evaluation, lambdas: Floats) -> Explanation:
    return peng(block, np.where(block.is_greedy[..., 1:], lambdas, _like(block, 0)))


def returns_alone(self: Any, block: Evaluation) -> Floats:
    """``__call__`` of every estimator below."""
    returns: Floats = self.explain(block).returns
    return returns


def _lambda_spelling(self: Any) -> str:
    """``__repr__`` of every estimator with a fixed λ and, optionally, an ε-greedy target policy."""
    epsilon = getattr(self, "epsilon", 0.0)
    return f"{self.name}:{short_number(self.lambda_)}" + ("" if epsilon == 0 else f"@{short_number(epsilon)}")


def short_number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


@dataclass(frozen=True, repr=False)
class Peng:
    """V = max Q(s',·), b = V, c = λ. Peng & Williams 1994; paper eq. (3)"""

    lambda_: float
    name: ClassVar[str] = "peng"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        return peng(block, _like(block, self.lambda_))


@dataclass(frozen=True, repr=False)
class Watkins:
    """V = max Q(s',·), b = V, c = λ·[a' greedy in s']. Watkins 1989; Sutton & Barto 1st ed. §7.6"""

    lambda_: float
    name: ClassVar[str] = "watkins"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        return watkins(block, _like(block, self.lambda_))


@dataclass(frozen=True, repr=False)
class WatkinsPublished:
    """V = max Q(s',·), b = V, c = λ·[a greedy in s]. The paper's released code, one step early; see deviations.md #4"""

    lambda_: float
    name: ClassVar[str] = "watkins-published"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        return peng(block, np.where(block.is_greedy[..., :-1], _like(block, self.lambda_), _like(block, 0)))


@dataclass(frozen=True, repr=False)
class NStep:
    """r_t + γ·r_{t+1} + … + γⁿ·max Q(s_{t+n},·). Paper eq. (1)"""

    n: int
    __call__ = returns_alone

    def __repr__(self) -> str:
        return f"nstep:{self.n}"

    def explain(self, block: Evaluation) -> Explanation:
        values, baselines = block.next_values(), block.next_baselines()
        bonuses = None if baselines is None else values - baselines
        returns = nstep_returns(block.rewards, block.discounts, values, block.continues, self.n, next_bonuses=bonuses)
        return Explanation(returns)


@dataclass(frozen=True, repr=False)
class TreeBackup:
    """V = Σπ Q(s',·), b = Q(s',a'), c = λ·π(a'|s'); π is ε-greedy. Tree Backup: Precup, Sutton & Singh 2000"""

    lambda_: float
    epsilon: float = 0.0
    name: ClassVar[str] = "tree"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        traces = _like(block, self.lambda_) * block.next_probs(self.epsilon)
        return _traced(block, block.next_values(self.epsilon), block.action_values[..., 1:], traces)


@dataclass(frozen=True, repr=False)
class Retrace:
    """V = Σπ Q(s',·), b = Q(s',a'), c = λ·min(1, π(a'|s') / μ(a'|s')); π is ε-greedy. Munos et al. 2016"""

    lambda_: float
    epsilon: float = 0.0
    name: ClassVar[str] = "retrace"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        traces = _like(block, self.lambda_) * np.minimum(_like(block, 1), block.next_ratios(self.epsilon))
        return _traced(block, block.next_values(self.epsilon), block.shared_action_values[..., 1:], traces)


@dataclass(frozen=True, repr=False)
class QStar:
    """V = max Q(s',·), b = Q(s',a'), c = λ; contracts only for λ < (1−γ)/(2γ). Q*(λ): Harutyunyan et al. 2016"""

    lambda_: float
    name: ClassVar[str] = "qstar"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        discount = float(block.discounts.max())
        if 2 * discount * self.lambda_ >= 1 - discount > 0:
            limit = (1 - discount) / (2 * discount)
            warnings.warn(f"{self!r} may diverge: it contracts only for λ below {limit:.4g}; lower λ.", stacklevel=3)
        return _traced(block, block.next_values(), block.shared_action_values[..., 1:], _like(block, self.lambda_))


@dataclass(frozen=True, repr=False)
class ExpectedSarsa:
    """V = Σπ Q(s',·), b = V, c = λ; π is ε-greedy. Expected Sarsa(λ): Van Seijen et al. 2009; Sutton & Barto §12.7"""

    lambda_: float
    epsilon: float = 0.0
    name: ClassVar[str] = "sarsa"
    __call__, __repr__ = returns_alone, _lambda_spelling

    def explain(self, block: Evaluation) -> Explanation:
        values, baselines = block.next_values(self.epsilon), block.next_baselines()
        return _traced(block, values, values if baselines is None else baselines, _like(block, self.lambda_))
