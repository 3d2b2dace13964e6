"""Writes a study's report: one self-contained HTML file, and the figures beside it.

Text and markup are in templates/, which Jinja2 fills in, escaping every value. The same runs give the same bytes: no
dates, no random names. While a study runs, the report shows what there is so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lambda_replay.analysis import findings, graphics, numbers, scores, statistics
from lambda_replay.analysis.files import write_shared
from lambda_replay.analysis.pairs import ENOUGH_PER_ENVIRONMENT, ENOUGH_RUNS, Pair, every_pair, probabilities
from lambda_replay.analysis.palette import arm_styles
from lambda_replay.analysis.plots import write_figures
from lambda_replay.analysis.records import StudyData
from lambda_replay.analysis.summary import StudySummary, summarise
from lambda_replay.analysis.tables import pair_rows, run_rows, seed_rows, write_csv
from lambda_replay.config import environment_directory
from lambda_replay.extras import load_extra

FILTERS: tuple[Callable[..., str], ...] = (
    numbers.fixed,
    numbers.signed,
    numbers.mean_and_error,
    numbers.interval,
    numbers.with_interval,
    numbers.steps,
    numbers.hours,
    numbers.count,
    numbers.listed,
    graphics.percent,
    findings.setting_text,
    environment_directory,
)
CONSTANTS = {
    "UNKNOWN": numbers.UNKNOWN,
    "LEVEL": statistics.LEVEL,
    "RESAMPLES": statistics.RESAMPLES,
    "WINDOW": scores.WINDOW,
    "THRESHOLD_EPISODES": scores.THRESHOLD_EPISODES,
    "ENOUGH_RUNS": ENOUGH_RUNS,
    "ENOUGH_PER_ENVIRONMENT": ENOUGH_PER_ENVIRONMENT,
}


def write_report(study: StudyData, out_html: Path) -> Path:
    """Write the report and, into ``figures`` beside it, every figure as PNG, PDF and CSV; works on an unfinished study.

    The page is written last, so everything it links to exists.
    """
    summary = summarise(study)
    pairs = every_pair(summary)
    page = render_report(summary, pairs, out_html.parent)
    figures = out_html.parent / "figures"
    write_csv(figures / "runs.csv", run_rows(summary))
    write_csv(figures / "seeds.csv", seed_rows(summary))
    write_csv(figures / "pairs.csv", pair_rows(summary, pairs))
    write_figures(summary, figures)
    return write_shared(out_html, page.encode())


def render_report(summary: StudySummary, pairs: Sequence[Pair], directory: Path) -> str:
    """The page; ``directory`` is where it will be stored, for the paths of its runs."""
    styles = arm_styles(summary.study.arms, summary.study.baseline)
    template = _load_templates().get_template("report.html")
    return template.render(
        summary=summary,
        study=summary.study,
        styles=styles,
        pairs=pairs,
        path_of=lambda record: Path(os.path.relpath(record.path, directory)).as_posix(),
        chart_data=graphics.chart_data(summary, styles),
    )


def _load_templates() -> Any:
    """The templates with the functions and constants they use; an undefined name is an error."""
    jinja2 = load_extra("jinja2")
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("lambda_replay.analysis"),
        autoescape=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    templates.filters.update({function.__name__: function for function in FILTERS})
    templates.globals.update(findings=findings, graphics=graphics, probabilities=probabilities, **CONSTANTS)
    return templates
