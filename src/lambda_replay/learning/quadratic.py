"""Q-values that are quadratic in the action, so that their maximum is known; and their gradient.

Q(s, a) = V(s) − ½·(a − μ(s))ᵀ·P(s)·(a − μ(s)),   P(s) = L(s)·L(s)ᵀ

with L lower triangular and its diagonal exponentiated, so P is positive definite and max_a Q(s, a) = V(s), at μ(s).
Gu et al. 2016, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.actor_critic import SMALL_OUTPUTS, ActorCritic, joined, part_of
from lambda_replay.learning.critic_training import CriticRecord, CriticSummary
from lambda_replay.learning.device import flushing_denormals
from lambda_replay.learning.ensemble_optimizer import EnsembleOptimizer
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.replay.data import Minibatch

LOG_DIAGONAL_RANGE = (-10.0, 10.0)  # of log L_ii, which is clipped to it: exp must not overflow


class Quadratic(NamedTuple):
    """Q(s, ·) of n states."""

    values: Tensor  # [n]  V(s)
    means: Tensor  # [n, D]  μ(s)
    factors: Tensor  # [n, D, D]  L(s)

    def q_values(self, actions: Tensor) -> Tensor:
        """Q(s, a) [n] of actions [n, D], with (a − μ)ᵀ·L·Lᵀ·(a − μ) = ‖Lᵀ·(a − μ)‖²."""
        stretched = ((actions - self.means)[:, None] @ self.factors)[:, 0]  # [n, D]
        return self.values - 0.5 * stretched.square().sum(dim=1)


def num_outputs(action_size: int) -> int:
    """Numbers that the critic gives for a state: V, and the lower triangle of L."""
    return 1 + action_size * (action_size + 1) // 2


def make_quadratic(policy_outputs: Tensor, critic_outputs: Tensor) -> Quadratic:
    """Q(s, ·) from the outputs [n, D] of the policy and [n, 1 + D·(D+1)/2] of the critic."""
    num_states, size = policy_outputs.shape
    rows, columns = torch.tril_indices(size, size, device=policy_outputs.device)
    triangle = critic_outputs.new_zeros((num_states, size, size))
    triangle[:, rows, columns] = critic_outputs[:, 1:]
    diagonal = triangle.diagonal(dim1=1, dim2=2).clamp(*LOG_DIAGONAL_RANGE).exp()
    return Quadratic(critic_outputs[:, 0], policy_outputs, triangle.tril(-1) + torch.diag_embed(diagonal))


def evaluate(networks: ActorCritic, states: Tensor) -> Quadratic:
    """Q(s, ·) of states [n, inputs] by networks whose only critic sees the state alone."""
    return make_quadratic(networks.act(states), networks.critics.forward(states)[0])


def make_modules(
    num_inputs: int, action_size: int, *, hidden: Sequence[int], layer_norm: bool, precision: float, seed: int
) -> tuple[Ensemble, Ensemble]:
    """A policy for μ and a critic for V and L, with weights drawn from the seed alone; LayerNorm is for the critic.

    P starts near ``precision`` times the identity.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Ensemble(1, (num_inputs, *hidden, action_size), layer_norm=False, output_bound=SMALL_OUTPUTS)
        critic = Ensemble(1, (num_inputs, *hidden, num_outputs(action_size)), layer_norm=layer_norm)
    with torch.no_grad():
        for row in range(action_size):  # log L_ii stands at the end of row i of the triangle
            critic.biases[-1][..., (row + 1) * (row + 2) // 2] += math.log(precision) / 2
    return policy, critic


def kept_inside(gradient: Tensor, means: Tensor) -> Tensor:
    """The gradient [n, D] of means μ [n, D], turned round where μ is outside [−1, 1] and a step would take it further.

    There it is multiplied by 1 − |μ|, as in the "inverting gradients" of Hausknecht & Stone 2016. They scale it
    inside the bounds too, differently for either sign, which would move the least squares. tanh in its place is a
    trap: while values are still falling, all errors are negative and drive μ away from the actions taken, and where
    tanh is flat it cannot return.
    """
    goes_out = (means.abs() > 1) & (gradient * means < 0)  # descent: a negative gradient raises μ
    return torch.where(goes_out, gradient * (1 - means.abs()), gradient)


class QuadraticGradient(NamedTuple):
    """A gradient, and what it saw."""

    policy: list[Tensor]
    critic: list[Tensor]
    errors: Tensor  # [B]  R − Q(s, a)
    values: Tensor  # [B]  Q(s, a)


def quadratic_gradient(
    networks: ActorCritic, states: Tensor, actions: Tensor, returns: Tensor, *, is_huber: bool
) -> QuadraticGradient:
    """The gradient of the mean over a minibatch of [R − Q(s, a)]², or of its Huber version, for μ, V and L at once.

    That of μ is ``kept_inside``, so that the best action is one that can be taken.
    Autograd sees the networks' outputs alone; from there on the ensembles have gradients of their own.
    """
    (of_policy, saved_policy), (of_critic, saved_critic) = (
        ensemble.forward_saving(states) for ensemble in (networks.policy, networks.critics)
    )
    outputs = of_policy[0].requires_grad_(), of_critic[0].requires_grad_()  # [B, D], [B, 1 + D·(D+1)/2]
    with torch.enable_grad():
        values = make_quadratic(*outputs).q_values(actions)
    errors = returns - values.detach()
    slopes = errors.clamp(-1, 1) if is_huber else 2 * errors
    policy, critic = torch.autograd.grad(values, outputs, slopes / -len(returns))
    return QuadraticGradient(
        networks.policy.gradients(saved_policy, kept_inside(policy, of_policy[0].detach())[None]),
        networks.critics.gradients(saved_critic, critic[None]),
        errors,
        values.detach(),
    )


class QuadraticLearner:
    """Updates policy and critic once per minibatch."""

    def __init__(self, networks: ActorCritic, config: OptimizerConfig) -> None:
        self._networks, self._is_huber = networks, config.loss == "huber"
        self._policy = EnsembleOptimizer(networks.policy, config)
        self._critic = EnsembleOptimizer(networks.critics, config)

    @torch.no_grad()
    def train(self, minibatches: Iterable[Minibatch]) -> CriticSummary:
        record = CriticRecord(is_huber=self._is_huber)
        with flushing_denormals():
            for batch in minibatches:
                self._update(batch, record)
        return record.summarise()

    def _update(self, batch: Minibatch, record: CriticRecord) -> None:
        networks = self._networks
        states, actions, returns = networks.states(batch.states), *map(networks.tensor, (batch.actions, batch.returns))
        found = quadratic_gradient(networks, states, actions, returns, is_huber=self._is_huber)
        self._policy.step(found.policy)
        norm = self._critic.step(found.critic, measures=record.measures_next)
        record.add(found.errors[None], found.values[None], norm)

    def check_finite(self) -> None:
        """Raise DivergenceError if anything learnt is not finite."""
        self._policy.check_finite()
        self._critic.check_finite()

    def optimizer_state(self) -> dict[str, Tensor]:
        return joined(policy=self._policy.get_state(), critic=self._critic.get_state())

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        self._policy.set_state(part_of(state, "policy"))
        self._critic.set_state(part_of(state, "critic"))
