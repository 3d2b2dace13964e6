"""SAC(λ): a soft actor-critic whose critics learn cached λ-returns, without a target network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.agents.actor_critic import CachedActorCritic
from lambda_replay.agents.cached import Promote, promote_due
from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    Minimum,
    Shape,
    check_cached,
    check_continuous,
    continuous_kind,
    describe_critics,
    fast_optimizer,
    frequent_cache,
    make_networks,
    mixed_with_random,
    modules_of,
    over_chunks,
    parse_value_estimator,
)
from lambda_replay.agents.protocol import Acted, Tensors
from lambda_replay.checks import require
from lambda_replay.config import CacheConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.soft_learner import SoftLearner
from lambda_replay.learning.squashed_gaussian import log_densities, sample
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Minibatch, ValueBlock
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory

SoftOrNot = Literal["soft", "nonsoft"]
SHAPE = Shape(policy_outputs=2, num_critics=2)  # μ and log σ
SMALLEST_ALPHA, LARGEST_ALPHA = 1e-30, 1e30  # float32 can hold them
LARGEST_LOG_RATIO = 20.0  # of π(a|s)/μ(a|s); beyond it, float32 might overflow


@dataclass(frozen=True, kw_only=True)
class EntropyConfig:
    """The weight α of the policy's entropy."""

    alpha: float | None = None  # fixed; None: learned, so that the entropy approaches its target
    start: float = 1.0  # the first α, if it is learned
    target: float | None = None  # entropy in nats that a learned α aims at; None: minus the numbers in an action

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("alpha", 1.0 if self.alpha is None else self.alpha)):
            require(
                SMALLEST_ALPHA <= value <= LARGEST_ALPHA,
                f"entropy.{name} is {value}; give a number from {SMALLEST_ALPHA} to {LARGEST_ALPHA}.",
                f"entropy.{name}",
            )
        require(
            self.target is None or math.isfinite(self.target),
            f"entropy.target is {self.target}; give a finite number.",
            "entropy.target",
        )
        require(
            self.target is None or self.alpha is None,
            f"entropy.target ({self.target}) is what a learned α aims at, but entropy.alpha ({self.alpha}) fixes it; "
            "leave one out.",
            "entropy.target",
            "entropy.alpha",
        )

    def check(self, action_size: int) -> None:
        """Reject a target that no policy reaches: no distribution on (−1, 1) has more entropy than the uniform one."""
        largest = action_size * math.log(2)
        require(
            self.target is None or self.target < largest,
            f"entropy.target is {self.target}, but the entropy of actions of size {action_size} between −1 and 1 stays "
            f"below {largest:.2f}; give less.",
            "entropy.target",
        )


class SoftConfig(Protocol):
    """Settings that sac-lambda and sac share."""

    @property
    def critic(self) -> SoftOrNot: ...

    @property
    def minimum(self) -> Minimum: ...

    @property
    def entropy(self) -> EntropyConfig: ...

    @property
    def optimizer(self) -> OptimizerConfig: ...


@dataclass(frozen=True, kw_only=True)
class SACLambdaConfig:
    """Settings of sac-lambda."""

    critic: SoftOrNot = "soft"  # soft: the entropy of every later step is part of a return
    minimum: Minimum = "step"  # take the smaller critic at each step, or the smaller of the finished returns
    cache: CacheConfig = field(default_factory=frequent_cache)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    def check(self, run: RunConfig) -> None:
        check_cached(run, self.cache, self.optimizer)


@dataclass(frozen=True)
class SoftCritic:
    """Values under the present policy: V(s) = Q(s, ã) − α·log π(ã|s) with ã ~ π(·|s), drawn anew.

    A return from s replaces Q(s, ã) and leaves the entropy, so that of every step counts in full. A critic that is not
    soft knows no entropy. See docs/algorithm.md.
    """

    networks: ActorCritic
    alpha: float
    rng: np.random.Generator
    is_soft: bool = True
    minimum: Minimum = "step"

    def evaluate(self, blocks: Promoted) -> ValueBlock:
        networks, transitions = self.networks, blocks.transitions
        actions = networks.tensor(blocks.actions)  # [n, D]
        noise = networks.tensor(self.rng.standard_normal(actions.shape, dtype=np.float32))

        def values(states: Tensor, rows: slice) -> tuple[Tensor, ...]:
            outputs, taken = networks.act(states), actions[rows]
            drawn, log_probs, *_ = sample(outputs, noise[rows])
            q_values = networks.values(states, drawn), networks.values(states, taken)  # [N, n] each
            return *q_values, log_probs, log_densities(outputs, taken)

        of_drawn, of_taken, log_probs, densities = over_chunks(blocks, networks, values)  # [(N,) K, L+1] each
        baselines = of_drawn.min(axis=0) if self.minimum == "step" else of_drawn
        log_ratios = np.minimum(densities - transitions.behaviour_probs, np.float32(LARGEST_LOG_RATIO))
        return ValueBlock(
            rewards=blocks.rewards,
            discounts=blocks.discounts,
            values=baselines - np.float32(self.alpha) * log_probs if self.is_soft else baselines,
            action_values=of_taken,
            continues=blocks.continues,
            baselines=baselines if self.is_soft else None,
            ratios=np.exp(log_ratios),
            is_step=transitions.is_step,
        )


def sample_actions(networks: ActorCritic, states: NDArray[Any], noise: NDArray[np.float32]) -> Acted:
    """Actions [n, D] for noise [n, D], and log μ(a|s) of the numbers that the memory will hold."""
    with torch.inference_mode():
        outputs = networks.act(networks.states(states))
        actions = sample(outputs, networks.tensor(noise)).actions
        return Acted(actions.cpu().numpy(), log_densities(outputs, actions).cpu().numpy())


class SAC:
    """A soft actor-critic (Haarnoja et al. 2018); where its returns come from, it does not know."""

    def __init__(self, config: SoftConfig, networks: ActorCritic, action_size: int) -> None:
        self._config, self._networks, self._size = config, networks, action_size
        entropy = config.entropy
        target = -float(action_size) if entropy.target is None else entropy.target
        self._learner = SoftLearner(
            networks,
            config.optimizer,
            alpha=entropy.start if entropy.alpha is None else entropy.alpha,
            target_entropy=target if entropy.alpha is None else None,
        )

    @property
    def networks(self) -> ActorCritic:
        return self._networks

    @property
    def alpha(self) -> float:
        return self._learner.alpha

    def explore(self, networks: ActorCritic, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        return sample_actions(networks, states, rng.standard_normal((len(states), self._size), dtype=np.float32))

    def critic(self, rng: np.random.Generator) -> SoftCritic:
        config = self._config
        return SoftCritic(self._networks, self.alpha, rng, config.critic == "soft", config.minimum)

    def train(
        self, minibatches: Iterable[Minibatch], shape: tuple[int, int], rng: np.random.Generator
    ) -> tuple[CriticSummary, Metrics]:
        """The metrics have the α of the returns that are trained on, and the policy's mean entropy meanwhile."""
        alpha = self.alpha
        summary = self._learner.train(minibatches, rng.standard_normal((*shape, self._size), dtype=np.float32))
        return summary.critics, {"alpha": alpha, "entropy": summary.entropy}

    def describe(self, batch: Minibatch) -> Metrics:
        return describe_critics(self._networks, batch)

    def get_tensors(self) -> dict[str, Tensors]:
        weights = {**self._networks.weights(), "log_alpha": self._learner.log_alpha.cpu().clone()}
        return {"weights": weights, "optimizer": self._learner.optimizer_state()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        weights = dict(tensors["weights"])
        self._learner.log_alpha.copy_(weights.pop("log_alpha"))
        self._networks.load_weights(weights)
        self._learner.load_optimizer_state(tensors["optimizer"])

    def check_finite(self) -> None:
        self._learner.check_finite()


@dataclass(frozen=True)
class SoftPolicy:
    """A trained policy that plays its mean action tanh(μ); a uniformly random one with probability ε."""

    networks: ActorCritic
    critic: SoftCritic
    action_size: int

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        """A mean action's density is that of the policy it was trained as."""
        means = sample_actions(self.networks, states, np.zeros((len(states), self.action_size), dtype=np.float32))
        return mixed_with_random(means, epsilon, rng)


def make(
    run: RunConfig,
    spec: EnvironmentSpec,
    *,
    memory: ReplayMemory,
    streams: RandomStreams,
    module: nn.Module | None,
    promote: Promote = promote_due,
) -> CachedActorCritic:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, streams.draw_init_seed())
    assert isinstance(config, SACLambdaConfig)
    return CachedActorCritic(
        run,
        config.cache,
        batch_size=config.optimizer.batch_size,
        method=SAC(config, networks, spec.action_shape[0]),
        estimator=parse_value_estimator(run, has_densities=True),
        memory=memory,
        streams=streams,
        promote=promote,
    )


def load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> SoftPolicy:
    config: Any = run.algorithm
    networks = make_networks(run, spec, SHAPE, seed=0)
    alpha = float(weights["log_alpha"].exp())
    networks.load_weights({name: tensor for name, tensor in weights.items() if name != "log_alpha"})
    critic = SoftCritic(networks, alpha, np.random.default_rng(run.seed), config.critic == "soft", config.minimum)
    return SoftPolicy(networks, critic, spec.action_shape[0])


def check(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> None:
    config: Any = run.algorithm
    check_continuous(run, spec, module)
    config.entropy.check(spec.action_shape[0])


KIND = continuous_kind(
    summary="soft actor-critic with cached λ-returns, for continuous actions",
    config=SACLambdaConfig,
    make=make,
    load=load,
    modules=modules_of(SHAPE),
    has_densities=True,
    check=check,
)
