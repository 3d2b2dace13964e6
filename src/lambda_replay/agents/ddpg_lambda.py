"""DDPG(λ): one critic that learns cached λ-returns, a deterministic policy, and no target networks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import nn

from lambda_replay.agents.actor_critic import CachedActorCritic
from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    Shape,
    check_cached,
    continuous_kind,
    fast_optimizer,
    frequent_cache,
    make_networks,
    modules_of,
    parse_value_estimator,
)
from lambda_replay.agents.deterministic import (
    DeterministicCritic,
    DeterministicMethod,
    DeterministicPolicy,
    ExplorationNoise,
    NoiseConfig,
)
from lambda_replay.agents.protocol import Tensors
from lambda_replay.config import CacheConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.actor_critic import SMALL_OUTPUTS
from lambda_replay.learning.deterministic_learner import DeterministicLearner
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.memory import ReplayMemory

SHAPE = Shape(policy_outputs=1, num_critics=1, policy_bound=SMALL_OUTPUTS)


@dataclass(frozen=True, kw_only=True)
class DDPGLambdaConfig:
    """Settings of ddpg-lambda."""

    cache: CacheConfig = field(default_factory=frequent_cache)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    def check(self, run: RunConfig) -> None:
        check_cached(run, self.cache, self.optimizer)


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> CachedActorCritic:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, streams.draw_init_seed())
    assert isinstance(config, DDPGLambdaConfig)
    method = DeterministicMethod(
        networks,
        DeterministicLearner(networks, config.optimizer, policy_every=1),
        lambda rng: DeterministicCritic(networks, rng),
        noise=ExplorationNoise(config.noise, run.envs, spec.action_shape[0]),
    )
    return CachedActorCritic(
        run,
        config.cache,
        batch_size=config.optimizer.batch_size,
        method=method,
        estimator=parse_value_estimator(run, has_densities=False),
        memory=memory,
        streams=streams,
    )


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> DeterministicPolicy:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, seed=0)
    assert isinstance(config, DDPGLambdaConfig)
    networks.load_weights(weights)
    return DeterministicPolicy(DeterministicCritic(networks, np.random.default_rng(run.seed)), spec.action_shape[0])


KIND = continuous_kind(
    summary="one critic with cached λ-returns and a deterministic policy, for continuous actions",
    config=DDPGLambdaConfig,
    make=make,
    load=load,
    modules=modules_of(SHAPE),
    has_densities=False,
)
