"""Where ``dqn-lambda`` spends its time: each part timed separately, per agent step, at the settings of a workload."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.speed.workloads import BATCH_SIZE, STEPS_PER_UPDATE, Job, run_config
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.q_learning import make_q_network
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Learner
from lambda_replay.replay.cache import Cache, build_cache
from lambda_replay.replay.critic import Promoted, QCritic, promote
from lambda_replay.replay.data import Block
from lambda_replay.replay.diagnostics import describe_refresh, describe_samples
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import explain
from lambda_replay.training.assembly import Assembly, assemble, make_environments
from lambda_replay.training.loop import Boundary

NUM_MINIBATCHES = 32  # gathered once, then trained on repeatedly


def measure_parts(job: Job) -> dict[str, Any]:
    """Seconds per agent step of every part of the loop."""
    config = run_config(job)
    environments = make_environments(config)
    assembly = assemble(config, environments)
    next(event for event in assembly.loop.run() if isinstance(event, Boundary))  # the random start fills the memory
    budget = job.seconds / 8
    network = make_q_network(config, environments[0].spec, config.seed, module=None)
    parts, blocks, cache = _refresh(assembly, config, network, budget)
    acting, training = _acting(assembly, config, budget), _training(config, network, blocks, cache, budget)
    parts["diagnostics"] += training.pop("diagnostics")
    return {"seconds_per_step": {**acting, **parts, **training}}


def _settings(config: RunConfig) -> DQNLambdaConfig:
    assert isinstance(config.algorithm, DQNLambdaConfig)
    return config.algorithm


def _acting(assembly: Assembly, config: RunConfig, budget: float) -> dict[str, float]:
    agent, memory, rng = assembly.agent, assembly.memory, np.random.default_rng(0)
    act = seconds_per_call(lambda: agent.act(memory.newest_states(), config.memory.start), budget)
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
    """Plays random actions forever."""

    def __init__(self, environment: Environment, rng: np.random.Generator) -> None:
        self._environment, self._rng = environment, rng
        self.observation = environment.reset(0)

    def step(self) -> None:
        step = self._environment.step(int(self._rng.integers(self._environment.spec.num_actions)))
        if step.game_over:
            self.observation = self._environment.reset(int(self._rng.integers(2**31 - 1)))


def _refresh(
    assembly: Assembly, config: RunConfig, network: QNetwork, budget: float
) -> tuple[dict[str, float], Promoted, Cache]:
    """Time gathering and forward passes on one chunk of states, scaled up, and everything else in full."""
    memory, settings, every = assembly.memory, _settings(config).cache, _settings(config).cache.refresh_every
    blocks = promote(
        memory,
        discount=config.discount,
        size=settings.size,
        block_length=settings.block_length,
        rng=np.random.default_rng(0),
    )
    chunk = blocks.slots.reshape(-1)[: network.chunk_size]
    states, chunks_per_step = memory.states(chunk), blocks.slots.size / len(chunk) / every
    gather = seconds_per_call(lambda: memory.states(chunk), budget) * chunks_per_step
    forward = seconds_per_call(lambda: network(states), 2 * budget) * chunks_per_step
    estimator = parse_estimator(config.estimator)
    critic = KnownCritic(QCritic(network, network.chunk_size).evaluate(blocks))
    build = seconds_per_call(lambda: build_cache(blocks, critic, estimator), budget) / every
    cache, block = build_cache(blocks, critic, estimator), critic.evaluate(blocks)
    explanation, is_drawn = explain(estimator, block), cache.is_transition
    returns, td_errors = cache.returns[is_drawn], cache.td_errors[is_drawn]
    describe = seconds_per_call(lambda: describe_refresh(returns, td_errors, block, explanation), budget) / every
    return (
        {
            "refresh: gathering": gather,
            "refresh: forward": forward,
            "refresh: recursion": build - describe,
            "diagnostics": describe,
        },
        blocks,
        cache,
    )


@dataclass(frozen=True)
class KnownCritic:
    """A critic with a precomputed answer, so that the rest of a refresh can be timed separately."""

    block: Block

    def evaluate(self, blocks: Promoted) -> Block:
        return replace(self.block)  # a new record, because a record caches what was computed from it


def _training(config: RunConfig, network: QNetwork, blocks: Promoted, cache: Cache, budget: float) -> dict[str, float]:
    settings, rng = _settings(config), np.random.default_rng(1)
    every, updates = settings.cache.refresh_every, settings.cache.updates_per_refresh

    def sample() -> Any:
        return cache.sample_rows(BATCH_SIZE, updates, 0.1, 0.5, rng=rng)

    rows = sample()
    drawn, ages = rows.reshape(-1), blocks.ages[:, : blocks.length].reshape(-1)
    some = cycle(rows[:NUM_MINIBATCHES])
    minibatches = [cache.minibatch(batch) for batch in rows[:NUM_MINIBATCHES]]
    learner = Learner(network, settings.optimizer)
    step = seconds_per_call(lambda: learner.train(minibatches), 2 * budget) / len(minibatches)
    return {
        "refresh: sampling": seconds_per_call(sample, budget) / every,
        "diagnostics": seconds_per_call(lambda: describe_samples(cache.slots[drawn], ages[drawn]), budget) / every,
        "training: gathering": seconds_per_call(lambda: cache.minibatch(next(some)), budget) / STEPS_PER_UPDATE,
        "training: step": step / STEPS_PER_UPDATE,
    }


def seconds_per_call(function: Callable[[], object], budget: float, chunks: int = 5) -> float:
    """Median seconds per call over several chunks of calls after a warm-up, in about ``budget`` seconds."""
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
