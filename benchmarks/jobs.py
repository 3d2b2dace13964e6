"""Runs that leave one file each: makes those whose file is missing, one process per core."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """A run in a process of its own."""

    name: str  # for people
    out: Path  # the file that it leaves
    command: list[str]


def make_missing(jobs: Iterable[Job], cores: Sequence[int]) -> None:
    """Run every job whose file does not exist, in this order, each on one core and with one thread."""
    waiting = [job for job in jobs if not job.out.exists()]
    running: dict[int, subprocess.Popen[bytes]] = {}
    while waiting or running:
        for core in [core for core, process in running.items() if process.poll() is not None]:
            if running.pop(core).returncode != 0:
                raise SystemExit("a run failed; its complaint is above")
        for core in cores:
            if core not in running and waiting:
                job = waiting.pop(0)
                print(f"{time.strftime('%H:%M:%S')} core {core}: {job.name}", flush=True)
                running[core] = _start(job, core)
        time.sleep(0.5)


def _start(job: Job, core: int) -> subprocess.Popen[bytes]:
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(["taskset", "--cpu-list", str(core), *job.command], env={**os.environ, **variables})
