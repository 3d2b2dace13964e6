"""Stable-Baselines3's actor-critics with our weights, our transitions and our noise, to compare targets with."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn

import lambda_replay as lr
from lambda_replay.learning.actor_critic import ActorCritic

DISCOUNT = 0.9


class Spaces(gymnasium.Env[Any, Any]):
    """Eight numbers are seen, and two are done; it is never played."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape=(8,))
    action_space = gymnasium.spaces.Box(-1, 1, shape=(2,))


class Peer:
    """A model of Stable-Baselines3 with our weights, our transitions and our noise, which tells its targets."""

    def __init__(
        self,
        kind: Any,
        networks: ActorCritic,
        monkeypatch: pytest.MonkeyPatch,
        targets: ActorCritic | None = None,
        **options: Any,
    ) -> None:
        """``targets`` has the weights of its target networks; None: those of the trained ones."""
        followers = networks if targets is None else targets
        env = Spaces()
        self.model = kind(
            "MlpPolicy",
            env,
            gamma=DISCOUNT,
            policy_kwargs={"net_arch": [8, 8]},
            device="cpu",
            buffer_size=10,
            **options,
        )
        copy_policy(networks, self.model.actor)
        if hasattr(self.model, "actor_target"):
            copy_policy(followers, self.model.actor_target)
        for own, critic in ((networks, self.model.critic), (followers, self.model.critic_target)):
            for number, network in enumerate(critic.q_networks):
                copy_layers(own, "critics", number, [layer for layer in network if isinstance(layer, nn.Linear)])
        self.targets: list[Tensor] = []
        self._patch = monkeypatch

    def train(self, samples: ReplayBufferSamples, noises: list[Tensor]) -> Tensor:
        """One gradient step; the target [n] of its critics."""
        from stable_baselines3.sac import sac
        from stable_baselines3.td3 import td3

        waiting = iter(noises)
        loss = nn.functional.mse_loss

        def tell(values: Tensor, targets: Tensor) -> Tensor:
            self.targets.append(targets)
            return loss(values, targets)

        self._patch.setattr(self.model.replay_buffer, "sample", lambda *arguments, **options: samples)
        for module in (sac, td3):
            self._patch.setattr(module.F, "mse_loss", tell)
        self._patch.setattr(
            torch.distributions.Normal, "rsample", lambda normal, *shape: normal.loc + normal.scale * next(waiting)
        )
        self._patch.setattr(Tensor, "normal_", lambda tensor, mean, std: tensor.copy_(std * next(waiting)))
        self.model._logger = stable_baselines3.common.logger.Logger(None, [])
        self.model.train(1, len(samples.rewards))
        return self.targets[0][:, 0]


def copy_layers(networks: ActorCritic, part: str, number: int, layers: list[nn.Linear]) -> None:
    for own, layer in zip(range(len(layers)), layers, strict=True):
        with torch.no_grad():
            layer.weight.copy_(networks.modules[part].weights[own][number].t())
            layer.bias.copy_(networks.modules[part].biases[own][number, 0])


def copy_policy(networks: ActorCritic, actor: Any) -> None:
    """Our outputs are μ and log σ side by side; a soft policy of theirs has a layer for each."""
    if hasattr(actor, "log_std"):
        hidden = [layer for layer in actor.latent_pi if isinstance(layer, nn.Linear)]
        both = nn.Linear(8, 4)
        copy_layers(networks, "policy", 0, [*hidden, both])
        with torch.no_grad():
            for layer, rows in ((actor.mu, slice(2)), (actor.log_std, slice(2, 4))):
                layer.weight.copy_(both.weight[rows])
                layer.bias.copy_(both.bias[rows])
    else:
        copy_layers(networks, "policy", 0, [layer for layer in actor.mu if isinstance(layer, nn.Linear)])


def wide_memory(steps: int = 60) -> lr.ReplayMemory:
    """States of eight numbers, as the peer's environment has them; episodes of ten steps, every other truncated."""
    rng = np.random.default_rng(3)
    memory = lr.ReplayMemory(200, (8,), np.float32, action_shape=(2,))
    for number in range(1, steps + 1):
        if number % 10 == 1:
            memory.begin(rng.normal(size=8).astype(np.float32))
        action, reward = rng.uniform(-0.9, 0.9, 2).astype(np.float32), float(rng.normal())
        next_observation = rng.normal(size=8).astype(np.float32)
        memory.append(action, reward, next_observation, terminated=number % 20 == 0, truncated=number % 20 == 10)
    return memory


def as_samples(blocks: lr.Promoted) -> tuple[ReplayBufferSamples, NDArray[np.bool_]]:
    """Every step of the blocks through the peer's own replay buffer; and where in the blocks they are [K, L].

    The buffer learns of a time limit as its agents tell it: in ``done``, and in the info of the step.
    """
    found = blocks.transitions
    is_step = found.is_step[:, :-1]
    states = blocks.memory.states(blocks.slots.reshape(-1))[:, 0].reshape(*blocks.slots.shape, -1)
    spaces = Spaces.observation_space, Spaces.action_space
    buffer = ReplayBuffer(int(is_step.sum()), *spaces, device="cpu", handle_timeout_termination=True)
    num_limits = 0
    for k, t in np.argwhere(is_step):
        done = np.array([not found.is_step[k, t + 1]])
        is_limit = bool(done) and not found.terminated[k, t]
        rows = states[k, t : t + 1], states[k, t + 1 : t + 2], found.actions[k, t : t + 1], found.rewards[k, t : t + 1]
        buffer.add(*rows, done, [{"TimeLimit.truncated": is_limit}])
        num_limits += is_limit
    assert num_limits > 0
    return buffer._get_samples(np.arange(buffer.size())), is_step


def next_noise(blocks: lr.Promoted, is_step: NDArray[np.bool_], seed: int) -> Tensor:
    """The noise that a refresh draws for the states after each step."""
    noise = np.random.default_rng(seed).standard_normal((blocks.slots.size, 2), dtype=np.float32)
    return torch.from_numpy(noise.reshape(*blocks.slots.shape, 2)[:, 1:][is_step])
