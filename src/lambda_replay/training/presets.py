"""Named complete configs: the paper's, and ours for Atari, MinAtar and classic control (docs/presets.md)."""

from __future__ import annotations

from typing import Any, NamedTuple

from lambda_replay.agents.dqn import DQNConfig
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import (
    AtariConfig,
    CacheConfig,
    ExplorationConfig,
    MemoryConfig,
    MinAtarConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    TargetConfig,
)
from lambda_replay.errors import ConfigError


class Preset(NamedTuple):
    """A preset's settings for a run, and the settings and estimator of each agent it knows."""

    run: dict[str, Any]
    agents: dict[str, tuple[Any, str]]


def _preset(run: dict[str, Any], *, estimator: str, cache: CacheConfig, target: TargetConfig, **shared: Any) -> Preset:
    """A preset in which both agents with a row of Q-values share everything but how they get their returns."""
    return Preset(
        run,
        {
            "dqn-lambda": (DQNLambdaConfig(cache=cache, **shared), estimator),
            "dqn": (DQNConfig(target=target, **shared), "nstep:3"),
        },
    )


PRESETS = {
    "paper": _preset({}, estimator="peng:0.75", cache=CacheConfig(), target=TargetConfig()),
    "atari": _preset(
        {"steps": 2_000_000, "envs": 8, "memory": MemoryConfig(capacity=200_000, start=10_000)},
        estimator="peng:0.8",
        cache=CacheConfig(size=8_000, block_length=50, refresh_every=2_000),
        target=TargetConfig(copy_every=2_000, update_every=4),
        exploration=ExplorationConfig(start=1.0, end=0.02, steps=100_000),
        optimizer=OptimizerConfig(learning_rate=2.5e-4, epsilon=1e-5, loss="huber"),
        network=NetworkConfig(width=0.5, layer_norm=True),
    ),
    "minatar": _preset(
        {"steps": 1_000_000, "memory": MemoryConfig(capacity=100_000, start=5_000, history=1)},
        estimator="peng:0.75",
        cache=CacheConfig(size=16_000, block_length=100, refresh_every=1_000),
        target=TargetConfig(copy_every=1_000, update_every=4),
        exploration=ExplorationConfig(start=1.0, end=0.1, steps=100_000),
        optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-4),
    ),
    "classic": _preset(
        {
            "steps": 50_000,
            "memory": MemoryConfig(capacity=50_000, start=1_000, history=1),
            "checkpoint_every": 10_000,
        },
        estimator="peng:0.9",
        cache=CacheConfig(size=4_000, block_length=50, refresh_every=100, updates=50),
        target=TargetConfig(copy_every=500, update_every=2),
        exploration=ExplorationConfig(start=1.0, end=0.05, steps=10_000),
        optimizer=OptimizerConfig(batch_size=64, learning_rate=1e-3, epsilon=1e-5, loss="huber"),
        network=NetworkConfig(hidden=(128, 128)),
    ),
}


def default_preset(env: str) -> str:
    """The preset that suits an environment's name."""
    if env.startswith("atari/"):
        return "atari"
    return "minatar" if env.startswith("minatar/") else "classic"


def make_config(env: str, preset: str | None = None, agent: str = RunConfig.agent) -> RunConfig:
    """The complete config of a preset for one environment and agent; an agent it does not know gets its defaults."""
    name = default_preset(env) if preset is None else preset
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}.", "preset")
    kind, known = agent_kind(agent), PRESETS[name].agents
    algorithm, estimator = known[agent] if agent in known else (kind.config(), RunConfig.estimator)
    return RunConfig(
        env=env,
        agent=agent,
        estimator=estimator,
        algorithm=algorithm,
        atari=AtariConfig() if env.startswith("atari/") else None,
        minatar=MinAtarConfig() if env.startswith("minatar/") else None,
        **PRESETS[name].run,
    )
