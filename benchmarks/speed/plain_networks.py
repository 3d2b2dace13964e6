"""The networks as a user of a peer would write them: the same layers as ours, with none of our tuning."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.speed.workloads import HIDDEN


class Scale(nn.Module):
    """Converts states to floats and scales pixels to [0, 1]."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, states: Tensor) -> Tensor:
        return states.float() if self.divisor == 1 else states.float() / self.divisor


def atari_layers(num_actions: int) -> list[nn.Module]:
    """Mnih et al. 2015, for states [4, 84, 84]."""
    return [
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(-3),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, num_actions),
    ]


def minatar_features(channels: int) -> list[nn.Module]:
    """Young & Tian 2019, for states [C, 10, 10], without the last layer."""
    return [nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(-3), nn.Linear(1024, 128), nn.ReLU()]


class MinAtarFeatures(nn.Module):
    """These layers as a features extractor for Stable-Baselines3."""

    features_dim = 128

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(Scale(1), *minatar_features(observation_space.shape[0]))

    def forward(self, states: Tensor) -> Tensor:
        features: Tensor = self.layers(states)
        return features


def mlp_layers(inputs: int, num_actions: int) -> list[nn.Module]:
    widths = (inputs, *HIDDEN)
    hidden = [layer for i in range(len(HIDDEN)) for layer in (nn.Linear(widths[i], widths[i + 1]), nn.ReLU())]
    return [*hidden, nn.Linear(widths[-1], num_actions)]


def plain_network(kind: str, state_shape: tuple[int, ...], num_actions: int) -> nn.Sequential:
    """The network of a workload, for batches of states."""
    if kind == "atari":
        return nn.Sequential(Scale(255), *atari_layers(num_actions))
    if kind == "minatar":
        return nn.Sequential(Scale(1), *minatar_features(state_shape[0]), nn.Linear(128, num_actions))
    return nn.Sequential(Scale(1), *mlp_layers(state_shape[0], num_actions))


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
