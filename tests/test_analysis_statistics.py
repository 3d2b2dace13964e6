"""Statistics over runs, against numbers worked by hand and against a second, literal implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from lambda_replay.analysis.statistics import (
    difference_of_means,
    interquartile_mean,
    mean_and_standard_error,
    median_time,
    normalise,
    probability_of_improvement,
)
from lambda_replay.replay.data import Floats

some_scores = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=6).map(np.array)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def literal_interquartile_mean(values: list[float]) -> float:
    """Sort, drop a quarter (rounded down) at each end, take the mean."""
    drop = len(values) // 4
    middle = sorted(values)[drop : len(values) - drop]
    return sum(middle) / len(middle)


def literal_probability(ours: list[float], theirs: list[float]) -> float:
    wins = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in ours for y in theirs)
    return wins / (len(ours) * len(theirs))


def literal_median_time(times: list[float], reached: list[bool]) -> float:
    """Kaplan and Meier: at each arrival the share of those still under way shrinks by 1 / (number under way)."""
    share = 1.0
    for time in sorted({time for time, arrived in zip(times, reached, strict=True) if arrived}):
        under_way = sum(other >= time for other in times)
        arrivals = sum(other == time and arrived for other, arrived in zip(times, reached, strict=True))
        share *= 1 - arrivals / under_way
        if share <= 0.5 + 1e-12:
            return time
    return math.inf


# Golden.


def test_mean_and_standard_error() -> None:
    # 2, 4, 6: mean 4, s = 2, 2/√3; the second column lacks one value: 5, 9: mean 7, s = √8, √8/√2 = 2
    table = np.array([[2.0, 5.0, 1.0, math.nan], [4.0, math.nan, math.nan, math.nan], [6.0, 9.0, math.nan, math.nan]])
    mean, error, count = mean_and_standard_error(table)
    assert_allclose(mean, [4.0, 7.0, 1.0, math.nan])
    assert_allclose(error, [2 / math.sqrt(3), 2.0, math.nan, math.nan])
    assert_array_equal(count, [3, 2, 1, 0])


def test_interquartile_mean_of_eight_runs() -> None:
    tasks = [np.array([1.0, 100.0, 3.0, 4.0]), np.array([5.0, 6.0, -70.0, 2.0])]
    # sorted: -70 1 | 2 3 4 5 | 6 100: (2 + 3 + 4 + 5) / 4
    assert interquartile_mean(tasks, rng()).value == pytest.approx(3.5)


def test_probability_of_improvement_counts_pairs() -> None:
    # 1>2 no, 1>3 no, 3>2 yes, 3=3 half: 1.5 of 4; the second task 2 of 2; their mean (0.375 + 1) / 2
    ours = [np.array([1.0, 3.0]), np.array([9.0, 8.0])]
    theirs = [np.array([2.0, 3.0]), np.array([7.0, 7.5])]
    assert probability_of_improvement(ours[:1], theirs[:1], rng()).value == pytest.approx(0.375)
    assert probability_of_improvement(ours, theirs, rng()).value == pytest.approx(0.6875)


def test_difference_of_means_by_welch() -> None:
    ours, theirs = np.array([4.0, 5.0, 7.0, 8.0]), np.array([1.0, 2.0, 3.0])
    # means 6 and 2; variances 10/3 and 1; squared errors 5/6 and 1/3, together 7/6;
    # degrees of freedom (7/6)² / ((5/6)²/3 + (1/3)²/2) = (49/36) / (25/108 + 1/18) = 147/31
    half = stats.t.ppf(0.975, 147 / 31) * math.sqrt(7 / 6)
    estimate = difference_of_means(ours, theirs)
    assert_allclose([estimate.value, estimate.low, estimate.high], [4.0, 4.0 - half, 4.0 + half])


def test_median_time_with_runs_that_never_arrive() -> None:
    # 10 20 arrive, two run out at 100: after 20 half are still under way
    half = median_time(np.array([10.0, 20.0, 100.0, 100.0]), np.array([True, True, False, False]))
    assert (half.median, half.reached, half.total) == (20.0, 2, 4)
    # one of three arrives: the median lies beyond what was watched
    assert median_time(np.array([10.0, 100.0, 100.0]), np.array([True, False, False])).median == math.inf
    assert median_time(np.array([100.0]), np.array([False])).median == math.inf
    assert math.isnan(median_time(np.array([]), np.array([], dtype=bool)).median)
    # 12 of 24 arrive: 23/24 · 22/23 · … · 12/13 is a half, but not in floating point
    times = np.concatenate([np.arange(1.0, 13.0), np.full(12, 100.0)])
    assert median_time(times, times < 100).median == 12.0


def test_a_run_that_is_watched_briefly_counts_as_long_as_it_was_watched() -> None:
    # 1 arrives of 4 (share 3/4); 2 is cut off; 3 arrives of the 2 left (3/8 <= 1/2). Leaving the cut one out of
    # 1 2' 4 6 6': the literal median of arrivals would be 4; Kaplan and Meier say 4/5, then 4/5·2/3 = 8/15, then 4/15
    assert median_time(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True])).median == 3.0
    times, reached = np.array([1.0, 2.0, 4.0, 6.0, 7.0]), np.array([True, False, True, True, False])
    assert median_time(times, reached).median == 6.0


def test_normalised_scores_run_from_random_play_to_the_best_arm() -> None:
    assert_allclose(normalise(np.array([-21.0, 0.0, 21.0]), low=-21, high=21), [0.0, 0.5, 1.0])


def test_too_few_runs_give_a_number_without_an_interval() -> None:
    one, three = np.array([2.0]), np.array([1.0, 1.5, 4.0])
    for estimate in (
        difference_of_means(one, three),
        interquartile_mean([three, one], rng()),
        probability_of_improvement([three], [one], rng()),
    ):
        assert not estimate.has_interval
        assert not math.isnan(estimate.value)


def test_runs_without_spread_give_an_interval_without_width() -> None:
    estimate = difference_of_means(np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)


# Second implementations.


@given(st.lists(some_scores, max_size=4), st.integers(-50, 50).map(float))
def test_interquartile_mean_is_the_literal_one(tasks: list[Floats], single: float) -> None:
    everyone = [*(float(score) for task in tasks for score in task), single]
    estimate = interquartile_mean(
        [*tasks, np.array([single])], rng()
    )  # a task of one run: no bootstrap, so it is quick
    assert estimate.value == pytest.approx(literal_interquartile_mean(everyone))


@given(some_scores, some_scores)
def test_probability_agrees_with_mann_and_whitney(ours: Floats, theirs: Floats) -> None:
    value = probability_of_improvement([ours], [theirs[:1]], rng()).value
    assert value == pytest.approx(literal_probability(list(ours), list(theirs[:1])))
    u = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic / (len(ours) * len(theirs))
    assert literal_probability(list(ours), list(theirs)) == pytest.approx(u)


@given(st.lists(st.tuples(st.integers(1, 20).map(float), st.booleans()), min_size=1, max_size=8))
def test_median_time_is_the_literal_one(runs: list[tuple[float, bool]]) -> None:
    times, reached = [time for time, _ in runs], [arrived for _, arrived in runs]
    assert median_time(np.array(times), np.array(reached)).median == literal_median_time(times, reached)


def test_stratified_bootstrap_agrees_with_a_literal_one() -> None:
    tasks = [rng(1).normal(0, 1, 5), rng(2).normal(1, 2, 5), rng(3).normal(-1, 0.5, 4)]
    estimate = interquartile_mean(tasks, rng(4))
    generator = rng(5)
    resampled = []
    for _ in range(10_000):
        drawn = [task[generator.integers(0, len(task), len(task))] for task in tasks]
        resampled.append(literal_interquartile_mean([float(score) for task in drawn for score in task]))
    expected = np.quantile(resampled, [0.025, 0.975])
    width = expected[1] - expected[0]
    assert_allclose([estimate.low, estimate.high], expected, atol=0.06 * width)


def test_bootstrap_of_the_probability_agrees_with_a_literal_one() -> None:
    ours, theirs = (
        [rng(1).normal(0.5, 1, 5), rng(2).normal(0.3, 1, 6)],
        [rng(3).normal(0, 1, 5), rng(4).normal(0, 1, 5)],
    )
    estimate = probability_of_improvement(ours, theirs, rng(5))
    generator = rng(6)
    resampled = []
    for _ in range(4_000):
        draws = [[task[generator.integers(0, len(task), len(task))] for task in side] for side in (ours, theirs)]
        resampled.append(np.mean([literal_probability(list(x), list(y)) for x, y in zip(*draws, strict=True)]))
    assert_allclose([estimate.low, estimate.high], np.quantile(resampled, [0.025, 0.975]), atol=0.03)


# Properties.


def test_the_generator_decides_the_interval_and_nothing_else() -> None:
    tasks = [rng(1).normal(0, 1, 5), rng(2).normal(0, 1, 5)]
    assert interquartile_mean(tasks, rng(7)) == interquartile_mean(tasks, rng(7))
    other = interquartile_mean(tasks, rng(8))
    assert other.value == interquartile_mean(tasks, rng(7)).value
    assert other != interquartile_mean(tasks, rng(7))


def test_swapping_the_sides_turns_the_comparison_round() -> None:
    ours, theirs = rng(1).normal(0, 1, 5), rng(2).normal(0.5, 1, 7)
    there, back = difference_of_means(ours, theirs), difference_of_means(theirs, ours)
    assert_allclose([back.value, back.low, back.high], [-there.value, -there.high, -there.low])
    chance = probability_of_improvement([ours], [theirs], rng()).value
    assert probability_of_improvement([theirs], [ours], rng()).value == pytest.approx(1 - chance)


def test_inputs_are_left_as_they_are() -> None:
    tasks, baseline = [np.array([3.0, 1.0, 2.0])], [np.array([2.0, 0.0])]
    interquartile_mean(tasks, rng())
    probability_of_improvement(tasks, baseline, rng())
    difference_of_means(tasks[0], baseline[0])
    assert_array_equal(tasks[0], [3.0, 1.0, 2.0])
    assert_array_equal(baseline[0], [2.0, 0.0])
