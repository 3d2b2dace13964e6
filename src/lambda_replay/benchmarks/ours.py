"""Measures lambda-replay itself: the run that ``lambda-replay train`` starts, logs and all."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from lambda_replay.benchmarks.stopwatch import Measurement, Stopwatch
from lambda_replay.benchmarks.workloads import Job, run_config
from lambda_replay.training.loop import Boundary, Event
from lambda_replay.training.run import start_run


class _Over(Exception):
    """The way out of a run that would go on for ever."""


def measure(job: Job) -> Measurement:
    """Steps per second over whole cycles, from one refresh (or target copy) to another; the first one is warm-up."""
    config = run_config(job)
    stopwatch = Stopwatch(config.memory.start + job.workload.refresh_every, job.seconds)

    def on_event(event: Event) -> None:
        if isinstance(event, Boundary) and stopwatch.is_over(event.step):
            raise _Over

    with tempfile.TemporaryDirectory() as directory:
        run = start_run(Path(directory) / "run", config)
        with contextlib.suppress(_Over):
            run.train(on_event)
        run.close()
    memory, weights = run.agent.memory, run.agent.learner.weights()
    return stopwatch.result(
        replay_bytes_per_step=memory.nbytes / (memory.num_streams * memory.ring),
        parameters=sum(tensor.numel() for tensor in weights.values()),
    )
