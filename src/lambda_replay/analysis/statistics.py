"""Statistics over runs: how good, how much better and how certain, computed with SciPy.

Scores are final scores, one per run. A task is an environment; a list of tasks is a list of arrays, which may have
different lengths while a study is unfinished. Random generators are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lambda_replay.extras import load_extra
from lambda_replay.replay.data import Booleans, Floats, Integers

Verdict = Literal["above", "below", "unclear", "unknown"]
LEVEL = 0.95  # of every interval
RESAMPLES = 10_000  # of every bootstrap; the intervals' ends are then stable to a few hundredths of their width


@dataclass(frozen=True)
class Estimate:
    """A number and its 95% confidence interval, which is NaN if there are too few runs for one."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def complement(self) -> Estimate:
        """For a probability: that of the opposite."""
        return Estimate(1 - self.value, 1 - self.high, 1 - self.low)

    def verdict(self, draw: float) -> Verdict:
        """Where the interval lies; a draw is 0 for a difference and 0.5 for a probability."""
        if not self.has_interval:
            return "unknown"
        if self.low > draw:
            return "above"
        return "below" if self.high < draw else "unclear"


@dataclass(frozen=True)
class Mean:
    """Mean over finished runs; NaN if there are none."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class MedianTime:
    """The time by which half of the runs have reached something; infinite if it is beyond what was observed."""

    median: float
    reached: int  # runs that got there
    total: int

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.median)


def mean_and_standard_error(values: Floats) -> tuple[Floats, Floats, Integers]:
    """Over the first axis, leaving out NaN: mean, standard error of the mean s/√n, and n.

    The mean of nothing is NaN, and so is the standard error of fewer than two values.
    """
    known = ~np.isnan(values)  # [R, ...]
    count = known.sum(axis=0)  # [...]
    mean = np.sum(values, axis=0, where=known) / np.where(count > 0, count, np.nan)
    squares = np.sum(np.square(values - mean), axis=0, where=known)
    variance = squares / np.where(count > 1, count - 1, np.nan)
    return mean, np.sqrt(variance / np.maximum(count, 1)), count


def normalise(scores: Floats, low: float, high: float) -> Floats:
    """(score − low) / (high − low): 0 for random play, 1 for the best arm's mean, so that tasks can be combined.

    Dividing by the baseline would be simpler to explain, but scores may be zero or negative (Pong starts at −21), and
    where the baseline learns nothing every other arm would be infinitely better. The best arm is always above random
    play unless no arm learns; the caller leaves such tasks out, as this would divide noise by noise. The two ends are
    taken as exact: the intervals do not include their uncertainty, and they move when an arm is added.
    """
    assert high > low
    return (scores - low) / (high - low)


def interquartile_mean(tasks: Sequence[Floats], rng: np.random.Generator) -> Estimate:
    """Mean of the middle half of all runs of all tasks, with a stratified bootstrap interval (Agarwal et al. 2021).

    Stratified: runs are resampled within each task, so every resample has each task's number of runs.
    """
    stats = load_extra("scipy.stats")

    def statistic(*samples: Floats, axis: int = -1) -> Floats:
        return np.asarray(stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis))

    return _bootstrap(tasks, statistic, rng)


def probability_of_improvement(
    tasks: Sequence[Floats], baseline: Sequence[Floats], rng: np.random.Generator
) -> Estimate:
    """P(a run of the arm beats a run of the baseline), averaged over tasks, with a stratified bootstrap interval.

    Per task U / (n·m), with Mann and Whitney's U = Σᵢⱼ [xᵢ > yⱼ] + ½[xᵢ = yⱼ] (Agarwal et al. 2021, section 4.3).
    """
    assert len(tasks) == len(baseline)

    def statistic(*samples: Floats, axis: int = -1) -> Floats:
        assert axis in (-1, samples[0].ndim - 1)
        pairs = zip(samples[: len(tasks)], samples[len(tasks) :], strict=True)
        return np.mean([_win_rate(ours, theirs) for ours, theirs in pairs], axis=0)

    return _bootstrap([*tasks, *baseline], statistic, rng)


def difference_of_means(scores: Floats, baseline: Floats, comparisons: int = 1) -> Estimate:
    """Mean of the arm minus mean of the baseline, with Welch's interval.

    Not a bootstrap: with five runs the percentile bootstrap covers too little, which Student's t accounts for. If the
    intervals of several ``comparisons`` are to hold at once, each gets its share of the error (Bonferroni): picking the
    best of nine arms means comparing nine times.
    """
    value = float(np.mean(scores) - np.mean(baseline))
    if min(len(scores), len(baseline)) < 2:
        return Estimate(value, math.nan, math.nan)
    if np.ptp(scores) == 0 and np.ptp(baseline) == 0:
        return Estimate(value, value, value)  # no spread at all; SciPy would divide by zero
    test = load_extra("scipy.stats").ttest_ind(scores, baseline, equal_var=False)
    interval = test.confidence_interval(1 - (1 - LEVEL) / comparisons)
    return Estimate(value, float(interval.low), float(interval.high))


def median_time(times: Floats, is_reached: Booleans) -> MedianTime:
    """The median time to reach something, from the Kaplan-Meier estimate of how many have not reached it yet.

    A run that did not reach it counts with the time for which it was observed (its time is censored there): leaving it
    out would favour an arm of which only the lucky runs reach it.
    """
    reached, total = int(is_reached.sum()), len(times)
    if reached == 0:
        return MedianTime(math.inf if total else math.nan, reached, total)
    stats = load_extra("scipy.stats")
    survival = stats.ecdf(stats.CensoredData.right_censored(times, ~is_reached)).sf
    half = survival.probabilities <= 0.5 + 1e-12  # a product of fractions that should be ½ may come out above it
    median = float(survival.quantiles[np.argmax(half)]) if half.any() else math.inf
    return MedianTime(median, reached, total)


def _win_rate(ours: Floats, theirs: Floats) -> Floats:
    """[..., n], [..., m] -> [...]"""
    left, right = ours[..., :, None], theirs[..., None, :]
    return np.mean((left > right) + 0.5 * (left == right), axis=(-2, -1))


def _bootstrap(samples: Sequence[Floats], statistic: Callable[..., Floats], rng: np.random.Generator) -> Estimate:
    """The statistic and its percentile interval; each sample is resampled separately, which makes it stratified."""
    assert all(len(sample) for sample in samples)
    value = float(statistic(*samples))
    if min(len(sample) for sample in samples) < 2:
        return Estimate(value, math.nan, math.nan)
    result = load_extra("scipy.stats").bootstrap(
        tuple(samples),
        statistic,
        n_resamples=RESAMPLES,
        batch=500,  # resamples in memory at once
        vectorized=True,
        confidence_level=LEVEL,
        method="percentile",
        rng=rng,
    )
    return Estimate(value, float(result.confidence_interval.low), float(result.confidence_interval.high))
