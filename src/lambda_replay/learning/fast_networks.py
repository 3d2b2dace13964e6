"""Faster versions of our networks: hand-written gradients, and acting in NumPy.

For the small networks, autograd's bookkeeping costs more than the arithmetic; for the large one, we choose the memory
layout of every product (docs/performance.md). A test compares each with its plain network and with autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lambda_replay.learning.fast_products import product
from lambda_replay.learning.fast_stacks import (
    Layer,
    Norm,
    Normal,
    Saved,
    norm_gradients,
    normalise,
    stack_forward,
    stack_gradients,
)
from lambda_replay.learning.networks import (
    FILTER,
    MLP,
    PIXEL_MAXIMUM,
    AtariNetwork,
    MinAtarNetwork,
    as_floats,
    as_images,
)
from lambda_replay.replay.data import Floats

CELL = 4  # pixels; stride of the Atari network's first filters

HostFunction = Callable[[NDArray[Any]], Floats]  # states [n, F, *observation] -> Q-values [n, A]


class FastNetwork(Protocol):
    """A plain network's function and its gradients; it shares the plain network's parameters."""

    def forward(self, states: Tensor) -> Tensor:
        """Q-values [n, A] of states [n, F, *observation]."""
        ...

    def forward_saving(self, states: Tensor) -> tuple[Tensor, Saved]:
        """Q-values [n, A], and what ``gradients`` needs."""
        ...

    def gradients(self, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter, in their order, from that of the Q-values [n, A]."""
        ...

    def on_host(self) -> HostFunction | None:
        """``forward`` in NumPy where torch's calls would cost more than their arithmetic; shares the weights."""
        ...


def accelerate(network: nn.Module) -> FastNetwork | None:
    """The fast version of one of our networks, whose parameters it rearranges in memory; None for a user's own."""
    make = _FAST.get(type(network))
    return None if make is None else make(network)


class FastAtari:
    """The first convolution, 8×8 with stride 4, equals a 2×2 convolution with stride 1 over cells of 4×4 pixels."""

    def __init__(self, network: AtariNetwork) -> None:
        self._convolutions: list[Any] = list(network.convolutions)
        for layer in self._convolutions[1:]:
            layer.to(memory_format=torch.channels_last)
        self._norms = _norms_of(network.norms)
        self._stack = _lay_out(network.head, self._norms[3:])

    def forward(self, states: Tensor) -> Tensor:
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, Saved]:
        features = [as_floats(_cells(as_images(states)))]  # each [n, channels, H, W], channels last in memory
        normals: list[Normal | None] = []
        for (weight, bias, stride), norm in zip(self._products(), self._norms, strict=False):
            outputs = functional.conv2d(features[-1], weight, bias, stride).permute(0, 2, 3, 1)  # [n, H, W, channels]
            outputs, normal = normalise(outputs, norm)
            features.append(outputs.relu_().permute(0, 3, 1, 2))
            normals.append(normal)
        q_values, of_stack = stack_forward(features[-1].permute(0, 2, 3, 1).flatten(1), self._stack)
        return q_values, Saved(features + of_stack.inputs, normals + of_stack.normals)

    def gradients(self, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        features, of_stack = saved.inputs[:4], Saved(saved.inputs[4:], saved.normals[3:])
        of_head, of_norms, of_hidden = stack_gradients(of_stack, q_gradient, self._stack)
        # The weight is large and stored transposed: this product is faster than of_hidden @ weight.
        of_flat = product(self._stack[0].weight.t(), of_hidden.t()).t()  # [n, H·W·64]
        gradient = of_flat.reshape(-1, *features[3].shape[2:], features[3].shape[1]).permute(0, 3, 1, 2)
        gradients: list[Tensor] = []
        for number, (weight, bias, stride) in reversed(list(enumerate(self._products()))):
            gradient = torch.ops.aten.threshold_backward(gradient, features[number + 1], 0).permute(0, 2, 3, 1)
            gradient, of_norm = norm_gradients(gradient, saved.normals[number], self._norms[number])
            gradient, of_weight, of_bias = torch.ops.aten.convolution_backward(
                gradient.permute(0, 3, 1, 2), features[number], weight, bias.shape, [stride, stride], [0, 0], [1, 1],
                False, [0, 0], 1, [number > 0, True, True],
            )  # fmt: skip
            gradients, of_norms = [of_weight, of_bias, *gradients], [*of_norm, *of_norms]
        return [_from_cells(gradients[0]), *gradients[1:], *of_head, *of_norms]

    def on_host(self) -> HostFunction | None:
        return None

    def _products(self) -> list[tuple[Tensor, Tensor, int]]:
        """Weight, bias and stride of each convolution as it is computed."""
        first, second, third = self._convolutions
        return [
            (_cells(first.weight), first.bias, 1),
            (second.weight, second.bias, 2),
            (third.weight, third.bias, 1),
        ]


class FastMinAtar:
    """The network as three matrix products, the first over the image's 3×3 patches."""

    def __init__(self, network: MinAtarNetwork) -> None:
        self._state_shape = network.state_shape
        layers = [network.convolution, network.hidden, network.output]
        self._stack = _lay_out(layers, _norms_of(network.norms))

    def forward(self, states: Tensor) -> Tensor:
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, Saved]:
        return stack_forward(_patches(as_floats(as_images(states))), self._stack)

    def gradients(self, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        of_layers, of_norms, _ = stack_gradients(saved, q_gradient, self._stack)
        return of_layers + of_norms

    def on_host(self) -> HostFunction | None:
        places = torch.arange(math.prod(self._state_shape), dtype=torch.float32).view(1, *self._state_shape)
        in_patches = _patches(as_floats(as_images(places))).flatten().long().numpy()  # a state's places, by patch
        stack = _host_stack(self._stack)
        return lambda states: _host_forward(states.reshape(len(states), -1).take(in_patches, axis=1), stack)


class FastMLP:
    """The network as matrix products without autograd's bookkeeping."""

    def __init__(self, network: MLP) -> None:
        self._stack = _lay_out(network.layers, _norms_of(network.norms))

    def forward(self, states: Tensor) -> Tensor:
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, Saved]:
        return stack_forward(as_floats(states.flatten(1)), self._stack)

    def gradients(self, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        of_layers, of_norms, _ = stack_gradients(saved, q_gradient, self._stack)
        return of_layers + of_norms

    def on_host(self) -> HostFunction | None:
        stack = _host_stack(self._stack)
        return lambda states: _host_forward(states, stack)


_FAST: dict[type[nn.Module], Callable[[Any], FastNetwork]] = {
    AtariNetwork: FastAtari,
    MinAtarNetwork: FastMinAtar,
    MLP: FastMLP,
}


def _norms_of(norms: nn.ModuleList) -> list[Norm | None]:
    return [Norm(norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else None for norm in norms]


def _lay_out(layers: Any, norms: list[Norm | None]) -> list[Layer]:
    """The layers, with every weight [outputs, inputs] transposed in memory, which is faster; the last has no norm."""
    for layer in layers:
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return [Layer(layer.weight, layer.bias, norm) for layer, norm in zip(layers, [*norms, None], strict=True)]


class HostLayer(NamedTuple):
    """A layer as arrays that share its memory."""

    weight: Floats  # [inputs, outputs]
    bias: Floats  # [outputs]
    norm: tuple[Floats, Floats, float] | None  # weight and bias [units], and what is added to the variance


def _host_stack(stack: Sequence[Layer]) -> list[HostLayer]:
    return [
        HostLayer(
            weight.detach().t().numpy(),
            bias.detach().numpy(),
            None if norm is None else (norm.weight.detach().numpy(), norm.bias.detach().numpy(), norm.eps),
        )
        for weight, bias, norm in stack
    ]


@np.errstate(over="ignore", invalid="ignore")  # the learner detects weights that diverged
def _host_forward(inputs: NDArray[Any], stack: list[HostLayer]) -> Floats:
    """``stack_forward`` in NumPy, without what the gradients need."""
    outputs: Floats = inputs.astype(np.float32, copy=False)
    if inputs.dtype == np.uint8:
        outputs = outputs * np.float32(1 / PIXEL_MAXIMUM)
    for number, (weight, bias, norm) in enumerate(stack):
        if number > 0:
            np.maximum(outputs, 0, out=outputs)
        outputs = outputs.reshape(-1, len(weight)) @ weight
        outputs += bias
        if norm is not None:
            outputs = _host_normalise(outputs.reshape(-1, len(norm[0])), *norm)
    return outputs


def _host_normalise(rows: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """``normalise`` in NumPy."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    variances = np.einsum("nu,nu->n", centred, centred)[:, None] / np.float32(rows.shape[1])
    normal: Floats = centred / np.sqrt(variances + np.float32(eps)) * weight + bias
    return normal


def _patches(images: Tensor) -> Tensor:
    """All 3×3 patches [n·(H−2)·(W−2), 3·3·channels] of images [n, channels, H, W], channels last in memory."""
    last = images.permute(0, 2, 3, 1)  # [n, H, W, channels]
    count, height, width, channels = last.shape
    rows, columns, row = height - FILTER + 1, width - FILTER + 1, width * channels
    shape, strides = (count, rows, columns, FILTER * channels), (height * row, row, channels, 1)
    lines = [last.as_strided(shape, strides, last.storage_offset() + line * row) for line in range(FILTER)]
    return torch.stack(lines, dim=3).view(count * rows * columns, -1)


def _cells(images: Tensor) -> Tensor:
    """Images [n, channels, H, W] in cells of 4×4 pixels: [n, 16·channels, H/4, W/4], channels last in memory."""
    count, channels, height, width = images.shape
    rows, columns = height // CELL, width // CELL
    whole = images[:, :, : rows * CELL, : columns * CELL].contiguous()
    if whole.dtype == torch.uint8:  # four adjacent bytes stay together, so they are moved as one word
        whole = whole.view(torch.int32)
    cells = whole.view(count, channels, rows, CELL, columns, -1).permute(0, 2, 4, 1, 3, 5).contiguous()
    if images.dtype == torch.uint8:
        cells = cells.view(torch.uint8)
    return cells.view(count, rows, columns, -1).permute(0, 3, 1, 2)


def _from_cells(filters: Tensor) -> Tensor:
    """Filters [n, 16·channels, 2, 2] over cells as filters [n, channels, 8, 8] over pixels."""
    cells = filters.permute(0, 2, 3, 1).unflatten(3, (-1, CELL, CELL))  # [n, 2, 2, channels, 4, 4]
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(len(filters), -1, 2 * CELL, 2 * CELL)
