"""What one process measures, and the cores that it does so on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from lambda_replay.training.speed import Stopwatch


class Measurement(NamedTuple):
    """What one process measured of one contender."""

    steps_per_second: float
    steps: int
    seconds: float
    peak_bytes: int  # of the whole process
    replay_bytes_per_step: float
    parameters: int  # of the network that is trained


def measurement(stopwatch: Stopwatch, *, replay_bytes_per_step: float, parameters: int) -> Measurement:
    """What a stopwatch that is over says, with the memory that this process has needed."""
    speed = stopwatch.steps_per_second
    return Measurement(
        speed, stopwatch.steps, stopwatch.seconds, peak_memory_bytes(), replay_bytes_per_step, parameters
    )


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
