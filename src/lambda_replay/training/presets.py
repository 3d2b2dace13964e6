"""Named complete configs: the paper's, and ours for Atari, MinAtar, classic control and continuous actions.

docs/presets.md says where the values come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lambda_replay.agents.ddpg_lambda import DDPGLambdaConfig
from lambda_replay.agents.deterministic import NoiseConfig
from lambda_replay.agents.dqn import DQNConfig, TargetConfig
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.drqn_lambda import DRQNLambdaConfig, RecurrenceConfig
from lambda_replay.agents.naf_lambda import NAFLambdaConfig
from lambda_replay.agents.pqn import PQNConfig, RolloutConfig
from lambda_replay.agents.sac import SACConfig
from lambda_replay.agents.sac_lambda import SACLambdaConfig
from lambda_replay.agents.sdqn_lambda import SDQNLambdaConfig
from lambda_replay.agents.table import agent_kind
from lambda_replay.agents.td3 import TD3Config
from lambda_replay.agents.td3_lambda import TD3LambdaConfig
from lambda_replay.agents.uvfa_lambda import UVFALambdaConfig
from lambda_replay.config import (
    AtariConfig,
    CacheConfig,
    ExplorationConfig,
    MemoryConfig,
    MinAtarConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
)
from lambda_replay.errors import ConfigError


class Choice(NamedTuple):
    """What a preset chooses for one agent."""

    algorithm: Any  # the agent's settings
    estimator: str
    run: Mapping[str, Any] = MappingProxyType({})  # settings of the run that differ from those for the other agents


class Preset(NamedTuple):
    """A preset's settings for a run, and its choice for each agent it knows."""

    run: dict[str, Any]
    agents: dict[str, Choice]


def _preset(
    run: dict[str, Any],
    *,
    estimator: str,
    cache: CacheConfig,
    target: TargetConfig,
    others: dict[str, Choice] | None = None,
    **shared: Any,
) -> Preset:
    """A preset in which dqn-lambda and dqn share everything but how they get their returns."""
    return Preset(
        run,
        {
            "dqn-lambda": Choice(DQNLambdaConfig(cache=cache, **shared), estimator),
            "dqn": Choice(DQNConfig(target=target, **shared), "nstep:3"),
            **(others or {}),
        },
    )


def _fresh_cache(*, size: int, block_length: int, refresh_every: int, updates: int) -> CacheConfig:
    """A cache that holds the newest block of every environment, and whose rows are all drawn about equally often."""
    return CacheConfig(
        size=size,
        block_length=block_length,
        refresh_every=refresh_every,
        updates=updates,
        newest=True,
        sampling="systematic",
    )


def _falling_rate(learning_rate: float, **others: Any) -> OptimizerConfig:
    """RAdam with a learning rate that falls to 0."""
    return OptimizerConfig(learning_rate=learning_rate, final_learning_rate=0.0, rectified=True, epsilon=1e-8, **others)


def _published_pqn(
    *,
    steps: int,
    envs: int,
    rollout: RolloutConfig,
    history: int,
    estimator: str,
    exploration: ExplorationConfig,
    learning_rate: float,
    final_learning_rate: float | None,
) -> Choice:
    """Settings of Gallici et al. 2025 (their repository's); their loss is half of ours, so their limit of 10 is 20."""
    optimizer = OptimizerConfig(
        batch_size=128,
        learning_rate=learning_rate,
        final_learning_rate=final_learning_rate,
        rectified=True,
        epsilon=1e-8,
        max_grad_norm=20.0,
    )
    return Choice(
        PQNConfig(
            rollout=rollout,
            exploration=exploration,
            optimizer=optimizer,
            network=NetworkConfig(layer_norm=True, hidden=(256, 256)),
        ),
        estimator,
        {
            "steps": steps,
            "envs": envs,
            "memory": MemoryConfig(capacity=4 * rollout.size, start=rollout.size, history=history),
        },
    )


_DETERMINISTIC: dict[str, Any] = {  # without an entropy, the policy must be made to explore
    "noise": NoiseConfig(std=0.3),
    "optimizer": OptimizerConfig(batch_size=256, learning_rate=1e-3, epsilon=1e-8),
}
PRESETS = {
    "paper": _preset({}, estimator="peng:0.75", cache=CacheConfig(), target=TargetConfig()),
    "atari": _preset(
        {"steps": 1_000_000, "envs": 40, "memory": MemoryConfig(capacity=200_000, start=10_000)},
        estimator="peng:0.8",
        cache=_fresh_cache(size=8_000, block_length=50, refresh_every=2_000, updates=250),
        target=TargetConfig(copy_every=2_000, update_every=8),
        exploration=ExplorationConfig(start=1.0, end=0.01, steps=100_000),
        optimizer=_falling_rate(2.5e-4, loss="huber"),
        network=NetworkConfig(width=0.5, layer_norm=True),
        others={
            "pqn": _published_pqn(
                steps=1_003_520,  # whole rollouts
                envs=128,
                rollout=RolloutConfig(size=4_096, epochs=2),
                history=4,
                estimator="peng:0.65",
                exploration=ExplorationConfig(start=1.0, end=0.001, steps=100_000),
                learning_rate=2.5e-4,
                final_learning_rate=None,
            ),
            "drqn-lambda": Choice(
                DRQNLambdaConfig(
                    cache=_fresh_cache(size=8_000, block_length=50, refresh_every=2_000, updates=80),
                    recurrence=RecurrenceConfig(units=256, hidden=256, burn_in=10, sequence_length=25, shortcut=True),
                    exploration=ExplorationConfig(start=1.0, end=0.01, steps=100_000),
                    optimizer=_falling_rate(2.5e-4, batch_size=4, loss="huber"),
                    network=NetworkConfig(width=0.5, layer_norm=True),
                ),
                "peng:0.8",
                {"memory": MemoryConfig(capacity=200_000, start=10_000, history=1)},
            ),
        },
    ),
    "mini": _preset(
        {"steps": 1_000_000, "memory": MemoryConfig(capacity=100_000, start=5_000, history=1)},
        estimator="peng:0.75",
        cache=CacheConfig(size=16_000, block_length=100, refresh_every=1_000),
        target=TargetConfig(copy_every=1_000, update_every=4),
        exploration=ExplorationConfig(start=1.0, end=0.1, steps=100_000),
        optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-4),
    ),
    "minatar": _preset(
        {"steps": 1_000_000, "envs": 100, "memory": MemoryConfig(capacity=100_000, start=5_000, history=1)},
        estimator="median",
        cache=_fresh_cache(size=8_000, block_length=40, refresh_every=4_000, updates=125),
        target=TargetConfig(copy_every=4_000, update_every=32),
        exploration=ExplorationConfig(start=1.0, end=0.01, steps=100_000),
        optimizer=_falling_rate(5e-4, batch_size=128, max_grad_norm=20.0),
        network=NetworkConfig(layer_norm=True),
        others={
            "pqn": _published_pqn(
                steps=1_003_520,  # whole rollouts
                envs=128,
                rollout=RolloutConfig(size=4_096, epochs=2),
                history=1,
                estimator="peng:0.65",
                exploration=ExplorationConfig(start=1.0, end=0.05, steps=100_000),
                learning_rate=5e-4,
                final_learning_rate=0.0,
            ),
            "drqn-lambda": Choice(
                DRQNLambdaConfig(
                    cache=_fresh_cache(size=16_000, block_length=40, refresh_every=4_000, updates=100),
                    recurrence=RecurrenceConfig(units=128, burn_in=10, sequence_length=20, shortcut=True),
                    exploration=ExplorationConfig(start=1.0, end=0.01, steps=100_000),
                    optimizer=_falling_rate(5e-4, batch_size=8, max_grad_norm=20.0),
                    network=NetworkConfig(layer_norm=True),
                ),
                "median",
                {
                    "memory": MemoryConfig(capacity=100_000, start=6_000, history=1)
                },  # a block with its burn-in needs 51 slots
            ),
        },
    ),
    "classic": _preset(
        {
            "steps": 200_000,
            "memory": MemoryConfig(capacity=50_000, start=1_000, history=1),
            "checkpoint_every": 10_000,
        },
        estimator="peng:0.9",
        cache=CacheConfig(size=4_000, block_length=50, refresh_every=100, updates=25, sampling="systematic"),
        target=TargetConfig(copy_every=500, update_every=4),
        exploration=ExplorationConfig(start=1.0, end=0.01, steps=10_000),
        optimizer=_falling_rate(1e-3, batch_size=128, loss="huber"),
        network=NetworkConfig(hidden=(128, 128), layer_norm=True),
        others={
            "pqn": _published_pqn(
                steps=200_704,  # whole rollouts
                envs=32,
                rollout=RolloutConfig(size=2_048, epochs=4),
                history=1,
                estimator="peng:0.95",
                exploration=ExplorationConfig(start=1.0, end=0.2, steps=40_000),
                learning_rate=1e-4,
                final_learning_rate=0.0,
            ),
            "drqn-lambda": Choice(
                DRQNLambdaConfig(
                    cache=_fresh_cache(size=8_000, block_length=50, refresh_every=400, updates=50),
                    recurrence=RecurrenceConfig(units=64, burn_in=10, sequence_length=25, shortcut=True),
                    exploration=ExplorationConfig(start=1.0, end=0.05, steps=10_000),
                    optimizer=_falling_rate(1e-3, batch_size=16),
                    network=NetworkConfig(hidden=(128,), layer_norm=True),
                ),
                "peng:0.95",
                {"steps": 100_000, "envs": 16, "memory": MemoryConfig(capacity=100_000, start=1_600, history=1)},
            ),
        },
    ),
    "continuous": Preset(
        {
            "steps": 100_000,
            "memory": MemoryConfig(capacity=1_000_000, start=2_000, history=1),
            "checkpoint_every": 10_000,
        },
        {
            "sac-lambda": Choice(SACLambdaConfig(), "peng:0.7"),
            "td3-lambda": Choice(TD3LambdaConfig(**_DETERMINISTIC), "peng:0.7"),
            "ddpg-lambda": Choice(DDPGLambdaConfig(**_DETERMINISTIC), "peng:0.7"),
            "naf-lambda": Choice(NAFLambdaConfig(precision=100.0, **_DETERMINISTIC), "peng:0.7"),
            "sdqn-lambda": Choice(SDQNLambdaConfig(optimizer=_DETERMINISTIC["optimizer"]), "peng:0.7"),
            "sac": Choice(SACConfig(), "nstep:1"),
            "td3": Choice(TD3Config(**_DETERMINISTIC), "nstep:1"),
        },
    ),
    "goals": Preset(
        {
            "steps": 150_000,
            "discount": 0.95,
            "memory": MemoryConfig(capacity=200_000, start=1_000, history=1),
            "checkpoint_every": 10_000,
        },
        {"uvfa-lambda": Choice(UVFALambdaConfig(), "peng:0.5")},
    ),
}


def default_preset(env: str, agent: str = RunConfig.agent) -> str:
    """The preset that suits an environment's name and an agent."""
    if agent_kind(agent).needs_goals:
        return "goals"
    if agent_kind(agent).actions == "Box":
        return "continuous"
    if env.startswith("atari/"):
        return "atari"
    return "minatar" if env.startswith("minatar/") else "classic"


def make_config(env: str, preset: str | None = None, agent: str = RunConfig.agent) -> RunConfig:
    """The complete config of a preset for one environment and agent; an agent it does not know gets its defaults."""
    name = default_preset(env, agent) if preset is None else preset
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}.", "preset")
    kind, known = agent_kind(agent), PRESETS[name].agents
    _check_fit(name, agent)
    algorithm, estimator, own = known[agent] if agent in known else Choice(kind.config(), RunConfig.estimator)
    return RunConfig(
        env=env,
        agent=agent,
        estimator=estimator,
        algorithm=algorithm,
        atari=AtariConfig() if env.startswith("atari/") else None,
        minatar=MinAtarConfig() if env.startswith("minatar/") else None,
        **{**PRESETS[name].run, **own},
    )


def _check_fit(preset: str, agent: str) -> None:
    """Reject a preset for agents with another kind of actions."""

    def fits(name: str) -> bool:
        return any(agent_kind(known).actions == agent_kind(agent).actions for known in PRESETS[name].agents)

    if not fits(preset):
        others = ", ".join(filter(fits, PRESETS))
        raise ConfigError(f"preset {preset} does not fit agent {agent}; choose one of {others}.", "preset", "agent")
