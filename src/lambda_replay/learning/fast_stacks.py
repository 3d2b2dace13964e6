"""Fully connected layers with ReLU between them, and their gradients without autograd's bookkeeping.

``fast_networks.py`` and ``fast_ensembles.py`` are built of them; the tests of both compare them with autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lambda_replay.learning.fast_products import linear, product


class Norm(NamedTuple):
    """A LayerNorm over the units of a layer."""

    weight: Tensor  # [units]
    bias: Tensor  # [units]
    eps: float  # added to the variance


class Normal(NamedTuple):
    """A norm's input [n, units], and its mean and 1/deviation [n, 1]."""

    rows: Tensor
    means: Tensor
    scales: Tensor


class Layer(NamedTuple):
    """A fully connected layer, and the LayerNorm between it and its ReLU, if there is one."""

    weight: Tensor  # [outputs, inputs], transposed in memory, which is faster
    bias: Tensor  # [outputs]
    norm: Norm | None = None


class Saved(NamedTuple):
    """What the gradients need of each layer, in the order of the layers."""

    inputs: list[Tensor]
    normals: list[Normal | None]

    def part(self, rows: Tensor) -> Saved:
        """What belongs to some of the samples, where every layer has one row for each."""
        inputs = [of.index_select(0, rows) for of in self.inputs]
        normals = [None if of is None else Normal(*(part.index_select(0, rows) for part in of)) for of in self.normals]
        return Saved(inputs, normals)


class Gradients(NamedTuple):
    """Of each weight and bias, of each norm's, and of the first layer's output, before its norm."""

    layers: list[Tensor]
    norms: list[Tensor]
    first: Tensor


def normalise(outputs: Tensor, norm: Norm | None) -> tuple[Tensor, Normal | None]:
    """Outputs [n, ...] normalised over the units of each sample, and what the gradients need."""
    if norm is None:
        return outputs, None
    shape = norm.weight.shape
    rows = outputs.reshape(-1, *shape)  # [n, units]
    normal, means, scales = torch.native_layer_norm(rows, shape, norm.weight, norm.bias, norm.eps)
    return normal.view(outputs.shape), Normal(rows, means, scales)


def norm_gradients(gradient: Tensor, normal: Normal | None, norm: Norm | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """From the gradient of normalised outputs: that of the outputs, and those of the norm's weight and bias."""
    if norm is None or normal is None:
        return gradient, ()
    of_rows, *of_norm = _norm_backward(gradient, normal, norm, [True] * 3)
    return of_rows.view(gradient.shape), tuple(of_norm)


def stack_forward(inputs: Tensor, stack: Sequence[Layer]) -> tuple[Tensor, Saved]:
    """Layers with ReLU between them: the last one's output, and the input [rows, inputs] of each.

    Each layer reshapes the previous output to rows of as many numbers as it has inputs.
    """
    saved = Saved([], [])
    outputs = inputs
    for weight, bias, norm in stack:
        saved.inputs.append((outputs.relu_() if saved.inputs else outputs).reshape(-1, weight.shape[1]))
        outputs, normal = normalise(linear(saved.inputs[-1], weight.t(), bias), norm)
        saved.normals.append(normal)
    return outputs, saved


def stack_gradients(saved: Saved, gradient: Tensor, stack: Sequence[Layer]) -> Gradients:
    """From the gradient of the last layer's output: those of all parameters."""
    of_layers: list[Tensor] = []
    of_norms: list[Tensor] = []
    for number in range(len(stack) - 1, -1, -1):
        weight, inputs = stack[number].weight, saved.inputs[number]
        gradient, of_norm = norm_gradients(gradient, saved.normals[number], stack[number].norm)
        gradient = gradient.reshape(-1, weight.shape[0])
        of_layers = [product(inputs.t(), gradient).t(), gradient.sum(dim=0), *of_layers]
        of_norms = [*of_norm, *of_norms]
        if number > 0:
            gradient = _before_layer(gradient, weight, inputs)
    return Gradients(of_layers, of_norms, gradient)


def first_gradient(saved: Saved, gradient: Tensor, stack: Sequence[Layer]) -> Tensor:
    """The last of ``stack_gradients`` alone."""
    for number in range(len(stack) - 1, -1, -1):
        (weight, _, norm), normal = stack[number], saved.normals[number]
        if norm is not None and normal is not None:
            gradient = _norm_backward(gradient, normal, norm, [True, False, False])[0].view(gradient.shape)
        if number > 0:
            gradient = _before_layer(gradient.reshape(-1, weight.shape[0]), weight, saved.inputs[number])
    return gradient


def _before_layer(gradient: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
    """From the gradient of a layer's outputs: that of the previous layer's outputs, before its ReLU."""
    of_inputs = product(gradient, weight)
    before: Tensor = torch.ops.aten.threshold_backward.grad_input(of_inputs, inputs, 0, grad_input=of_inputs)
    return before


def _norm_backward(gradient: Tensor, normal: Normal, norm: Norm, wanted: list[bool]) -> tuple[Tensor, ...]:
    """The gradients of a norm's input rows [n, units], weight and bias; those that are not wanted are None."""
    rows, means, scales = normal
    found: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        gradient.reshape(rows.shape), rows, norm.weight.shape, means, scales, norm.weight, norm.bias, wanted
    )
    return found
