"""The 19-state random walk through the real memory, cache and estimator, against known errors of TD(λ)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import lambda_replay as lr

NUM_STATES, NUM_EPISODES, NUM_REPETITIONS = 19, 10, 400
TRUE_VALUES = (np.arange(1, NUM_STATES + 1) - 10) / 10  # of the states 1 … 19; 0 and 20 are the ends

# λ, α and the RMS error over states, averaged over the first 10 episodes and 400 repetitions (±0.003).
# Sutton & Barto ch. 12, with returns frozen for the episode.
KNOWN_ERRORS = {
    (0.0, 0.8): 0.3655,
    (0.4, 0.7): 0.2921,
    (0.8, 0.4): 0.2646,
    (0.9, 0.25): 0.2861,
    (0.95, 0.15): 0.3226,
    (0.975, 0.1): 0.3648,
    (0.99, 0.06): 0.4157,
    (1.0, 0.02): 0.4845,
}


def random_walk(rng: np.random.Generator) -> NDArray[np.uint8]:
    """The states of one episode, from the middle to one of the ends."""
    while True:
        steps = np.where(rng.random(1_500) < 0.5, -1, 1)
        path = np.concatenate([[10], 10 + np.cumsum(steps)])
        ends = np.flatnonzero((path == 0) | (path == NUM_STATES + 1))
        if len(ends) > 0:
            return path[: ends[0] + 1].astype(np.uint8)


def remember(path: NDArray[np.uint8]) -> lr.ReplayMemory:
    """A memory that holds the episode and nothing else: −1 at the left end, +1 at the right one."""
    memory = lr.ReplayMemory(len(path), (), np.uint8)
    memory.begin(path[0])
    for state in path[1:-1]:
        memory.append(0, 0.0, state)
    memory.append(0, 1.0 if path[-1] > 0 else -1.0, path[-1], terminated=True)
    return memory


def learn_from(memory: lr.ReplayMemory, values: NDArray[np.float32], lambda_: float, step_size: float) -> None:
    """One pass over the episode in the order of time, towards returns that were computed before it began."""
    length = len(memory)
    cache = lr.refresh(
        memory,
        lambda states: values[states],  # [n, 1]: one action
        lr.parse_estimator(f"peng:{lambda_}"),
        discount=1.0,
        size=length,
        block_length=length,
        rng=np.random.default_rng(0),  # the only block is the episode
    )
    learned = values.tolist()
    for state, target in zip(memory.observations[cache.slots].tolist(), cache.returns.tolist(), strict=True):
        learned[state] += step_size * (target - learned[state])
    values[:] = learned


@pytest.fixture(scope="module")
def mean_errors() -> dict[tuple[float, float], float]:
    """RMS errors of all cells of the table, which share the same walks."""
    rng = np.random.default_rng(2019)
    totals = dict.fromkeys(KNOWN_ERRORS, 0.0)
    for _ in range(NUM_REPETITIONS):
        values = {cell: np.zeros(NUM_STATES + 2, dtype=np.float32) for cell in KNOWN_ERRORS}
        for _ in range(NUM_EPISODES):
            memory = remember(random_walk(rng))
            for cell in KNOWN_ERRORS:
                learn_from(memory, values[cell], *cell)
                totals[cell] += float(np.sqrt(np.mean((values[cell][1:-1] - TRUE_VALUES) ** 2)))
    return {cell: total / (NUM_REPETITIONS * NUM_EPISODES) for cell, total in totals.items()}


@pytest.mark.parametrize("cell", KNOWN_ERRORS, ids=lambda cell: f"lambda={cell[0]},alpha={cell[1]}")
def test_the_error_of_td_lambda(mean_errors: dict[tuple[float, float], float], cell: tuple[float, float]) -> None:
    assert mean_errors[cell] == pytest.approx(KNOWN_ERRORS[cell], abs=0.01)
