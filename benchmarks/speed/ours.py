"""Measures lambda-replay itself: the run that ``lambda-replay train`` starts, logs included."""

from __future__ import annotations

from benchmarks.speed.measurement import Measurement, measurement
from benchmarks.speed.workloads import Job, run_config
from lambda_replay.training.speed import Stopwatch, time_run


def measure(job: Job) -> Measurement:
    """Steps per second over whole cycles between refreshes (or target copies); the first cycle is the warm-up."""
    config = run_config(job)
    stopwatch = Stopwatch(config.memory.start + job.workload.refresh_every, job.seconds)
    run = time_run(config, stopwatch)
    memory = run._memory
    return measurement(
        stopwatch,
        replay_bytes_per_step=memory.nbytes / (memory.num_streams * memory.ring.size),
        parameters=sum(tensor.numel() for tensor in run.weights().values()),
    )
