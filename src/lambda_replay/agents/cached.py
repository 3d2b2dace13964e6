"""Shared by agents that train from a cache: its blocks, how much memory it needs, and a small cache for timing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lambda_replay.agents.protocol import AgentNeeds
from lambda_replay.checks import require
from lambda_replay.config import CacheConfig, RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.replay.critic import Promoted, promote
from lambda_replay.replay.dynamic_lambda import Median
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.memory import ReplayMemory

# The blocks of a refresh, with the run's settings and those of its cache.
Promote = Callable[[RunConfig, CacheConfig, ReplayMemory, np.random.Generator], Promoted]
FLOAT_BYTES = 4
CACHE_ROW_BYTES = 8 + 4 + 4 + 4 + 1  # slot, action, return, TD error, whether it is a transition
DRAWN_ROW_BYTES = 4 * 8  # a random number, its product, the place found, the row
CANDIDATE_BYTES = 3 * FLOAT_BYTES  # a return, its trace, a sorted copy


def check_room_for_blocks(run: RunConfig, cache: CacheConfig, burn_in: int = 0) -> None:
    """Reject a memory that is smaller than a block with its burn-in, either when full or when learning starts."""
    block = burn_in + cache.block_length + cache.tail + run.memory.history
    per_stream = {
        "memory.capacity": (run.memory.capacity, block + cache.reserve_slots(run.envs)),
        "memory.start": (run.memory.start, block),
    }
    for name, (value, needed) in per_stream.items():
        require(
            value // run.envs >= needed,
            f"{name} ({value}, over {run.envs} environments) is smaller than a block, which needs {needed} slots; "
            f"raise it to {needed * run.envs} or lower cache.block_length ({cache.block_length}).",
            name,
            "cache.block_length",
        )
    require(
        not cache.newest or cache.num_blocks >= run.envs,
        f"cache.size ({cache.size}) must hold the newest block of each of the {run.envs} environments; "
        f"raise it to {run.envs * cache.block_length} or lower envs.",
        "cache.size",
        "envs",
    )


def promote_due(
    run: RunConfig, cache: CacheConfig, memory: ReplayMemory, rng: np.random.Generator, burn_in: int = 0
) -> Promoted:
    """The random blocks of a refresh."""
    return promote(
        memory,
        discount=run.discount,
        size=cache.size,
        block_length=cache.block_length,
        rng=rng,
        tail=cache.tail,
        reserve=cache.reserve_slots(run.envs),
        newest=cache.newest,
        burn_in=burn_in,
    )


def cache_needs(
    run: RunConfig, spec: EnvironmentSpec, batch_size: int, values_per_state: int | None = None
) -> AgentNeeds:
    """Bytes of the cache, of the values it is computed from, and of the rows of all minibatches, drawn at once.

    A critic has as many values per state as there are actions, unless ``values_per_state`` says otherwise.
    """
    cache = _cache(run)
    states = cache.num_blocks * (cache.block_length + cache.tail + 1)
    row_bytes = CACHE_ROW_BYTES + (math.prod(spec.action_shape) - 1) * FLOAT_BYTES
    per_state = spec.num_actions if values_per_state is None else values_per_state
    cache_bytes, q_values_bytes = cache.size * row_bytes, states * per_state * FLOAT_BYTES
    updates, estimator = cache.updates_per_refresh, parse_estimator(run.estimator)
    candidates = estimator.k + 1 if isinstance(estimator, Median) else 0
    larger = f"cache.updates ({updates})" if updates > batch_size else f"optimizer.batch_size ({batch_size})"
    takers = [
        (cache_bytes + q_values_bytes, f"cache.size ({cache.size})"),
        (updates * batch_size * DRAWN_ROW_BYTES, larger),
        (candidates * states * CANDIDATE_BYTES, f"the number in estimator ({run.estimator})"),
    ]
    return AgentNeeds(takers, cache_bytes, q_values_bytes)


def shortest_start(run: RunConfig) -> int:
    """Steps per stream that a block needs."""
    cache = _cache(run)
    return cache.block_length + cache.tail + run.memory.history


def shrink_cache(config: Any, steps: int, share: int) -> tuple[Any, float]:
    """A config with 1/``share`` of a refresh and its updates, and no other refresh within ``steps``; and its scale."""
    cache = config.cache
    small = replace(
        cache,
        size=max(1, cache.num_blocks // share) * cache.block_length,
        updates=max(1, cache.updates_per_refresh // share),
        refresh_every=steps,
        schedule="burst",
        newest=False,  # a small cache may have fewer blocks than there are environments; a block costs the same
    )
    return replace(config, cache=small), float(share)


def _cache(run: RunConfig) -> CacheConfig:
    cache = getattr(run.algorithm, "cache", None)
    assert isinstance(cache, CacheConfig)
    return cache
