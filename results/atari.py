"""Atari runs of our own: collects them in compact form, and makes the picture and the table of docs/results.md.

    python results/atari.py collect RUN NAME              # RUN's games, times, config and commit -> results/atari/NAME/
    python results/atari.py collect RUN NAME --weights    # its newest weights too, so that the directory can play
    python results/atari.py write                         # results/atari/curves.png and the table in docs/results.md

NAME is GAME-ARM-seedN, such as pong-atari-seed1. RUN is a run's directory, or one of results/atari_sb3.py.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from lambda_replay.analysis.records import read_lines
from lambda_replay.rundir.checkpoints import CHECKPOINTS
from lambda_replay.rundir.directory import WEIGHTS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).resolve().parent
PLACE = HERE / "atari"
PAGE = HERE.parent / "docs" / "results.md"
BEGIN, END = "<!-- python results/atari.py write -->\n", "<!-- end of atari.py -->\n"
WINDOW = 100  # games
GOALS = {"pong": 18.0, "freeway": 20.0}
ARMS = {
    "atari": "`atari`",
    "twice": "`atari` with twice the updates",
    "paper": "`paper`, peng:0.75",
    "dqn": "our `dqn`, 3-step, target network, twice the updates",
    "sb3": "Stable-Baselines3's DQN, its zoo's settings",
}
UNTIMED = ("pong-paper-seed1", "breakout-atari-seed1")  # ran in the gaps of other work: their hours mean nothing
SEED_STYLES = ("--", "-")  # seed 1 is solid
COLOURS = {"atari": "#0072B2", "twice": "#009E73", "paper": "#56B4E9", "dqn": "#E69F00", "sb3": "#D55E00"}


@dataclass(frozen=True, eq=False)
class Curve:
    """The games of one run, in the order they ended."""

    game: str
    arm: str
    seed: int
    steps: NDArray[np.float64]  # [E]
    hours: NDArray[np.float64]  # [E]
    scores: NDArray[np.float64]  # [E]
    commit: str

    @property
    def is_timed(self) -> bool:
        return f"{self.game}-{self.arm}-seed{self.seed}" not in UNTIMED

    @property
    def means(self) -> NDArray[np.float64]:  # [E]
        """Mean score of the last 100 games (fewer at first) at the end of each."""
        sums = np.cumsum(np.concatenate([[0.0], self.scores]))
        ends = np.arange(1, len(sums))
        starts = np.maximum(0, ends - WINDOW)
        return (sums[ends] - sums[starts]) / (ends - starts)

    def reaching(self, goal: float) -> int | None:
        """The first game at which the mean of 100 games is at least the goal."""
        reached = np.flatnonzero((self.means >= goal) & (np.arange(len(self.scores)) >= WINDOW - 1))
        return int(reached[0]) if len(reached) else None


def main(arguments: list[str]) -> int:
    if len(arguments) == 3 + ("--weights" in arguments) and arguments[0] == "collect":
        collect(Path(arguments[1]), PLACE / arguments[2])
        if "--weights" in arguments:
            shutil.copy(newest_weights(Path(arguments[1])), PLACE / arguments[2])
    elif arguments == ["write"]:
        curves = list(read_curves())
        draw(curves, PLACE / "curves.png")
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(curves) + "\n" + END + rest.split(END)[1])
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


def collect(run: Path, place: Path) -> None:
    """Keep a run's games with their times, its config and its commit."""
    place.mkdir(parents=True, exist_ok=True)
    with (run / "episodes.csv").open(newline="") as file:
        games = [(int(row["step"]), float(row["score"]), row.get("seconds")) for row in csv.DictReader(file)]
    timing = read_lines(run / "timing.jsonl")
    steps, seconds = [row["step"] for row in timing], [row["seconds"] for row in timing]
    with (place / "games.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "score", "seconds"])
        for step, score, when in games:
            time = float(when) if when is not None else float(np.interp(step, [0, *steps], [0.0, *seconds]))
            writer.writerow([step, f"{score:g}", f"{time:.0f}"])
    (place / "config.json").write_text((run / "config.json").read_text())
    provenance = run / "provenance.json"
    known: dict[str, Any] = json.loads(provenance.read_text()) if provenance.exists() else {}
    kept = {
        name: known[name] for name in ("commit", "versions", "python", "processor", "cores", "notes") if name in known
    }
    (place / "provenance.json").write_text(json.dumps(kept, indent=1) + "\n")


def newest_weights(run: Path) -> Path:
    """The final weights or, of a run that was stopped, those of its newest checkpoint."""
    if (run / WEIGHTS).exists():
        return run / WEIGHTS
    return max((run / CHECKPOINTS).iterdir(), key=lambda place: int(place.name)) / WEIGHTS


def read_curves() -> Iterator[Curve]:
    for place in sorted(PLACE.glob("*-seed*")):
        game, arm, seed = place.name.rsplit("-", 2)
        table = np.loadtxt(place / "games.csv", delimiter=",", skiprows=1, ndmin=2)
        provenance = json.loads((place / "provenance.json").read_text())
        yield Curve(
            game,
            arm,
            int(seed.removeprefix("seed")),
            steps=table[:, 0],
            hours=table[:, 2] / 3600,
            scores=table[:, 1],
            commit=shortened(str(provenance.get("commit", ""))),
        )


def shortened(commit: str) -> str:
    """A commit's first digits, and the + that says that the source had changes."""
    return commit[:12] + ("+" if commit.endswith("+") else "")


def draw(curves: list[Curve], path: Path) -> None:
    """Every game's curves by steps and by hours."""
    games = sorted({curve.game for curve in curves}, key=lambda game: (game != "pong", game))
    figure, axes = plt.subplots(len(games), 2, figsize=(10, 3.1 * len(games)), squeeze=False, constrained_layout=True)
    for row, game in zip(axes, games, strict=True):
        for curve in (curve for curve in curves if curve.game == game):
            for axis, places in zip(row, (curve.steps / 1e6, curve.hours), strict=True):
                if axis is row[1] and not curve.is_timed:
                    continue
                style, name = SEED_STYLES[curve.seed % len(SEED_STYLES)], ARMS[curve.arm].partition(",")[0]
                axis.plot(
                    places,
                    curve.means,
                    style,
                    color=COLOURS[curve.arm],
                    linewidth=1.4,
                    label=f"{name}, seed {curve.seed}",
                )
        for axis, label in zip(row, ("million steps", "hours, on one core"), strict=True):
            axis.set_xlabel(label)
            axis.set_xlim(left=0)
            axis.grid(color="#dddddd", linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            if game in GOALS:
                goal = f"goal: {GOALS[game]:g}"
                axis.axhline(GOALS[game], color="#888888", linewidth=0.8, linestyle=":", label=goal)
        row[0].set_ylabel(f"{game.title()}: score, mean of 100 games")
        handles = dict(zip(*reversed(row[0].get_legend_handles_labels()), strict=True))
        row[1].legend(handles.values(), [label.replace("`", "") for label in handles], fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(curves: list[Curve]) -> str:
    """Every run: how far it got, its last score, and when it reached the goal."""
    lines = [
        "| game | agent | seed | steps | hours | last 100 games | goal reached after | commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for curve in curves:
        goal = GOALS.get(curve.game)
        reached = None if goal is None else curve.reaching(goal)
        when = "–" if goal is None else f"{goal:g}: not yet"
        if reached is not None:
            when = f"{goal:g}: {curve.steps[reached]:,.0f} steps"
            when += f", {curve.hours[reached]:.2f} h" if curve.is_timed else ""
        hours, commit = (
            f"{curve.hours[-1]:.2f}" if curve.is_timed else "–",
            f"`{curve.commit}`" if curve.commit else "–",
        )
        lines.append(
            f"| {curve.game.title()} | {ARMS[curve.arm]} | {curve.seed} | {curve.steps[-1]:,.0f} | {hours} | "
            f"{curve.means[-1]:.1f} | {when} | {commit} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
