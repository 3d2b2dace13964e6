"""An action's numbers chosen one after another, each from a row of Q-values over bins.

Q¹(s, ·), Q²(s, a₁, ·), …, Q^D(s, a₁, …, a_{D−1}, ·) are D networks. Between two of them no time passes, so

Q^d(s, a₁, …, a_d) → max_b Q^{d+1}(s, a₁, …, a_d, b),   Q^D(s, a₁, …, a_D) → R

and max_b Q¹(s, b) is V(s). Metz et al. 2017, without their second critic, which sees whole actions and teaches Q^D.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.actor_critic import check_shapes
from lambda_replay.learning.critic_training import CriticRecord, CriticSummary
from lambda_replay.learning.device import flushing_denormals
from lambda_replay.learning.ensemble_optimizer import EnsembleOptimizer
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.learning.fast_ensembles import FastEnsemble
from lambda_replay.learning.networks import as_floats
from lambda_replay.replay.data import Minibatch


def make_module(
    num_inputs: int, action_size: int, bins: int, *, hidden: Sequence[int], layer_norm: bool, seed: int
) -> Ensemble:
    """A network for each of an action's numbers, with weights drawn from the seed alone.

    Each sees the state and all numbers but the last; those that are not chosen yet are 0.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Ensemble(action_size, (num_inputs + action_size - 1, *hidden, bins), layer_norm=layer_norm)


class SequentialNetworks:
    """The D networks on a device."""

    def __init__(self, module: Ensemble, device: torch.device) -> None:
        self.device = device
        self.chunk_size = 512 if device.type == "cpu" else 4096  # states per forward pass
        self.module = module.to(device)
        self.fast = FastEnsemble(module)
        self.each = [FastEnsemble(module, slice(number, number + 1)) for number in range(module.count)]
        self.bins = module.num_outputs
        self.centres = torch.linspace(-1, 1, self.bins, device=device)  # [bins]

    @property
    def action_size(self) -> int:
        return len(self.each)

    def inputs(self, states: Tensor, actions: Tensor, number: int) -> Tensor:
        """What the network of an action's ``number`` (from 0) sees: states [n, inputs] and the numbers before it."""
        before = actions[:, : self.action_size - 1].clone()  # [n, D−1]
        before[:, number:] = 0
        return torch.cat([states, before], dim=1)

    def row(self, states: Tensor, actions: Tensor, number: int) -> Tensor:
        """Q^d(s, a₁, …, a_{d−1}, ·) [n, bins] of states [n, inputs] and actions [n, D], with d − 1 = ``number``."""
        return self.each[number].forward(self.inputs(states, actions, number))[0]

    def indices(self, actions: Tensor) -> Tensor:
        """The nearest bin of each number of actions [n, D]."""
        return ((actions + 1) / 2 * (self.bins - 1)).round().long().clamp(0, self.bins - 1)

    def values(self, states: Tensor) -> Tensor:
        """V(s) = max_b Q¹(s, b) [n]."""
        return self.row(states, states.new_zeros((len(states), self.action_size)), 0).amax(dim=1)

    def action_values(self, states: Tensor, actions: Tensor) -> Tensor:
        """Q^D(s, a) [n] of actions [n, D]."""
        row = self.row(states, actions, self.action_size - 1)
        return row.gather(1, self.indices(actions)[:, -1:])[:, 0]

    def choose(self, states: Tensor, is_random: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy numbers, one after another, or random bins [n, D] where ``is_random`` [n, D]; and which were greedy.

        A number follows those before it as they are, random ones included.
        """
        actions = states.new_zeros((len(states), self.action_size))
        is_greedy = torch.zeros_like(is_random)
        for number in range(self.action_size):
            best = self.row(states, actions, number).argmax(dim=1)  # [n]
            chosen = torch.where(is_random[:, number], random[:, number], best)
            actions[:, number], is_greedy[:, number] = self.centres[chosen], chosen == best
        return actions, is_greedy

    def states(self, array: NDArray[Any]) -> Tensor:
        """States [n, F, *observation] as the networks take them: [n, inputs] on their device."""
        return as_floats(self.tensor(array).flatten(1))

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array on the networks' device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def copy(self) -> SequentialNetworks:
        """Others with the same weights."""
        return SequentialNetworks(copy.deepcopy(self.module), self.device)

    def copy_weights_to(self, other: SequentialNetworks) -> None:
        other.module.load_state_dict(self.module.state_dict())

    def weights(self) -> dict[str, Tensor]:
        """A copy of the parameters on the host."""
        return {name: value.cpu().clone() for name, value in self.module.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        check_shapes(weights, self.weights())
        self.module.load_state_dict(weights)


class SequentialGradient(NamedTuple):
    """A gradient, and what it saw."""

    gradients: list[Tensor]
    errors: Tensor  # [D, B]  target − Q^d(s, a₁, …, a_d)
    values: Tensor  # [D, B]


def sequential_gradient(
    networks: SequentialNetworks, states: Tensor, actions: Tensor, returns: Tensor, *, is_huber: bool
) -> SequentialGradient:
    """The gradient of the mean over a minibatch of Σ_d [target − Q^d(s, a₁, …, a_d)]², or of its Huber version.

    The target of the last number is the return; that of any other is the largest value of the next, held fixed.
    """
    numbers = range(networks.action_size)
    passes = [networks.each[number].forward_saving(networks.inputs(states, actions, number)) for number in numbers]
    rows = torch.cat([outputs for outputs, _ in passes])  # [D, B, bins]
    targets = torch.cat([rows[1:].amax(dim=2), returns[None]])  # [D, B]
    chosen = networks.indices(actions).t()[..., None]  # [D, B, 1]
    values = rows.gather(2, chosen)[..., 0]  # [D, B]
    errors = targets - values
    slopes = errors.clamp(-1, 1) if is_huber else 2 * errors
    of_rows = torch.zeros_like(rows).scatter_(2, chosen, slopes[..., None] / -len(returns))
    each = [networks.each[number].gradients(passes[number][1], of_rows[number][None]) for number in numbers]
    return SequentialGradient([torch.cat(parts) for parts in zip(*each, strict=True)], errors, values)


class SequentialLearner:
    """Updates all networks once per minibatch."""

    def __init__(self, networks: SequentialNetworks, config: OptimizerConfig) -> None:
        self._networks, self._is_huber = networks, config.loss == "huber"
        self._optimizer = EnsembleOptimizer(networks.fast, config)

    @torch.inference_mode()
    def train(self, minibatches: Iterable[Minibatch]) -> CriticSummary:
        record = CriticRecord(is_huber=self._is_huber)
        with flushing_denormals():
            for batch in minibatches:
                self._update(batch, record)
        return record.summarise()

    def _update(self, batch: Minibatch, record: CriticRecord) -> None:
        networks = self._networks
        states, actions, returns = networks.states(batch.states), *map(networks.tensor, (batch.actions, batch.returns))
        found = sequential_gradient(networks, states, actions, returns, is_huber=self._is_huber)
        norm = self._optimizer.step(found.gradients, measures=record.measures_next)
        record.add(found.errors, found.values, norm)

    def check_finite(self) -> None:
        """Raise DivergenceError if anything learnt is not finite."""
        self._optimizer.check_finite()

    def optimizer_state(self) -> dict[str, Tensor]:
        return self._optimizer.get_state()

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        self._optimizer.set_state(state)
