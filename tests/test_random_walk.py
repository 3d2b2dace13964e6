"""The 19-state random walk through the real memory, cache and estimator, against known errors of TD(λ)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
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
    memory = lr.ReplayMemory(len(path), (1,), np.uint8)
    observations = path[:, None]  # [T+1, 1]
    memory.begin(observations[0])
    for observation in observations[1:-1]:
        memory.append(0, 0.0, observation)
    memory.append(0, 1.0 if path[-1] > 0 else -1.0, observations[-1], terminated=True)
    return memory


def learn_from(memory: lr.ReplayMemory, values: NDArray[np.float32], lambda_: float, step_size: float) -> None:
    """One pass over the episode in the order of time, towards returns that were computed before it began."""
    length = len(memory)
    cache = lr.refresh(
        memory,
        lambda states: values[states[:, 0]],  # [n, 1]: one action
        lr.parse_estimator(f"peng:{lambda_}"),
        discount=1.0,
        size=length,
        block_length=length,
        rng=np.random.default_rng(0),  # the only block is the episode
    )
    learned = values.tolist()
    for state, target in zip(memory.observations[cache.slots, 0].tolist(), cache.returns.tolist(), strict=True):
        learned[state] += step_size * (target - learned[state])
    values[:] = learned


def learn_literally(path: list[int], values: list[float], lambda_: float, step_size: float) -> None:
    """The same pass in plain Python: G_t = (1−λ)·V(s_{t+1}) + λ·G_{t+1} until the last step, whose return is ±1."""
    returns = [1.0 if path[-1] > 0 else -1.0]
    for next_state in reversed(path[1:-1]):
        returns.append((1 - lambda_) * values[next_state] + lambda_ * returns[-1])
    for state, target in zip(path[:-1], reversed(returns), strict=True):
        values[state] += step_size * (target - values[state])


def measure_errors(seed: int) -> dict[tuple[float, float], float]:
    """RMS errors of all cells of the table, which share the same walks."""
    rng = np.random.default_rng(seed)
    totals = dict.fromkeys(KNOWN_ERRORS, 0.0)
    for _ in range(NUM_REPETITIONS):
        values = {cell: np.zeros(NUM_STATES + 2, dtype=np.float32) for cell in KNOWN_ERRORS}
        for _ in range(NUM_EPISODES):
            memory = remember(random_walk(rng))
            for cell in KNOWN_ERRORS:
                learn_from(memory, values[cell], *cell)
                totals[cell] += float(np.sqrt(np.mean((values[cell][1:-1] - TRUE_VALUES) ** 2)))
    return {cell: total / (NUM_REPETITIONS * NUM_EPISODES) for cell, total in totals.items()}


@pytest.mark.parametrize("cell", KNOWN_ERRORS, ids=lambda cell: f"lambda={cell[0]}")
def test_the_rooms_together_learn_what_plain_python_learns(cell: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    values, literal = np.zeros(NUM_STATES + 2, dtype=np.float32), [0.0] * (NUM_STATES + 2)
    for _ in range(2 * NUM_EPISODES):
        path = random_walk(rng)
        learn_from(remember(path), values, *cell)
        learn_literally(path.tolist(), literal, *cell)
        assert_allclose(values, literal, rtol=0, atol=1e-4)


def test_the_errors_of_td_lambda_on_the_random_walk() -> None:
    """One test for the whole table, so that tests running in parallel walk only once."""
    assert measure_errors(seed=2019) == pytest.approx(KNOWN_ERRORS, abs=0.01)
