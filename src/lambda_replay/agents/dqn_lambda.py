"""DQN(λ): the paper's Algorithm 1 as a composition of memory, cache and learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents.cached import (
    Promote,
    cache_needs,
    check_room_for_blocks,
    promote_due,
    shortest_start,
    shrink_cache,
)
from lambda_replay.agents.epsilon_greedy import EpsilonGreedy
from lambda_replay.agents.protocol import Acted, KeepsGoing, Tensors, Work
from lambda_replay.agents.q_learning import make_q_network, q_learning_kind
from lambda_replay.agents.schedules import LinearRamp
from lambda_replay.config import CacheConfig, ExplorationConfig, NetworkConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.network_health import NUM_STATES, describe_network, is_look_due
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.cache import build_cache
from lambda_replay.replay.critic import Promoted, QCritic
from lambda_replay.replay.diagnostics import Metrics, describe_samples
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory


@dataclass(frozen=True, kw_only=True)
class DQNLambdaConfig:
    """Settings of dqn-lambda."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    def check(self, run: RunConfig) -> None:
        """Reject what does not fit the rest of the run."""
        run.check_lock_step("cache.refresh_every", self.cache.refresh_every)
        check_room_for_blocks(run, self.cache)


class DQNLambda:
    """Every F steps, refreshes the cache with the current network and trains on its fixed returns."""

    def __init__(
        self,
        run: RunConfig,
        config: DQNLambdaConfig,
        *,
        memory: ReplayMemory,
        network: QNetwork,
        estimator: Estimator,
        spec: EnvironmentSpec,
        streams: RandomStreams,
        seed: int,
        promote: Promote = promote_due,
    ) -> None:
        self._run, self._config, self._memory, self._promote = run, config, memory, promote
        self._network, self._estimator, self._streams = network, estimator, streams
        self._learner = Learner(network, config.optimizer, seed)
        # A network that trains alongside acting must not be the one that acts.
        self._acting = network if config.schedule == "burst" else network.copy()
        self._actor = EpsilonGreedy(
            self._acting, spec.num_actions, config.exploration, run.memory.start, streams.explore
        )
        self._priority = LinearRamp(config.cache.priority, 0.0, run.steps)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        return self._actor.act(states, step)

    def describe(self, step: int) -> Metrics:
        return {"epsilon": self._actor.epsilon(step)}

    def learn(self, step: int) -> Work | None:
        """If a refresh is due, promote random blocks of the memory (Algorithm 1, "if t ≡ 0 mod F")."""
        if not self._run.is_boundary(step):
            return None
        cache = self._config.cache
        blocks = self._promote(self._run, cache, self._memory, self._streams.blocks)
        looks = is_look_due(step - self._run.memory.start, cache.refresh_every)
        return Work(lambda keeps_going: self._train(blocks, step, keeps_going, looks=looks), self._adopt)

    @np.errstate(over="ignore", invalid="ignore")  # an overflow reaches the loss or the metrics, which are checked
    def _train(self, blocks: Promoted, step: int, keeps_going: KeepsGoing, *, looks: bool) -> Metrics:
        """BUILD-CACHE for all blocks at once, then the minibatches and gradient steps of Algorithm 1."""
        config = self._config.cache
        cache = build_cache(blocks, QCritic(self._network, self._network.chunk_size), self._estimator)
        priority, progress = self._priority(step), step / self._run.steps
        batch_size, updates = self._config.optimizer.batch_size, config.updates_per_refresh
        quantile, rng = config.priority_quantile, self._streams.batches
        rows = cache.sample_rows(
            batch_size, updates, priority, quantile, rng=rng, sampling=config.sampling
        )  # [updates, B]
        wanted = takewhile(lambda batch: keeps_going(), rows)
        ages, drawn = blocks.ages[:, : blocks.length].reshape(-1), rows.reshape(-1)
        health = describe_network(self._network, cache.minibatch(drawn[:NUM_STATES]).states) if looks else {}
        summary = self._learner.train((cache.minibatch(batch) for batch in wanted), progress=progress)
        return {
            "loss": summary.loss,
            "gradient_norm": summary.gradient_norm,
            **cache.metrics,
            **health,
            **describe_samples(cache.slots[drawn], ages[drawn]),
            "priority": priority,
        }

    def _adopt(self) -> None:
        if self._acting is not self._network:
            self._network.copy_weights_to(self._acting)

    def get_tensors(self) -> dict[str, Tensors]:
        return {"weights": self._network.weights(), "optimizer": self._learner.optimizer_state()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._network.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])
        self._adopt()

    def check_finite(self) -> None:
        self._learner.check_finite()

    def get_state(self) -> dict[str, float]:
        """Empty: at a boundary, the tensors hold this agent's whole state."""
        return {}

    def set_state(self, state: Mapping[str, float]) -> None:
        assert not state


def make(
    run: RunConfig,
    spec: EnvironmentSpec,
    *,
    memory: ReplayMemory,
    streams: RandomStreams,
    module: nn.Module | None,
    promote: Promote = promote_due,
) -> DQNLambda:
    seed, config = streams.draw_init_seed(), run.algorithm
    assert isinstance(config, DQNLambdaConfig)
    network, estimator = make_q_network(run, spec, seed, module), parse_estimator(run.estimator)
    return DQNLambda(
        run,
        config,
        memory=memory,
        network=network,
        estimator=estimator,
        spec=spec,
        streams=streams,
        seed=seed,
        promote=promote,
    )


KIND = q_learning_kind(
    summary="cached λ-returns, the paper's Algorithm 1",
    boundary="next refresh",
    config=DQNLambdaConfig,
    make=make,
    needs=cache_needs,
    shortest_start=shortest_start,
    shrink=shrink_cache,
)
