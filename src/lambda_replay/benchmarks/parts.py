"""Where the time of ``dqn-lambda`` goes: each room timed by itself, at the settings of a workload, per agent step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from lambda_replay import parse_estimator
from lambda_replay.agents import Agent, make_agent
from lambda_replay.benchmarks.workloads import BATCH_SIZE, STEPS_PER_UPDATE, Job, run_config
from lambda_replay.config import CacheConfig, RunConfig
from lambda_replay.envs import Environment
from lambda_replay.randomness import make_streams
from lambda_replay.replay.cache import Cache, make_block
from lambda_replay.replay.diagnostics import describe_refresh, describe_samples
from lambda_replay.replay.estimators import explain
from lambda_replay.training.loop import Boundary, Loop
from lambda_replay.training.run import make_environments

NUM_MINIBATCHES = 32  # gathered once, then trained on again and again


def measure_parts(job: Job) -> dict[str, Any]:
    """Seconds per agent step of every part of the loop."""
    config = run_config(job)
    environments = make_environments(config)
    streams = make_streams(config.seed, config.envs)
    agent = make_agent(config, environments[0].spec, streams)
    loop = Loop(config, environments, agent, streams)
    next(event for event in loop.run() if isinstance(event, Boundary))  # the random start fills the memory
    budget = job.seconds / 8
    return {"seconds_per_step": {**_acting(agent, config, budget), **_learning(agent, config, budget)}}


def _acting(agent: Agent, config: RunConfig, budget: float) -> dict[str, float]:
    memory, rng = agent.memory, np.random.default_rng(0)
    act = seconds_per_call(lambda: agent.actor.act(memory.newest_states(), config.memory.start), budget)
    environment = make_environments(config)[0]
    player = _Player(environment, rng)
    play = seconds_per_call(player.step, budget)
    observation = player.observation
    memory.abandon()
    memory.begin(observation)
    store = seconds_per_call(lambda: memory.append(0, 0.0, observation), budget)
    environment.close()
    return {"acting": act / config.envs, "environment": play, "storing": store}


class _Player:
    """Plays random actions for ever."""

    def __init__(self, environment: Environment, rng: np.random.Generator) -> None:
        self._environment, self._rng = environment, rng
        self.observation = environment.reset(0)

    def step(self) -> None:
        step = self._environment.step(int(self._rng.integers(self._environment.spec.num_actions)))
        if step.game_over:
            self.observation = self._environment.reset(int(self._rng.integers(2**31 - 1)))


def _learning(agent: Agent, config: RunConfig, budget: float) -> dict[str, float]:
    assert config.cache is not None
    parts, cache = _refresh(agent, config, config.cache, budget)
    rng, every = np.random.default_rng(1), config.cache.refresh_every
    updates = config.cache.updates_per_refresh

    def sample() -> Any:
        return cache.sample_rows(BATCH_SIZE, updates, 0.1, 0.5, rng=rng)

    rows = sample()
    parts["refresh: sampling"] = seconds_per_call(sample, budget) / every
    ages = agent.memory.ages(cache.slots.reshape(config.cache.num_blocks, -1))
    parts["diagnostics"] += seconds_per_call(lambda: describe_samples(cache, rows, ages), budget) / every
    some = cycle(rows[:NUM_MINIBATCHES])
    parts["training: gathering"] = seconds_per_call(lambda: cache.minibatch(next(some)), budget) / STEPS_PER_UPDATE
    minibatches = [cache.minibatch(batch) for batch in rows[:NUM_MINIBATCHES]]
    seconds = seconds_per_call(lambda: agent.learner.train(minibatches), 2 * budget) / len(minibatches)
    return {**parts, "training: step": seconds / STEPS_PER_UPDATE}


def _refresh(
    agent: Agent, config: RunConfig, cache_config: CacheConfig, budget: float
) -> tuple[dict[str, float], Cache]:
    memory, learner, every = agent.memory, agent.learner, cache_config.refresh_every
    slots = memory.sample_blocks(cache_config.num_blocks, cache_config.block_length, np.random.default_rng(0))
    chunk_size = min(learner.chunk_size, slots.size)
    flat = slots.reshape(-1)[:chunk_size]
    states, chunks_per_step = memory.states(flat), slots.size / chunk_size / every
    gather = seconds_per_call(lambda: memory.states(flat), budget) * chunks_per_step
    forward = seconds_per_call(lambda: learner.q_values(states), 2 * budget) * chunks_per_step
    block = make_block(
        memory, slots, memory.transitions(slots), learner.q_values, discount=config.discount, chunk_size=chunk_size
    )
    estimator = parse_estimator(config.estimator)

    def make_cache() -> Cache:
        fresh = type(block)(**{name: getattr(block, name) for name in block.__dataclass_fields__})  # nothing cached
        return Cache(memory, slots[:, :-1], fresh, explain(estimator, fresh))

    recursion, cache = seconds_per_call(make_cache, budget) / every, make_cache()
    explanation = explain(estimator, block)
    diagnostics = seconds_per_call(lambda: describe_refresh(cache, block, explanation), budget) / every
    return {
        "refresh: gathering": gather,
        "refresh: forward": forward,
        "refresh: recursion": recursion,
        "diagnostics": diagnostics,
    }, cache


def seconds_per_call(function: Callable[[], object], budget: float, chunks: int = 5) -> float:
    """Median seconds of a call over several chunks of calls, after a warm-up, within about ``budget`` seconds."""
    function()
    began = time.perf_counter()
    function()
    once = max(time.perf_counter() - began, 1e-7)
    calls = max(1, int(budget / chunks / once))
    times = []
    for _ in range(chunks):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - began) / calls)
    return statistics.median(times)
