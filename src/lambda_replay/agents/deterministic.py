"""Shared by agents with a deterministic policy: its exploration with Gaussian noise, its values, and playing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lambda_replay.agents.continuous import Minimum, describe_critics, mixed_with_random, over_chunks
from lambda_replay.agents.protocol import Acted, Tensors
from lambda_replay.checks import require
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.deterministic_learner import DeterministicLearner
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Minibatch, ValueBlock
from lambda_replay.replay.diagnostics import Metrics


def require_noise(prefix: str, owner: object, *names: str) -> None:
    """Reject standard deviations and bounds that are negative, or larger than the range of an action."""
    for name in names:
        value = getattr(owner, name)
        require(0 <= value <= 2, f"{prefix}{name} is {value}; give a number from 0 to 2.", f"{prefix}{name}")


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Gaussian noise on the policy's actions while it explores; actions reach from −1 to 1."""

    std: float = 0.1  # standard deviation
    correlation: float = 0.0  # with the noise of the step before; near 1, it pushes one way for many steps

    def __post_init__(self) -> None:
        require_noise("noise.", self, "std")
        require(
            0 <= self.correlation < 1,
            f"noise.correlation is {self.correlation}; give a number from 0 to below 1.",
            "noise.correlation",
        )


@final
class ExplorationNoise:
    """Gaussian noise on the actions of several streams, correlated in time.

    ε_t = ρ·ε_{t−1} + σ·√(1−ρ²)·ξ_t,     ξ_t ~ N(0, 1),

    which has the standard deviation σ in the long run: DDPG's Ornstein-Uhlenbeck process (Lillicrap et al. 2016) in
    steps. It goes on across the ends of episodes. With ρ = 0 it is white noise and has no state.
    """

    def __init__(self, config: NoiseConfig, num_streams: int, action_size: int) -> None:
        self._correlation = np.float32(config.correlation)
        self._fresh_std = config.std * math.sqrt(1 - config.correlation**2)
        self._last = np.zeros((num_streams, action_size), dtype=np.float32)  # ε_{t−1}

    def draw(self, num_states: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Noise [n, D], and the logarithm [n] of its density, given the noise before; correlated, n is all streams."""
        fresh = np.float32(self._fresh_std) * rng.standard_normal((num_states, self._last.shape[1]), dtype=np.float32)
        log_densities = log_noise_densities(fresh, self._fresh_std)
        if self._correlation == 0:
            return fresh, log_densities
        self._last = self._correlation * self._last + fresh
        return self._last, log_densities

    def get_tensors(self) -> dict[str, Tensors]:
        """By file name; none where there is no state."""
        return {} if self._correlation == 0 else {"noise": {"last": torch.from_numpy(self._last.copy())}}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        if self._correlation != 0:
            self._last = tensors["noise"]["last"].numpy().copy()


@dataclass(frozen=True)
class DeterministicCritic:
    """Values under the present policy: V(s) = Q(s, π(s)), with clipped noise on π(s) where there is smoothing."""

    networks: ActorCritic
    rng: np.random.Generator
    smoothing: float = 0.0  # standard deviation of the noise
    smoothing_clip: float = 0.0  # its largest size
    minimum: Minimum = "step"

    def evaluate(self, blocks: Promoted) -> ValueBlock:
        networks, transitions = self.networks, blocks.transitions
        actions = networks.tensor(blocks.actions)  # [n, D]
        noise = networks.tensor(draw_smoothing(self.rng, actions.shape, self.smoothing, self.smoothing_clip))

        def values(states: Tensor, rows: slice) -> tuple[Tensor, Tensor]:  # [N, n] each
            return smoothed_values(networks, states, noise[rows]), networks.values(states, actions[rows])

        of_drawn, of_taken = over_chunks(blocks, networks, values)  # [N, K, L+1] each
        return ValueBlock(
            rewards=blocks.rewards,
            discounts=blocks.discounts,
            values=of_drawn.min(axis=0) if self.minimum == "step" else of_drawn,
            action_values=of_taken,
            continues=blocks.continues,
            is_step=transitions.is_step,
        )


def draw_smoothing(rng: np.random.Generator, shape: tuple[int, ...], std: float, clip: float) -> NDArray[np.float32]:
    """Gaussian noise of this shape, clipped; none is drawn if ``std`` is 0."""
    if std == 0:
        return np.zeros(shape, dtype=np.float32)
    return np.clip(np.float32(std) * rng.standard_normal(shape, dtype=np.float32), -clip, clip)


def smoothed_values(networks: ActorCritic, states: Tensor, noise: Tensor) -> Tensor:
    """Q_j(s, π(s) + noise) [N, n] of states [n, inputs] and noise [n, D], with actions clipped to [−1, 1]."""
    return networks.values(states, (networks.act(states).tanh() + noise).clamp(-1, 1))


def noisy_actions(networks: ActorCritic, states: NDArray[Any], noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """The policy's actions [n, D] with noise [n, D] added, clipped to [−1, 1]."""
    with torch.inference_mode():
        actions = networks.act(networks.states(states)).tanh().cpu().numpy()
    return np.clip(actions + noise, -1, 1)


def log_noise_densities(noise: NDArray[np.float32], std: float) -> NDArray[np.float64]:
    """log N(ε; 0, σ) [n] of noise [n, D]; 0 without noise, where there is no density."""
    if std == 0:
        return np.zeros(len(noise))
    each = 0.5 * np.square(noise / std, dtype=np.float64) + math.log(std * math.sqrt(2 * math.pi))
    return -each.sum(axis=1)


class DeterministicMethod:
    """A deterministic actor-critic; ``make_critic`` gives the values for its cached returns."""

    def __init__(
        self,
        networks: ActorCritic,
        learner: DeterministicLearner,
        make_critic: Callable[[np.random.Generator], DeterministicCritic],
        *,
        noise: ExplorationNoise,
    ) -> None:
        self._networks, self._learner, self._make_critic, self._noise = networks, learner, make_critic, noise

    @property
    def networks(self) -> ActorCritic:
        return self._networks

    def explore(self, networks: ActorCritic, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        """Actions with their density before they were clipped to [−1, 1]."""
        noise, log_densities = self._noise.draw(len(states), rng)
        return Acted(noisy_actions(networks, states, noise), log_densities)

    def critic(self, rng: np.random.Generator) -> DeterministicCritic:
        return self._make_critic(rng)

    def train(
        self, minibatches: Iterable[Minibatch], shape: tuple[int, int], rng: np.random.Generator
    ) -> tuple[CriticSummary, Metrics]:
        return self._learner.train(minibatches), {}

    def describe(self, batch: Minibatch) -> Metrics:
        return describe_critics(self._networks, batch)

    def get_tensors(self) -> dict[str, Tensors]:
        own = {"weights": self.networks.weights(), "optimizer": self._learner.optimizer_state()}
        return {**own, **self._noise.get_tensors()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self.networks.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])
        self._noise.set_tensors(tensors)

    def check_finite(self) -> None:
        self._learner.check_finite()


@dataclass(frozen=True)
class DeterministicPolicy:
    """A trained policy that plays without noise; a uniformly random action with probability ε."""

    critic: DeterministicCritic
    action_size: int

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        no_noise = np.zeros((len(states), self.action_size), dtype=np.float32)
        actions = noisy_actions(self.critic.networks, states, no_noise)
        return mixed_with_random(Acted(actions, np.zeros(len(states))), epsilon, rng)
