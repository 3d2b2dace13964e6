"""Adam over a list of parameters, as one fused call per step.

``torch.optim.Adam`` computes the same numbers, but spends more time on its own bookkeeping than a small network's whole
training step takes (docs/performance.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig


class Adam:
    """m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − α·m̂ / (√v̂ + ε)   (Kingma & Ba 2015, Algorithm 1).

    Rectified (RAdam, Liu et al. 2020, Algorithm 2), α is multiplied by r(t); while that is not defined, θ ← θ − α·m̂.
    """

    def __init__(self, parameters: Sequence[Tensor], config: OptimizerConfig) -> None:
        self._config = config
        self.learning_rate = config.learning_rate  # α of the next steps
        self._parameters = [parameter.detach() for parameter in parameters]
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]
        assert all(mean.stride() == parameter.stride() for mean, parameter in zip(self._means, parameters, strict=True))
        self._num_steps = 0
        # The fused call wants the count as float32, which ends at 2²⁴; by then 1 − βᵗ has long been 1.
        self._step = torch.zeros((), device=self._parameters[0].device)  # one for all parameters
        # The fused call copies tensors that are not contiguous, so it gets flat views in memory order.
        self._lines = [[_line(tensor) for tensor in many] for many in (self._parameters, self._means, self._squares)]

    @property
    def num_steps(self) -> int:
        """How often the parameters were updated."""
        return self._num_steps

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update every parameter in place."""
        fitting = [  # laid out in memory like their parameters
            _line(gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient))
            for gradient, parameter in zip(gradients, self._parameters, strict=True)
        ]
        self._count(self._num_steps + 1)
        parameters, means, squares = self._lines
        factor = rectification(self.num_steps, self._config.beta2) if self._config.rectified else 1.0
        if factor is None:
            self._step_by_mean(fitting)
            return
        torch._fused_adam_(
            parameters,
            fitting,
            means,
            squares,
            [],
            [self._step] * len(fitting),
            lr=self.learning_rate * factor,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            weight_decay=0.0,
            eps=self._config.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _count(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._step.fill_(num_steps)

    def _step_by_mean(self, gradients: list[Tensor]) -> None:
        """θ ← θ − α·m̂, with both moments updated."""
        parameters, means, squares = self._lines
        beta1, beta2 = self._config.beta1, self._config.beta2
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        torch._foreach_add_(parameters, means, alpha=-self.learning_rate / (1 - beta1**self.num_steps))

    def get_state(self) -> dict[str, Tensor]:
        """Both moments of each parameter on the host, and the number of steps."""
        named = {"mean": self._means, "square": self._squares, "step": [torch.tensor(self._num_steps)]}
        return {f"{name}.{number}": tensor.cpu() for name, many in named.items() for number, tensor in enumerate(many)}

    def set_state(self, state: dict[str, Tensor]) -> None:
        for name, many in {"mean": self._means, "square": self._squares}.items():
            for number, tensor in enumerate(many):
                tensor.copy_(state[f"{name}.{number}"])
        self._count(int(state["step.0"]))


def rectification(step: int, beta2: float) -> float | None:
    """r(t) of RAdam at step t = 1, 2, …; None while the variance of v is not yet known.

    ρ∞ = 2/(1−β₂) − 1,  ρ(t) = ρ∞ − 2t·β₂ᵗ/(1−β₂ᵗ),
    r(t) = √[(ρ(t)−4)(ρ(t)−2)ρ∞ / ((ρ∞−4)(ρ∞−2)ρ(t))]  where ρ(t) > 5, as in common implementations.
    """
    limit = 2 / (1 - beta2) - 1
    length = limit - 2 * step * beta2**step / (1 - beta2**step)
    if length <= 5:
        return None
    return math.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))


def _line(tensor: Tensor) -> Tensor:
    """A flat view [n] of a dense tensor, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))
