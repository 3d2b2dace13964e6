"""NAF(λ): Q-values that are quadratic in the action and learn cached λ-returns, without a target network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.agents.actor_critic import CachedActorCritic
from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    check_cached,
    continuous_kind,
    describe_ensemble,
    evaluate_greedily,
    fast_optimizer,
    frequent_cache,
    mixed_with_random,
    parse_value_estimator,
)
from lambda_replay.agents.deterministic import ExplorationNoise, NoiseConfig
from lambda_replay.agents.protocol import Acted, Tensors
from lambda_replay.checks import require_positive
from lambda_replay.config import CacheConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.device import find_device
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.learning.quadratic import QuadraticLearner, evaluate, make_modules
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Minibatch, ValueBlock
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory


@dataclass(frozen=True, kw_only=True)
class NAFLambdaConfig:
    """Settings of naf-lambda."""

    precision: float = 1.0  # P at the start: twice what an action 1 away from the best one costs, in units of reward
    cache: CacheConfig = field(default_factory=frequent_cache)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def __post_init__(self) -> None:
        require_positive("", self, "precision")

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    def check(self, run: RunConfig) -> None:
        check_cached(run, self.cache, self.optimizer)


@dataclass(frozen=True)
class QuadraticCritic:
    """V(s) = max_a Q(s, a), which is known in closed form, and Q(s, a) of the stored action."""

    networks: ActorCritic

    def evaluate(self, blocks: Promoted) -> ValueBlock:
        def values(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            quadratic = evaluate(self.networks, states)
            return quadratic.values, quadratic.q_values(actions)  # [n] each

        return evaluate_greedily(blocks, self.networks, values)


def best_actions(networks: ActorCritic, states: NDArray[Any], noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """μ(s) [n, D] with noise [n, D] added, clipped to [−1, 1]."""
    with torch.inference_mode():
        means = networks.act(networks.states(states)).cpu().numpy()
    return np.clip(means + noise, -1, 1)


class NAF:
    """Normalised advantage functions (Gu et al. 2016)."""

    def __init__(self, config: NAFLambdaConfig, networks: ActorCritic, noise: ExplorationNoise) -> None:
        self._networks, self._noise = networks, noise
        self._learner = QuadraticLearner(networks, config.optimizer)

    @property
    def networks(self) -> ActorCritic:
        return self._networks

    def explore(self, networks: ActorCritic, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        """Actions with their density before they were clipped to [−1, 1]."""
        noise, log_densities = self._noise.draw(len(states), rng)
        return Acted(best_actions(networks, states, noise), log_densities)

    def critic(self, rng: np.random.Generator) -> QuadraticCritic:
        return QuadraticCritic(self._networks)

    def train(
        self, minibatches: Iterable[Minibatch], shape: tuple[int, int], rng: np.random.Generator
    ) -> tuple[CriticSummary, Metrics]:
        return self._learner.train(minibatches), {}

    def describe(self, batch: Minibatch) -> Metrics:
        return describe_ensemble(self._networks.modules["critics"], self._networks.states(batch.states))

    def get_tensors(self) -> dict[str, Tensors]:
        own = {"weights": self._networks.weights(), "optimizer": self._learner.optimizer_state()}
        return {**own, **self._noise.get_tensors()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._networks.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])
        self._noise.set_tensors(tensors)

    def check_finite(self) -> None:
        self._learner.check_finite()


@dataclass(frozen=True)
class QuadraticPolicy:
    """A trained policy that plays μ(s); a uniformly random action with probability ε."""

    critic: QuadraticCritic
    action_size: int

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        no_noise = np.zeros((len(states), self.action_size), dtype=np.float32)
        actions = best_actions(self.critic.networks, states, no_noise)
        return mixed_with_random(Acted(actions, np.zeros(len(states))), epsilon, rng)


def modules(run: RunConfig, spec: EnvironmentSpec, seed: int = 0) -> tuple[Ensemble, Ensemble]:
    """The policy and the critic of the config."""
    config: Any = run.algorithm
    inputs, (size,) = math.prod(run.state_shape(spec.observation_shape)), spec.action_shape
    return make_modules(
        inputs,
        size,
        hidden=config.network.hidden,
        layer_norm=config.network.layer_norm,
        precision=config.precision,
        seed=seed,
    )


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> CachedActorCritic:
    config = run.algorithm
    assert isinstance(config, NAFLambdaConfig)
    networks = ActorCritic(*modules(run, spec, streams.draw_init_seed()), find_device(run.device))
    return CachedActorCritic(
        run,
        config.cache,
        batch_size=config.optimizer.batch_size,
        method=NAF(config, networks, ExplorationNoise(config.noise, run.envs, spec.action_shape[0])),
        estimator=parse_value_estimator(run, has_densities=False),
        memory=memory,
        streams=streams,
    )


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> QuadraticPolicy:
    networks = ActorCritic(*modules(run, spec), find_device(run.device))
    networks.load_weights(weights)
    return QuadraticPolicy(QuadraticCritic(networks), spec.action_shape[0])


KIND = continuous_kind(
    summary="Q-values quadratic in the action with cached λ-returns, for continuous actions",
    config=NAFLambdaConfig,
    make=make,
    load=load,
    modules=modules,
    has_densities=False,
)
