"""The learner: a network and its optimizer, in NumPy out NumPy; devices live here alone, what to train on is the agents' choice."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.config import Device, OptimizerConfig
from lambda_replay.data import Floats, Minibatch
from lambda_replay.errors import ConfigError


class TrainingSummary(NamedTuple):
    """Means over the minibatches of one call of ``train``."""

    loss: float
    td_error_abs: float
    q_value: float


class Learner:
    """Minimises [R − Q(s, a; θ)]² (or its Huber version) over minibatches with Adam."""

    def __init__(self, network: nn.Module, config: OptimizerConfig, device: torch.device) -> None:
        self.device = device
        self.chunk_size = 128 if self.device.type == "cpu" else 4096  # states per forward pass; docs/performance.md
        self._network = network.to(self.device)
        self._config = config
        self._optimizer = torch.optim.Adam(
            self._network.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=self.device.type in ("cpu", "cuda"),
        )

    @torch.no_grad()
    def q_values(self, states: NDArray[Any]) -> Floats:  # [n, F, *observation] -> [n, A]
        """Q(s, ·; θ) of some states."""
        return self._network(self._tensor(states)).cpu().numpy()

    def train(self, minibatches: Iterable[Minibatch]) -> TrainingSummary:
        """One gradient step per minibatch."""
        totals, count = torch.zeros(3, device=self.device), 0
        for minibatch in minibatches:
            totals += self._update(minibatch)
            count += 1
        assert count > 0
        return TrainingSummary(*(totals / count).tolist())

    def _update(self, minibatch: Minibatch) -> Tensor:
        actions = self._tensor(minibatch.actions.astype(np.int64))  # [B]
        returns = self._tensor(minibatch.returns)  # [B]
        q_values = self._network(self._tensor(minibatch.states))  # [B, A]
        chosen = q_values.gather(1, actions[:, None])[:, 0]  # [B]
        assert chosen.shape == returns.shape
        loss_of = nn.functional.mse_loss if self._config.loss == "squared" else nn.functional.huber_loss
        loss = loss_of(chosen, returns)
        self._optimizer.zero_grad()
        loss.backward()
        if self._config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._network.parameters(), self._config.max_grad_norm)
        self._optimizer.step()
        with torch.no_grad():
            return torch.stack([loss, (returns - chosen).abs().mean(), chosen.mean()])

    def frozen_copy(self) -> Learner:
        """A learner with the same weights that stays as it is: a target network."""
        return Learner(copy.deepcopy(self._network), self._config, self.device)

    def copy_weights_to(self, other: Learner) -> None:
        other._network.load_state_dict(self._network.state_dict())

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters, detached and on the host."""
        return {name: value.detach().cpu().contiguous() for name, value in self._network.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        expected = {name: tuple(value.shape) for name, value in self._network.state_dict().items()}
        found = {name: tuple(value.shape) for name, value in weights.items()}
        if expected != found:
            raise ConfigError("the saved weights are those of another network; use the config they were trained with.")
        self._network.load_state_dict(weights)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts, by parameter and name."""
        state = self._optimizer.state_dict()["state"]
        return {f"{index}.{key}": value.cpu() for index, values in state.items() for key, value in values.items()}

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".")
            state.setdefault(int(index), {})[key] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def find_device(name: Device) -> torch.device:
    """The device of a config, ``auto`` being the fastest that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_there in there.items() if is_there))
    if not there[name]:
        raise ConfigError(f"the device {name} is not there; use cpu or auto.")
    return torch.device(name)
