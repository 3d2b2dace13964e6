"""Shared by agents with a row of Q-values: their network, their exploration, and their trained policy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents.epsilon_greedy import epsilon_greedy
from lambda_replay.agents.protocol import Acted, AgentKind, AgentNeeds, MakeAgent, Probe, Tensors
from lambda_replay.config import ExplorationConfig, NetworkConfig, OptimizerConfig, RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.device import QNetwork, find_device
from lambda_replay.learning.networks import make_network, network_kind
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator

FLOAT_BYTES = 4
PROBE_LEARNING_RATE = 1e-6  # does not affect the time; a probe must not diverge even if the run would
LEARNER_COPIES = 9  # of the weights: themselves, a copy, Adam's two moments, gradients, and what a checkpoint takes


class QLearningConfig(Protocol):
    """Settings that all these agents have."""

    @property
    def exploration(self) -> ExplorationConfig: ...

    @property
    def optimizer(self) -> OptimizerConfig: ...

    @property
    def network(self) -> NetworkConfig: ...


def q_config(run: RunConfig) -> QLearningConfig:
    """The settings of a run's agent, which has a row of Q-values."""
    config: Any = run.algorithm
    return config


def make_q_network(run: RunConfig, spec: EnvironmentSpec, seed: int, module: nn.Module | None) -> QNetwork:
    """The config's network, or the user's, on the run's device."""
    if module is None:
        module = make_network(q_config(run).network, run.state_shape(spec.observation_shape), spec.num_actions, seed)
    return QNetwork(module, find_device(run.device))


def check_q_network(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> None:
    """Reject a network that does not fit the environment, before anything is written."""
    state_shape, device = run.state_shape(spec.observation_shape), find_device(run.device)
    if module is None:
        with torch.device("meta"):  # sizes without memory; resources.py checks whether it fits
            make_network(q_config(run).network, state_shape, spec.num_actions, seed=0)
        return
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError("the network has no parameter that can be trained; set requires_grad on some of them.")
    was_training = module.training
    with torch.no_grad():
        states = torch.zeros((2, *state_shape), dtype=torch.from_numpy(np.zeros(1, spec.observation_dtype)).dtype)
        found = tuple(module.to(device).eval()(states.to(device)).shape)
    module.train(was_training)
    if found != (2, spec.num_actions):
        raise ConfigError(
            f"the network returns shape {found} for 2 states of shape {state_shape}; it must return "
            f"(2, {spec.num_actions}), a value for each action."
        )


def suitable_threads(run: RunConfig, spec: EnvironmentSpec) -> int:
    """Arithmetic threads that suit the machine and the network.

    The Atari network trains 1.5 times as fast with two threads as with one; the small ones do best with one
    (docs/performance.md). More than two have not been measured.
    """
    is_large = network_kind(q_config(run).network, run.state_shape(spec.observation_shape)) == "atari"
    return min(num_cores(), 2) if is_large else 1


def num_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def network_bytes(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> tuple[int, str]:
    """Bytes of the network and Adam, and of a copy as a target network or for acting during training."""
    config = q_config(run).network
    if module is None:
        with torch.device("meta"):  # sizes without memory
            module = make_network(config, run.state_shape(spec.observation_shape), spec.num_actions, seed=0)
    weights = sum(parameter.numel() for parameter in module.parameters())
    return weights * FLOAT_BYTES * LEARNER_COPIES, f"network.hidden ({', '.join(map(str, config.hidden))})"


def minibatch_bytes(run: RunConfig, spec: EnvironmentSpec) -> tuple[int, str]:
    """Bytes of states as stored and as floats, and of the units of an mlp with their gradients."""
    numbers = math.prod(run.state_shape(spec.observation_shape))
    units = 0 if len(spec.observation_shape) > 1 else sum(q_config(run).network.hidden)
    stored = numbers * np.dtype(spec.observation_dtype).itemsize
    size = q_config(run).optimizer.batch_size
    return size * (stored + FLOAT_BYTES * (numbers + 2 * units)), f"optimizer.batch_size ({size})"


@dataclass(frozen=True)
class QPolicy:
    """A trained network that plays ε-greedily."""

    critic: QNetwork

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        return epsilon_greedy(self.critic(states), epsilon, rng)


def load_q_policy(run: RunConfig, spec: EnvironmentSpec, weights: Tensors, module: nn.Module | None = None) -> QPolicy:
    """The policy with saved weights; ``module`` is the user's own network, which receives them."""
    network = make_q_network(run, spec, run.seed, module)
    network.load_weights(weights)
    return QPolicy(network)


def q_learning_kind(
    *,
    summary: str,
    boundary: str,
    config: type[Any],
    make: MakeAgent,
    estimator: Callable[[RunConfig], Estimator] = lambda run: parse_estimator(run.estimator),
    needs: Callable[[RunConfig, EnvironmentSpec, int], AgentNeeds],
    shortest_start: Callable[[RunConfig], int],
    shrink: Callable[[Any, int, int], tuple[Any, float]] = lambda config, steps, share: (config, 0.0),
) -> AgentKind:
    """An entry for the table of agents, given only what is specific to this agent."""

    def all_needs(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> AgentNeeds:
        own = needs(run, spec, q_config(run).optimizer.batch_size)
        return own._replace(takers=[*own.takers, network_bytes(run, spec, module), minibatch_bytes(run, spec)])

    def probe(run: RunConfig, steps: int, share: int) -> Probe:
        small, scale = shrink(run.algorithm, steps, share)
        exploration = replace(small.exploration, start=small.exploration.end)
        optimizer = replace(small.optimizer, learning_rate=PROBE_LEARNING_RATE)
        return Probe(replace(small, exploration=exploration, optimizer=optimizer), scale)

    return AgentKind(
        summary=summary,
        boundary=boundary,
        config=config,
        make=make,
        load=load_q_policy,
        load_own=load_q_policy,
        check=check_q_network,
        estimator=estimator,
        threads=suitable_threads,
        needs=all_needs,
        final_epsilon=lambda run, spec: q_config(run).exploration.end,
        shortest_start=shortest_start,
        probe=probe,
    )
