"""The numbers behind figures as rows for CSV files; the report's own tables are in templates/."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lambda_replay.analysis.files import write_shared
from lambda_replay.analysis.pairs import Pair
from lambda_replay.analysis.statistics import Estimate
from lambda_replay.analysis.summary import Axis, EnvironmentSummary, StudySummary


def curve_rows(environments: Sequence[EnvironmentSummary], axis: Axis) -> list[list[object]]:
    """The numbers behind curves, with a header."""
    rows: list[list[object]] = [["environment", "arm", axis, "mean", "standard_error", "runs"]]
    for environment in environments:
        grid = environment.grids[axis]
        for arm in environment.arms:
            curve = arm.curves[axis]
            columns = zip(grid, curve.mean, curve.standard_error, curve.count, strict=True)
            rows += [
                [environment.environment, arm.arm, _plain(x), _plain(mean), _plain(error), int(count)]
                for x, mean, error, count in columns
                if count
            ]
    return rows


def aggregate_rows(summary: StudySummary) -> list[list[object]]:
    """The numbers behind the aggregate figure, with a header."""
    rows: list[list[object]] = [["arm", "iqm", "iqm_low", "iqm_high", "improves", "improves_low", "improves_high"]]
    for result in summary.aggregates:
        chance = ["", "", ""] if result.probability is None else _ends(result.probability)
        rows.append([result.arm, *_ends(result.interquartile_mean), *chance])
    return rows


def pair_rows(summary: StudySummary, pairs: Sequence[Pair]) -> list[list[object]]:
    """Every pair of arms in each environment and over all, where score differences mean nothing; with a header."""
    kinds = ["difference", "better"]
    rows: list[list[object]] = [
        ["environment", "arm", "other", *(name for kind in kinds for name in (kind, f"{kind}_low", f"{kind}_high"))]
    ]
    for pair in pairs:
        for environment, comparison in zip(summary.environments, pair.comparisons, strict=True):
            numbers = [*_ends(comparison.difference), *_ends(comparison.probability)]
            rows.append([environment.environment, pair.arm, pair.other, *numbers])
        rows.append(["all", pair.arm, pair.other, "", "", "", *_ends(pair.probability)])
    return rows


def seed_rows(summary: StudySummary) -> list[list[object]]:
    """The curve of every run, one per row, with a header of steps, which are the same in all environments."""
    steps = summary.environments[0].grids["steps"]
    rows: list[list[object]] = [["environment", "arm", "seed", *map(_plain, steps)]]
    for environment in summary.environments:
        for run in environment.runs:
            record = run.record
            rows.append([record.environment, record.arm, record.seed, *map(_plain, run.curves["steps"])])
    return rows


def run_rows(summary: StudySummary) -> list[list[object]]:
    """The numbers of every run, with a header."""
    numbered = ["steps", "hours", "episodes", "final_score", "greedy_score", "area_under_curve"]
    numbered += ["threshold", "steps_to_threshold", "hours_to_threshold"]
    rows: list[list[object]] = [["environment", "arm", "seed", "state", *numbered, "commit"]]
    for environment in summary.environments:
        for run in environment.runs:
            record = run.record
            times = (environment.threshold, *run.to_threshold.values())
            final = (run.final_score, run.greedy_score, run.area)
            numbers = map(_plain, (run.reached, run.hours, run.num_episodes, *final, *times))
            commit = run.provenance.get("commit") or ""
            rows.append([record.environment, record.arm, record.seed, record.state, *numbers, commit])
    return rows


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    """Write rows as CSV, whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return write_shared(path, text.getvalue().encode())


def _ends(estimate: Estimate) -> list[str]:
    return [_plain(estimate.value), _plain(estimate.low), _plain(estimate.high)]


def _plain(value: float) -> str:
    """Six significant figures; empty for an unknown number."""
    return "" if math.isnan(value) else f"{value:.6g}" if value != round(value) else f"{value:.0f}"
