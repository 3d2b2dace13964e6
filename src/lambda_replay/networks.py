"""Q-networks and which one suits an observation space; training them is the learner's.

The small networks give their own gradients: for them the bookkeeping of autograd costs more than the arithmetic
(docs/performance.md). A test compares the two.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lambda_replay.config import NetworkConfig
from lambda_replay.errors import ConfigError

SMALLEST_ATARI_IMAGE = 36  # pixels; below this the three convolutions leave nothing


@runtime_checkable
class GivesGradients(Protocol):
    """A network that differentiates itself."""

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]: ...

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]: ...


class AtariNetwork(nn.Module):
    """Three convolutions and two fully connected layers (Mnih et al. 2015)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = _image_shape(state_shape)
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(),
        )
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.head = nn.Sequential(nn.Linear(64 * height * width, 512), nn.ReLU(), nn.Linear(512, num_actions))

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        features: Tensor = self.convolutions(_as_images(states))
        q_values: Tensor = self.head(features.flatten(1))
        return q_values


class MinAtarNetwork(nn.Module):
    """One convolution of 16 3×3 filters and one hidden layer of 128 units (Young & Tian 2019)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = _image_shape(state_shape)
        self.convolution = nn.Conv2d(channels, 16, kernel_size=3)
        self.hidden = nn.Linear(16 * (height - 2) * (width - 2), 128)
        self.output = nn.Linear(128, num_actions)

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Q-values [n, A], and what ``gradients`` needs: the images and every layer's output."""
        images = _as_images(states)  # [n, channels, H, W]
        features = functional.conv2d(images, self.convolution.weight, self.convolution.bias).relu()
        hidden = functional.linear(features.flatten(1), self.hidden.weight, self.hidden.bias).relu()  # [n, 128]
        return functional.linear(hidden, self.output.weight, self.output.bias), [images, features, hidden]

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter from that of the Q-values [n, A]; order as ``parameters()``."""
        images, features, hidden = saved
        output_gradients, hidden_gradient = _linear_gradients(q_gradient, hidden, self.output.weight)
        hidden_gradient = _relu_gradient(hidden_gradient, hidden)
        hidden_gradients, feature_gradient = _linear_gradients(hidden_gradient, features.flatten(1), self.hidden.weight)
        feature_gradient = _relu_gradient(feature_gradient.view_as(features), features)
        _, weight_gradient, bias_gradient = torch.ops.aten.convolution_backward(
            feature_gradient,
            images,
            self.convolution.weight,
            [16],
            stride=[1, 1],
            padding=[0, 0],
            dilation=[1, 1],
            transposed=False,
            output_padding=[0, 0],
            groups=1,
            output_mask=[False, True, True],
        )
        return [weight_gradient, bias_gradient, *hidden_gradients, *output_gradients]


class MLP(nn.Module):
    """Fully connected layers over the flattened state."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        widths = (math.prod(state_shape), *hidden, num_actions)
        self.layers = nn.ModuleList(layers := [nn.Linear(*pair) for pair in pairwise(widths)])
        self._pairs = [(layer.weight, layer.bias) for layer in layers]

    def forward(self, states: Tensor) -> Tensor:  # [n, F, *observation] -> [n, A]
        return self.forward_saving(states)[0]

    def forward_saving(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Q-values [n, A], and what ``gradients`` needs: the input of every layer."""
        inputs = [_as_floats(states).flatten(1)]
        for weight, bias in self._pairs[:-1]:
            inputs.append(functional.linear(inputs[-1], weight, bias).relu())
        return functional.linear(inputs[-1], *self._pairs[-1]), inputs

    def gradients(self, saved: list[Tensor], q_gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter from that of the Q-values [n, A]; order as ``parameters()``."""
        gradients: list[Tensor] = []
        gradient = q_gradient
        for (weight, _), inputs in zip(reversed(self._pairs), reversed(saved), strict=True):
            layer_gradients, gradient = _linear_gradients(gradient, inputs, weight)
            gradients = [*layer_gradients, *gradients]
            gradient = _relu_gradient(gradient, inputs)
        return gradients


def _linear_gradients(gradient: Tensor, inputs: Tensor, weight: Tensor) -> tuple[list[Tensor], Tensor]:
    """Of a layer's weight and bias, and of its inputs, from that of its outputs [n, outputs]."""
    return [gradient.t() @ inputs, gradient.sum(dim=0)], gradient @ weight


def _relu_gradient(gradient: Tensor, outputs: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(gradient, outputs, 0)


def make_network(config: NetworkConfig, state_shape: tuple[int, ...], num_actions: int, seed: int) -> nn.Module:
    """The network of a config for states [F, *observation], its weights drawn from the seed alone."""
    kind = _suitable_kind(state_shape) if config.kind == "auto" else config.kind
    if kind != "mlp" and len(state_shape) < 3:
        raise ConfigError(f"network.kind {kind} needs pictures, but a state has shape {state_shape}; use mlp.")
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
    return history * int(np.prod(state_shape[3:])), height, width


def _as_images(states: Tensor) -> Tensor:
    """States [n, F, H, W] or [n, F, H, W, C] as floats [n, channels, H, W]."""
    floats = _as_floats(states)
    return floats if floats.ndim == 4 else floats.movedim(4, 2).flatten(1, 2)


def _as_floats(states: Tensor) -> Tensor:
    """Pixels (uint8) scaled to [0, 1]; planes (bool) and vectors (float) as they are."""
    return states.float() / 255 if states.dtype == torch.uint8 else states.float()
