"""From a config to an agent: the one place in which everything an agent needs is constructed."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import torch
from torch import nn

from lambda_replay.agents.concurrent import ConcurrentDQNLambda
from lambda_replay.agents.dqn import DQN
from lambda_replay.agents.dqn_lambda import DQNLambda
from lambda_replay.agents.epsilon_greedy import Actor
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.learner import Learner, find_device, set_threads
from lambda_replay.learning.networks import make_network, network_kind
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator, NStep
from lambda_replay.replay.memory import ReplayMemory


class Agent(Protocol):
    """What the loop needs of an algorithm."""

    memory: ReplayMemory
    learner: Learner
    actor: Actor

    def steps_to_boundary(self, step: int) -> int:
        """Steps until the next boundary (a refresh, a copy of the target network), 0 meaning now."""
        ...

    def settle(self) -> Metrics | None:
        """Wait for work under way, at a boundary or at the end; its metrics."""
        ...

    def learn(self, step: int) -> Metrics | None:
        """Train as far as is due at this step; metrics at the end of a window."""
        ...

    def stop(self) -> None:
        """Give up work under way: the loop will not go on."""
        ...

    def get_state(self) -> dict[str, float]: ...

    def set_state(self, state: dict[str, float]) -> None: ...


def make_agent(
    config: RunConfig,
    spec: EnvironmentSpec,
    streams: RandomStreams,
    *,
    network: nn.Module | None = None,
    spare_slots: int = 0,
    memory_directory: str | os.PathLike[str] | None = None,
    reopen_memory: bool = False,
) -> Agent:
    """The agent of a config; ``network`` may be any module from states [n, F, *observation] to Q-values [n, A]."""
    estimator = parse_agent_estimator(config)
    is_concurrent = config.cache is not None and config.cache.schedule == "concurrent"
    # Where acting and training go on at once, only training splits its products: both doing so was slower.
    threads = choose_threads(config, spec, network)
    set_threads(1 if is_concurrent else threads)
    seed = _init_seed(streams.init)
    if network is None:
        network = make_network(config.network, _state_shape(config, spec), spec.num_actions, seed)
    learner = Learner(network, config.optimizer, _find_device(config), seed)
    acting = learner.frozen_copy() if is_concurrent else learner
    actor = Actor(acting.q_values, spec.num_actions, config.exploration, config.memory.start, streams.explore)
    memory = ReplayMemory(
        config.memory.capacity,
        spec.observation_shape,
        spec.observation_dtype,
        config.memory.history,
        config.envs,
        spare=spare_slots,
        directory=memory_directory,
        reopen=reopen_memory,
    )
    if isinstance(estimator, NStep) and config.agent == "dqn":
        return DQN(config, memory=memory, learner=learner, actor=actor, estimator=estimator, streams=streams)
    agent = DQNLambda(config, memory=memory, learner=learner, actor=actor, estimator=estimator, streams=streams)
    return ConcurrentDQNLambda(config, agent, acting, threads) if is_concurrent else agent


def check_agent(config: RunConfig, spec: EnvironmentSpec, network: nn.Module | None = None) -> None:
    """Refuse, before anything is written, what ``make_agent`` or the first step would refuse."""
    parse_agent_estimator(config)
    device, state_shape = _find_device(config), _state_shape(config, spec)
    if network is None:
        with torch.device("meta"):  # sizes without memory: whether it fits is said elsewhere, in bytes
            make_network(config.network, state_shape, spec.num_actions, seed=0)
        return
    was_training = network.training
    with torch.no_grad():
        states = torch.zeros((2, *state_shape), dtype=torch.from_numpy(np.zeros(1, spec.observation_dtype)).dtype)
        found = tuple(network.to(device).eval()(states.to(device)).shape)
    network.train(was_training)
    if found != (2, spec.num_actions):
        raise ConfigError(
            f"the network gives shape {found} for 2 states of shape {state_shape}; it must give "
            f"(2, {spec.num_actions}), a value for each action."
        )


def choose_threads(config: RunConfig, spec: EnvironmentSpec, network: nn.Module | None = None) -> int:
    """The config's arithmetic threads or, where it has none, those that suit the machine and the network.

    The Atari network trains 1.5 times as fast with two threads as with one; the small ones do best with one
    (docs/performance.md). More than two, and networks of a user's own, were never measured.
    """
    if config.threads is not None:
        return config.threads
    is_large = network is None and network_kind(config.network, _state_shape(config, spec)) == "atari"
    return min(num_cores(), 2) if is_large else 1


def num_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _state_shape(config: RunConfig, spec: EnvironmentSpec) -> tuple[int, ...]:
    return (config.memory.history, *spec.observation_shape)


def _find_device(config: RunConfig) -> torch.device:
    device = find_device(config.device)
    if config.optimizer.cuda_graph and device.type != "cuda":
        raise ConfigError(f"optimizer.cuda_graph needs a CUDA device, and this run uses {device}; leave it out.")
    return device


def parse_agent_estimator(config: RunConfig) -> Estimator:
    """The config's estimator, checked against its agent."""
    estimator = parse_estimator(config.estimator)
    if config.agent == "dqn" and not isinstance(estimator, NStep):
        raise ConfigError(
            f"agent dqn takes the estimator nstep:n, not {config.estimator}; use agent dqn-lambda for the others."
        )
    if isinstance(estimator, NStep) and config.agent == "dqn":
        needed = (estimator.n + config.memory.history) * config.envs
        if min(config.memory.start, config.memory.capacity) < needed:
            raise ConfigError(
                f"memory.start ({config.memory.start}) and memory.capacity ({config.memory.capacity}) must hold "
                f"{needed} steps for {config.estimator}; raise them or lower n."
            )
    return estimator


def _init_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
