"""The learner: a network and its optimizer, trained on minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.device import QNetwork, flushing_denormals
from lambda_replay.learning.divergence import require_all_finite
from lambda_replay.learning.fused_adam import Adam
from lambda_replay.learning.training_summary import NORM_EVERY, TrainingSummary, summarise
from lambda_replay.replay.data import Minibatch

Samples = tuple[Any, Tensor, Tensor]  # what the module takes for n Q-values, actions [n, 1] and returns [n]
Backward = Callable[[Tensor], Sequence[Tensor]]  # gradient of Q-values [B, A] -> gradient of each parameter


def samples(network: QNetwork, batch: Minibatch) -> Samples:
    """A minibatch of states [B, F, *observation] on the network's device."""
    actions = batch.actions.astype(np.int64)[:, None]
    return network.tensor(batch.states), network.tensor(actions), network.tensor(batch.returns)


class Learner:
    """Minimises [R − Q(s, a; θ)]² (or its Huber version) over minibatches."""

    def __init__(
        self,
        network: QNetwork,
        config: OptimizerConfig,
        seed: int = 0,
        *,
        samples_of: Callable[[QNetwork, Any], Samples] = samples,
    ) -> None:
        """``seed`` is for a network that draws random numbers while training, such as one with dropout.

        ``samples_of`` moves a minibatch to the network's device; a network that remembers needs more than states.
        """
        self._network, self._config, self._seed, self._samples_of = network, config, seed, samples_of
        self._parameters = [parameter for parameter in network.module.parameters() if parameter.requires_grad]
        self._adam = Adam(self._parameters, config)
        self._norms: list[Tensor] = []

    @torch.no_grad()
    def train(self, minibatches: Iterable[Any], first: int = 0, progress: float = 0.0) -> TrainingSummary:
        """One gradient step per minibatch.

        ``first`` is the number of the first one in its window, ``progress`` the share of the run that is done.
        """
        self._adam.learning_rate = self._learning_rate(progress)
        self._norms = []
        with flushing_denormals(), self._network.training(self._seed + self._adam.num_steps):
            updates = [
                self._update(*self._samples_of(self._network, batch), n) for n, batch in enumerate(minibatches, first)
            ]
        errors, values = (torch.cat(many).cpu().numpy() for many in zip(*updates, strict=True))  # [samples] each
        return summarise(errors, values, self._norms, is_huber=self._config.loss == "huber")

    def _learning_rate(self, progress: float) -> float:
        start, end = self._config.learning_rate, self._config.final_learning_rate
        return start if end is None else start + (end - start) * progress

    def _update(self, states: Any, actions: Tensor, returns: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Take one gradient step; return the errors R − Q(s, a) and the values Q(s, a) before it, [n] each."""
        q_values, backward = self._forward(states)  # [n, A]
        values = q_values.gather(1, actions)[:, 0]  # [n]
        assert values.shape == returns.shape
        errors = returns - values
        slopes = 2 * errors if self._config.loss == "squared" else errors.clamp(-1, 1)
        q_gradient = torch.zeros_like(q_values).scatter_(1, actions, slopes[:, None] / -len(errors))
        gradients = backward(q_gradient)
        largest = self._config.max_grad_norm
        if largest is not None or number % NORM_EVERY == 0:
            norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
            if number % NORM_EVERY == 0:
                self._norms.append(norm)
            if largest is not None:
                # Not in place: autograd may give two parameters the same tensor.
                gradients = torch._foreach_mul(list(gradients), torch.clamp(largest / (norm + 1e-6), max=1.0))
        self._adam.step(gradients)
        return errors, values

    def _forward(self, states: Any) -> tuple[Tensor, Backward]:
        """Q-values, and a function from their gradient to the parameters': the network's own, or autograd's."""
        fast = self._network.fast
        if fast is not None:
            q_values, saved = fast.forward_saving(states)
            return q_values, lambda q_gradient: fast.gradients(saved, q_gradient)
        with torch.enable_grad():
            tracked: Tensor = self._network.module(states)
        return tracked.detach(), lambda q_gradient: torch.autograd.grad(
            tracked, self._parameters, q_gradient, materialize_grads=True
        )

    def check_finite(self) -> None:
        """Raise DivergenceError if the weights, or Adam's moments, which would spoil the next step, are not finite."""
        require_all_finite("the weights are", self._parameters)
        require_all_finite("Adam's moments are", self._adam.get_state().values())

    def optimizer_state(self) -> dict[str, Tensor]:
        return self._adam.get_state()

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        self._adam.set_state(state)
