"""Writes a study's report: one HTML file that asks for nothing from outside, and the figures beside it.

The same runs give the same bytes: no date, no random names; whatever is read while a study runs is simply what is in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from lambda_replay.analysis import sections, wording
from lambda_replay.analysis.files import write_atomically
from lambda_replay.analysis.pairs import Pair, every_pair
from lambda_replay.analysis.palette import ArmStyle, arm_styles
from lambda_replay.analysis.plots import write_figures
from lambda_replay.analysis.records import StudyData
from lambda_replay.analysis.runs_table import runs_section
from lambda_replay.analysis.summary import AXES, Curve, EnvironmentSummary, StudySummary, summarise
from lambda_replay.analysis.tables import pair_rows, run_rows, seed_rows, write_csv
from lambda_replay.replay.data import Floats

FIGURES = 6  # significant figures of the numbers that the charts are drawn from, and that are read off them


def write_report(study: StudyData, out_html: Path) -> Path:
    """Write the report and, into ``figures`` beside it, every figure as PNG, PDF and CSV; works on an unfinished study.

    The page comes last, so whatever it links to is there.
    """
    summary = summarise(study)
    figures = out_html.parent / "figures"
    write_csv(figures / "runs.csv", run_rows(summary))
    write_csv(figures / "seeds.csv", seed_rows(summary))
    pairs = every_pair(summary)
    write_csv(figures / "pairs.csv", pair_rows(summary, pairs))
    write_figures(summary, figures)
    return write_atomically(out_html, render_report(summary, pairs, out_html.parent).encode())


def render_report(summary: StudySummary, pairs: Sequence[Pair], directory: Path) -> str:
    """The page; ``directory`` is where it will lie, for the paths of runs in it."""
    styles = arm_styles(summary.study.arms, summary.study.baseline)
    panels = [sections.panel(summary, index, styles) for index in range(len(summary.environments))]
    return Template(_read("report.html")).substitute(
        title=escape(f"{summary.study.name} · lambda-replay study"),
        style=_colours(styles) + _read("report.css"),
        header=sections.header(summary),
        summary=sections.summary_section(summary, styles),
        aggregate=sections.aggregate_section(summary, styles),
        pairs=sections.pairs_section(pairs, styles),
        toolbar=sections.toolbar(summary, styles),
        all_files=sections.files_of_all(summary),
        panels=sections.lines(panels),
        runs=runs_section(summary, styles, directory),
        method=sections.method_section(summary),
        data=_script_json(chart_data(summary, styles)),
        script=_read("report.js"),
    )


def chart_data(summary: StudySummary, styles: Mapping[str, ArmStyle]) -> dict[str, Any]:
    """What report.js draws: arms with their dashes, and for each environment and axis a curve for each arm."""
    return {
        "arms": [{"name": arm, "dash": styles[arm].dash} for arm in summary.study.arms],
        "environments": [
            _environment_data(environment, summary.study.baseline) for environment in summary.environments
        ],
    }


def _environment_data(environment: EnvironmentSummary, baseline: str) -> dict[str, Any]:
    return {
        "decimals": wording.decimals_of(environment),
        "threshold": _rounded(environment.threshold),
        "empty": "Every run diverged." if environment.is_lost else "No episode has ended yet.",
        "meaning": wording.threshold_meaning(environment, baseline),
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


def _colours(styles: Mapping[str, ArmStyle]) -> str:
    """The arms' colours as CSS variables, for light and dark ground; print is light."""
    light = "".join(f"--arm-{style.index}:{style.light};" for style in styles.values())
    dark = "".join(f"--arm-{style.index}:{style.dark};" for style in styles.values())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _script_json(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return files("lambda_replay.analysis").joinpath(name).read_text(encoding="utf-8")
