"""Q-networks in plain PyTorch, and which one suits an observation space.

``fast_networks.py`` computes the same functions faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, config: NetworkConfig) -> None:
        super().__init__()
        channels, height, width = image_shape(state_shape)
        first, second, hidden = (round(config.width * units) for units in (32, 64, 512))
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(channels, first, kernel_size=8, stride=4),
                nn.Conv2d(first, second, kernel_size=4, stride=2),
                nn.Conv2d(second, second, kernel_size=3, stride=1),
            ]
        )
        sizes: list[int] = []  # units of each convolution
        for kernel, stride, filters in ((8, 4, first), (4, 2, second), (3, 1, second)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            sizes.append(filters * height * width)
        self.head = nn.ModuleList([nn.Linear(sizes[-1], hidden), nn.Linear(hidden, num_actions)])
        self.norms = make_norms([*sizes, hidden], layer_norm=config.layer_norm)

    def hidden_layers(self, states: Tensor) -> list[Tensor]:  # [n, F, H, W(, C)] -> [n, H, W, filters] ×3, [n, 512]
        images = as_floats(as_images(states))  # [n, channels, H, W]
        layers: list[Tensor] = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            outputs = convolution(layers[-1].permute(0, 3, 1, 2) if layers else images).permute(0, 2, 3, 1)
            layers.append(functional.relu(norm(outputs.flatten(1)).view(outputs.shape)))  # [n, H, W, filters]
        return [*layers, functional.relu(self.norms[-1](self.head[0](layers[-1].flatten(1))))]

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        q_values: Tensor = self.head[1](self.hidden_layers(states)[-1])
        return q_values


class MinAtarNetwork(nn.Module):
    """One convolution of 16 3×3 filters and one hidden layer of 128 units (Young & Tian 2019).

    The convolution is written as a layer over the image's 3×3 patches.
    """

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, config: NetworkConfig) -> None:
        super().__init__()
        self.state_shape = state_shape
        channels, height, width = image_shape(state_shape)
        filters, hidden = round(config.width * 16), round(config.width * 128)
        self.convolution = nn.Linear(FILTER * FILTER * channels, filters)
        self.hidden = nn.Linear(filters * (height - FILTER + 1) * (width - FILTER + 1), hidden)
        self.output = nn.Linear(hidden, num_actions)
        self.norms = make_norms([self.hidden.in_features, hidden], layer_norm=config.layer_norm)

    def hidden_layers(self, states: Tensor) -> list[Tensor]:  # [n, F, H, W(, C)] -> [n, H−2, W−2, 16], [n, 128]
        images = as_floats(as_images(states))  # [n, channels, H, W]
        windows = images.unfold(2, FILTER, 1).unfold(3, FILTER, 1)  # [n, channels, H−2, W−2, 3, 3]
        patches = windows.permute(0, 2, 3, 4, 5, 1).flatten(3)  # [n, H−2, W−2, 3·3·channels]
        outputs = self.convolution(patches)  # [n, H−2, W−2, 16]
        features = functional.relu(self.norms[0](outputs.flatten(1)))  # [n, (H−2)·(W−2)·16]
        return [features.view(outputs.shape), functional.relu(self.norms[1](self.hidden(features)))]

    def forward(self, states: Tensor) -> Tensor:  # [n, F, H, W(, C)] -> [n, A]
        q_values: Tensor = self.output(self.hidden_layers(states)[-1])
        return q_values


class MLP(nn.Module):
    """Fully connected layers over the flattened state."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, config: NetworkConfig) -> None:
        super().__init__()
        widths = (math.prod(state_shape), *config.hidden, num_actions)
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise(widths)])
        self.norms = make_norms(config.hidden, layer_norm=config.layer_norm)

    def hidden_layers(self, states: Tensor) -> list[Tensor]:  # [n, F, *observation] -> [n, units] each
        layers = [as_floats(states.flatten(1))]
        for layer, norm in zip(self.layers, self.norms, strict=False):
            layers.append(functional.relu(norm(layer(layers[-1]))))
        return layers[1:]

    def forward(self, states: Tensor) -> Tensor:  # [n, F, *observation] -> [n, A]
        layers = self.hidden_layers(states)
        q_values: Tensor = self.layers[-1](layers[-1] if layers else as_floats(states.flatten(1)))
        return q_values


def make_norms(sizes: Sequence[int], *, layer_norm: bool) -> nn.ModuleList:
    """For each hidden layer, what comes before its ReLU: a LayerNorm over all its units, or nothing."""
    return nn.ModuleList([nn.LayerNorm(size) if layer_norm else nn.Identity() for size in sizes])


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
        networks: dict[str, Callable[..., nn.Module]] = {"atari": AtariNetwork, "minatar": MinAtarNetwork, "mlp": MLP}
        return networks[kind](state_shape, num_actions, config)


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
