"""A faster version of an ensemble: one stack of layers after another, without autograd's bookkeeping.

A test compares it with the plain ensemble and with autograd; benchmarks/continuous_speed.py measures what it gains.
"""

from __future__ import annotations

from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor

from lambda_replay.learning.ensembles import NORM_EPS, Ensemble
from lambda_replay.learning.fast_products import product
from lambda_replay.learning.fast_stacks import (
    Layer,
    Norm,
    Saved,
    first_gradient,
    stack_forward,
    stack_gradients,
)


class FastEnsemble:
    """Shares the parameters of a plain ensemble, or of some of its networks."""

    def __init__(self, module: Ensemble, networks: slice = slice(None)) -> None:
        self.module = module
        self._stacks = [_stack(module, network) for network in range(module.count)[networks]]

    @cached_property
    def each(self) -> list[FastEnsemble]:
        """The networks one by one."""
        return [FastEnsemble(self.module, slice(number, number + 1)) for number in range(len(self._stacks))]

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [N, n, outputs] of inputs [n, inputs]."""
        return self.forward_saving(inputs)[0]

    def forward_saving(self, inputs: Tensor) -> tuple[Tensor, list[Saved]]:
        """The outputs, and what the gradients need of each network."""
        outputs, saved = zip(*(stack_forward(inputs, stack) for stack in self._stacks), strict=True)
        return torch.stack(outputs), list(saved)

    def gradients(self, saved: list[Saved], gradient: Tensor) -> list[Tensor]:
        """The gradient of each parameter, in their order, from that of the outputs [N, n, outputs]."""
        each = [stack_gradients(*of) for of in zip(saved, gradient, self._stacks, strict=True)]
        layers, norms = (list(zip(*many, strict=True)) for many in zip(*(of[:2] for of in each), strict=True))
        weights = [torch.stack([weight.t() for weight in of]) for of in layers[::2]]  # [N, inputs, outputs] each
        rows = [*layers[1::2], *norms[::2], *norms[1::2]]  # of biases, norms' weights and norms' biases
        return [*weights, *(torch.stack(of)[:, None] for of in rows)]

    def input_gradient(self, saved: list[Saved], gradient: Tensor, num_columns: int) -> Tensor:
        """The gradient [n, columns] of the last ``num_columns`` inputs, summed over the networks."""
        each = zip(saved, gradient, self._stacks, strict=True)
        return torch.stack([_input_gradient(*of, num_columns) for of in each]).sum(dim=0)

    def chosen_input_gradient(self, saved: list[Saved], chosen: Tensor, gradient: Tensor, num_columns: int) -> Tensor:
        """The same, where only network ``chosen`` [n] of each row has a gradient [n, outputs].

        Each network computes its own rows alone, so that all of them together have the work of one.
        """
        of_columns = gradient.new_empty(len(gradient), num_columns)
        for number, stack in enumerate(self._stacks):
            rows = (chosen == number).nonzero()[:, 0]
            own = gradient.index_select(0, rows)  # [rows, outputs]
            of_columns.index_copy_(0, rows, _input_gradient(saved[number].part(rows), own, stack, num_columns))
        return of_columns


def _stack(module: Ensemble, network: int) -> list[Layer]:
    """The layers of one of the networks."""
    weights, biases, norm_weights, norm_biases = (
        [parameter.detach()[network] for parameter in many]
        for many in (module.weights, module.biases, module.norm_weights, module.norm_biases)
    )
    norms = [Norm(weight[0], bias[0], NORM_EPS) for weight, bias in zip(norm_weights, norm_biases, strict=True)]
    layers = zip_longest(weights, biases, norms)  # neither the last layer nor one without LayerNorm has a norm
    return [Layer(weight.t(), bias[0], norm) for weight, bias, norm in layers]


def _input_gradient(saved: Saved, gradient: Tensor, stack: list[Layer], num_columns: int) -> Tensor:
    """The gradient [n, columns] of the last ``num_columns`` inputs of one network."""
    return product(first_gradient(saved, gradient, stack), stack[0].weight[:, -num_columns:])
