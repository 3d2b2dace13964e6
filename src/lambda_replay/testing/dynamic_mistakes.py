"""Mistakes in the choice of λ: of the median's candidates, of the error that is bounded, of the search."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from statistics import median
from typing import NamedTuple

from lambda_replay.testing.exact import (
    GOES_ON,
    SEARCH_DEPTH,
    Returns,
    Steps,
    fixed_returns,
    largest_lambda,
    mean_error,
    td_errors,
)
from lambda_replay.testing.mistakes import Wrong
from lambda_replay.testing.stories import BATCH_SIZE, scaled

# The median.


def candidates(steps: Steps, estimator: str) -> list[Returns]:
    """The returns with λ = 0/k, 1/k, …, k/k."""
    return [fixed_returns(steps.with_lambda(Fraction(i, steps.k)), estimator) for i in range(steps.k + 1)]


def mean_of_candidates(steps: Steps, estimator: str) -> Returns:
    columns = zip(*candidates(steps, estimator), strict=True)
    return [sum(column, Fraction(0)) / len(column) for column in columns]


def one_lambda_per_block(steps: Steps, estimator: str) -> Returns:
    """The candidate whose mean over the block is the median of all such means."""
    return sorted(candidates(steps, estimator), key=lambda returns: sum(returns, Fraction(0)))[steps.k // 2]


def lambda_one_half(steps: Steps, estimator: str) -> Returns:
    return fixed_returns(steps.with_lambda(Fraction(1, 2)), estimator)


def one_candidate_too_few(steps: Steps, estimator: str) -> Returns:
    """λ = 0/(k−1), 1/(k−1), …, 1; the median of an even number is the mean of the middle two."""
    found = [fixed_returns(steps.with_lambda(Fraction(i, steps.k - 1)), estimator) for i in range(steps.k)]
    return [median(column) for column in zip(*found, strict=True)]


# The error that is bounded.

Satisfies = Callable[[Fraction], bool]
Search = Callable[[Satisfies], Fraction]
Measure = Callable[[Returns, Steps], Fraction]


def bounding(measure: Measure, search: Search = largest_lambda) -> Wrong:
    """Another error than the mean |G_t − Q(s_t, a_t)|, or another search for λ."""

    def wrong(steps: Steps, estimator: str) -> Returns:
        def satisfies(lambda_: Fraction) -> bool:
            return measure(fixed_returns(steps.with_lambda(lambda_), estimator), steps) <= steps.bound

        return fixed_returns(steps.with_lambda(search(satisfies)), estimator)

    return wrong


def errors_from_maximum(returns: Returns, steps: Steps) -> Returns:
    """G_t − max Q(s_t, ·)."""
    return [g - max(steps.states[t].q) for t, g in enumerate(returns)]


def mean_from_maximum(returns: Returns, steps: Steps) -> Fraction:
    return sum(map(abs, errors_from_maximum(returns, steps)), Fraction(0)) / steps.length


def mean_square(returns: Returns, steps: Steps) -> Fraction:
    return sum((error**2 for error in td_errors(returns, steps)), Fraction(0)) / steps.length


def mean_square_from_maximum(returns: Returns, steps: Steps) -> Fraction:
    return sum((error**2 for error in errors_from_maximum(returns, steps)), Fraction(0)) / steps.length


def sum_of_errors(returns: Returns, steps: Steps) -> Fraction:
    return mean_error(returns, steps) * steps.length


def largest_error(returns: Returns, steps: Steps) -> Fraction:
    return max(map(abs, td_errors(returns, steps)))


def mean_of_signed_errors(returns: Returns, steps: Steps) -> Fraction:
    return abs(sum(td_errors(returns, steps), Fraction(0))) / steps.length


def mean_over_slots(returns: Returns, steps: Steps) -> Fraction:
    """Each episode that ends inside the block has a slot for its final observation, where the error is 0."""
    closing_slots = sum(end != GOES_ON for end in steps.ends[:-1])
    return sum_of_errors(returns, steps) / (steps.length + closing_slots)


def bound_over_all_blocks(steps: Steps, estimator: str) -> Returns:
    """One λ for the whole batch, from the mean over all its sequences."""
    blocks = [scaled(steps, scale) for scale in range(1, BATCH_SIZE + 1)]

    def satisfies(lambda_: Fraction) -> bool:
        errors = [mean_error(fixed_returns(each.with_lambda(lambda_), estimator), each) for each in blocks]
        return sum(errors, Fraction(0)) / len(errors) <= steps.bound

    return fixed_returns(steps.with_lambda(largest_lambda(satisfies)), estimator)


def lambda_for_each_step(steps: Steps, estimator: str) -> Returns:
    """The bound on |G_t − Q(s_t, a_t)| of a single step, with a λ of its own."""

    def error_at(t: int) -> Measure:
        return lambda returns, each: abs(td_errors(returns, each)[t])

    return [bounding(error_at(t))(steps, estimator)[t] for t in range(steps.length)]


# The search.


class Bracket(NamedTuple):
    """Where a binary search ended: the largest λ known to satisfy the bound, the smallest known not to, the last."""

    low: Fraction
    high: Fraction
    last: Fraction


def bisect(satisfies: Satisfies, depth: int = SEARCH_DEPTH) -> Bracket:
    low, high, middle = Fraction(0), Fraction(1), Fraction(0)
    for _ in range(depth):
        middle = (low + high) / 2
        low, high = (middle, high) if satisfies(middle) else (low, middle)
    return Bracket(low, high, middle)


def after_the_ends(pick: Callable[[Bracket], Fraction], depth: int = SEARCH_DEPTH) -> Search:
    """λ = 1 and λ = 0 are tried first, as they should be; then another result of the search is picked."""

    def search(satisfies: Satisfies) -> Fraction:
        if satisfies(Fraction(1)):
            return Fraction(1)
        return pick(bisect(satisfies, depth)) if satisfies(Fraction(0)) else Fraction(0)

    return search


largest_or_last = after_the_ends(lambda bracket: bracket.low or bracket.last)


def without_lambda_one(satisfies: Satisfies) -> Fraction:
    return bisect(satisfies).low


def lambda_zero_first(satisfies: Satisfies) -> Fraction:
    return largest_lambda(satisfies) if satisfies(Fraction(0)) else Fraction(0)
