"""Builds everything a config needs to run: memory, agent, worker and loop are put together only here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from lambda_replay.agents.protocol import Agent
from lambda_replay.agents.table import agent_kind, agents_for, check_actions
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, EnvironmentSpec, make_environment
from lambda_replay.errors import ConfigError
from lambda_replay.learning.device import keep_freed_memory, set_threads
from lambda_replay.randomness import RandomStreams, make_streams
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.training.loop import Loop
from lambda_replay.training.presets import make_config
from lambda_replay.training.worker import Worker


class Assembly(NamedTuple):
    """What a run is made of."""

    loop: Loop
    agent: Agent
    memory: ReplayMemory
    streams: RandomStreams


def assemble(
    config: RunConfig,
    environments: Sequence[Environment],
    module: nn.Module | None = None,
    *,
    spare_slots: int = 0,
    memory_directory: str | os.PathLike[str] | None = None,
    reopen_memory: bool = False,
) -> Assembly:
    """Everything that a run of this config needs; ``module`` is the user's own network."""
    spec, kind = environments[0].spec, agent_kind(config.agent)
    is_concurrent = config.algorithm.schedule == "concurrent"
    threads = choose_threads(config, spec, module)
    # When acting and training run at the same time, only training splits its products: splitting both was slower.
    set_threads(1 if is_concurrent else threads)
    keep_freed_memory()
    streams = make_streams(config.seed, config.envs)
    memory = ReplayMemory(
        config.memory.capacity,
        spec.observation_shape,
        spec.observation_dtype,
        config.memory.history,
        config.envs,
        action_shape=spec.action_shape,
        columns=kind.columns(config, spec),
        spare=spare_slots,
        directory=memory_directory,
        reopen=reopen_memory,
    )
    agent = kind.make(config, spec, memory=memory, streams=streams, module=module)
    worker = Worker(is_concurrent=is_concurrent, threads=threads)
    loop = Loop(config, environments, agent=agent, memory=memory, worker=worker, streams=streams)
    return Assembly(loop, agent, memory, streams)


def check_agent(config: RunConfig, spec: EnvironmentSpec, module: nn.Module | None = None) -> None:
    """Reject, before anything is written, what ``assemble`` or the first step would reject."""
    check_actions(config, spec)
    kind = agent_kind(config.agent)
    kind.estimator(config)
    kind.check(config, spec, module)


def choose_threads(config: RunConfig, spec: EnvironmentSpec, module: nn.Module | None = None) -> int:
    """The config's arithmetic threads or, if it has none, those that suit the agent; 1 for a user's network."""
    if config.threads is not None:
        return config.threads
    return agent_kind(config.agent).threads(config, spec) if module is None else 1


def with_threads(config: RunConfig, spec: EnvironmentSpec, module: nn.Module | None = None) -> RunConfig:
    """The config with its threads as a number, so that resuming on another machine keeps it."""
    return replace(config, threads=choose_threads(config, spec, module))


def make_environments(config: RunConfig, env: Any = None) -> list[Environment]:
    """One environment per stream; ``env`` is the user's own, or a function that returns one."""
    needs_several = config.envs > 1 or config.evaluate_every > 0 or config.film_every > 0
    if env is not None and needs_several and not callable(env):
        raise ConfigError(
            "envs, evaluate_every and film_every need several environments, but env is a single one; give a function "
            "that returns a new one each time it is called.",
            "env",
        )
    return [make_environment(config, env) for _ in range(config.envs)]


def default_agent(env: str, env_args: tuple[str, ...] = ()) -> str:
    """The first agent in the table that fits an environment's actions and goals, which it alone knows."""
    config = replace(make_config(env), env_args=env_args)
    if config.atari is not None or config.minatar is not None:
        return config.agent
    environment = make_environment(config)
    try:
        return agents_for(environment.spec)[0]
    finally:
        environment.close()
