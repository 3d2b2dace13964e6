"""What the page's pictures are drawn from: JSON for report.js, and positions for the small pictures in tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambda_replay.analysis.findings import threshold_meaning
from lambda_replay.analysis.palette import ArmStyle
from lambda_replay.analysis.summary import AXES, Axis, Curve, EnvironmentSummary, StudySummary
from lambda_replay.replay.data import Floats

Domain = tuple[float, float]  # the values at the left and at the right edge
FIGURES = 6  # significant figures of the numbers that the charts are drawn from, and that are read off them
PROBABILITIES: Domain = (-0.06, 1.06)


def chart_data(summary: StudySummary, styles: Mapping[str, ArmStyle]) -> dict[str, Any]:
    """What report.js draws: arms with their dashes, and for each environment and axis a curve for each arm."""
    return {
        "arms": [{"name": arm, "dash": styles[arm].dash} for arm in summary.study.arms],
        "environments": [
            _environment_data(environment, summary.study.baseline) for environment in summary.environments
        ],
    }


def drawn_axes(environments: Sequence[EnvironmentSummary], at_least: int = 1) -> list[Axis]:
    """The axes over which at least so many of the environments have curves."""
    return [axis for axis in AXES if sum(environment.has_curves(axis) for environment in environments) >= at_least]


def final_domain(environment: EnvironmentSummary) -> Domain:
    """Where the dots of the environment's runs lie."""
    return padded(np.concatenate([arm.final_scores for arm in environment.arms]))


def aggregate_domain(summary: StudySummary) -> Domain:
    """Where the interquartile means and their intervals lie; always with random play and the best arm's mean."""
    means = [result.interquartile_mean for result in summary.aggregates]
    return padded(np.array([0.0, 1.0, *(end for mean in means for end in (mean.value, mean.low, mean.high))]))


def padded(values: Floats) -> Domain:
    """The range of the values and a little more, so that no dot is cut off; NaN is left out."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return (0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    margin = 0.06 * (high - low) or 1.0
    return (low - margin, high + margin)


def percent(value: float, domain: Domain) -> str:
    """The position of a value; a percentage, so a picture takes the width that its cell has."""
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
