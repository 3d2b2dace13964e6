"""Several fully connected networks computed as one: the critics of an actor-critic, and its policy, an ensemble of one.

``fast_ensembles.py`` computes the same function and its gradients faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPS = 1e-5  # added to the variance, as in nn.LayerNorm


class Ensemble(nn.Module):
    """N networks of the same shape with weights of their own; a leading axis of length N tells them apart."""

    def __init__(
        self, count: int, widths: Sequence[int], *, layer_norm: bool, output_bound: float | None = None
    ) -> None:
        """``widths`` are the inputs, the units of each hidden layer and the outputs.

        Weights are drawn as ``nn.Linear`` draws them, but the last layer from ±``output_bound`` if that is given.
        """
        super().__init__()
        scales = [1 / math.sqrt(inputs) for inputs in widths[:-1]]
        scales[-1] = scales[-1] if output_bound is None else output_bound
        shapes = list(pairwise(widths))
        self.weights = nn.ParameterList([_uniform((count, *s), scale) for s, scale in zip(shapes, scales, strict=True)])
        self.biases = nn.ParameterList([_uniform((count, 1, s[1]), a) for s, a in zip(shapes, scales, strict=True)])
        normed = widths[1:-1] if layer_norm else ()
        self.norm_weights = nn.ParameterList([torch.ones(count, 1, units) for units in normed])
        self.norm_biases = nn.ParameterList([torch.zeros(count, 1, units) for units in normed])

    @property
    def count(self) -> int:
        """N, the number of networks."""
        return int(self.weights[0].shape[0])

    @property
    def num_inputs(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def num_outputs(self) -> int:
        return int(self.weights[-1].shape[2])

    def hidden_layers(self, inputs: Tensor) -> list[Tensor]:  # [n, inputs], or [N, n, inputs] -> [N, n, units] each
        layers: list[Tensor] = []
        for number in range(len(self.weights) - 1):
            outputs = self._layer(number, layers[-1] if layers else inputs)
            if self.norm_weights:
                normal = functional.layer_norm(outputs, outputs.shape[-1:], eps=NORM_EPS)
                outputs = normal * self.norm_weights[number] + self.norm_biases[number]
            layers.append(functional.relu(outputs))
        return layers

    def forward(self, inputs: Tensor) -> Tensor:  # [n, inputs] -> [N, n, outputs]
        layers = self.hidden_layers(inputs)
        return self._layer(len(self.weights) - 1, layers[-1] if layers else inputs)

    def _layer(self, number: int, inputs: Tensor) -> Tensor:
        return inputs @ self.weights[number] + self.biases[number]


def _uniform(shape: tuple[int, ...], scale: float) -> Tensor:
    return torch.empty(shape).uniform_(-scale, scale)
