"""Speeds of trainings that take turns in one process: ours, Stable-Baselines3's, and the ratio of the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.config import RunConfig
from lambda_replay.training.assembly import assemble, make_environments

Run = Callable[[int], int]  # takes at least this many agent steps; returns how many


def ours(config: RunConfig) -> Run:
    """A training of ours that goes on where it stopped."""
    loop = assemble(config, make_environments(config)).loop
    events = loop.run()

    def run(steps: int) -> int:
        first = loop.step
        while loop.step < first + steps:
            next(events)
        return loop.step - first

    return run


def theirs(model: Any) -> Run:
    """A model of Stable-Baselines3 that goes on where it stopped."""

    def run(steps: int) -> int:
        before = model.num_timesteps
        model.learn(steps, reset_num_timesteps=False)
        return int(model.num_timesteps - before)

    return run


def take_turns(arms: Mapping[str, Run], rounds: int, steps: int) -> dict[str, NDArray[np.float64]]:
    """For each arm, steps per second of processor time and by the clock in every round, [rounds, 2]."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, run in arms.items():
            found[name].append(_timed(run, steps))
    return {name: np.array(pairs) for name, pairs in found.items()}


def _timed(run: Run, steps: int) -> tuple[float, float]:
    processor, clock = time.process_time(), time.perf_counter()
    taken = run(steps)
    return taken / (time.process_time() - processor), taken / (time.perf_counter() - clock)


def show(name: str, speeds: NDArray[np.float64], peers: NDArray[np.float64]) -> None:
    """Print median speeds of the rounds [rounds, 2], and their ratio to the peer's, with its quartiles."""
    by_processor, by_clock = np.median(speeds, axis=0)
    shares = np.quantile(speeds / peers, [0.25, 0.5, 0.75], axis=0)  # [3, 2]
    ratios = "   ".join(f"{median:5.2f} × ({low:.2f} to {high:.2f})" for low, median, high in shares.T)
    print(f"{name:<26} {by_processor:7.1f} {by_clock:7.1f}   {ratios}")
