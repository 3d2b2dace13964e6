"""The networks of Stable-Baselines3's agents as critics: what they say about blocks of the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.replay.critic import CHUNK_SIZE, Critic, Promoted, QCritic
from lambda_replay.replay.data import Block, Floats, ValueBlock
from lambda_replay.replay.estimators import Estimator, check_fits
from lambda_replay.sb3.settings import Minimum

Tensors = Any  # observations as Stable-Baselines3's networks take them: a tensor, or a dict of tensors
Observe = Callable[[NDArray[Any]], Tensors]  # states [n, F, ...] of the memory -> observations

# Why agents that Stable-Baselines3's users may try cannot learn from returns that were computed before.
REASONS = {
    "CrossQ": "its BatchNorm needs the next states in every training batch, and a cache of returns has none",
    "TQC": "its critics are distributions, not values",
    "QRDQN": "its critics are distributions, not values",
}


class Proposal(NamedTuple):
    """What the policy would do now: an action ã per state, and what V(s) holds besides Q(s, ã)."""

    actions: torch.Tensor  # [n, D]
    bonuses: torch.Tensor  # [n]  the entropy −α·log π(ã|s) of a soft critic, else 0


def propose_td3(model: TD3, observations: Tensors) -> Proposal:
    """π(s) with clipped noise, as in TD3's target; DDPG is TD3 with a clip of 0."""
    actions = model.actor(observations)
    noise = torch.empty_like(actions).normal_(0, model.target_policy_noise)
    clipped = noise.clamp(-model.target_noise_clip, model.target_noise_clip)
    return Proposal((actions + clipped).clamp(-1, 1), actions.new_zeros(len(actions)))


def propose_sac(model: SAC, observations: Tensors) -> Proposal:
    """ã ~ π(·|s) and −α·log π(ã|s)."""
    if model.use_sde:
        # A noise matrix for each state: with one for all, as in SAC.train, the whole cache would share its noise.
        tensor = next(iter(observations.values())) if isinstance(observations, dict) else observations
        model.actor.reset_noise(len(tensor))
    actions, log_probs = model.actor.action_log_prob(observations)
    alpha = model.ent_coef_tensor if model.log_ent_coef is None else torch.exp(model.log_ent_coef)
    return Proposal(actions, -(alpha * log_probs))


@dataclass(frozen=True)
class QNetworkCritic:
    """DQN: a row of Q-values per state."""

    model: DQN
    observe: Observe

    def evaluate(self, blocks: Promoted) -> Block:
        with _evaluating(self.model):
            return QCritic(self._q_values).evaluate(blocks)

    def _q_values(self, states: NDArray[Any]) -> Floats:  # [n, A]
        return _numpy(self.model.q_net(self.observe(states)))


@dataclass(frozen=True)
class ActorCritic:
    """DDPG, TD3 and SAC: V(s) of the action that the policy proposes, Q(s, a) of the stored one."""

    model: TD3 | SAC
    propose: Callable[[Any, Tensors], Proposal]
    observe: Observe
    minimum: Minimum

    def evaluate(self, blocks: Promoted) -> ValueBlock:
        flat = blocks.slots.reshape(-1)
        actions = blocks.transitions.actions.reshape(len(flat), -1)
        chunks = [slice(start, start + CHUNK_SIZE) for start in range(0, len(flat), CHUNK_SIZE)]
        with _evaluating(self.model):
            parts = [self._values(blocks.memory.states(flat[chunk]), actions[chunk]) for chunk in chunks]
        # Each [..., K, L+1]; several critics are a leading axis.
        proposed, bonuses, taken = (
            np.concatenate(part, axis=-1).reshape(*part[0].shape[:-1], *blocks.slots.shape)
            for part in zip(*parts, strict=True)
        )
        if not (np.isfinite(proposed).all() and np.isfinite(taken).all() and np.isfinite(bonuses).all()):
            raise DivergenceError("the critics' values are not finite: training diverged; lower the learning rate.")
        return ValueBlock(
            rewards=blocks.rewards,
            discounts=blocks.discounts,
            values=proposed + bonuses,
            action_values=taken,
            continues=blocks.continues,
            baselines=proposed,
            is_step=blocks.transitions.is_step,
        )

    def _values(self, states: NDArray[Any], actions: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
        """Q(s, ã), its bonus and Q(s, a)."""
        observations = self.observe(states)
        proposal = self.propose(self.model, observations)
        proposed = self._q(observations, proposal.actions)
        taken = self._q(observations, torch.as_tensor(actions, device=self.model.device))
        return proposed, _numpy(proposal.bonuses), taken

    def _q(self, observations: Tensors, actions: torch.Tensor) -> Floats:  # [n] or [C, n]
        values = _numpy(torch.cat(self.model.critic(observations, actions), dim=1).T)
        return values.min(axis=0) if self.minimum == "step" else values


def make_critic(model: BaseAlgorithm, observe: Observe, minimum: Minimum) -> Critic:
    """The critic for a model of Stable-Baselines3; any other is rejected with the reason."""
    if isinstance(model, DQN):
        return QNetworkCritic(model, observe)
    if isinstance(model, SAC):
        return ActorCritic(model, propose_sac, observe, minimum)
    if isinstance(model, TD3):
        return ActorCritic(model, propose_td3, observe, minimum)
    name = type(model).__name__
    reason = f": {REASONS[name]}" if name in REASONS else ""
    raise ConfigError(f"LambdaReplayBuffer does not work with {name}{reason}; use DQN, DDPG, TD3 or SAC.")


def check_estimator(estimator: Estimator, model: OffPolicyAlgorithm) -> None:
    """Reject an estimator that asks for what the model's critic cannot know: try it on a step worth nothing."""
    make_critic(model, lambda states: states, "step")
    zero, zeros, ends = np.zeros((1, 1), np.float32), np.zeros((1, 2), np.float32), np.zeros((1, 1), np.bool_)
    if isinstance(model, DQN):
        assert isinstance(model.action_space, spaces.Discrete)
        q_values = np.zeros((1, 2, int(model.action_space.n)), np.float32)
        check_fits(estimator, Block(zero, zero, q_values, zeros.astype(np.int32), zeros + 1, ends))
    else:
        check_fits(estimator, ValueBlock(zero, zero, zeros, zeros, ends, baselines=zeros))


def ignores_next_states(model: OffPolicyAlgorithm) -> bool:
    """Whether ``train`` accepts a single next state for a whole minibatch of which every step ends its episode.

    DQN and SAC multiply its value by 0 and broadcast; TD3 and DDPG add noise to it first. A subclass may do
    anything in a ``train`` of its own, and BatchNorm rejects a batch of one.
    """
    is_batch_norm = (isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.policy.modules())
    return type(model).train in (DQN.train, SAC.train) and not any(is_batch_norm)


@contextmanager
def _evaluating(model: OffPolicyAlgorithm) -> Iterator[None]:
    """Without gradients, dropout and updates of BatchNorm: Stable-Baselines3's target networks are used like this."""
    was_training = model.policy.training
    model.policy.set_training_mode(False)
    try:
        with torch.no_grad():
            yield
    finally:
        model.policy.set_training_mode(was_training)


def _numpy(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.cpu().numpy()
    return array
