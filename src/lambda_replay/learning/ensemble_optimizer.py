"""Adam for the parameters of an ensemble, with its gradients clipped."""

from __future__ import annotations

import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.divergence import require_all_finite
from lambda_replay.learning.fast_ensembles import FastEnsemble
from lambda_replay.learning.fused_adam import Adam


class EnsembleOptimizer:
    """Applies gradients, scaled down together if their norm is above ``max_grad_norm``."""

    def __init__(self, ensemble: FastEnsemble, config: OptimizerConfig) -> None:
        self._parameters = list(ensemble.module.parameters())
        self._largest = config.max_grad_norm
        self._adam = Adam(self._parameters, config)

    @property
    def num_steps(self) -> int:
        """How often the parameters were updated, in this process or before it was resumed."""
        return self._adam.num_steps

    def step(self, gradients: list[Tensor], *, measures: bool = False) -> Tensor | None:
        """Update the parameters; ``measures``: return the norm of all gradients together, before clipping."""
        norm: Tensor | None = None
        if measures or self._largest is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            if self._largest is not None:
                torch._foreach_mul_(gradients, torch.clamp(self._largest / (norm + 1e-6), max=1.0))
        self._adam.step(gradients)
        return norm if measures else None

    def check_finite(self) -> None:
        """Raise DivergenceError if the weights, or Adam's moments, which would spoil the next step, are not finite."""
        require_all_finite("the weights are", self._parameters)
        require_all_finite("Adam's moments are", self._adam.get_state().values())

    def get_state(self) -> dict[str, Tensor]:
        return self._adam.get_state()

    def set_state(self, state: dict[str, Tensor]) -> None:
        self._adam.set_state(state)
