"""Q-networks and which one suits an observation space; training them is the learner's.

All of them give their own gradients: for the small ones the bookkeeping of autograd costs more than the arithmetic, and
for the large one the layout of every product can be chosen (docs/performance.md). A test compares with autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lambda_replay.config import NetworkConfig
from lambda_replay.data import Floats
from lambda_replay.errors import ConfigError

SMALLEST_ATARI_IMAGE = 36  # pixels; below this the three convolutions leave nothing
PIXEL_MAXIMUM = 255
FILTER = 3  # pixels; side of the MinAtar network's filters
COLOURS = (1, 3, 4)  # channels that a picture may have
CELL = 4  # pixels; stride of the Atari network's first filters


HostFunction = Callable[[NDArray[Any]], Floats]  # states [n, F, *observation] -> Q-values [n, A]


@runtime_checkable
class GivesGradients(Protocol):
    """A network that differentiates itself."""

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Q-values [n, A], and what ``gradients`` needs."""
        ...

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter, in their order, from that of the Q-values [n, A]."""
        ...


@runtime_checkable
class ActsOnHost(Protocol):
    """A network that is so small that torch's calls cost more than their arithmetic when it acts."""

    def on_host(self) -> HostFunction:
        """``forward`` in NumPy; it reads the weights where they lie, so it follows their training."""
        ...


class AtariNetwork(nn.Module):
    """Three convolutions and two fully connected layers (Mnih et al. 2015).

    The first convolution, 8×8 with stride 4, is computed as the same sum over cells of 4×4 pixels: 2×2 with stride 1.
    """

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = _image_shape(state_shape)
        self._layers = [
            nn.Conv2d(channels, 32, kernel_size=2 * CELL, stride=CELL),
            nn.Conv2d(32, 64, kernel_size=4, stride=2).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            nn.Conv2d(64, 64, kernel_size=3, stride=1).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        ]
        self.convolutions = nn.ModuleList(self._layers)
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        head = [_linear(64 * height * width, 512), _linear(512, num_actions)]
        self.head = nn.ModuleList(head)
        self._stack = [(layer.weight, layer.bias) for layer in head]

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = [_as_floats(_cells(_as_images(states)))]  # each [n, channels, H, W], channels last in memory
        for weight, bias, stride in self._products():
            features.append(functional.conv2d(features[-1], weight, bias, stride).relu_())
        q_values, inputs = _stack_forward(features[-1].permute(0, 2, 3, 1).flatten(1), self._stack)
        return q_values, features + inputs

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        features, inputs = saved[:4], saved[4:]
        of_head, of_hidden = _stack_gradients(inputs, q_gradient, self._stack)
        # The weight is large and lies transposed in memory: this product is faster than of_hidden @ weight.
        of_flat = torch.mm(self._stack[0][0].t(), of_hidden.t()).t()  # [n, H·W·64]
        gradient = of_flat.reshape(-1, *features[3].shape[2:], 64).permute(0, 3, 1, 2)
        gradients: list[Tensor] = []
        for number, (weight, bias, stride) in reversed(list(enumerate(self._products()))):
            gradient = torch.ops.aten.threshold_backward(gradient, features[number + 1], 0)
            gradient, of_weight, of_bias = torch.ops.aten.convolution_backward(
                gradient, features[number], weight, bias.shape, [stride, stride], [0, 0], [1, 1], False, [0, 0], 1,
                [number > 0, True, True],
            )  # fmt: skip
            gradients = [of_weight, of_bias, *gradients]
        return [_from_cells(gradients[0]), *gradients[1:], *of_head]

    def _products(self) -> list[tuple[Tensor, Tensor, int]]:
        """Weight, bias and stride of each convolution as it is computed."""
        first, second, third = self._layers
        return [
            (_cells(first.weight), first.bias, 1),
            (second.weight, second.bias, 2),
            (third.weight, third.bias, 1),
        ]


class MinAtarNetwork(nn.Module):
    """One convolution of 16 3×3 filters and one hidden layer of 128 units (Young & Tian 2019).

    The convolution is a matrix product over the image's 3×3 patches.
    """

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = _image_shape(state_shape)
        self.convolution = _linear(FILTER * FILTER * channels, 16)
        self.hidden = _linear(16 * (height - FILTER + 1) * (width - FILTER + 1), 128)
        self.output = _linear(128, num_actions)
        self._stack = [(layer.weight, layer.bias) for layer in (self.convolution, self.hidden, self.output)]
        self._state_shape = state_shape

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _stack_forward(_patches(_as_floats(_as_images(states))), self._stack)

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        return _stack_gradients(saved, q_gradient, self._stack)[0]

    def on_host(self) -> HostFunction:
        places = torch.arange(math.prod(self._state_shape), dtype=torch.float32).view(1, *self._state_shape)
        in_patches = _patches(_as_floats(_as_images(places))).flatten().long().numpy()  # a state's places, by patch
        stack = _host_stack(self._stack)
        return lambda states: _host_forward(states.reshape(len(states), -1).take(in_patches, axis=1), stack)


class MLP(nn.Module):
    """Fully connected layers over the flattened state."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        layers = [_linear(*widths) for widths in pairwise((math.prod(state_shape), *hidden, num_actions))]
        self.layers = nn.ModuleList(layers)
        self._stack = [(layer.weight, layer.bias) for layer in layers]

    def forward(self, states: Tensor) -> Tensor:  # [n, F, *observation] -> [n, A]
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _stack_forward(_as_floats(states.flatten(1)), self._stack)

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        return _stack_gradients(saved, q_gradient, self._stack)[0]

    def on_host(self) -> HostFunction:
        stack = _host_stack(self._stack)
        return lambda states: _host_forward(states, stack)


Stack = Sequence[tuple[Tensor, Tensor]]  # (weight [outputs, inputs], bias [outputs]) of each layer


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose weight [outputs, inputs] lies transposed in memory, which the products below prefer."""
    layer = nn.Linear(inputs, outputs)
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return layer


def _stack_forward(inputs: Tensor, stack: Stack) -> tuple[Tensor, list[Tensor]]:
    """Layers with ReLU between them: the last one's output, and the input [rows, inputs] of each.

    A layer takes as many of the numbers before it into one row as it has inputs.
    """
    saved: list[Tensor] = []
    outputs = inputs
    for weight, bias in stack:
        saved.append((outputs.relu_() if saved else outputs).view(-1, weight.shape[1]))
        outputs = functional.linear(saved[-1], weight, bias)
    return outputs, saved


def _stack_gradients(saved: list[Tensor], gradient: Tensor, stack: Stack) -> tuple[list[Tensor], Tensor]:
    """From the gradient of the last layer's output: those of each weight and bias, and of the first layer's output."""
    gradients: list[Tensor] = []
    for number in range(len(stack) - 1, -1, -1):
        weight, inputs = stack[number][0], saved[number]
        gradient = gradient.view(-1, weight.shape[0])
        gradients = [torch.mm(inputs.t(), gradient).t(), gradient.sum(dim=0), *gradients]
        if number > 0:
            gradient = torch.ops.aten.threshold_backward(torch.mm(gradient, weight), inputs, 0)
    return gradients, gradient


def _host_stack(stack: Stack) -> list[tuple[Floats, Floats]]:
    """Weight [inputs, outputs] and bias of each layer as arrays that share their memory."""
    return [(weight.detach().t().numpy(), bias.detach().numpy()) for weight, bias in stack]


@np.errstate(over="ignore", invalid="ignore")  # weights that diverged are found and told by the learner
def _host_forward(inputs: NDArray[Any], stack: list[tuple[Floats, Floats]]) -> Floats:
    """``_stack_forward`` in NumPy."""
    outputs: Floats = inputs.astype(np.float32, copy=False)
    if inputs.dtype == np.uint8:
        outputs = outputs * np.float32(1 / PIXEL_MAXIMUM)
    for number, (weight, bias) in enumerate(stack):
        if number > 0:
            np.maximum(outputs, 0, out=outputs)
        outputs = outputs.reshape(-1, len(weight)) @ weight
        outputs += bias
    return outputs


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
    if whole.dtype == torch.uint8:  # four bytes side by side stay together, so they are moved as one word
        whole = whole.view(torch.int32)
    cells = whole.view(count, channels, rows, CELL, columns, -1).permute(0, 2, 4, 1, 3, 5).contiguous()
    if images.dtype == torch.uint8:
        cells = cells.view(torch.uint8)
    return cells.view(count, rows, columns, -1).permute(0, 3, 1, 2)


def _from_cells(filters: Tensor) -> Tensor:
    """Filters [n, 16·channels, 2, 2] over cells as filters [n, channels, 8, 8] over pixels."""
    cells = filters.permute(0, 2, 3, 1).unflatten(3, (-1, CELL, CELL))  # [n, 2, 2, channels, 4, 4]
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(len(filters), -1, 2 * CELL, 2 * CELL)


def make_network(config: NetworkConfig, state_shape: tuple[int, ...], num_actions: int, seed: int) -> nn.Module:
    """The network of a config for states [F, *observation], its weights drawn from the seed alone."""
    kind = _suitable_kind(state_shape) if config.kind == "auto" else config.kind
    if kind != "mlp" and len(state_shape) < 3:
        raise ConfigError(f"network.kind {kind} needs pictures, but a state has shape {state_shape}; use mlp.")
    if kind != "mlp" and (len(state_shape) > 4 or min(_image_shape(state_shape)[1:]) < FILTER):
        raise ConfigError(
            f"network.kind {kind} needs pictures of {FILTER}×{FILTER} pixels or more, but a state is {state_shape}; "
            "use mlp."
        )
    if kind == "atari" and min(_image_shape(state_shape)[1:]) < SMALLEST_ATARI_IMAGE:
        raise ConfigError(
            f"network.kind atari needs pictures of {SMALLEST_ATARI_IMAGE}×{SMALLEST_ATARI_IMAGE} pixels or more, "
            f"but a state has shape {state_shape}; use minatar or mlp."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "atari":
            return AtariNetwork(state_shape, num_actions)
        if kind == "minatar":
            return MinAtarNetwork(state_shape, num_actions)
        return MLP(state_shape, num_actions, config.hidden)


def host_function(network: nn.Module) -> HostFunction | None:
    """The network in NumPy, if it has that and lies on the host."""
    if isinstance(network, ActsOnHost) and all(weight.device.type == "cpu" for weight in network.parameters()):
        return network.on_host()
    return None


def _suitable_kind(state_shape: tuple[int, ...]) -> str:
    if len(state_shape) not in (3, 4):
        return "mlp"
    smaller_side = min(_image_shape(state_shape)[1:])
    if smaller_side < 3:
        return "mlp"
    return "atari" if smaller_side >= SMALLEST_ATARI_IMAGE else "minatar"


def _image_shape(state_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of a state [F, H, W], [F, H, W, C] or [F, C, H, W]."""
    if _has_colours_first(state_shape):
        return state_shape[0] * state_shape[1], state_shape[2], state_shape[3]
    history, height, width = state_shape[:3]
    return history * math.prod(state_shape[3:]), height, width


def _has_colours_first(state_shape: tuple[int, ...]) -> bool:
    """Whether a state is [F, C, H, W], as torch likes pictures, and not [F, H, W, C], as environments give them.

    A grid of four rows is no picture of four colours, unless what would be its picture is a square.
    """
    if len(state_shape) != 4 or state_shape[1] not in COLOURS or state_shape[3] in COLOURS:
        return False
    height, width = state_shape[2:]
    return height == width or min(height, width) >= SMALLEST_ATARI_IMAGE


def _as_images(states: Tensor) -> Tensor:
    """States [n, F, H, W], [n, F, H, W, C] or [n, F, C, H, W] as images [n, channels, H, W]."""
    if states.ndim == 4:
        return states
    return (states if _has_colours_first(states.shape[1:]) else states.movedim(4, 2)).flatten(1, 2)


def _as_floats(states: Tensor) -> Tensor:
    """Pixels (uint8) scaled to [0, 1], planes (bool) and vectors (float) as they are; images channels last."""
    if states.dtype == torch.float32 and states.ndim != 4:
        return states
    layout = torch.channels_last if states.ndim == 4 else torch.contiguous_format
    floats = states.to(torch.float32, memory_format=layout)
    return floats.mul_(1 / PIXEL_MAXIMUM) if states.dtype == torch.uint8 else floats
