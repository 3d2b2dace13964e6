"""The report's log of runs as HTML: state, scores, what sets each config apart, and provenance."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from lambda_replay.analysis import wording
from lambda_replay.analysis.graphics import swatch
from lambda_replay.analysis.palette import ArmStyle
from lambda_replay.analysis.sections import Styles, lines
from lambda_replay.analysis.summary import EnvironmentSummary, RunSummary, StudySummary


def runs_section(summary: StudySummary, styles: Styles, directory: Path) -> str:
    """Every run of the study, by environment; paths are given relative to the report's directory."""
    groups = [_group(environment, styles, directory) for environment in summary.environments]
    against = "the study’s defaults" if summary.study.defaults else "one another"
    return f"""<section id="runs">
<h2>Runs</h2>
<p class="note">Each run opens to show its provenance and the settings in which it differs from {against}.
As tables: <a href="figures/runs.csv">all runs</a>, <a href="figures/seeds.csv">the curve of each</a></p>
{lines(groups)}
</section>"""


def _group(environment: EnvironmentSummary, styles: Styles, directory: Path) -> str:
    digits = wording.decimals_of(environment)
    runs = [run for arm in environment.arms for run in arm.runs]
    finished = sum(run.record.state == "finished" for run in runs)
    diverged = sum(run.record.state == "diverged" for run in runs)
    lost = f", {diverged} diverged" if diverged else ""
    entries = [_entry(run, styles[run.record.arm], digits, directory) for run in runs]
    return f"""<details class="group"><summary><b>{escape(environment.environment)}</b>
<span>{finished} of {wording.count(len(runs), "run")} finished{lost}</span></summary>
{lines(entries)}
</details>"""


def _entry(run: RunSummary, style: ArmStyle, digits: int, directory: Path) -> str:
    record = run.record
    facts = [
        f'<span class="state {record.state}">{record.state}</span>',
        f"<span>score {wording.number(run.final_score, digits)}</span>",
        f"<span>{wording.steps(run.reached)} steps</span>",
        f"<span>{wording.hours(run.hours)}</span>",
    ]
    shown = facts if run.num_episodes else facts[:1]
    reason = f'<p class="reason">{escape(record.reason)}</p>' if record.reason else ""
    path = Path(os.path.relpath(record.path, directory)).as_posix()
    return f"""<details class="run"><summary>
<span class="who">{swatch(style)}{escape(record.arm)} · seed {record.seed}</span>{"".join(shown)}</summary>
{reason}<p class="path"><code>{escape(path)}</code> ·
{wording.count(run.num_episodes, "episode")}</p>
<div class="columns">
<div><h4>Settings</h4>{_values(run.settings, "No differences.")}</div>
<div><h4>Provenance</h4>{_values(run.provenance, "Nothing recorded yet.")}</div>
</div></details>"""


def _values(values: Mapping[str, Any], otherwise: str) -> str:
    if not values:
        return f"<p>{otherwise}</p>"
    items = [f"<dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd>" for name, value in values.items()]
    return f"<dl>{lines(items)}</dl>"


def _text(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)  # a command, or notes, which are sentences
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
