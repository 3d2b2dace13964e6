"""Draws a run's learning curve, and a study's figures as PNG, PDF and CSV; no numbers are computed here.

Figures use matplotlib's object interface, never pyplot, so they touch no global state and need no window system.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambda_replay.analysis import scores
from lambda_replay.analysis.files import write_shared
from lambda_replay.analysis.palette import HUES, ArmStyle, arm_styles
from lambda_replay.analysis.records import Episodes, read_episodes, read_object
from lambda_replay.analysis.summary import AXES, Axis, Curve, EnvironmentSummary, StudySummary
from lambda_replay.analysis.tables import aggregate_rows, curve_rows, write_csv
from lambda_replay.config import environment_directory
from lambda_replay.extras import load_extra
from lambda_replay.replay.data import Floats

AXIS_LABELS: dict[Axis, str] = {"steps": "agent steps", "hours": "hours of training"}
DPI = 200  # twice the usual, for high-resolution screens
MOST_DOTS = 20_000  # episodes drawn in a run's plot; more would only make a solid block
LINE_WIDTH = 1.8
INK, GRID = "#24292f", "#e3e6ea"
SETTINGS = {  # for every figure
    "font.size": 10,
    "text.parse_math": False,  # the names of runs and arms may hold dollars
    "axes.edgecolor": "#8b939c",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
    "lines.linewidth": LINE_WIDTH,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # embed fonts, so that text stays text
}


def plot_run(run_directory: Path, out_png: Path) -> Path:
    """Draw a run's learning curve: a faint dot for each episode, a line for the mean of the last 100."""
    config = read_object(run_directory / "config.json")
    episodes = read_episodes(run_directory / "episodes.csv")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_title(run_title(config))
        axes.set_xlabel(AXIS_LABELS["steps"])
        axes.set_ylabel("score of an episode")
        _draw_run(axes, episodes)
        axes.set_xlim(0, max(config.get("steps", 0), episodes.steps[-1] if len(episodes.steps) else 1))
        format_steps(axes)

    return write_shared(out_png, render(draw, (8.0, 4.5), ["png"])["png"])


def run_title(config: dict[str, Any]) -> str:
    """minatar/breakout · dqn-lambda · peng:0.75 · seed 3, or as much of it as is known."""
    parts = [str(config[name]) for name in ("env", "agent", "estimator") if name in config]
    return " · ".join(parts + ([f"seed {config['seed']}"] if "seed" in config else []))


def write_figures(summary: StudySummary, directory: Path) -> list[Path]:
    """Write every figure of a study into a directory: NAME.png, NAME.pdf and NAME.csv each."""
    styles = arm_styles(summary.study.arms, summary.study.baseline)
    written: list[Path] = []
    for axis in AXES:
        panels = [environment for environment in summary.environments if environment.has_curves(axis)]
        for environment in panels:
            name = f"{environment_directory(environment.environment)}-{axis}"
            written += _write_curves([environment], axis, styles, directory / name)
        if len(panels) > 1:
            written += _write_curves(panels, axis, styles, directory / f"all-{axis}")
    if summary.aggregates:
        written += _write_figure(
            directory / "aggregate",
            lambda figure: _draw_aggregate(figure, summary, styles),
            (7.0, 1.3 + 0.34 * len(summary.aggregates)),
            aggregate_rows(summary),
        )
    return written


def _write_curves(
    environments: Sequence[EnvironmentSummary], axis: Axis, styles: dict[str, ArmStyle], stem: Path
) -> list[Path]:
    columns = 2 if len(environments) in (2, 4) else min(3, len(environments))
    rows = math.ceil(len(environments) / columns)
    size = (7.0, 4.6) if len(environments) == 1 else (4.2 * columns, 3.1 * rows + 0.7)

    def draw(figure: Any) -> None:
        cells = figure.subplots(rows, columns, squeeze=False).flat
        for axes, environment in zip(cells, environments, strict=False):
            _draw_environment(axes, environment, axis, styles)
        for axes in list(figure.axes)[len(environments) :]:
            axes.remove()
        handles, labels = _legend_of(figure.axes)
        widest = 0.8 + 0.07 * max(map(len, labels))  # inches, including the line sample
        fitting = max(1, min(len(labels), int(size[0] / widest)))
        figure.legend(handles, labels, loc="outside lower center", ncols=fitting, handlelength=3.2)

    return _write_figure(stem, draw, size, curve_rows(environments, axis))


def _write_figure(
    stem: Path, draw: Callable[[Any], None], size: tuple[float, float], rows: list[list[object]]
) -> list[Path]:
    pictures = render(draw, size, ("png", "pdf"))
    paths = [write_shared(stem.with_name(f"{stem.name}.{kind}"), content) for kind, content in pictures.items()]
    return [*paths, write_csv(stem.with_name(f"{stem.name}.csv"), rows)]


def render(draw: Callable[[Any], None], size: tuple[float, float], kinds: Sequence[str]) -> dict[str, bytes]:
    """The figure in each format; the same numbers give the same bytes, so it contains no date."""
    matplotlib = load_extra("matplotlib")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS, "backend": "agg"}):
        figure = load_extra("matplotlib.figure").Figure(figsize=size, dpi=DPI, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        draw(figure)
        return {kind: _save(figure, kind) for kind in kinds}


def _save(figure: Any, kind: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
    return content.getvalue()


def _draw_run(axes: Any, episodes: Episodes) -> None:
    if len(episodes.steps) == 0:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color="#57606a")
        return
    stride = max(1, math.ceil(len(episodes.steps) / MOST_DOTS))
    opacity = float(np.clip(12 / math.sqrt(len(episodes.steps)), 0.1, 0.6))
    means = scores.recent_means(episodes.scores)
    color, mean_color = HUES[0][0], HUES[1][0]
    axes.scatter(
        episodes.steps[::stride],
        episodes.scores[::stride],
        s=7,
        color=color,
        alpha=opacity,
        linewidths=0,
        label="one episode",
    )
    axes.plot(
        episodes.steps, means, color=mean_color, linewidth=2.2, label="mean of the last 100", drawstyle="steps-post"
    )
    legend = axes.legend(loc="upper left", markerscale=2)
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    axes.annotate(
        f"{means[-1]:.3g}",
        (episodes.steps[-1], means[-1]),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=mean_color,
        fontweight="bold",
        annotation_clip=False,
    )


def _draw_environment(axes: Any, environment: EnvironmentSummary, axis: Axis, styles: dict[str, ArmStyle]) -> None:
    axes.set_title(environment.environment)
    axes.set_xlabel(AXIS_LABELS[axis])
    axes.set_ylabel("score, last 100 episodes")
    grid = environment.grids[axis]
    if axis == "hours" and grid[-1] < 1:
        grid = 60 * grid
        axes.set_xlabel("minutes of training")
    for arm in environment.arms:
        curve = arm.curves[axis]
        if curve.count.any():
            _draw_curve(axes, grid, curve, label=arm.arm, style=styles[arm.arm])
    axes.set_xlim(0, grid[-1])
    axes.locator_params(nbins=6)
    if axis == "steps":
        format_steps(axes)


def _draw_curve(axes: Any, grid: Floats, curve: Curve, *, label: str, style: ArmStyle) -> None:
    """Draw a line where all of the arm's runs are included, and a fainter one where only some are."""
    dashes = dashes_of(style)
    is_whole = curve.count == curve.count.max()
    whole = np.where(is_whole, curve.mean, np.nan)
    beside = np.convolve(~is_whole, [1, 1, 1], mode="same") > 0  # with one point of overlap, so that there is no gap
    partial = np.where(beside, curve.mean, np.nan)
    axes.plot(grid, partial, color=style.light, linestyle=dashes, alpha=0.4, linewidth=1.4)
    axes.plot(grid, whole, color=style.light, linestyle=dashes, label=label)
    low, high = curve.mean - curve.standard_error, curve.mean + curve.standard_error
    axes.fill_between(grid, low, high, color=style.light, alpha=0.15, linewidth=0)


def dashes_of(style: ArmStyle) -> Any:
    """The dash pattern as matplotlib takes it, in multiples of the line's width."""
    return (0, tuple(part / LINE_WIDTH for part in style.dash)) if style.dash else "solid"


def _draw_aggregate(figure: Any, summary: StudySummary, styles: dict[str, ArmStyle]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    results = summary.aggregates[::-1]
    for position, result in enumerate(results):
        color = styles[result.arm].light
        for axes, estimate in ((left, result.interquartile_mean), (right, result.probability)):
            if estimate is not None:
                axes.plot([estimate.low, estimate.high], [position, position], color=color, linewidth=5, alpha=0.45)
                axes.plot(estimate.value, position, "o", color=color, markersize=6)
    left.set_yticks(range(len(results)), [result.arm for result in results])
    left.set_ylim(-0.6, len(results) - 0.4)
    left.set_title("Normalised score")
    left.set_xlabel("interquartile mean, 95% interval")
    right.set_title(f"Better than {summary.study.baseline}")
    right.set_xlabel("probability, 95% interval")
    right.set_xlim(-0.02, 1.02)
    right.axvline(0.5, color="#8b939c", linewidth=1, linestyle=(0, (2, 2)))
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)


def _legend_of(all_axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Each arm once, whichever panels it appears in."""
    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return list(handles.values()), list(handles)


def format_steps(axes: Any) -> None:
    axes.xaxis.set_major_formatter(load_extra("matplotlib.ticker").EngFormatter(sep=""))
