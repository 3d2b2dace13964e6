"""Draws the results: one panel per workload and number of environments, one bar per contender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.speed.tables import LABELS, groups, headline
from benchmarks.speed.workloads import CONTENDERS
from lambda_replay.extras import load_extra

OURS, OUR_BASELINE, PEER = "#0072b2", "#7fb8d8", "#b9bec5"
INK, FAINT = "#24292f", "#6b737c"


def draw_speed(results: dict[str, Any], path: Path) -> None:
    """Plot the training speeds, labelled with steps per second and the ratio to Stable-Baselines3."""
    load_extra("matplotlib").use("Agg")
    pyplot = load_extra("matplotlib.pyplot")
    panels = groups(results["speed"])
    columns = max(1, len({envs for _, envs in panels}))
    lines = -(-len(panels) // columns)
    most = max(len(rows) for rows in panels.values())
    size = (6.6 * columns + 1.2, lines * (0.36 * most + 0.85) + 1.1)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, ((workload, envs), rows) in zip(axes.flat, panels.items(), strict=False):
        _draw_panel(axis, headline(workload, envs), rows, with_names=axis in axes[:, 0])
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle("Training speed at equal settings\nsteps per second, and × Stable-Baselines3", color=INK, size=12)
    machine, settings = results["machine"], results["settings"]
    figure.supxlabel(
        f"{machine['processor']}, {settings['cores']} core(s); median of {settings['repeats']} interleaved round(s),\n"
        "whiskers from lowest to highest; dashed: the sgemm-peak bound of dqn-lambda, where it is near",
        color=FAINT,
        size=8,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_panel(axis: Any, title: str, rows: list[dict[str, Any]], *, with_names: bool) -> None:
    speeds = [row["steps_per_second"] for row in rows]
    top = max(row["high"] for row in rows)
    colours = [_colour(row["contender"]) for row in rows]
    spread = [
        [row["steps_per_second"] - row["low"] for row in rows],
        [row["high"] - row["steps_per_second"] for row in rows],
    ]
    places = range(len(rows))
    axis.barh(places, speeds, color=colours, height=0.72)
    axis.errorbar(speeds, places, xerr=spread, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    for place, row in zip(places, rows, strict=True):
        ratio = "" if row["ratio"] is None else f"   {row['ratio']:.2f}×"
        weight = "bold" if CONTENDERS[row["contender"]].is_ours else "normal"
        text = f"{row['steps_per_second']:,.0f}{ratio}"
        axis.text(row["high"] + 0.015 * top, place, text, va="center", size=9, color=INK, weight=weight)
    bound = next((row["bound_steps_per_second"] for row in rows if row["contender"] == "dqn-lambda"), None)
    if bound is not None and bound < 1.5 * top:
        axis.axvline(bound, color=FAINT, linestyle="--", linewidth=1)
        top = max(top, bound)
    axis.set_xlim(0, 1.32 * top)
    axis.set_yticks(list(places), [LABELS[row["contender"]] if with_names else "" for row in rows], size=9, color=INK)
    axis.invert_yaxis()
    axis.set_title(title, loc="left", size=10.5, weight="bold", color=INK)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("#d0d4d9")
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", colors=FAINT, labelsize=8)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _colour(contender: str) -> str:
    if not CONTENDERS[contender].is_ours:
        return PEER
    return OURS if CONTENDERS[contender].agent == "dqn-lambda" else OUR_BASELINE
