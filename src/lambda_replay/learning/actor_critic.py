"""A policy and its critics on a device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lambda_replay.errors import ConfigError
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.learning.fast_ensembles import FastEnsemble
from lambda_replay.learning.networks import as_floats

# The last layer of a deterministic policy is drawn from ± this (Lillicrap et al. 2016, section 7), so that it starts in
# the middle of its range. With nn.Linear's bound it can saturate before its critics know anything, and never recover.
SMALL_OUTPUTS = 3e-3


class ActorCritic:
    """The policy's outputs for states, and Q(s, a) of each critic, whose inputs are states and actions side by side."""

    def __init__(self, policy: Ensemble, critics: Ensemble, device: torch.device) -> None:
        self.device = device
        self.chunk_size = 512 if device.type == "cpu" else 4096  # states per forward pass
        self.modules = {"policy": policy.to(device), "critics": critics.to(device)}
        self.policy, self.critics = FastEnsemble(policy), FastEnsemble(critics)

    def act(self, states: Tensor) -> Tensor:
        """The policy's outputs [n, outputs] for states [n, inputs]."""
        return self.policy.forward(states)[0]

    def values(self, states: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a) [N, n] of each critic for states [n, inputs] and actions [n, D]."""
        return self.critics.forward(torch.cat([states, actions], dim=1))[..., 0]

    def states(self, array: NDArray[Any]) -> Tensor:
        """States [n, F, *observation] as the networks take them: [n, inputs] on their device."""
        return as_floats(self.tensor(array).flatten(1))

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array on the networks' device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def copy(self) -> ActorCritic:
        """Others with the same weights."""
        policy, critics = (copy.deepcopy(module) for module in self.modules.values())
        return ActorCritic(policy, critics, self.device)

    def copy_weights_to(self, other: ActorCritic) -> None:
        for name, module in self.modules.items():
            other.modules[name].load_state_dict(module.state_dict())

    def weights(self) -> dict[str, Tensor]:
        """A copy of the parameters on the host."""
        parameters = joined(**{part: module.state_dict() for part, module in self.modules.items()})
        return {name: value.cpu().clone() for name, value in parameters.items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        check_shapes(weights, self.weights())
        for part, module in self.modules.items():
            module.load_state_dict(part_of(weights, part))


def check_shapes(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Reject saved weights that do not fit these networks' own."""
    if {name: value.shape for name, value in given.items()} != {name: value.shape for name, value in own.items()}:
        raise ConfigError("the saved weights belong to other networks; use the config they were trained with.")


def joined(**parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of several parts, each named ``part.name``."""
    return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


def part_of(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of one of the parts that ``joined`` put together, by their own names."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def make_ensembles(
    num_inputs: int,
    action_size: int,
    *,
    policy_outputs: int,
    num_critics: int,
    hidden: Sequence[int],
    layer_norm: bool,
    policy_bound: float | None,
    seed: int,
) -> tuple[Ensemble, Ensemble]:
    """A policy and critics with weights drawn from the seed alone; LayerNorm is for the critics.

    The policy's last layer is drawn from ±``policy_bound``; None means ``nn.Linear``'s bound.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Ensemble(1, (num_inputs, *hidden, policy_outputs), layer_norm=False, output_bound=policy_bound)
        critics = Ensemble(num_critics, (num_inputs + action_size, *hidden, 1), layer_norm=layer_norm)
    return policy, critics
