"""Data for the report's graphics: JSON for report.js, and positions for the small graphics in tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambda_replay.analysis.findings import threshold_meaning
from lambda_replay.analysis.palette import ArmStyle
from lambda_replay.analysis.summary import AXES, Axis, Curve, EnvironmentSummary, StudySummary
from lambda_replay.replay.data import Floats

Domain = tuple[float, float]  # the values at the left and right edges
FIGURES = 6  # significant figures of the numbers in the charts and their readouts
PROBABILITIES: Domain = (-0.06, 1.06)


def chart_data(summary: StudySummary, styles: Mapping[str, ArmStyle]) -> dict[str, Any]:
    """What report.js draws: arms with their dashes, and a curve for each environment, axis and arm."""
    return {
        "arms": [{"name": arm, "dash": styles[arm].dash} for arm in summary.study.arms],
        "environments": [
            _environment_data(environment, summary.study.baseline) for environment in summary.environments
        ],
    }


def drawn_axes(environments: Sequence[EnvironmentSummary], at_least: int = 1) -> list[Axis]:
    """The axes on which at least ``at_least`` environments have curves."""
    return [axis for axis in AXES if sum(environment.has_curves(axis) for environment in environments) >= at_least]


def final_domain(environment: EnvironmentSummary) -> Domain:
    """The range of the dots for the environment's runs."""
    return padded(np.concatenate([arm.final_scores for arm in environment.arms]))


def aggregate_domain(summary: StudySummary) -> Domain:
    """The range of the interquartile means and their intervals; always includes random play and the best arm's mean."""
    means = [result.interquartile_mean for result in summary.aggregates]
    return padded(np.array([0.0, 1.0, *(end for mean in means for end in (mean.value, mean.low, mean.high))]))


def padded(values: Floats) -> Domain:
    """The range of the values with a margin, so that no dot is cut off; NaN is ignored."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return (0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    margin = 0.06 * (high - low) or 1.0
    return (low - margin, high + margin)


def percent(value: float, domain: Domain) -> str:
    """The position of a value as a percentage, so that a graphic fits the width of its cell."""
    low, high = domain
    assert not math.isnan(value)
    return f"{100 * (value - low) / (high - low):.2f}%"


def _environment_data(environment: EnvironmentSummary, baseline: str) -> dict[str, Any]:
    return {
        "decimals": environment.decimals,
        "threshold": _rounded(environment.threshold),
        "empty": "Every run diverged." if environment.is_lost else "No episode has ended yet.",
        "meaning": threshold_meaning(environment, baseline),
        **{
            axis: {
                "end": float(environment.grids[axis][-1]),
                "points": len(environment.grids[axis]),
                "curves": [_curve_data(arm.curves[axis]) for arm in environment.arms],
            }
            for axis in AXES
        },
    }


def _curve_data(curve: Curve) -> dict[str, Any] | None:
    """None for an arm that has no curve yet."""
    if not curve.count.any():
        return None
    return {
        "mean": _rounded_all(curve.mean),
        "error": _rounded_all(curve.standard_error),
        "count": curve.count.tolist(),
    }


def _rounded_all(values: Floats) -> list[float | None]:
    return [_rounded(float(value)) for value in values]


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.{FIGURES}g}")
