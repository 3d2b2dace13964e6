"""Metrics of a network's health: which of its units are dead, and how large its weights are."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.learning.device import QNetwork
from lambda_replay.replay.diagnostics import Metrics

LOOK_EVERY = 1_000  # agent steps, or more
NUM_STATES = 64  # to look at: enough to tell whether a unit is ever used, and few compared with a refresh


@runtime_checkable
class HasHiddenLayers(Protocol):
    """A network that shows the outputs [n, ..., units] of its hidden layers, as ours do."""

    def hidden_layers(self, states: Tensor) -> list[Tensor]: ...


def is_look_due(elapsed: int, every: int) -> bool:
    """Whether to look at the network at a boundary, ``elapsed`` agent steps after the first, one ``every`` so many.

    Boundaries may be so frequent that looking each time would take a few percent of the time.
    """
    return elapsed // every % -(-LOOK_EVERY // every) == 0


@torch.no_grad()
def describe_network(network: QNetwork, states: NDArray[Any]) -> Metrics:
    """The share of dead units in each hidden layer for these states, and the norm of all weights.

    A unit (in a convolution, a filter) is dead if it is zero in all of them.
    """
    return describe_layers(_hidden_layers(network.module, network.tensor(states)), network.module)


def describe_layers(layers: list[Tensor], module: nn.Module) -> Metrics:
    """The same from the outputs [n, ..., units] of the module's hidden layers."""
    norms = torch._foreach_norm(list(module.parameters()))
    return {
        **{f"dead_share_{number}": _dead_share(units) for number, units in enumerate(layers, start=1)},
        "weight_norm": float(torch.linalg.vector_norm(torch.stack(norms))),
    }


def _hidden_layers(module: nn.Module, states: Tensor) -> list[Tensor]:
    """The outputs [n, ..., units] of the hidden layers; of a user's network, those of its ``nn.ReLU`` modules."""
    if isinstance(module, HasHiddenLayers):
        return module.hidden_layers(states)
    seen: list[Tensor] = []
    parts = [part for part in module.modules() if isinstance(part, nn.ReLU)]
    hooks = [
        part.register_forward_hook(lambda part, given, output: seen.append(output.movedim(1, -1))) for part in parts
    ]
    try:
        if parts:
            module(states)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _dead_share(units: Tensor) -> float:
    """The share of units [n, ..., units], none of them negative, that are zero everywhere."""
    return float((units.flatten(0, -2).amax(dim=0) == 0).float().mean())
