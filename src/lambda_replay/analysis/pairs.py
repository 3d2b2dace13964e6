"""Compares every arm with every other; the summary compares each only with the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from lambda_replay.analysis.arm_comparison import Comparison, compare, compare_over_environments
from lambda_replay.analysis.statistics import Estimate
from lambda_replay.analysis.summary import EnvironmentSummary, StudySummary
from lambda_replay.replay.data import Floats

ENOUGH_RUNS, ENOUGH_PER_ENVIRONMENT = 20, 5  # of an arm


@dataclass(frozen=True)
class Pair:
    """Two arms that have finished runs in every environment."""

    arm: str
    other: str
    comparisons: tuple[Comparison, ...]  # [environments]
    probability: Estimate  # of a run of the arm scoring higher than one of the other, over the learned environments
    is_enough: bool  # whether there are enough runs to trust the probability's interval


def every_pair(summary: StudySummary) -> tuple[Pair, ...]:
    """Every pair of arms once, with the one that is better over all environments first."""
    ranked = [result.arm for result in summary.aggregates]
    return tuple(_pair(summary, arm, other) for arm, other in combinations(ranked, 2))


def probabilities(pairs: Sequence[Pair]) -> dict[tuple[str, str], Estimate]:
    """For every pair of arms, in both orders, the probability that a run of the first scores higher."""
    chances = {(pair.arm, pair.other): pair.probability for pair in pairs}
    return chances | {(other, arm): chance.complement for (arm, other), chance in chances.items()}


def _pair(summary: StudySummary, arm: str, other: str) -> Pair:
    comparisons = [compare(*_finals(environment, arm, other)) for environment in summary.environments]
    tasks = [_finals(environment, arm, other) for environment in summary.learnt]
    return Pair(
        arm=arm,
        other=other,
        comparisons=tuple(comparisons),
        probability=compare_over_environments([ours for ours, _ in tasks], [theirs for _, theirs in tasks]),
        is_enough=all(is_enough([len(task[side]) for task in tasks]) for side in (0, 1)),
    )


def is_enough(runs: Sequence[int]) -> bool:
    """Whether this many runs in each environment give a bootstrap interval with about its nominal coverage.

    Runs are resampled within each environment, so two in each are too few, however many environments there are.
    """
    return sum(runs) >= ENOUGH_RUNS and min(runs) >= ENOUGH_PER_ENVIRONMENT


def _finals(environment: EnvironmentSummary, arm: str, other: str) -> tuple[Floats, Floats]:
    return environment.arm(arm).final_scores, environment.arm(other).final_scores
