"""Every arm against every other, where the summary compares each with the baseline alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from lambda_replay.analysis.statistics import Estimate
from lambda_replay.analysis.summary import Comparison, StudySummary, compare, compare_over_environments


@dataclass(frozen=True)
class Pair:
    """Two arms that have finished runs in every environment."""

    arm: str
    other: str
    comparisons: tuple[Comparison, ...]  # [environments]
    probability: Estimate  # of a run of the arm scoring higher than one of the other, over all environments


def every_pair(summary: StudySummary) -> tuple[Pair, ...]:
    """Each two arms once, the one that is better over all environments first."""
    ranked = [result.arm for result in summary.aggregates]
    return tuple(_pair(summary, arm, other) for arm, other in combinations(ranked, 2))


def _pair(summary: StudySummary, arm: str, other: str) -> Pair:
    finals = [
        (environment.arm(arm).final_scores, environment.arm(other).final_scores) for environment in summary.environments
    ]
    comparisons = [compare(ours, theirs) for ours, theirs in finals]
    return Pair(
        arm=arm,
        other=other,
        comparisons=tuple(comparison for comparison in comparisons if comparison is not None),
        probability=compare_over_environments([ours for ours, _ in finals], [theirs for _, theirs in finals]),
    )
