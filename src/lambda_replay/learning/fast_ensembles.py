"""A faster version of an ensemble: batched products and hand-written gradients, without autograd's bookkeeping.

A test compares it with the plain ensemble and with autograd; benchmarks/continuous_speed.py measures what it gains.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lambda_replay.learning.ensembles import NORM_EPS, Ensemble

FEW_COLUMNS = 32  # of a product's right side; with fewer, the transposed product is up to 7 times as fast


class Normal(NamedTuple):
    """A norm's input and result [N, n, units], its mean and 1/deviation [N, n, 1]."""

    rows: Tensor
    normal: Tensor
    mean: Tensor
    scale: Tensor


class Saved(NamedTuple):
    """What the gradients need of each layer, in the order of the layers."""

    inputs: list[Tensor]  # [N, n, inputs] each
    normals: list[Normal]  # of the hidden layers; empty without LayerNorm

    def part(self, network: int, rows: Tensor) -> Saved:
        """That of one network alone, for some of the rows."""

        def of(tensor: Tensor) -> Tensor:
            return tensor[network].index_select(0, rows)[None]

        return Saved([of(inputs) for inputs in self.inputs], [Normal(*map(of, normal)) for normal in self.normals])


class FastEnsemble:
    """Shares the parameters of a plain ensemble, or of some of its networks."""

    def __init__(self, module: Ensemble, networks: slice = slice(None)) -> None:
        self.module = module
        weights, biases, *norms = (
            [parameter.detach()[networks] for parameter in many]
            for many in (module.weights, module.biases, module.norm_weights, module.norm_biases)
        )
        self._weights, self._biases, self._norms = weights, biases, list(zip(*norms, strict=True))
        self._count = len(weights[0])

    @cached_property
    def each(self) -> list[FastEnsemble]:
        """The networks one by one."""
        return [FastEnsemble(self.module, slice(number, number + 1)) for number in range(self._count)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [N, n, outputs] of inputs [n, inputs]."""
        return self.forward_saving(inputs)[0]

    def forward_saving(self, inputs: Tensor) -> tuple[Tensor, Saved]:
        """The outputs, and what the gradients need."""
        saved = Saved([], [])
        outputs = inputs.expand(self._count, *inputs.shape)  # [N, n, inputs]
        for number, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            if number > 0:
                outputs = outputs.relu_()
            saved.inputs.append(outputs)
            is_narrow = weight.shape[2] < FEW_COLUMNS
            outputs = _product(outputs, weight) + bias if is_narrow else torch.baddbmm(bias, outputs, weight)
            if number < len(self._norms):
                normal, mean, scale = torch.native_layer_norm(outputs, outputs.shape[-1:], None, None, NORM_EPS)
                saved.normals.append(Normal(outputs, normal, mean, scale))
                norm_weight, norm_bias = self._norms[number]
                outputs = torch.addcmul(norm_bias, normal, norm_weight)
        return outputs, saved

    def gradients(self, saved: Saved, gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter, in their order, from that of the outputs [N, n, outputs]."""
        of_weights: list[Tensor] = []
        of_biases: list[Tensor] = []
        of_norms: list[tuple[Tensor, Tensor]] = []
        for number in range(len(self._weights) - 1, -1, -1):
            if number < len(self._norms):
                normal = saved.normals[number].normal
                of_norms.insert(0, ((gradient * normal).sum(dim=1, keepdim=True), gradient.sum(dim=1, keepdim=True)))
                gradient = self._before_norm(saved, number, gradient)
            of_weights.insert(0, _product(saved.inputs[number].transpose(1, 2), gradient))
            of_biases.insert(0, gradient.sum(dim=1, keepdim=True))
            if number > 0:
                gradient = self._before_layer(saved, number, gradient)
        return [*of_weights, *of_biases, *(of for of, _ in of_norms), *(of for _, of in of_norms)]

    def input_gradient(self, saved: Saved, gradient: Tensor, num_columns: int) -> Tensor:
        """The gradient [n, columns] of the last ``num_columns`` inputs, summed over the networks."""
        for number in range(len(self._weights) - 1, -1, -1):
            if number < len(self._norms):
                gradient = self._before_norm(saved, number, gradient)
            if number > 0:
                gradient = self._before_layer(saved, number, gradient)
        return _product(gradient, self._weights[0][:, -num_columns:].transpose(1, 2)).sum(dim=0)

    def chosen_input_gradient(self, saved: Saved, chosen: Tensor, gradient: Tensor, num_columns: int) -> Tensor:
        """The same, where only network ``chosen`` [n] of each row has a gradient [n, outputs].

        Each network computes its own rows alone, so that all of them together have the work of one.
        """
        of_columns = gradient.new_empty(len(gradient), num_columns)
        for number, network in enumerate(self.each):
            rows = (chosen == number).nonzero()[:, 0]
            own = gradient.index_select(0, rows)[None]  # [1, rows, outputs]
            of_columns.index_copy_(0, rows, network.input_gradient(saved.part(number, rows), own, num_columns))
        return of_columns

    def _before_layer(self, saved: Saved, number: int, gradient: Tensor) -> Tensor:
        """From the gradient of a layer's outputs: that of the previous layer's outputs, before its ReLU."""
        of_inputs = _product(gradient, self._weights[number].transpose(1, 2))
        before: Tensor = torch.ops.aten.threshold_backward.grad_input(
            of_inputs, saved.inputs[number], 0, grad_input=of_inputs
        )
        return before

    def _before_norm(self, saved: Saved, number: int, gradient: Tensor) -> Tensor:
        rows, _, mean, scale = saved.normals[number]
        of_rows: Tensor = torch.ops.aten.native_layer_norm_backward(
            gradient * self._norms[number][0], rows, rows.shape[-1:], mean, scale, None, None, [True, False, False]
        )[0]
        return of_rows


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right of [N, rows, inner] and [N, inner, columns]; faster than torch.bmm where a side is narrow."""
    if left.shape[2] == 1:
        return left * right
    if right.shape[2] < FEW_COLUMNS:
        return torch.bmm(right.transpose(1, 2), left.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(left, right)
