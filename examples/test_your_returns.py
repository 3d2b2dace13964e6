"""How to test your own multi-step returns: pytest examples/test_your_returns.py"""

import numpy as np
import pytest

from lambda_replay import testing


def generalized_advantages(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, *,
    terminated: np.ndarray, ends: np.ndarray, gamma: float, lambda_: float,
) -> np.ndarray:  # fmt: skip
    """GAE(λ) [T, K], time first, as on-policy scripts write it."""
    advantages, following = np.zeros_like(rewards), np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        td_error = rewards[t] + gamma * next_values[t] * ~terminated[t] - values[t]
        following = td_error + gamma * lambda_ * ~ends[t] * following
        advantages[t] = following
    return advantages


def nstep_return(
    rewards: np.ndarray, terminated: np.ndarray, next_values: np.ndarray, gamma: float, n: int
) -> np.ndarray:
    """The n-step return of every step [T], for a buffer that does not know about time limits."""
    returns = np.zeros_like(rewards)
    for start in range(len(rewards)):
        discount = 1.0
        for t in range(start, min(start + n, len(rewards))):
            returns[start] += discount * rewards[t]
            discount *= gamma * (not terminated[t])
            if terminated[t]:
                break
        returns[start] += discount * next_values[t]
    return returns


def test_advantages() -> None:
    """Advantages plus values are λ-returns."""

    def returns(case: testing.Case) -> np.ndarray:
        advantages = generalized_advantages(
            case.rewards, case.values, case.next_values,
            terminated=case.terminated, ends=~case.continues, gamma=case.gamma, lambda_=case.lambda_,
        )  # fmt: skip
        return advantages + case.values

    testing.check(returns, "peng", layout="time-first")


TIME_LIMITS = [case.name for case in testing.cases("nstep") if (case.truncated & ~case.terminated).any()]


def test_nstep_returns_apart_from_time_limits() -> None:
    testing.check(
        lambda case: nstep_return(case.rewards, case.terminated, case.next_values, case.gamma, case.n),
        "nstep",
        skip=TIME_LIMITS,
    )


def test_one_flag_for_both_kinds_of_end_is_found() -> None:
    """What the kit says if the buffer stores a time limit as a termination."""
    with pytest.raises(AssertionError, match="This treats the time limit as a termination"):
        testing.check(
            lambda case: nstep_return(case.rewards, ~case.continues, case.next_values, case.gamma, case.n), "nstep"
        )


@pytest.mark.parametrize("case", testing.cases("nstep"), ids=str)
def test_case_by_case(case: testing.Case) -> None:
    if case.name in TIME_LIMITS:
        pytest.skip("our buffer knows no time limits")
    testing.check_returns(case, nstep_return(case.rewards, case.terminated, case.next_values, case.gamma, case.n))
