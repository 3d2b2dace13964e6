"""Q-networks and which one suits an observation space; training them is the learner's.

The small networks are stacks of matrix products that give their own gradients: for them the bookkeeping of autograd
costs more than the arithmetic (docs/performance.md). A test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lambda_replay.config import NetworkConfig
from lambda_replay.errors import ConfigError

SMALLEST_ATARI_IMAGE = 36  # pixels; below this the three convolutions leave nothing
PIXEL_MAXIMUM = 255
FILTER = 3  # pixels; side of the MinAtar network's filters


@runtime_checkable
class GivesGradients(Protocol):
    """A network that differentiates itself."""

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Q-values [n, A], and what ``gradients`` needs."""
        ...

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter, in their order, from that of the Q-values [n, A]."""
        ...


class AtariNetwork(nn.Module):
    """Three convolutions and two fully connected layers (Mnih et al. 2015)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = _image_shape(state_shape)
        self._layers = [
            nn.Conv2d(channels, 32, kernel_size=8, stride=4),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
        ]
        self.convolutions = nn.ModuleList(self._layers)
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.head = nn.Sequential(_linear(64 * height * width, 512), nn.ReLU(), _linear(512, num_actions))

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        features = _as_images(states)  # [n, channels, H, W], channels last in memory
        scale = PIXEL_MAXIMUM if states.dtype == torch.uint8 else 1
        for number, convolution in enumerate(self._layers):
            # Pixels are scaled to [0, 1] by scaling the few weights that meet them instead.
            weight = convolution.weight / scale if number == 0 else convolution.weight
            features = functional.conv2d(features, weight, convolution.bias, convolution.stride).relu()
        q_values: Tensor = self.head(features.permute(0, 2, 3, 1).flatten(1))
        return q_values


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

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _stack_forward(_patches(_as_images(_as_floats(states))), self._stack)

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        return _stack_gradients(saved, q_gradient, self._stack)


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
        return _stack_forward(_as_floats(states).flatten(1), self._stack)

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        return _stack_gradients(saved, q_gradient, self._stack)


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
    saved = [inputs]
    for weight, bias in stack[:-1]:
        outputs = functional.linear(saved[-1].view(-1, weight.shape[1]), weight, bias)
        saved.append(outputs.relu())
    weight, bias = stack[-1]
    return functional.linear(saved[-1].view(-1, weight.shape[1]), weight, bias), saved


def _stack_gradients(saved: list[Tensor], gradient: Tensor, stack: Stack) -> list[Tensor]:
    """The gradient of each weight and bias from that of the last layer's output."""
    gradients: list[Tensor] = []
    for number in range(len(stack) - 1, -1, -1):
        weight, _ = stack[number]
        inputs = saved[number].view(-1, weight.shape[1])
        gradients = [(inputs.t() @ gradient).t(), gradient.sum(dim=0), *gradients]
        if number > 0:
            gradient = torch.ops.aten.threshold_backward((gradient @ weight).view_as(saved[number]), saved[number], 0)
    return gradients


def _patches(images: Tensor) -> Tensor:
    """All 3×3 patches [n·(H−2)·(W−2), 3·3·channels] of images [n, channels, H, W]."""
    last = images.permute(0, 2, 3, 1).contiguous()  # [n, H, W, channels]
    count, height, width, channels = last.shape
    rows, columns, row = height - FILTER + 1, width - FILTER + 1, width * channels
    strides = (height * row, row, channels, 1)
    lines = [last.as_strided((count, rows, columns, FILTER * channels), strides, line * row) for line in range(FILTER)]
    return torch.stack(lines, dim=3).view(count * rows * columns, -1)


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


def _suitable_kind(state_shape: tuple[int, ...]) -> str:
    if len(state_shape) not in (3, 4):
        return "mlp"
    smaller_side = min(_image_shape(state_shape)[1:])
    if smaller_side < 3:
        return "mlp"
    return "atari" if smaller_side >= SMALLEST_ATARI_IMAGE else "minatar"


def _image_shape(state_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of a state [F, H, W] or [F, H, W, C]."""
    history, height, width = state_shape[:3]
    return history * math.prod(state_shape[3:]), height, width


def _as_images(states: Tensor) -> Tensor:
    """States [n, F, H, W] or [n, F, H, W, C] as floats [n, channels, H, W], channels last in memory."""
    images = states if states.ndim == 4 else states.movedim(4, 2).flatten(1, 2)
    return images.to(torch.float32, memory_format=torch.channels_last)


def _as_floats(states: Tensor) -> Tensor:
    """Pixels (uint8) scaled to [0, 1]; planes (bool) and vectors (float) as they are."""
    return states.float() / PIXEL_MAXIMUM if states.dtype == torch.uint8 else states.float()
