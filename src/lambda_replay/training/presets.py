"""Named complete configs: the paper's for Atari, ours for MinAtar and classic control (docs/presets.md)."""

from __future__ import annotations

from typing import Any

from lambda_replay.config import (
    AgentName,
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

PRESETS = ("paper", "minatar", "classic")


def default_preset(env: str) -> str:
    """The preset that suits an environment's name."""
    if env.startswith("atari/"):
        return "paper"
    return "minatar" if env.startswith("minatar/") else "classic"


def make_config(env: str, preset: str | None = None, agent: AgentName = "dqn-lambda") -> RunConfig:
    """The complete config of a preset for one environment and agent."""
    name = default_preset(env) if preset is None else preset
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    if agent not in ("dqn-lambda", "dqn"):
        raise ConfigError(f"there is no agent {agent!r}; choose dqn-lambda or dqn.")
    values = {"paper": _paper, "minatar": _minatar, "classic": _classic}[name]()
    is_cached = agent == "dqn-lambda"
    return RunConfig(
        env=env,
        agent=agent,
        estimator=values.pop("estimator") if is_cached else "nstep:3",
        cache=values.pop("cache") if is_cached else None,
        target=None if is_cached else values.pop("target"),
        atari=AtariConfig() if env.startswith("atari/") else None,
        minatar=MinAtarConfig() if env.startswith("minatar/") else None,
        **{key: value for key, value in values.items() if key not in ("estimator", "cache", "target")},
    )


def _paper() -> dict[str, Any]:
    return {"estimator": "peng:0.75", "cache": CacheConfig(), "target": TargetConfig()}


def _minatar() -> dict[str, Any]:
    return {
        "estimator": "peng:0.75",
        "steps": 1_000_000,
        "memory": MemoryConfig(capacity=100_000, start=5_000, history=1),
        "cache": CacheConfig(size=16_000, block_length=100, refresh_every=1_000),
        "target": TargetConfig(copy_every=1_000, update_every=4),
        "exploration": ExplorationConfig(start=1.0, end=0.1, steps=100_000),
        "optimizer": OptimizerConfig(learning_rate=1e-3, epsilon=1e-4),
    }


def _classic() -> dict[str, Any]:
    return {
        "estimator": "peng:0.9",
        "steps": 50_000,
        "memory": MemoryConfig(capacity=50_000, start=1_000, history=1),
        "checkpoint_every": 10_000,
        "cache": CacheConfig(size=4_000, block_length=50, refresh_every=100, updates=50),
        "target": TargetConfig(copy_every=500, update_every=2),
        "exploration": ExplorationConfig(start=1.0, end=0.05, steps=10_000),
        "optimizer": OptimizerConfig(batch_size=64, learning_rate=1e-3, epsilon=1e-5, loss="huber"),
        "network": NetworkConfig(hidden=(128, 128)),
    }
