"""What one refresh costs: recursion and sampling at the paper's size, and gathering as the memory grows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.speed.parts import KnownCritic, seconds_per_call
from lambda_replay.config import NetworkConfig
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.networks import make_network
from lambda_replay.replay.cache import build_cache, prioritized
from lambda_replay.replay.critic import promote_slots
from lambda_replay.replay.data import Block
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator, explain
from lambda_replay.replay.memory import ReplayMemory

ESTIMATORS = ("peng:0.75", "watkins:0.75", "nstep:3", "retrace:0.9@0.05", "median", "bounded:0.1")
PAPER_BLOCKS, PAPER_LENGTH, PAPER_UPDATES = 800, 100, 2_500
PAPER_STATES = PAPER_BLOCKS * (PAPER_LENGTH + 1)
NUM_ACTIONS = 6
FRAME = (84, 84)
HISTORY = 4
FILL_PATTERN = 997  # slots; a prime, so that the pattern never aligns with blocks


def measure_estimators(
    seconds: float, num_blocks: int = PAPER_BLOCKS, length: int = PAPER_LENGTH, updates: int = PAPER_UPDATES
) -> dict[str, Any]:
    """Seconds for each estimator on [K, L] blocks, for priorities and for drawing all rows of a refresh."""
    budget = seconds / (len(ESTIMATORS) + 3)
    returns = {}
    for name in ESTIMATORS:
        estimator = parse_estimator(name)
        returns[name] = seconds_per_call(partial(_explain_afresh, estimator, num_blocks, length), budget)
    block = _block(num_blocks, length)
    making = seconds_per_call(lambda: _block(num_blocks, length), budget)
    slots = np.arange(num_blocks * (length + 1)).reshape(num_blocks, length + 1)
    memory = ReplayMemory(slots.size, (1,), np.uint8)
    memory.set_state({"written": [slots.size], "is_open": [1]})
    memory.is_step[:-1] = True  # the newest slot is none yet
    blocks = promote_slots(memory, slots, discount=0.99, length=length)
    cache = build_cache(blocks, KnownCritic(block), parse_estimator("peng:0.75"))
    rng = np.random.default_rng(0)
    return {
        "blocks": num_blocks,
        "length": length,
        "updates": updates,
        "returns_seconds": {name: max(0.0, value - making) for name, value in returns.items()},
        "priorities_seconds": seconds_per_call(lambda: prioritized(cache.td_errors, 0.1), budget),
        "priorities_and_sampling_seconds": seconds_per_call(
            lambda: cache.sample_rows(32, updates, 0.1, rng=rng), budget
        ),
    }


def _explain_afresh(estimator: Estimator, num_blocks: int, length: int) -> None:
    explain(estimator, _block(num_blocks, length))


_RANDOM: dict[tuple[int, int], dict[str, Any]] = {}


def _block(num_blocks: int, length: int) -> Block:
    """Random blocks in a new record, because a record caches what was computed from it."""
    if (num_blocks, length) not in _RANDOM:
        rng = np.random.default_rng(0)
        ends = rng.random((num_blocks, length)) < 0.01
        _RANDOM[num_blocks, length] = {
            "rewards": rng.integers(-1, 2, (num_blocks, length)).astype(np.float32),
            "discounts": np.where(ends, np.float32(0), np.float32(0.99)),
            "q_values": rng.standard_normal((num_blocks, length + 1, NUM_ACTIONS), dtype=np.float32),
            "actions": rng.integers(NUM_ACTIONS, size=(num_blocks, length + 1), dtype=np.int32),
            "behaviour_probs": np.full((num_blocks, length + 1), 0.5, dtype=np.float32),
            "continues": ~ends,
        }
    return Block(**_RANDOM[num_blocks, length])


def measure_memory_size(slots: int, seconds: float, num_blocks: int = PAPER_BLOCKS // 10) -> dict[str, Any]:
    """Seconds for a refresh from a full memory of Atari frames, and for gathering a minibatch from it.

    Computes a tenth of the paper's blocks and scales the seconds up to all of them.
    """
    memory = _full_memory(slots)
    module = make_network(NetworkConfig(kind="atari"), (HISTORY, *FRAME), NUM_ACTIONS, seed=0)
    network = QNetwork(module, torch.device("cpu"))
    rng, length = np.random.default_rng(0), min(PAPER_LENGTH, slots // 4)
    chunk_size = network.chunk_size

    def gather() -> None:
        flat = memory.sample_blocks(num_blocks, length, rng).reshape(-1)
        for start in range(0, len(flat), chunk_size):
            memory.states(flat[start : start + chunk_size])

    states = memory.states(memory.sample_blocks(1, length, rng).reshape(-1)[:chunk_size])
    scale = PAPER_STATES / (num_blocks * (length + 1))
    return {
        "slots": slots,
        "memory_bytes": memory.nbytes,
        "refresh_gathering_seconds": scale * seconds_per_call(gather, seconds / 3),
        "refresh_forward_seconds": PAPER_STATES / len(states) * seconds_per_call(lambda: network(states), seconds / 3),
        "minibatch_gathering_seconds": seconds_per_call(
            lambda: memory.states(rng.integers(HISTORY, slots, 32)), seconds / 3
        ),
    }


def _full_memory(slots: int) -> ReplayMemory:
    """A memory in which every page has been written; unwritten pages would all map to the same page of zeros."""
    memory = ReplayMemory(slots, FRAME, np.uint8, HISTORY)
    pattern = np.random.default_rng(0).integers(256, size=(FILL_PATTERN, *FRAME), dtype=np.uint8)
    for start in range(0, slots, FILL_PATTERN):
        memory.observations[start : start + FILL_PATTERN] = pattern[: slots - start]
    memory.frames[:] = HISTORY
    memory.behaviour_probs[:] = 1
    memory.is_step[:] = True
    memory.set_state({"written": [slots], "is_open": [1]})
    return memory
