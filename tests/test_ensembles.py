"""Ensembles: the readable one against plain layers, the fast one and its gradients against the readable one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.ensemble_optimizer import EnsembleOptimizer
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.learning.fast_ensembles import FastEnsemble

SHAPES = [(1, (3, 1)), (1, (4, 8, 2)), (2, (4, 8, 6, 1)), (3, (5, 7, 3)), (2, (33, 40, 36, 2))]


def make(count: int, widths: tuple[int, ...], *, layer_norm: bool) -> Ensemble:
    """An ensemble whose norms are not the identity."""
    torch.manual_seed(count)
    ensemble = Ensemble(count, widths, layer_norm=layer_norm)
    with torch.no_grad():
        for parameter in [*ensemble.norm_weights, *ensemble.norm_biases]:
            parameter.add_(torch.randn(parameter.shape) / 3)
    return ensemble


def random_inputs(widths: tuple[int, ...], num_rows: int = 9) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(num_rows, widths[0])).astype(np.float32))


# --- golden -----------------------------------------------------------------------------------------------------------


def test_two_networks_of_two_units() -> None:
    ensemble = Ensemble(2, (1, 2, 1), layer_norm=False)
    with torch.no_grad():
        ensemble.weights[0].copy_(torch.tensor([[[1.0, -1.0]], [[2.0, 3.0]]]))
        ensemble.biases[0].copy_(torch.tensor([[[0.5, 0.0]], [[0.0, -6.0]]]))
        ensemble.weights[1].copy_(torch.tensor([[[1.0], [10.0]], [[1.0], [10.0]]]))
        ensemble.biases[1].copy_(torch.tensor([[[0.0]], [[100.0]]]))
    # x = 2: units max(0, 2.5) and max(0, −2), so 2.5; and max(0, 4) and max(0, 0), so 4 + 100
    # x = −1: units max(0, −0.5) and max(0, 1), so 10; and none, so 100
    expected = [[[2.5], [10.0]], [[104.0], [100.0]]]
    assert ensemble(torch.tensor([[2.0], [-1.0]])).tolist() == expected


def test_a_norm_has_mean_zero_and_deviation_one_before_its_weight_and_bias() -> None:
    ensemble = Ensemble(1, (1, 2, 1), layer_norm=True)
    with torch.no_grad():
        ensemble.weights[0].copy_(torch.tensor([[[1.0, 5.0]]]))
        ensemble.biases[0].zero_()
        ensemble.norm_weights[0].copy_(torch.tensor([[[1.0, 3.0]]]))
        ensemble.norm_biases[0].copy_(torch.tensor([[[2.0, 0.0]]]))
    # Units 10 and 50 are −1 and 1 after the norm, −1·1 + 2 = 1 and 1·3 + 0 = 3 after its weight and bias.
    (units,) = ensemble.hidden_layers(torch.tensor([[10.0]]))
    assert_allclose(units.detach(), [[[1.0, 3.0]]], rtol=1e-6)


# --- property ---------------------------------------------------------------------------------------------------------


def test_a_bound_for_the_last_layer_changes_that_layer_alone() -> None:
    torch.manual_seed(0)
    usual = Ensemble(2, (4, 8, 6, 3), layer_norm=False)
    torch.manual_seed(0)
    bounded = Ensemble(2, (4, 8, 6, 3), layer_norm=False, output_bound=0.003)
    for number in range(2):
        assert torch.equal(usual.weights[number], bounded.weights[number])
        assert torch.equal(usual.biases[number], bounded.biases[number])
    for parameter in (bounded.weights[-1], bounded.biases[-1]):
        largest = parameter.abs().max()
        assert 0.0015 < largest <= 0.003


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("count", "widths"), SHAPES)
def test_each_network_is_a_stack_of_plain_layers(count: int, widths: tuple[int, ...], layer_norm: bool) -> None:
    ensemble, inputs = make(count, widths, layer_norm=layer_norm), random_inputs(widths)
    for network in range(count):
        outputs = inputs
        for number, pair in enumerate(pairwise(widths)):
            layer, is_last = nn.Linear(*pair), number == len(widths) - 2
            layer.weight = nn.Parameter(ensemble.weights[number][network].t())
            layer.bias = nn.Parameter(ensemble.biases[number][network, 0])
            outputs = layer(outputs)
            if layer_norm and not is_last:
                norm = nn.LayerNorm(pair[1])
                norm.weight = nn.Parameter(ensemble.norm_weights[number][network, 0])
                norm.bias = nn.Parameter(ensemble.norm_biases[number][network, 0])
                outputs = norm(outputs)
            outputs = outputs if is_last else outputs.relu()
        assert_allclose(ensemble(inputs)[network].detach(), outputs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(
    ("count", "widths", "num_rows"), [*((*shape, 9) for shape in SHAPES), (2, (70, 256, 264, 1), 256)]
)
def test_the_fast_version_has_the_same_values_and_gradients(
    count: int, widths: tuple[int, ...], num_rows: int, layer_norm: bool
) -> None:
    ensemble, inputs = make(count, widths, layer_norm=layer_norm), random_inputs(widths, num_rows).requires_grad_()
    outputs = ensemble(inputs)
    gradient = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)) / num_rows
    *of_parameters, of_inputs = torch.autograd.grad(outputs, [*ensemble.parameters(), inputs], gradient)
    fast = FastEnsemble(ensemble)
    with torch.inference_mode():
        found, saved = fast.forward_saving(inputs.detach())
        assert_allclose(found, outputs.detach(), rtol=1e-5, atol=1e-6)
        assert_allclose(fast.forward(inputs.detach()), found)
        gradients = fast.gradients(saved, gradient)
        for one, other in zip(gradients, of_parameters, strict=True):
            assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        for num_columns in (1, widths[0]):
            of_columns = fast.input_gradient(saved, gradient, num_columns)
            assert_allclose(of_columns, of_inputs[:, -num_columns:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("chosen", [[0] * 9, [2] * 9, [0, 1, 2, 2, 1, 0, 0, 0, 2]])
def test_rows_with_one_network_each_have_the_gradient_of_all_where_the_others_have_none(
    chosen: list[int], layer_norm: bool
) -> None:
    widths = (5, 40, 33, 2)  # more columns than few
    fast, inputs = FastEnsemble(make(3, widths, layer_norm=layer_norm)), random_inputs(widths)
    gradient = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    networks = torch.tensor(chosen)
    of_all = torch.zeros(3, 9, 2)
    of_all[networks, torch.arange(9)] = gradient
    with torch.inference_mode():
        _, saved = fast.forward_saving(inputs)
        expected = fast.input_gradient(saved, of_all, 2)
        assert_allclose(fast.chosen_input_gradient(saved, networks, gradient, 2), expected, rtol=1e-5, atol=1e-6)


def test_each_network_alone_shares_its_weights() -> None:
    ensemble = make(2, (4, 8, 1), layer_norm=True)
    (first, second), inputs = FastEnsemble(ensemble).each, random_inputs((4,))
    with torch.no_grad():
        ensemble.weights[0].add_(1)
    assert_allclose(first.forward(inputs), ensemble(inputs)[:1].detach(), rtol=1e-5)
    assert_allclose(second.forward(inputs), ensemble(inputs)[1:].detach(), rtol=1e-5)


# --- behaviour --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [None, 0.1, 100.0])
def test_a_step_is_that_of_torch_s_adam(largest: float | None) -> None:
    ensemble, other = make(2, (3, 4, 1), layer_norm=True), make(2, (3, 4, 1), layer_norm=True)
    config = OptimizerConfig(learning_rate=0.01, epsilon=1e-8, max_grad_norm=largest)
    optimizer = EnsembleOptimizer(FastEnsemble(ensemble), config)
    theirs = torch.optim.Adam(other.parameters(), lr=0.01)
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        gradients = [torch.randn(parameter.shape, generator=generator) for parameter in ensemble.parameters()]
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1e9 if largest is None else largest)
        theirs.step()
        measured = optimizer.step(gradients, measures=True)
        assert measured is not None
        assert_allclose(measured, norm, rtol=1e-5)
    for one, two in zip(ensemble.parameters(), other.parameters(), strict=True):
        assert_allclose(one.detach(), two.detach(), rtol=1e-4, atol=1e-6)
    assert optimizer.step([torch.zeros_like(parameter) for parameter in ensemble.parameters()]) is None
