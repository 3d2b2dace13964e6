"""The machine's peak sgemm speed and the arithmetic per agent step, which together bound an algorithm's speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.plain_networks import plain_network
from benchmarks.speed.workloads import (
    BATCH_SIZE,
    CONTENDERS,
    ROWS_PER_STEP,
    STEPS_PER_UPDATE,
    Job,
    cache_config,
    run_config,
)
from lambda_replay.envs import make_environment

T = TypeVar("T")
MATRIX_SIZES = (512, 1024, 1536)
BESIDE_SECONDS = 0.4  # of matrix products before each measurement, and again after it


def sgemm_peak(seconds: float) -> float:
    """The highest FLOP/s of a square float32 matrix product, with torch's current number of threads."""
    return max(max(_sgemm_speeds(size, seconds / len(MATRIX_SIZES))) for size in MATRIX_SIZES)


def _sgemm_speeds(size: int, seconds: float) -> list[float]:
    """Operations per second of each of a series of products."""
    left, right, product = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
    torch.mm(left, right, out=product)
    speeds, end = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        torch.mm(left, right, out=product)
        speeds.append(2 * size**3 / (time.perf_counter() - began))
    return speeds


def sgemm_beside(measure: Callable[[], T], threads: int) -> tuple[T, float]:
    """The result of ``measure``, and the operations per second of matrix products directly before and after it.

    This shows what the machine could do at that time: on a shared machine it differs from the peak, and from minute to
    minute.
    """
    before = _sustained_sgemm(threads)
    found = measure()
    return found, (before + _sustained_sgemm(threads)) / 2


def _sustained_sgemm(threads: int) -> float:
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    speeds = _sgemm_speeds(MATRIX_SIZES[1], BESIDE_SECONDS)
    torch.set_num_threads(usual)
    return statistics.harmonic_mean(speeds)  # all operations over all seconds


def flops_per_step(job: Job) -> dict[str, Any]:
    """Operations per agent step: acting, training, and the refresh or the target network's share.

    Training on a state costs its forward pass and twice as much again for the two gradients, minus the first layer's
    input gradient, which is not needed. Operations outside matrix products (Adam, ReLU) are not counted.
    """
    environment = make_environment(run_config(job))
    spec = environment.spec
    environment.close()
    network = plain_network(job.workload.network, _plain_shape(job, spec.observation_shape), spec.num_actions)
    states = torch.zeros(BATCH_SIZE, *_plain_shape(job, spec.observation_shape))
    forward, training = count_flops(network, states)
    samples_per_step = BATCH_SIZE / STEPS_PER_UPDATE
    parts = {"acting": forward, "training": samples_per_step * training}
    contender = CONTENDERS[job.contender]
    if contender.agent == "dqn-lambda":
        length = cache_config(job.workload, contender).block_length
        parts["refresh"] = ROWS_PER_STEP * (length + 1) / length * forward
    else:
        parts["target network"] = samples_per_step * forward
    return {"parts": parts, "total": sum(parts.values()), "forward": forward}


def count_flops(network: nn.Module, states: torch.Tensor) -> tuple[float, float]:
    """Operations per state of a forward pass, and of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        q_values = network(states)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        q_values = network(states)
        q_values.sum().backward()
    return forward / len(states), counter.get_total_flops() / len(states)


def _plain_shape(job: Job, shape: tuple[int, ...]) -> tuple[int, ...]:
    if job.workload.network == "minatar":
        return (shape[-1], *shape[:-1])
    return shape if job.workload.history == 1 else (job.workload.history, *shape)
