"""The race's picture and its table in docs/results.md, from the files of its runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from benchmarks.race.tasks import CONTESTANTS, CONTINUOUS, DISCRETE, TASKS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
BEGIN, END = "<!-- python -m benchmarks.race table -->\n", "<!-- end of benchmarks.race -->\n"
COLOURS = {"dqn-lambda": "#2c4ca1", "pqn": "#107e4b", "sb3-ppo": "#e56908", "sb3-dqn": "#3d434b"}
COLOURS |= {"sac-lambda": COLOURS["dqn-lambda"], "sb3-sac": COLOURS["sb3-dqn"]}  # no task has both
GRID = 60  # points of a mean curve

Result = dict[str, Any]
Key = tuple[str, str]  # task, contestant


def write(place: Path) -> None:
    results = read_results(place)
    if not results:
        raise SystemExit("there are no runs yet; make them with: python -m benchmarks.race run")
    for axis in ("minutes", "steps"):
        draw(results, place / f"race-{axis}.png", axis)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table(results) + "\n" + END + rest.split(END)[1])


def read_results(place: Path) -> dict[Key, list[Result]]:
    """The runs of each task and contestant that had the task's whole budget."""
    results: dict[Key, list[Result]] = {}
    for path in sorted(place.glob("*.json")):
        result = json.loads(path.read_text())
        if result["minutes"] != TASKS[result["task"]].minutes:
            print(f"{path.name} had {result['minutes']:g} minutes and is left out")
            continue
        results.setdefault((result["task"], result["contestant"]), []).append(result)
    return results


def final_scores(runs: list[Result]) -> NDArray[np.float64]:
    """Mean of the last 100 training games at the end of each run's budget."""
    return np.array([run["curve"][-1]["score"] for run in runs], dtype=np.float64)


def greedy_scores(runs: list[Result]) -> NDArray[np.float64]:
    return np.array([np.mean(run["greedy_scores"]) for run in runs])


def table(results: dict[Key, list[Result]]) -> str:
    """For each task and contestant: training score, greedy score, and steps in thousands; the best scores in bold."""
    parts = [_part(results, contestants) for contestants in (DISCRETE, CONTINUOUS)]
    every = [run for runs in results.values() for run in runs]
    seeds = sorted({run["seed"] for run in every})
    used = min(run["cpu_seconds"] / (60 * run["minutes"]) for run in every)
    summary = f"Seeds {', '.join(map(str, seeds))}; mean ± standard error. "
    parts.append([summary + f"Every run used at least {100 * used:.0f} % of its time."])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _part(results: dict[Key, list[Result]], contestants: tuple[str, ...]) -> list[str]:
    """The table of the tasks with these contestants; nothing before the first run of theirs."""
    lines = []
    for name, task in TASKS.items():
        found = {who: results[name, who] for who in contestants if (name, who) in results}
        if task.contestants != contestants or not found:
            continue
        best, best_greedy = _best(final_scores, found), _best(greedy_scores, found)
        cells = [
            _cell(found[who], is_best=who in best, is_best_greedy=who in best_greedy) if who in found else "–"
            for who in contestants
        ]
        lines.append(f"| {name} ({task.minutes:g}) | {' | '.join(cells)} |")
    if not lines:
        return []
    names = " | ".join(CONTESTANTS[who] for who in contestants)
    return [f"| task (minutes) | {names} |", f"|---|{'---|' * len(contestants)}", *lines]


def _best(scores: Callable[[list[Result]], NDArray[np.float64]], found: dict[str, list[Result]]) -> set[str]:
    """Who has the highest mean, to the digits that are shown."""
    means = {who: round(float(scores(runs).mean()), 1) for who, runs in found.items()}
    return {who for who, mean in means.items() if mean == max(means.values())}


def _cell(runs: list[Result], *, is_best: bool, is_best_greedy: bool) -> str:
    steps = np.mean([run["steps"] for run in runs]) / 1_000
    score, greedy = _mean(final_scores(runs)), _mean(greedy_scores(runs))
    score, greedy = f"**{score}**" if is_best else score, f"**{greedy}**" if is_best_greedy else greedy
    return f"{score}; greedy {greedy}; {steps:,.0f}k steps"


def _mean(values: NDArray[np.float64]) -> str:
    if len(values) < 2:
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}"


def draw(results: dict[Key, list[Result]], path: Path, axis: str) -> None:
    """One panel per task: the mean score of the last 100 training games, and every seed's range, along an axis."""
    names = [name for name in TASKS if any(task == name for task, _ in results)]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, all_axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.1 * rows), squeeze=False)
    for axes in all_axes.flat[len(names) :]:
        axes.axis("off")
    for axes, name in zip(all_axes.flat, names, strict=False):
        for who, label in CONTESTANTS.items():
            if (name, who) in results:
                _draw_curve(axes, results[name, who], axis, COLOURS[who], label)
        axes.set_title(name)
        axes.set_xlabel("minutes of one core" if axis == "minutes" else "steps")
        if axis == "steps":
            axes.set_xscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    for axes in all_axes[:, 0]:
        axes.set_ylabel("score (last 100 games)")
    lines = {
        label: line for axes in all_axes.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(lines.values()), list(lines), loc="upper center", ncol=min(4, len(lines)), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curve(axes: Any, runs: list[Result], axis: str, colour: str, label: str) -> None:
    def place(point: dict[str, Any]) -> float:
        return float(point["seconds"] / 60 if axis == "minutes" else point["step"])

    grid = np.linspace(0, min(place(run["curve"][-1]) for run in runs), GRID + 1)[1:]
    curves = []
    for run in runs:
        points = [point for point in run["curve"] if point["score"] is not None]
        at = [place(point) for point in points]
        curves.append(np.interp(grid, at, [point["score"] for point in points], left=np.nan))
    low, high, mean = np.min(curves, axis=0), np.max(curves, axis=0), np.mean(curves, axis=0)
    axes.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(grid, mean, color=colour, linewidth=1.8, label=label)
