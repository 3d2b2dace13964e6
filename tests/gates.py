"""A game that waits until a test lets it go on, so that a run lasts as long as the test needs it on any machine.

``gates:Gated-v0`` is the linear chain. With the variable ``GATED_BY`` it waits at the gate in that directory, which the
test holds as a ``Gate``; without it, it never waits. ``GATED_STEP_SECONDS`` makes each of its steps take that long.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
from environments import TIME_LIMIT, LinearChain
from processes import HUNG_SECONDS

GATE = "GATED_BY"
STEP_SECONDS = "GATED_STEP_SECONDS"
POLL_SECONDS = 0.02
LIMIT = "limit"  # the file with the number of steps; without it the gate is open


class Gate:
    """The test's side: where environments wait, which of them have come there, and when they may go on."""

    def __init__(self, directory: Path, steps: int) -> None:
        """Make a gate at which each environment waits once it has taken so many steps, those of a replay included."""
        directory.mkdir()
        self._directory = directory
        self.move(steps)

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs in its environment in order to wait here."""
        return {GATE: str(self._directory)}

    def move(self, steps: int) -> None:
        """Let environments take so many steps in all, and wait there."""
        assert steps > TIME_LIMIT, "a resumed run would wait while it replays its game"
        draft = self._directory / "draft"
        draft.write_text(str(steps))
        draft.replace(self._directory / LIMIT)

    def admit_one(self) -> None:
        """Let one environment through, the next to come or one that waits; it does not wait again."""
        (self._directory / f"pass-{uuid.uuid4()}").touch()

    def open(self) -> None:
        """Let everyone through for good."""
        (self._directory / LIMIT).unlink()

    def arrivals(self) -> list[int]:
        """The processes that have come to the gate and had to wait, one entry for each time."""
        return [int(path.name.split("-")[1]) for path in self._directory.glob("arrived-*")]


class Gated(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment's side. Waiting is all that it adds: the game depends on seed and actions alone."""

    def __init__(self) -> None:
        super().__init__(LinearChain())
        self._directory = Path(os.environ[GATE]) if GATE in os.environ else None
        self._step_seconds = float(os.environ.get(STEP_SECONDS, "0"))
        self._steps = 0
        self._allowed: float = math.inf if self._directory is None else 0

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._directory is not None and self._steps >= self._allowed:
            self._allowed = _wait(self._directory, self._steps)
        if self._step_seconds > 0:
            time.sleep(self._step_seconds)
        self._steps += 1
        return self.env.step(action)


def _wait(directory: Path, steps: int) -> float:
    """Wait until more than ``steps`` are allowed; how many are."""
    if (limit := _read_limit(directory)) > steps:
        return limit
    (directory / f"arrived-{os.getpid()}-{uuid.uuid4()}").touch()
    deadline = time.monotonic() + HUNG_SECONDS
    while not _takes_pass(directory):
        if (limit := _read_limit(directory)) > steps:
            return limit
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened the gate {directory}; its test is gone, or hangs.")
        time.sleep(POLL_SECONDS)
    return math.inf


def _read_limit(directory: Path) -> float:
    try:
        return int((directory / LIMIT).read_text())
    except FileNotFoundError:
        return math.inf


def _takes_pass(directory: Path) -> bool:
    for path in directory.glob("pass-*"):
        try:
            path.unlink()
        except FileNotFoundError:  # another one was quicker
            continue
        return True
    return False


gymnasium.register("Gated-v0", f"{__name__}:Gated", max_episode_steps=TIME_LIMIT)
