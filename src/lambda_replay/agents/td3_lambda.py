"""TD3(λ): twin critics that learn cached λ-returns, a delayed deterministic policy, and no target networks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import nn

from lambda_replay.agents.actor_critic import CachedActorCritic
from lambda_replay.agents.cached import Promote, promote_due
from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    Minimum,
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
    require_noise,
)
from lambda_replay.agents.protocol import Tensors
from lambda_replay.checks import require_positive, require_reasonable
from lambda_replay.config import CacheConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.actor_critic import SMALL_OUTPUTS, ActorCritic
from lambda_replay.learning.deterministic_learner import DeterministicLearner
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.memory import ReplayMemory

SHAPE = Shape(policy_outputs=1, num_critics=2, policy_bound=SMALL_OUTPUTS)


@dataclass(frozen=True, kw_only=True)
class SmoothingConfig:
    """Clipped Gaussian noise on the policy's actions in the returns (Fujimoto et al. 2018, section 5.3)."""

    std: float = 0.2  # standard deviation; actions reach from −1 to 1
    clip: float = 0.5  # its largest size

    def __post_init__(self) -> None:
        require_noise("smoothing.", self, "std", "clip")


@dataclass(frozen=True, kw_only=True)
class TD3LambdaConfig:
    """Settings of td3-lambda."""

    minimum: Minimum = "step"  # take the smaller critic at each step, or the smaller of the finished returns
    policy_every: int = 2  # updates of the critics per update of the policy
    cache: CacheConfig = field(default_factory=frequent_cache)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    smoothing: SmoothingConfig = field(default_factory=SmoothingConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def __post_init__(self) -> None:
        require_reasonable("", self)
        require_positive("", self, "policy_every")

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    def check(self, run: RunConfig) -> None:
        check_cached(run, self.cache, self.optimizer)


def make_critic(config: TD3LambdaConfig, networks: ActorCritic, rng: np.random.Generator) -> DeterministicCritic:
    """V(s) = min_j Q_j(s, π(s) + clipped noise), at each step or in the finished returns."""
    return DeterministicCritic(networks, rng, config.smoothing.std, config.smoothing.clip, config.minimum)


def make(
    run: RunConfig,
    spec: EnvironmentSpec,
    *,
    memory: ReplayMemory,
    streams: RandomStreams,
    module: nn.Module | None,
    promote: Promote = promote_due,
) -> CachedActorCritic:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, streams.draw_init_seed())
    assert isinstance(config, TD3LambdaConfig)
    method = DeterministicMethod(
        networks,
        DeterministicLearner(networks, config.optimizer, policy_every=config.policy_every),
        lambda rng: make_critic(config, networks, rng),
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
        promote=promote,
    )


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> DeterministicPolicy:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, seed=0)
    assert isinstance(config, TD3LambdaConfig)
    networks.load_weights(weights)
    return DeterministicPolicy(make_critic(config, networks, np.random.default_rng(run.seed)), spec.action_shape[0])


KIND = continuous_kind(
    summary="twin critics with cached λ-returns and a delayed policy, for continuous actions",
    config=TD3LambdaConfig,
    make=make,
    load=load,
    modules=modules_of(SHAPE),
    has_densities=False,
)
