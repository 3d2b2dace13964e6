"""Reads the progress of a study's runs from their directories, at any time, even while they run elsewhere."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.directory import (
    EPISODES,
    METRICS,
    TIMING,
    is_diverged,
    is_finished,
    looking_at,
    read_divergence,
)
from lambda_replay.rundir.files import read_json
from lambda_replay.rundir.states import State
from lambda_replay.studies.layout import Layout
from lambda_replay.studies.plan import PlannedRun, Study
from lambda_replay.training.loop import GameEnd

STEP_COLUMN = GameEnd._fields.index("step")  # of episodes.csv
TAIL_BYTES = 8192  # more than the longest line of any of a run's logs


@dataclass(frozen=True)
class RunStatus:
    """The status of one run, as its files show it."""

    run: PlannedRun
    path: Path
    state: State
    step: int = 0  # agent steps done; a waiting run with some will be resumed
    seconds: float = 0.0  # training time, up to ``timed_step``
    timed_step: int = 0
    score: float | None = None  # mean of the last 100 games
    reason: str = ""  # for a failure or a divergence


def read_status(study: Study, layout: Layout) -> list[RunStatus]:
    """Every run of the study, in its order."""
    is_conducted = is_being_run(layout)
    return [_read_run(run, layout, is_conducted=is_conducted) for run in study.runs]


def is_being_run(layout: Layout) -> bool:
    """Whether a ``study run`` is working on this study."""
    try:
        with looking_at(layout.directory):
            return False
    except ConfigError:
        return True


def seconds_left(statuses: Sequence[RunStatus], workers: int) -> float | None:
    """Estimated time until all runs finish, from the speed of their arms so far; None before anything is known."""
    speeds = _Speeds(statuses)
    left = [
        (status.run.config.steps - status.step) * speed
        for status in statuses
        if status.state in ("running", "waiting") and (speed := speeds.seconds_per_step(status.run)) is not None
    ]
    if not left and any(status.state in ("running", "waiting") for status in statuses):
        return None
    return max([sum(left) / max(1, workers), *left], default=0.0)


class _Speeds:
    """Seconds per step so far: of the same environment and arm, else of the arm, else of all runs."""

    def __init__(self, statuses: Sequence[RunStatus]) -> None:
        self._seconds: dict[tuple[str, ...], float] = defaultdict(float)
        self._steps: dict[tuple[str, ...], int] = defaultdict(int)
        for status in statuses:
            for key in _keys(status.run):
                self._seconds[key] += status.seconds
                self._steps[key] += status.timed_step

    def seconds_per_step(self, run: PlannedRun) -> float | None:
        known = (self._seconds[key] / self._steps[key] for key in _keys(run) if self._steps[key] > 0)
        return next(known, None)


def _keys(run: PlannedRun) -> tuple[tuple[str, ...], ...]:
    return (run.arm, run.environment), (run.arm,), ()


def _read_run(run: PlannedRun, layout: Layout, *, is_conducted: bool) -> RunStatus:
    path = layout.run(run)
    timing, metrics = _last_numbers(path / TIMING), _last_numbers(path / METRICS)
    timed_step = int(timing.get("step", 0))
    state, reason = _read_state(run, layout, is_conducted=is_conducted)
    return RunStatus(
        run=run,
        path=path,
        state=state,
        step=max(timed_step, _last_game_step(path / EPISODES)),
        seconds=timing.get("seconds", 0.0),
        timed_step=timed_step,
        score=metrics.get("score_mean_100"),
        reason=reason,
    )


def _read_state(run: PlannedRun, layout: Layout, *, is_conducted: bool) -> tuple[State, str]:
    if is_finished(layout.run(run)):
        return "finished", ""
    if is_diverged(layout.run(run)):
        return "diverged", read_divergence(layout.run(run))
    if is_conducted and layout.mark(run).exists():
        return "running", ""
    try:
        failure = read_json(layout.failure(run))
    except FileNotFoundError:
        return "waiting", ""
    except DamageError as error:
        return "failed", str(error)
    return "failed", str(failure.get("reason", "")) if isinstance(failure, dict) else ""


def _last_numbers(path: Path) -> dict[str, float]:
    """The numbers in the last whole line of a JSON Lines file; empty if there is none."""
    for line in reversed(_last_lines(path)):
        with contextlib.suppress(ValueError, RecursionError):  # damage, which resume removes or sets aside
            value = json.loads(line)
            if isinstance(value, dict):
                return {name: item for name, item in value.items() if _is_number(item)}
    return {}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _last_game_step(path: Path) -> int:
    """The step at which the last game in an episodes.csv ended."""
    for line in reversed(_last_lines(path)):
        with contextlib.suppress(ValueError, IndexError):  # the header, or what a power failure left
            return int(line.split(",")[STEP_COLUMN])
    return 0


def _last_lines(path: Path) -> list[str]:
    """The whole lines in a file's last bytes; a line still being written and one cut off at the start are left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            content = file.read()
    except (FileNotFoundError, IsADirectoryError):
        return []
    lines = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace").splitlines()
    return lines[1:] if start else lines
