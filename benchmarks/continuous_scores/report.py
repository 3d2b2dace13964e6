"""The tables of the comparison in docs/results.md, and its learning curves, from the files of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.continuous_scores.tasks import ARMS, LAMBDAS, TASKS
from lambda_replay.analysis.palette import ArmStyle, arm_styles
from lambda_replay.analysis.plots import dashes_of, format_steps, render
from lambda_replay.analysis.statistics import mean_and_standard_error

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
BEGIN, END = "<!-- python -m benchmarks.continuous_scores write -->\n", "<!-- end of benchmarks.continuous_scores -->\n"
BASELINE = "sac"  # drawn in the colour of the text

Result = dict[str, Any]


def write(place: Path) -> None:
    """Replace what stands between the markers on the page, and draw the picture."""
    results = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(results)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    (place / "curves.png").write_bytes(draw(results))


def tables(results: list[Result]) -> str:
    """A table for each task that has runs, and the comparison of the λ."""
    parts = [_table(name, [result for result in results if result["task"] == name]) for name in TASKS]
    return "\n".join(part for part in [*parts, compare_lambdas(results)] if part)


def compare_lambdas(results: list[Result]) -> str:
    """Each λ's mean score on each task as a share of the best λ's, over the seeds that all of them have."""
    columns: dict[str, NDArray[np.float64]] = {}  # [λ]
    for name in [name for name, task in TASKS.items() if set(LAMBDAS) <= set(task.arms)]:
        runs = {(run["arm"], run["seed"]): float(scores_of(run)[-1]) for run in results if run["task"] == name}
        seeds = [seed for seed in TASKS[name].seeds if all((arm, seed) in runs for arm in LAMBDAS)]
        if seeds:
            means = np.array([np.mean([runs[arm, seed] for seed in seeds]) for arm in LAMBDAS])
            columns[f"{TASKS[name].words}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"] = means / means.max()
    if not columns:
        return ""
    shares = np.stack([*columns.values(), np.mean(list(columns.values()), axis=0)])  # [tasks + 1, λ]
    lines = [f"| share of the best λ's mean score | {' | '.join(columns)} | mean |", f"|---|{'---|' * len(shares)}"]
    lines += [
        f"| {ARMS[arm].words} | {' | '.join(f'{share:.2f}' for share in shares[:, number])} |"
        for number, arm in enumerate(LAMBDAS)
    ]
    return "\n".join(lines) + "\n"


def _table(name: str, results: list[Result]) -> str:
    task = TASKS[name]
    seeds = [seed for seed in task.seeds if any(result["seed"] == seed for result in results)]
    lines = [
        f"| {task.words}, {task.steps:,} steps | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | on the way |",
        f"|---|{'---|' * (len(seeds) + 2)}",
    ]
    for arm in task.arms:
        runs = {result["seed"]: result for result in results if result["arm"] == arm}
        cells = [f"{scores_of(runs[seed])[-1]:.0f}" if seed in runs else "–" for seed in seeds]
        if runs:
            finals = _mean([float(scores_of(run)[-1]) for run in runs.values()])
            on_the_way = _mean([float(scores_of(run).mean()) for run in runs.values()])
            lines.append(f"| {ARMS[arm].words} | {' | '.join(cells)} | {finals} | {on_the_way} |")
    return "\n".join(lines) + "\n" if results else ""


def scores_of(result: Result) -> NDArray[np.float64]:
    """The mean score of the greedy games of each evaluation; the last is after the last step."""
    return np.array([row["score_mean"] for row in result["evaluations"]], dtype=np.float64)


def _mean(values: Sequence[float]) -> str:
    """The mean over seeds and, if there are several, its standard error."""
    mean, error, _ = mean_and_standard_error(np.array(values))
    return f"{mean:.0f}" + ("" if math.isnan(error) else f" ± {error:.0f}")


def draw(results: list[Result]) -> bytes:
    """A PNG with a panel for each task: the mean over seeds of each arm, and the range from lowest to highest seed."""
    names = [name for name in TASKS if any(result["task"] == name for result in results)]
    styles = arm_styles(list(ARMS), BASELINE)
    rows = math.ceil(len(names) / 2)

    def fill(figure: Any) -> None:
        for number, name in enumerate(names):
            axes = figure.add_subplot(rows, 2, number + 1)
            for arm in TASKS[name].arms:
                runs = [result for result in results if (result["task"], result["arm"]) == (name, arm)]
                if runs:
                    _draw_arm(axes, runs, styles[arm], ARMS[arm].words.replace("`", ""))
            axes.set_title(TASKS[name].words)
            axes.set_xlabel("agent steps")
            axes.set_ylabel("score, 20 greedy games")
            axes.set_xlim(0, TASKS[name].steps)
            format_steps(axes)
            axes.legend(fontsize=7.5, handlelength=3.0)

    return render(fill, (11.0, 4.0 * rows), ["png"])["png"]


def _draw_arm(axes: Any, runs: list[Result], style: ArmStyle, words: str) -> None:
    steps = np.array([row["step"] for row in runs[0]["evaluations"]])
    scores = np.stack([scores_of(run) for run in runs])  # [runs, evaluations]
    label = words if len(runs) > 1 else f"{words} (one seed)"
    axes.plot(steps, scores.mean(axis=0), color=style.light, linestyle=dashes_of(style), label=label)
    axes.fill_between(steps, scores.min(axis=0), scores.max(axis=0), color=style.light, alpha=0.12, linewidth=0)
