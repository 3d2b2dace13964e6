"""SDQN(λ): an action's numbers one after another, each from a row of Q-values over bins, with cached λ-returns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents.actor_critic import CachedActorCritic
from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    check_cached,
    continuous_kind,
    describe_ensemble,
    evaluate_greedily,
    fast_optimizer,
    frequent_cache,
    parse_value_estimator,
)
from lambda_replay.agents.protocol import Acted, Tensors
from lambda_replay.checks import require, require_fraction, require_reasonable
from lambda_replay.config import CacheConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.device import find_device
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.learning.sequential import SequentialLearner, SequentialNetworks, make_module
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Minibatch, ValueBlock
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory

MOST_BINS = 10_000


@dataclass(frozen=True, kw_only=True)
class BinNoiseConfig:
    """Random bins while the policy explores."""

    epsilon: float = 0.1  # probability that a number of an action is a random bin

    def __post_init__(self) -> None:
        require_fraction("noise.", self, "epsilon")


@dataclass(frozen=True, kw_only=True)
class SDQNLambdaConfig:
    """Settings of sdqn-lambda."""

    bins: int = 21  # values that each number of an action can have, evenly spaced from −1 to 1
    cache: CacheConfig = field(default_factory=frequent_cache)
    noise: BinNoiseConfig = field(default_factory=BinNoiseConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def __post_init__(self) -> None:
        require_reasonable("", self)
        require(2 <= self.bins <= MOST_BINS, f"bins is {self.bins}; give a number from 2 to {MOST_BINS}.", "bins")

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    def check(self, run: RunConfig) -> None:
        check_cached(run, self.cache, self.optimizer)


@dataclass(frozen=True)
class SequentialCritic:
    """V(s) = max_b Q¹(s, b), and Q(s, a) = Q^D(s, a) of the stored action."""

    networks: SequentialNetworks

    def evaluate(self, blocks: Promoted) -> ValueBlock:
        networks = self.networks
        return evaluate_greedily(
            blocks, networks, lambda states, actions: (networks.values(states), networks.action_values(states, actions))
        )


def choose_actions(
    networks: SequentialNetworks, states: NDArray[Any], epsilon: float, rng: np.random.Generator
) -> Acted:
    """Actions [n, D] whose numbers are greedy, or a random bin with probability ε; and log μ(a|s) [n].

    μ of a number is ε/bins + (1 − ε)·[it is greedy after those before it].
    """
    shape = len(states), networks.action_size
    is_random, random = rng.random(shape) < epsilon, rng.integers(networks.bins, size=shape)
    with torch.inference_mode():
        actions, is_greedy = networks.choose(
            networks.states(states), networks.tensor(is_random), networks.tensor(random)
        )
    chances = epsilon / networks.bins + (1 - epsilon) * is_greedy.cpu().numpy()  # [n, D]
    return Acted(actions.cpu().numpy(), np.log(chances).sum(axis=1))


class SDQN:
    """Sequential Q-learning over the numbers of an action (Metz et al. 2017), without their second, upper critic."""

    def __init__(self, config: SDQNLambdaConfig, networks: SequentialNetworks) -> None:
        self._networks, self._epsilon = networks, config.noise.epsilon
        self._learner = SequentialLearner(networks, config.optimizer)

    @property
    def networks(self) -> SequentialNetworks:
        return self._networks

    def explore(self, networks: SequentialNetworks, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        return choose_actions(networks, states, self._epsilon, rng)

    def critic(self, rng: np.random.Generator) -> SequentialCritic:
        return SequentialCritic(self._networks)

    def train(
        self, minibatches: Iterable[Minibatch], shape: tuple[int, int], rng: np.random.Generator
    ) -> tuple[CriticSummary, Metrics]:
        return self._learner.train(minibatches), {}

    def describe(self, batch: Minibatch) -> Metrics:
        networks = self._networks
        states, actions = networks.states(batch.states), networks.tensor(batch.actions)
        seen = [networks.inputs(states, actions, number) for number in range(networks.action_size)]
        return describe_ensemble(networks.module, torch.stack(seen))

    def get_tensors(self) -> dict[str, Tensors]:
        return {"weights": self._networks.weights(), "optimizer": self._learner.optimizer_state()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._networks.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])

    def check_finite(self) -> None:
        self._learner.check_finite()


@dataclass(frozen=True)
class SequentialPolicy:
    """Trained networks that play greedily; each number of an action is random with probability ε."""

    critic: SequentialCritic

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        return choose_actions(self.critic.networks, states, epsilon, rng)


def modules(run: RunConfig, spec: EnvironmentSpec, seed: int = 0) -> tuple[Ensemble]:
    """The networks of the config."""
    config: Any = run.algorithm
    inputs, (size,) = math.prod(run.state_shape(spec.observation_shape)), spec.action_shape
    network = config.network
    return (make_module(inputs, size, config.bins, hidden=network.hidden, layer_norm=network.layer_norm, seed=seed),)


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> CachedActorCritic:
    config = run.algorithm
    assert isinstance(config, SDQNLambdaConfig)
    networks = SequentialNetworks(*modules(run, spec, streams.draw_init_seed()), find_device(run.device))
    return CachedActorCritic(
        run,
        config.cache,
        batch_size=config.optimizer.batch_size,
        method=SDQN(config, networks),
        estimator=parse_value_estimator(run, has_densities=False),
        memory=memory,
        streams=streams,
        play_randomly=lambda states, rng: choose_actions(networks, states, 1.0, rng),  # bins are all it knows
    )


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> SequentialPolicy:
    networks = SequentialNetworks(*modules(run, spec), find_device(run.device))
    networks.load_weights(weights)
    return SequentialPolicy(SequentialCritic(networks))


KIND = continuous_kind(
    summary="an action's numbers one after another, each from Q-values over bins, with cached λ-returns",
    config=SDQNLambdaConfig,
    make=make,
    load=load,
    modules=modules,
    has_densities=False,
)
