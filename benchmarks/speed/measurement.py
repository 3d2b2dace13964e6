"""What one process measures, and the cores it runs on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from lambda_replay.training.speed import Stopwatch


class Measurement(NamedTuple):
    """What one process measured for one contender."""

    steps_per_second: float
    steps: int
    seconds: float
    peak_bytes: int  # of the whole process
    replay_bytes_per_step: float
    parameters: int  # of the trained network


def measurement(stopwatch: Stopwatch, *, replay_bytes_per_step: float, parameters: int) -> Measurement:
    """The result of a finished stopwatch, with the peak memory of this process."""
    speed = stopwatch.steps_per_second
    return Measurement(
        speed, stopwatch.steps, stopwatch.seconds, peak_memory_bytes(), replay_bytes_per_step, parameters
    )


def peak_memory_bytes() -> int:
    """The peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent's memory before the exec
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
    """Pin this process to the cores, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
