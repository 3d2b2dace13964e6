"""TD3 with target networks and n-step returns, the baseline of td3-lambda; no cache, no λ."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, nn

from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    check_constant_rate,
    fast_optimizer,
    make_networks,
    modules_of,
)
from lambda_replay.agents.deterministic import (
    DeterministicCritic,
    DeterministicMethod,
    DeterministicPolicy,
    ExplorationNoise,
    NoiseConfig,
    draw_smoothing,
    smoothed_values,
)
from lambda_replay.agents.protocol import Tensors
from lambda_replay.agents.target_actor_critic import Bootstrap, PolyakConfig, TargetActorCritic, baseline_kind
from lambda_replay.agents.td3_lambda import SHAPE, SmoothingConfig
from lambda_replay.checks import require_positive, require_reasonable
from lambda_replay.config import OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.deterministic_learner import DeterministicLearner
from lambda_replay.learning.target_networks import TargetNetworks
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.memory import ReplayMemory


@dataclass(frozen=True, kw_only=True)
class TD3Config:
    """Settings of td3."""

    policy_every: int = 2  # updates of the critics per update of the policy and of all target networks
    polyak: PolyakConfig = field(default_factory=PolyakConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    smoothing: SmoothingConfig = field(default_factory=SmoothingConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def __post_init__(self) -> None:
        require_reasonable("", self)
        require_positive("", self, "policy_every")

    @property
    def boundary_every(self) -> int:
        return self.polyak.train_every

    @property
    def schedule(self) -> Schedule:
        return "burst"

    def check(self, run: RunConfig) -> None:
        """Reject what does not fit the rest of the run."""
        run.check_lock_step("polyak.train_every", self.polyak.train_every)
        check_constant_rate(self.optimizer)


@dataclass(frozen=True)
class SmoothedTargets:
    """V(s) = min_j Q'_j(s, π'(s) + clipped noise) by target critics Q' and a target policy π'.

    Fujimoto et al. 2018, Algorithm 1.
    """

    networks: ActorCritic
    smoothing: SmoothingConfig
    action_size: int

    def evaluate(self, states: Tensor, rng: np.random.Generator) -> Bootstrap:
        shape = (len(states), self.action_size)
        noise = self.networks.tensor(draw_smoothing(rng, shape, self.smoothing.std, self.smoothing.clip))
        return Bootstrap(smoothed_values(self.networks, states, noise).amin(dim=0))


def make_critic(config: TD3Config, networks: ActorCritic, rng: np.random.Generator) -> DeterministicCritic:
    """The trained networks' values, for ``inspect``."""
    return DeterministicCritic(networks, rng, config.smoothing.std, config.smoothing.clip)


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> TargetActorCritic:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, streams.draw_init_seed())
    assert isinstance(config, TD3Config)
    (size,) = spec.action_shape
    method = DeterministicMethod(
        networks,
        DeterministicLearner(networks, config.optimizer, policy_every=config.policy_every),
        lambda rng: make_critic(config, networks, rng),
        noise=ExplorationNoise(config.noise, run.envs, size),
    )
    targets = TargetNetworks(networks, config.polyak.rate, ["policy", "critics"])
    return TargetActorCritic(
        run,
        config.polyak,
        batch_size=config.optimizer.batch_size,
        method=method,
        targets=targets,
        values=SmoothedTargets(targets.networks, config.smoothing, size),
        follow_every=config.policy_every,
        memory=memory,
        streams=streams,
    )


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> DeterministicPolicy:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, seed=0)
    assert isinstance(config, TD3Config)
    networks.load_weights(weights)
    return DeterministicPolicy(make_critic(config, networks, np.random.default_rng(run.seed)), spec.action_shape[0])


KIND = baseline_kind(
    summary="twin critics with target networks, n-step returns and a delayed policy, the baseline of td3-lambda",
    config=TD3Config,
    make=make,
    load=load,
    modules=modules_of(SHAPE),
)
