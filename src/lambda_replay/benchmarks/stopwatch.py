"""Times whole cycles of a training loop after a warm-up."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple


class Measurement(NamedTuple):
    """What one process measured of one contender."""

    steps_per_second: float
    steps: int
    seconds: float
    peak_bytes: int  # of the whole process
    replay_bytes_per_step: float
    parameters: int  # of the network that is trained


class Stopwatch:
    """Asked at the end of every cycle whether it is over; begins with the first to end at ``first_step`` or later."""

    def __init__(self, first_step: int, seconds: float) -> None:
        self._first_step, self._wanted = first_step, seconds
        self._began_at: tuple[int, float] | None = None
        self.steps, self.seconds = 0, 0.0

    def is_over(self, step: int) -> bool:
        now = time.perf_counter()
        if self._began_at is None:
            if step >= self._first_step:
                self._began_at = step, now
            return False
        self.steps, self.seconds = step - self._began_at[0], now - self._began_at[1]
        return self.seconds >= self._wanted

    def result(self, *, replay_bytes_per_step: float, parameters: int) -> Measurement:
        assert self.seconds > 0
        speed = self.steps / self.seconds
        return Measurement(speed, self.steps, self.seconds, peak_memory_bytes(), replay_bytes_per_step, parameters)


def peak_memory_bytes() -> int:
    """The most memory that this process ever had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had before the exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def allowed_cores() -> list[int]:
    """The cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(cores: list[int]) -> None:
    """Keep this process on the cores, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
