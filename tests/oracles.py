"""Literal float64 definitions of every estimator, one start step at a time, as their sources write them.

Slow on purpose and blind to the backward recursion under test: each return is an explicit sum over n-step returns or TD
errors. Entries at closing slots are NaN: they have no meaning, and a comparison that reads one fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lambda_replay.replay.data import Block

Returns = NDArray[np.float64]  # [K, L]

SEARCH_DEPTH = 7  # Daley & Amato (2019), appendix on bounded TD error


@dataclass(frozen=True)
class Path:
    """One block in plain float64; ``start_return(path, t)`` functions below read nothing else."""

    rewards: list[float]  # r_t
    discounts: list[float]  # γ_t = γ·(1 − terminated_t)
    q: list[list[float]]  # Q(s_t, ·), one row more than rewards
    actions: list[int]
    probabilities: list[float]  # μ(a_t|s_t)
    continues: list[bool]

    @property
    def length(self) -> int:
        return len(self.rewards)

    def steps_left(self, t: int) -> int:
        """N: the number of steps from t to the end of the episode or of the block, whichever comes first."""
        n = 1
        while self.continues[t + n - 1] and t + n < self.length:
            n += 1
        return n

    def discount(self, t: int, n: int) -> float:
        """γ_t · γ_{t+1} ⋯ γ_{t+n−1}, the weight of what happens n steps after t."""
        product = 1.0
        for i in range(t, t + n):
            product *= self.discounts[i]
        return product

    def is_greedy(self, t: int) -> bool:
        """Whether a_t has the largest value in s_t; a tied action is greedy."""
        return self.q[t][self.actions[t]] == max(self.q[t])


def max_value(path: Path, t: int) -> float:
    return max(path.q[t])


def policy(path: Path, t: int, epsilon: float) -> list[float]:
    """π(a|s_t) = ε/A + (1−ε)·[a greedy]; tied greedy actions share the greedy part equally.

    The literature leaves ties open. Expectations Σπ·Q do not depend on the choice, the traces of Tree Backup and
    Retrace do: compare those on blocks without ties.
    """
    values = path.q[t]
    greedy = [value == max(values) for value in values]
    return [epsilon / len(values) + (1 - epsilon) * is_best / sum(greedy) for is_best in greedy]


def expected_value(path: Path, t: int, epsilon: float) -> float:
    """E_π Q(s_t, ·)."""
    return sum(p * value for p, value in zip(policy(path, t, epsilon), path.q[t], strict=True))


def n_step_return(path: Path, t: int, n: int, value: Callable[[Path, int], float]) -> float:
    """R⁽ⁿ⁾_t = r_t + γ·r_{t+1} + … + γⁿ⁻¹·r_{t+n−1} + γⁿ·V(s_{t+n}): the footnote of the paper's equation 1."""
    rewards = sum(path.discount(t, i) * path.rewards[t + i] for i in range(n))
    return rewards + path.discount(t, n) * value(path, t + n)


def lambda_average(returns: list[float], lambda_: float) -> float:
    """(1−λ)·Σ_{n=1}^{N−1} λⁿ⁻¹·R⁽ⁿ⁾ + λᴺ⁻¹·R⁽ᴺ⁾: the paper's equation 2, for R⁽¹⁾ … R⁽ᴺ⁾."""
    last = len(returns)
    total = (1 - lambda_) * sum(lambda_ ** (n - 1) * returns[n - 1] for n in range(1, last))
    return total + lambda_ ** (last - 1) * returns[last - 1]


def every_start(block: Block, start_return: Callable[[Path, int], float]) -> Returns:
    """``start_return`` at each real transition of each block, NaN elsewhere."""
    returns = np.full(block.rewards.shape, np.nan)
    for k in range(block.rewards.shape[0]):
        path = Path(
            rewards=block.rewards[k].astype(np.float64).tolist(),
            discounts=block.discounts[k].astype(np.float64).tolist(),
            q=block.q_values[k].astype(np.float64).tolist(),
            actions=block.actions[k].tolist(),
            probabilities=block.behaviour_probs[k].astype(np.float64).tolist(),
            continues=block.continues[k].tolist(),
        )
        for t in range(path.length):
            if block.is_transition[k, t]:
                returns[k, t] = start_return(path, t)
    return returns


def nstep(block: Block, n: int) -> Returns:
    """The n-step return, or the longest shorter one where the episode or the block ends before."""
    return every_start(block, lambda path, t: n_step_return(path, t, min(n, path.steps_left(t)), max_value))


def peng(block: Block, lambda_: float) -> Returns:
    """Peng & Williams (1994), as in the paper's equation 2: every n-step return counts, whatever action was taken."""

    def start_return(path: Path, t: int) -> float:
        returns = [n_step_return(path, t, n, max_value) for n in range(1, path.steps_left(t) + 1)]
        return lambda_average(returns, lambda_)

    return every_start(block, start_return)


def watkins(block: Block, lambda_: float) -> Returns:
    """Watkins (1989), Sutton & Barto 1st ed. §7.6: the longest return ends in the first state after t that explores.

    With a_{t+n} the first exploratory action after t, the longest backup is R⁽ⁿ⁾_t; a_t itself may be anything.
    """

    def start_return(path: Path, t: int) -> float:
        longest = 1
        while longest < path.steps_left(t) and path.is_greedy(t + longest):
            longest += 1
        return lambda_average([n_step_return(path, t, n, max_value) for n in range(1, longest + 1)], lambda_)

    return every_start(block, start_return)


def watkins_published(block: Block, lambda_: float) -> Returns:
    """The paper's released code: λ = 0 at each step whose own action explores, so R ends just after that step."""

    def start_return(path: Path, t: int) -> float:
        longest = 1
        while longest < path.steps_left(t) and path.is_greedy(t + longest - 1):
            longest += 1
        return lambda_average([n_step_return(path, t, n, max_value) for n in range(1, longest + 1)], lambda_)

    return every_start(block, start_return)


def sarsa(block: Block, lambda_: float, epsilon: float = 0.0) -> Returns:
    """Expected Sarsa(λ): the λ-average of n-step returns that bootstrap from E_π Q (Sutton & Barto 2nd ed. §7.2)."""

    def value(path: Path, t: int) -> float:
        return expected_value(path, t, epsilon)

    def start_return(path: Path, t: int) -> float:
        returns = [n_step_return(path, t, n, value) for n in range(1, path.steps_left(t) + 1)]
        return lambda_average(returns, lambda_)

    return every_start(block, start_return)


def n_step_tree_backup(path: Path, t: int, n: int, epsilon: float) -> float:
    """G_{t:t+n} = r_t + γ·Σ_{a≠a_{t+1}} π(a|s_{t+1})·Q(s_{t+1},a) + γ·π(a_{t+1}|s_{t+1})·G_{t+1:t+n}.

    Precup, Sutton & Singh (2000); Sutton & Barto 2nd ed. equation 7.16. G_{t:t+1} = r_t + γ·E_π Q(s_{t+1}, ·).
    """
    if n == 1:
        return path.rewards[t] + path.discounts[t] * expected_value(path, t + 1, epsilon)
    probabilities, taken = policy(path, t + 1, epsilon), path.actions[t + 1]
    leaves = sum(p * path.q[t + 1][a] for a, p in enumerate(probabilities) if a != taken)
    branch = probabilities[taken] * n_step_tree_backup(path, t + 1, n - 1, epsilon)
    return path.rewards[t] + path.discounts[t] * (leaves + branch)


def tree(block: Block, lambda_: float, epsilon: float = 0.0) -> Returns:
    """Tree Backup(λ): the λ-average of the n-step tree backups (Precup, Sutton & Singh 2000, §4)."""

    def start_return(path: Path, t: int) -> float:
        returns = [n_step_tree_backup(path, t, n, epsilon) for n in range(1, path.steps_left(t) + 1)]
        return lambda_average(returns, lambda_)

    return every_start(block, start_return)


def off_policy_sum(
    path: Path, t: int, value: Callable[[Path, int], float], trace: Callable[[Path, int], float]
) -> float:
    """Q(s_t,a_t) + Σ_{s≥t} γ^{s−t}·(Π_{i=t+1}^{s} c_i)·[r_s + γ·V(s_{s+1}) − Q(s_s,a_s)].

    The general operator of Munos et al. (2016), equation 3. The sum ends with the episode or the block, so the last
    bootstrap is V of the state reached there, uncorrected by any action taken in it.
    """
    total, traces = path.q[t][path.actions[t]], 1.0
    for s in range(t, t + path.steps_left(t)):
        if s > t:
            traces *= trace(path, s)
        td_error = path.rewards[s] + path.discounts[s] * value(path, s + 1) - path.q[s][path.actions[s]]
        total += path.discount(t, s - t) * traces * td_error
    return total


def retrace(block: Block, lambda_: float, epsilon: float = 0.0) -> Returns:
    """Retrace(λ), Munos et al. (2016): c_i = λ·min(1, π(a_i|s_i)/μ(a_i|s_i))."""

    def value(path: Path, t: int) -> float:
        return expected_value(path, t, epsilon)

    def trace(path: Path, t: int) -> float:
        return lambda_ * min(1.0, policy(path, t, epsilon)[path.actions[t]] / path.probabilities[t])

    return every_start(block, lambda path, t: off_policy_sum(path, t, value, trace))


def qstar(block: Block, lambda_: float) -> Returns:
    """Q*(λ), Harutyunyan et al. (2016): c_i = λ, corrected by the TD errors of the greedy policy."""
    return every_start(block, lambda path, t: off_policy_sum(path, t, max_value, lambda _path, _t: lambda_))


Base = Callable[[Block, float], Returns]


def median(block: Block, k: int = 20, base: Base = peng) -> Returns:
    """median(R^{λ=0/k}, R^{λ=1/k}, …, R^{λ=k/k}) at each step: the paper's section on dynamic λ."""
    return np.median(np.stack([base(block, i / k) for i in range(k + 1)]), axis=0)


@dataclass(frozen=True)
class BoundedChoice:
    """What ``bounded`` chose for one block, and how near to the bound the closest error it looked at was."""

    lambda_: float
    margin: float


def mean_absolute_td_errors(block: Block, returns: Returns) -> NDArray[np.float64]:  # [K]
    """(1/n)·Σ|R_i − Q(s_i,a_i)| over the n real transitions of each block; zero where there is none."""
    errors = np.zeros(len(returns))
    for k in range(len(returns)):
        steps = [t for t in range(block.rewards.shape[1]) if block.is_transition[k, t]]
        for t in steps:
            errors[k] += abs(float(returns[k, t]) - float(block.q_values[k, t, block.actions[k, t]])) / len(steps)
    return errors


def single(block: Block, k: int) -> Block:
    """Block k alone, as one block."""
    one = slice(k, k + 1)
    return Block(
        rewards=block.rewards[one],
        discounts=block.discounts[one],
        q_values=block.q_values[one],
        actions=block.actions[one],
        behaviour_probs=block.behaviour_probs[one],
        continues=block.continues[one],
        is_step=None if block.is_step is None else block.is_step[one],
    )


def bounded_choice(block: Block, bound: float, base: Base = peng) -> BoundedChoice:
    """The λ of one block: 1 if it satisfies the bound, 0 if even 0 does not, else the best of a binary search."""
    margin = np.inf

    def satisfies(lambda_: float) -> bool:
        nonlocal margin
        error = float(mean_absolute_td_errors(block, base(block, lambda_))[0])
        margin = min(margin, abs(error - bound))
        return error <= bound

    if satisfies(1.0):
        return BoundedChoice(1.0, margin)
    if not satisfies(0.0):
        return BoundedChoice(0.0, margin)
    largest_satisfying, smallest_breaking = 0.0, 1.0
    for _ in range(SEARCH_DEPTH):
        middle = (largest_satisfying + smallest_breaking) / 2
        if satisfies(middle):
            largest_satisfying = middle
        else:
            smallest_breaking = middle
    return BoundedChoice(largest_satisfying, margin)


def bounded_choices(block: Block, bound: float, base: Base = peng) -> list[BoundedChoice]:
    return [bounded_choice(single(block, k), bound, base) for k in range(len(block.rewards))]


def bounded(block: Block, bound: float, base: Base = peng) -> Returns:
    """Per block, the returns of the λ that ``bounded_choice`` finds: the paper's appendix on bounded TD error."""
    rows = [
        base(single(block, k), bounded_choice(single(block, k), bound, base).lambda_)[0]
        for k in range(len(block.rewards))
    ]
    return np.stack(rows)
