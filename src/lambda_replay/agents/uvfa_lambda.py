"""UVFA(λ): values of states and goals, learned from cached λ-returns of blocks with goals chosen in hindsight.

Everything but the blocks is another agent's: DQN(λ) for discrete actions, SAC(λ) or TD3(λ) for continuous ones. Their
observations hold the desired goal, so their networks are universal value functions (Schaul et al. 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import nn

from lambda_replay.agents import dqn_lambda, sac_lambda, td3_lambda
from lambda_replay.agents.cached import (
    FLOAT_BYTES,
    Promote,
    check_room_for_blocks,
    promote_due,
    shortest_start,
    shrink_cache,
)
from lambda_replay.agents.continuous import ActorCriticConfig
from lambda_replay.agents.deterministic import NoiseConfig
from lambda_replay.agents.protocol import Agent, AgentKind, AgentNeeds, Policy, Probe, Tensors
from lambda_replay.agents.q_learning import PROBE_LEARNING_RATE
from lambda_replay.agents.sac_lambda import EntropyConfig
from lambda_replay.agents.td3_lambda import SmoothingConfig
from lambda_replay.checks import require, require_fraction
from lambda_replay.config import CacheConfig, ExplorationConfig, NetworkConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.goals import Goals
from lambda_replay.replay.hindsight import Strategy, relabel
from lambda_replay.replay.memory import ReplayMemory

Method = Literal["dqn", "sac", "td3"]
METHODS: dict[Method, Any] = {"dqn": dqn_lambda, "sac": sac_lambda, "td3": td3_lambda}
# The settings that only some methods have.
OWN_SETTINGS: dict[Method, tuple[str, ...]] = {
    "dqn": ("exploration",),
    "sac": ("actor_critic", "entropy"),
    "td3": ("actor_critic", "noise", "smoothing"),
}


@dataclass(frozen=True, kw_only=True)
class HindsightConfig:
    """Goals chosen in hindsight (Andrychowicz et al. 2017)."""

    share: float = 0.8  # of a refresh's blocks that get other goals; 0: none
    strategy: Strategy = "future"  # a goal achieved at a random later time, or the episode's final one

    def __post_init__(self) -> None:
        require_fraction("hindsight.", self, "share")


@dataclass(frozen=True, kw_only=True)
class UVFALambdaConfig:
    """Settings of uvfa-lambda."""

    actor_critic: Literal["sac", "td3"] = "sac"  # with Box actions; Discrete ones have the Q-network of dqn-lambda
    hindsight: HindsightConfig = field(default_factory=HindsightConfig)
    cache: CacheConfig = field(
        default_factory=lambda: CacheConfig(size=2_000, block_length=10, refresh_every=100, updates=50)
    )
    # ε-greedy actions, if they are Discrete.
    exploration: ExplorationConfig = field(default_factory=lambda: ExplorationConfig(end=0.1, steps=20_000))
    entropy: EntropyConfig = field(default_factory=lambda: EntropyConfig(start=0.05))  # of sac
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(std=0.2))  # of td3
    smoothing: SmoothingConfig = field(default_factory=SmoothingConfig)  # of td3
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(batch_size=128, learning_rate=1e-3, epsilon=1e-8)
    )
    network: ActorCriticConfig = field(default_factory=lambda: ActorCriticConfig(hidden=(128, 128)))

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

    def of_method(self, method: Method) -> Any:
        """The settings of the agent that learns from the relabelled blocks."""
        cache, optimizer = self.cache, self.optimizer
        if method == "sac":
            return sac_lambda.SACLambdaConfig(
                cache=cache, optimizer=optimizer, network=self.network, entropy=self.entropy
            )
        if method == "td3":
            return td3_lambda.TD3LambdaConfig(
                cache=cache, optimizer=optimizer, network=self.network, noise=self.noise, smoothing=self.smoothing
            )
        network = NetworkConfig(kind="mlp", hidden=self.network.hidden, layer_norm=self.network.layer_norm)
        return dqn_lambda.DQNLambdaConfig(
            cache=cache, optimizer=optimizer, network=network, exploration=self.exploration
        )


def uvfa_config(run: RunConfig) -> UVFALambdaConfig:
    assert isinstance(run.algorithm, UVFALambdaConfig)
    return run.algorithm


def method_of(run: RunConfig, spec: EnvironmentSpec) -> Method:
    """The method that suits the environment's actions."""
    return uvfa_config(run).actor_critic if spec.is_continuous else "dqn"


def as_method(run: RunConfig, spec: EnvironmentSpec) -> tuple[AgentKind, RunConfig]:
    """The agent that learns from the relabelled blocks, and the run as that agent knows it."""
    method = method_of(run, spec)
    return METHODS[method].KIND, replace(run, algorithm=uvfa_config(run).of_method(method))


def promote_in_hindsight(config: HindsightConfig, goals: Goals) -> Promote:
    """Random blocks of the memory, a share of them with goals that were achieved later.

    The goals and their rewards are fixed here, when the blocks are drawn, so learning may run alongside acting.
    """

    def promote(run: RunConfig, cache: CacheConfig, memory: ReplayMemory, rng: np.random.Generator) -> Promoted:
        blocks = promote_due(run, cache, memory, rng)
        return relabel(blocks, goals, share=config.share, strategy=config.strategy, rng=rng)

    return promote


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> Agent:
    assert spec.goals is not None
    promote = promote_in_hindsight(uvfa_config(run).hindsight, spec.goals)
    _, inner = as_method(run, spec)
    agent: Agent = METHODS[method_of(run, spec)].make(
        inner, spec, memory=memory, streams=streams, module=module, promote=promote
    )
    return agent


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> Policy:
    kind, inner = as_method(run, spec)
    return kind.load(inner, spec, weights)


def load_own(run: RunConfig, spec: EnvironmentSpec, weights: Tensors, module: nn.Module) -> Policy:
    kind, inner = as_method(run, spec)
    if kind.load_own is None:
        raise ConfigError(f"with Box actions, {run.agent} takes no network of your own; leave network out.", "agent")
    return kind.load_own(inner, spec, weights, module)


def check(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> None:
    """Reject settings that the environment's actions leave unused, and goals that it cannot judge."""
    method, config, defaults = method_of(run, spec), uvfa_config(run), UVFALambdaConfig()
    for owner, names in OWN_SETTINGS.items():
        for name in (name for name in names if name not in OWN_SETTINGS[method]):
            require(
                getattr(config, name) == getattr(defaults, name),
                f"{name} is for {_owner(owner)}, but {run.env} has {_owner(method)}; leave it out.",
                name,
            )
    kind, inner = as_method(run, spec)
    kind.estimator(inner)
    kind.check(inner, spec, module)
    _check_goals(run, spec)


def _owner(method: Method) -> str:
    return "Discrete actions" if method == "dqn" else f"Box actions with actor_critic {method}"


def _check_goals(run: RunConfig, spec: EnvironmentSpec) -> None:
    """Try what the first refresh will do."""
    assert spec.goals is not None
    try:
        spec.goals.outcomes(*spec.goals.example())
    except EnvironmentFault as fault:
        raise ConfigError(f"agent {run.agent} cannot choose goals in hindsight: {fault}", "agent") from fault


def needs(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> AgentNeeds:
    """Those of the method, and two copies of the relabelled goals."""
    assert spec.goals is not None
    kind, inner = as_method(run, spec)
    own, cache = kind.needs(inner, spec, module), uvfa_config(run).cache
    size = math.ceil(uvfa_config(run).hindsight.share * cache.size) * (
        spec.goals.desired.stop - spec.goals.desired.start
    )
    return own._replace(takers=[*own.takers, (2 * size * FLOAT_BYTES, f"cache.size ({cache.size})")])


def probe(run: RunConfig, steps: int, share: int) -> Probe:
    small, scale = shrink_cache(run.algorithm, steps, share)
    exploration = replace(small.exploration, start=small.exploration.end)
    optimizer = replace(small.optimizer, learning_rate=PROBE_LEARNING_RATE)
    return Probe(replace(small, exploration=exploration, optimizer=optimizer), scale)


def final_epsilon(run: RunConfig, spec: EnvironmentSpec) -> float:
    kind, inner = as_method(run, spec)
    return kind.final_epsilon(inner, spec)


def threads(run: RunConfig, spec: EnvironmentSpec) -> int:
    kind, inner = as_method(run, spec)
    return kind.threads(inner, spec)


KIND = AgentKind(
    summary="values of states and goals, with goals chosen in hindsight",
    boundary="next refresh",
    config=UVFALambdaConfig,
    make=make,
    load=load,
    load_own=load_own,
    actions="any",
    needs_goals=True,
    check=check,
    estimator=lambda run: parse_estimator(run.estimator),  # whether it fits depends on the actions: see ``check``
    threads=threads,
    needs=needs,
    final_epsilon=final_epsilon,
    shortest_start=shortest_start,
    probe=probe,
)
