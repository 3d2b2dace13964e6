"""Several runs side by side: their numbers, the settings in which they differ, and one picture of their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lambda_replay.analysis import scores
from lambda_replay.analysis.files import write_shared
from lambda_replay.analysis.palette import ArmStyle, arm_styles
from lambda_replay.analysis.plots import AXIS_LABELS, dashes_of, format_steps, render
from lambda_replay.analysis.records import Run, varying_settings
from lambda_replay.config import flatten

POINTS = 400  # of a drawn curve
MINUTES_PER_HOUR = 60


@dataclass(frozen=True)
class ComparedRun:
    """The numbers of one run, NaN where they are unknown."""

    name: str
    environment: str
    seed: int
    state: str
    steps: int  # reached
    hours: float
    games: int
    final_score: float  # mean of the last 100 games
    mean_score: float  # over the whole of training


def compare_runs(runs: Sequence[Run]) -> list[ComparedRun]:
    """The numbers of each run, in the given order."""
    return [_compared(run) for run in runs]


def _compared(run: Run) -> ComparedRun:
    record, reached = run.record, scores.reached_step(run, 0)
    return ComparedRun(
        name=record.arm,
        environment=record.environment,
        seed=record.seed,
        state=record.state,
        steps=reached,
        hours=scores.hours_at_step(run.timing, reached),
        games=len(run.episodes.scores),
        final_score=scores.final_score(run.episodes),
        mean_score=scores.area_under_curve(run.episodes, reached) if reached else math.nan,
    )


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """By dotted name, each run's value of every setting that is not the same in all; None where a run lacks it."""
    flat = [flatten(config) for config in configs]
    return {name: [values.get(name) for values in flat] for name in sorted(varying_settings(configs))}


def draw_comparison(runs: Sequence[Run], out_png: Path) -> Path:
    """For each environment, the mean score of the last 100 games over steps and over time; a line for every run."""
    environments = list(dict.fromkeys(run.record.environment for run in runs))
    styles = arm_styles([run.record.arm for run in runs], baseline="")

    def draw(figure: Any) -> None:
        cells = figure.subplots(len(environments), 2, squeeze=False)
        for environment, (over_steps, over_time) in zip(environments, cells, strict=True):
            group = [run for run in runs if run.record.environment == environment]
            _draw_over_steps(over_steps, group, styles)
            _draw_over_time(over_time, group, styles)
            over_steps.set_title(environment)
            over_steps.set_ylabel("score, last 100 episodes")
        handles, labels = zip(*[(line, line.get_label()) for axes in cells[:, 0] for line in axes.lines], strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), handlelength=3.2)

    height = 3.3 * len(environments) + 0.4 + 0.25 * math.ceil(len(runs) / 3)
    return write_shared(out_png, render(draw, (9.6, height), ["png"])["png"])


def _draw_over_steps(axes: Any, runs: Sequence[Run], styles: Mapping[str, ArmStyle]) -> None:
    for run in runs:
        reached = scores.reached_step(run, 0)
        grid = np.linspace(0, max(1, reached), POINTS)
        _draw(axes, run, grid, scores.learning_curve(run.episodes, grid, reached), styles)
    axes.set_xlabel(AXIS_LABELS["steps"])
    axes.set_xlim(left=0)
    format_steps(axes)


def _draw_over_time(axes: Any, runs: Sequence[Run], styles: Mapping[str, ArmStyle]) -> None:
    longest = [float(run.timing.seconds[-1]) / scores.SECONDS_PER_HOUR for run in runs if len(run.timing.seconds)]
    is_short = max(longest, default=0.0) < 1
    for run in runs:
        if len(run.timing.seconds):
            grid = np.linspace(0, float(run.timing.seconds[-1]) / scores.SECONDS_PER_HOUR, POINTS)
            curve = scores.learning_curve_over_hours(run.episodes, run.timing, grid)
            _draw(axes, run, MINUTES_PER_HOUR * grid if is_short else grid, curve, styles)
    axes.set_xlabel("minutes of training" if is_short else AXIS_LABELS["hours"])
    axes.set_xlim(left=0)


def _draw(axes: Any, run: Run, grid: Any, curve: Any, styles: Mapping[str, ArmStyle]) -> None:
    style = styles[run.record.arm]
    axes.plot(grid, curve, color=style.light, linestyle=dashes_of(style), label=run.record.arm)
