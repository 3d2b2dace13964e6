"""One arm of a study compared with another, by the scores of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lambda_replay.analysis import statistics
from lambda_replay.analysis.statistics import Estimate
from lambda_replay.replay.data import Floats

BOOTSTRAP_SEED = 2019  # used for every interval, so none depends on which others are computed


@dataclass(frozen=True)
class Comparison:
    """An arm compared with another, usually the baseline, by final scores."""

    difference: Estimate  # of the means
    probability: Estimate  # of improvement


def compare(finals: Floats, baseline: Floats) -> Comparison:
    """Difference and probability of improvement."""
    return Comparison(
        difference=statistics.difference_of_means(finals, baseline),
        probability=compare_over_environments([finals], [baseline]),
    )


def compare_over_environments(tasks: Sequence[Floats], baseline: Sequence[Floats]) -> Estimate:
    """Probability of improvement, averaged over environments; it needs a finished run in each."""
    return statistics.probability_of_improvement(tasks, baseline, bootstrap_generator())


def bootstrap_generator() -> np.random.Generator:
    """The random numbers of an interval."""
    return np.random.default_rng(BOOTSTRAP_SEED)
