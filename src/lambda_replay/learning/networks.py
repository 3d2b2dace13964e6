"""Q-networks in plain PyTorch, and which one suits an observation space.

``fast_networks.py`` computes the same functions faster.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from lambda_replay.config import NetworkConfig
from lambda_replay.errors import ConfigError

SMALLEST_ATARI_IMAGE = 36  # pixels; below this the three convolutions leave nothing
PIXEL_MAXIMUM = 255
FILTER = 3  # pixels; side of the MinAtar network's filters
COLOURS = (1, 3, 4)  # possible numbers of channels in an image


class AtariNetwork(nn.Module):
    """Three convolutions and two fully connected layers (Mnih et al. 2015)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = image_shape(state_shape)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(channels, 32, kernel_size=8, stride=4),
                nn.Conv2d(32, 64, kernel_size=4, stride=2),
                nn.Conv2d(64, 64, kernel_size=3, stride=1),
            ]
        )
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.head = nn.ModuleList([nn.Linear(64 * height * width, 512), nn.Linear(512, num_actions)])

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        features = as_floats(as_images(states))  # [n, channels, H, W]
        for convolution in self.convolutions:
            features = functional.relu(convolution(features))
        hidden = functional.relu(self.head[0](features.permute(0, 2, 3, 1).flatten(1)))  # [n, 512]; colours last
        q_values: Tensor = self.head[1](hidden)
        return q_values


class MinAtarNetwork(nn.Module):
    """One convolution of 16 3×3 filters and one hidden layer of 128 units (Young & Tian 2019).

    The convolution is written as a layer over the image's 3×3 patches.
    """

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.state_shape = state_shape
        channels, height, width = image_shape(state_shape)
        self.convolution = nn.Linear(FILTER * FILTER * channels, 16)
        self.hidden = nn.Linear(16 * (height - FILTER + 1) * (width - FILTER + 1), 128)
        self.output = nn.Linear(128, num_actions)

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        images = as_floats(as_images(states))  # [n, channels, H, W]
        windows = images.unfold(2, FILTER, 1).unfold(3, FILTER, 1)  # [n, channels, H−2, W−2, 3, 3]
        patches = windows.permute(0, 2, 3, 4, 5, 1).flatten(3)  # [n, H−2, W−2, 3·3·channels]
        features = functional.relu(self.convolution(patches))  # [n, H−2, W−2, 16]
        q_values: Tensor = self.output(functional.relu(self.hidden(features.flatten(1))))
        return q_values


class MLP(nn.Module):
    """Fully connected layers over the flattened state."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        widths = (math.prod(state_shape), *hidden, num_actions)
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise(widths)])

    def forward(self, states: Tensor) -> Tensor:  # [n, F, *observation] -> [n, A]
        outputs = as_floats(states.flatten(1))
        for number, layer in enumerate(self.layers):
            outputs = layer(functional.relu(outputs) if number > 0 else outputs)
        return outputs


def make_network(config: NetworkConfig, state_shape: tuple[int, ...], num_actions: int, seed: int) -> nn.Module:
    """The network of a config for states [F, *observation], with weights drawn from the seed alone."""
    kind = network_kind(config, state_shape)
    if kind != "mlp" and len(state_shape) < 3:
        raise ConfigError(
            f"network.kind {kind} needs images, but a state has shape {state_shape}; use mlp.", "network.kind"
        )
    if kind != "mlp" and (len(state_shape) > 4 or min(image_shape(state_shape)[1:]) < FILTER):
        raise ConfigError(
            f"network.kind {kind} needs images of {FILTER}×{FILTER} pixels or more, but a state is {state_shape}; "
            "use mlp.",
            "network.kind",
        )
    if kind == "atari" and min(image_shape(state_shape)[1:]) < SMALLEST_ATARI_IMAGE:
        raise ConfigError(
            f"network.kind atari needs images of {SMALLEST_ATARI_IMAGE}×{SMALLEST_ATARI_IMAGE} pixels or more, "
            f"but a state has shape {state_shape}; use minatar or mlp.",
            "network.kind",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "atari":
            return AtariNetwork(state_shape, num_actions)
        if kind == "minatar":
            return MinAtarNetwork(state_shape, num_actions)
        return MLP(state_shape, num_actions, config.hidden)


def network_kind(config: NetworkConfig, state_shape: tuple[int, ...]) -> str:
    """atari, minatar or mlp: the config's, or the one that suits the states [F, *observation]."""
    return _suitable_kind(state_shape) if config.kind == "auto" else config.kind


def _suitable_kind(state_shape: tuple[int, ...]) -> str:
    if len(state_shape) not in (3, 4):
        return "mlp"
    smaller_side = min(image_shape(state_shape)[1:])
    if smaller_side < 3:
        return "mlp"
    return "atari" if smaller_side >= SMALLEST_ATARI_IMAGE else "minatar"


def image_shape(state_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of a state [F, H, W], [F, H, W, C] or [F, C, H, W]."""
    if has_colours_first(state_shape):
        return state_shape[0] * state_shape[1], state_shape[2], state_shape[3]
    history, height, width = state_shape[:3]
    return history * math.prod(state_shape[3:]), height, width


def has_colours_first(state_shape: tuple[int, ...]) -> bool:
    """Whether a state is [F, C, H, W], as in torch, and not [F, H, W, C], as in most environments.

    A grid of four rows is not an image with four channels, unless that image would be square.
    """
    if len(state_shape) != 4 or state_shape[1] not in COLOURS or state_shape[3] in COLOURS:
        return False
    height, width = state_shape[2:]
    return height == width or min(height, width) >= SMALLEST_ATARI_IMAGE


def as_images(states: Tensor) -> Tensor:
    """States [n, F, H, W], [n, F, H, W, C] or [n, F, C, H, W] as images [n, channels, H, W]."""
    if states.ndim == 4:
        return states
    return (states if has_colours_first(states.shape[1:]) else states.movedim(4, 2)).flatten(1, 2)


def as_floats(states: Tensor) -> Tensor:
    """Pixels (uint8) scaled to [0, 1], planes (bool) and vectors (float) as they are; images channels last."""
    if states.dtype == torch.float32 and states.ndim != 4:
        return states
    layout = torch.channels_last if states.ndim == 4 else torch.contiguous_format
    floats = states.to(torch.float32, memory_format=layout)
    return floats.mul_(1 / PIXEL_MAXIMUM) if states.dtype == torch.uint8 else floats
