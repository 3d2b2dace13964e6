"""Trains an actor-critic with a deterministic policy: critics on frozen returns, the policy on the first critic."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.actor_critic import ActorCritic, joined, part_of
from lambda_replay.learning.critic_training import CriticSummary, CriticTraining
from lambda_replay.learning.device import flushing_denormals
from lambda_replay.learning.ensemble_optimizer import EnsembleOptimizer
from lambda_replay.learning.fast_ensembles import FastEnsemble
from lambda_replay.replay.data import Minibatch


def deterministic_policy_gradient(
    policy: FastEnsemble, critic: FastEnsemble, states: Tensor, action_size: int
) -> list[Tensor]:
    """The gradient of the mean over states [B, inputs] of −Q(s, π(s)), with π(s) = tanh of the policy's outputs.

    Silver et al. 2014, theorem 1.
    """
    outputs, saved = policy.forward_saving(states)
    actions = outputs[0].tanh()
    q_values, saved_values = critic.forward_saving(torch.cat([states, actions], dim=1))  # [1, B, 1]
    of_actions = critic.input_gradient(saved_values, torch.full_like(q_values, -1 / len(states)), action_size)
    return policy.gradients(saved, (of_actions * (1 - actions.square()))[None])


class DeterministicLearner:
    """Updates the critics once per minibatch, and the policy once per ``policy_every`` of them."""

    def __init__(self, networks: ActorCritic, config: OptimizerConfig, *, policy_every: int) -> None:
        self._networks, self._policy_every = networks, policy_every
        self._critics = CriticTraining(networks.critics, config)
        self._policy = EnsembleOptimizer(networks.policy, config)
        self._first_critic = networks.critics.each[0]

    @torch.inference_mode()
    def train(self, minibatches: Iterable[Minibatch]) -> CriticSummary:
        self._critics.begin()
        with flushing_denormals():
            for batch in minibatches:
                self._update(batch)
        return self._critics.summarise()

    def _update(self, batch: Minibatch) -> None:
        networks = self._networks
        states, actions, returns = networks.states(batch.states), *map(networks.tensor, (batch.actions, batch.returns))
        self._critics.update(torch.cat([states, actions], dim=1), returns)
        if self._critics.optimizer.num_steps % self._policy_every == 0:
            size = actions.shape[1]
            self._policy.step(deterministic_policy_gradient(networks.policy, self._first_critic, states, size))

    def check_finite(self) -> None:
        """Raise DivergenceError if anything learnt is not finite."""
        self._critics.optimizer.check_finite()
        self._policy.check_finite()

    def optimizer_state(self) -> dict[str, Tensor]:
        return joined(critics=self._critics.optimizer.get_state(), policy=self._policy.get_state())

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        self._critics.optimizer.set_state(part_of(state, "critics"))
        self._policy.set_state(part_of(state, "policy"))
