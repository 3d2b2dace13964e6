"""Trains a soft actor-critic: critics on frozen returns, a policy on the critics, and the weight α of its entropy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.actor_critic import ActorCritic, joined, part_of
from lambda_replay.learning.critic_training import CriticSummary, CriticTraining
from lambda_replay.learning.device import flushing_denormals
from lambda_replay.learning.divergence import require_all_finite
from lambda_replay.learning.ensemble_optimizer import EnsembleOptimizer
from lambda_replay.learning.fast_ensembles import FastEnsemble
from lambda_replay.learning.fused_adam import Adam
from lambda_replay.learning.squashed_gaussian import output_gradient, sample
from lambda_replay.replay.data import Minibatch


def soft_policy_gradient(
    policy: FastEnsemble, critics: FastEnsemble, states: Tensor, noise: Tensor, alpha: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The gradient of the mean over states [B, inputs] of α·log π(ã|s) − min_j Q_j(s, ã); and log π(ã|s) [B].

    ã = tanh(μ + σ·ε) with noise ε [B, D]. Haarnoja et al. 2018, eq. (7).
    """
    outputs, saved = policy.forward_saving(states)
    sampled = sample(outputs[0], noise)
    q_values, saved_values = critics.forward_saving(torch.cat([states, sampled.actions], dim=1))  # [N, B, 1]
    share = 1 / len(states)
    smallest = q_values[..., 0].argmin(dim=0)  # [B]  which critic
    of_values = torch.full_like(q_values[0], -share)  # [B, 1]  of that critic's value; the others' count for nothing
    of_actions = critics.chosen_input_gradient(saved_values, smallest, of_values, noise.shape[1])  # [B, D]
    of_outputs = output_gradient(sampled, of_actions, share * alpha)  # [B, 2·D]
    return policy.gradients(saved, of_outputs[None]), sampled.log_probs


class SoftSummary(NamedTuple):
    """Means over the minibatches of one call to ``train``."""

    critics: CriticSummary
    entropy: float  # of the policy, −log π(ã|s), in nats


class SoftLearner:
    """Updates critics, policy and α once per minibatch."""

    def __init__(
        self, networks: ActorCritic, config: OptimizerConfig, *, alpha: float, target_entropy: float | None
    ) -> None:
        """``target_entropy`` is what a learned α aims at; None: ``alpha`` is fixed."""
        self._networks, self._target_entropy = networks, target_entropy
        self._critics = CriticTraining(networks.critics, config)
        self._policy = EnsembleOptimizer(networks.policy, config)
        self.log_alpha = torch.tensor(alpha, device=networks.device).log()
        self._alpha_adam = Adam([self.log_alpha], config)

    @property
    def alpha(self) -> float:
        return float(self.log_alpha.exp())

    @torch.inference_mode()
    def train(self, minibatches: Iterable[Minibatch], noise: NDArray[np.float32]) -> SoftSummary:
        """One update per minibatch, with noise [updates, B, D]; there may be fewer minibatches."""
        self._critics.begin()
        log_probs: list[Tensor] = []
        with flushing_denormals():
            for batch, own_noise in zip(minibatches, self._networks.tensor(noise), strict=False):
                log_probs.append(self._update(batch, own_noise))
        return SoftSummary(self._critics.summarise(), -float(torch.stack(log_probs).mean()))

    def _update(self, batch: Minibatch, noise: Tensor) -> Tensor:
        """One gradient step of critics, policy and α; returns log π(ã|s) [B] before it."""
        networks = self._networks
        states, actions, returns = networks.states(batch.states), *map(networks.tensor, (batch.actions, batch.returns))
        self._critics.update(torch.cat([states, actions], dim=1), returns)
        alpha = self.log_alpha.exp()
        gradients, log_probs = soft_policy_gradient(networks.policy, networks.critics, states, noise, alpha)
        self._policy.step(gradients)
        if self._target_entropy is not None:
            # The gradient of −log α · (log π + target): α rises while the entropy is below its target.
            self._alpha_adam.step([-(log_probs.mean() + self._target_entropy)])
        return log_probs

    def check_finite(self) -> None:
        """Raise DivergenceError if anything learnt is not finite."""
        self._critics.optimizer.check_finite()
        self._policy.check_finite()
        require_all_finite("α is", [self.log_alpha])

    def optimizer_state(self) -> dict[str, Tensor]:
        return joined(
            critics=self._critics.optimizer.get_state(),
            policy=self._policy.get_state(),
            alpha=self._alpha_adam.get_state(),
        )

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        self._critics.optimizer.set_state(part_of(state, "critics"))
        self._policy.set_state(part_of(state, "policy"))
        self._alpha_adam.set_state(part_of(state, "alpha"))
