"""Measures how fast a run is on this machine: whole cycles, timed after a warm-up."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from lambda_replay.config import RunConfig
from lambda_replay.training.events import Boundary, RunEvent
from lambda_replay.training.run import Run, start_run


class Stopwatch:
    """Checked at the end of every cycle; starts with the first to end at ``first_step`` or later."""

    def __init__(self, first_step: int, seconds: float) -> None:
        self._first_step, self._wanted = first_step, seconds
        self._began_at: tuple[int, float] | None = None
        self.steps, self.seconds = 0, 0.0

    @property
    def steps_per_second(self) -> float:
        assert self.seconds > 0
        return self.steps / self.seconds

    def is_over(self, step: int) -> bool:
        now = time.perf_counter()
        if self._began_at is None:
            if step >= self._first_step:
                self._began_at = step, now
            return False
        self.steps, self.seconds = step - self._began_at[0], now - self._began_at[1]
        return self.steps > 0 and self.seconds >= self._wanted  # several games can end at one step


class _Over(Exception):
    """Ends a run that would otherwise go on forever."""


def time_run(config: RunConfig, stopwatch: Stopwatch, *, has_cycles: bool = True) -> Run:
    """The run that ``train`` starts, logs and all, stopped and closed when the stopwatch runs out.

    A cycle lasts from one boundary to the next. Without cycles, because the learning is spread evenly over the steps,
    the end of a game works as well.
    """

    def on_event(event: RunEvent) -> None:
        if (isinstance(event, Boundary) or not has_cycles) and stopwatch.is_over(event.step):
            raise _Over

    with tempfile.TemporaryDirectory() as directory:
        run = start_run(Path(directory) / "run", config)
        try:
            with contextlib.suppress(_Over):
                run.train(on_event)
        finally:
            run.close()
    return run
