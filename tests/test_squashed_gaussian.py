"""The squashed Gaussian: its density sums to one, agrees with its samples and with torch's, and so do its gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor, distributions

from lambda_replay.learning.squashed_gaussian import log_densities, output_gradient, sample

MODERATE = st.floats(-2, 2)


def tensors(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


# --- golden -----------------------------------------------------------------------------------------------------------


def test_a_standard_gaussian_at_its_mean() -> None:
    # u = 0, a = 0: log π = log N(0; 0, 1) − log(1 − 0) = −½·log 2π, of each of two numbers
    sampled = sample(tensors([0, 0, 0, 0]), tensors([0, 0]))
    assert sampled.actions.tolist() == [[0, 0]]
    assert_allclose(sampled.log_probs, [-math.log(2 * math.pi)], rtol=1e-6)


def test_a_sample_with_noise() -> None:
    # μ = 0.5, σ = e⁻¹, ε = 2: u = 0.5 + 2/e = 1.2357589, a = tanh(u) = 0.8441940
    # log π = −½·4 − ½·log 2π + 1 − log(1 − a²) = −2 − 0.9189385 + 1 + 1.2470131 = −0.6719254
    sampled = sample(tensors([0.5, -1]), tensors([2]))
    assert_allclose(sampled.actions, [[math.tanh(0.5 + 2 / math.e)]], rtol=1e-6)
    expected = -1 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(0.5 + 2 / math.e) ** 2)
    assert_allclose(sampled.log_probs, [expected], rtol=1e-5)


# --- identity ---------------------------------------------------------------------------------------------------------


@given(mean=MODERATE, log_std=st.floats(-2, 0.5))
def test_the_density_sums_to_one(mean: float, log_std: float) -> None:
    """∫ π(a) da over (−1, 1) with a = tanh(u), so da = (1 − a²) du: a sum that reaches far enough on both sides."""
    latent = torch.linspace(-12, 12, 20_001, dtype=torch.float64)[:, None]
    actions = latent.tanh()
    inside = actions.abs()[:, 0] < 1 - 2**-23  # what is beyond has no weight to speak of
    outputs = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(len(latent), 2)
    densities = log_densities(outputs, actions).exp() * (1 - actions[:, 0].square())
    assert float((densities[inside] * 24 / 20_000).sum()) == pytest.approx(1, abs=2e-3)


@given(outputs=st.lists(MODERATE, min_size=4, max_size=4), noise=st.lists(MODERATE, min_size=2, max_size=2))
def test_it_is_torch_s_own_transformed_distribution(outputs: list[float], noise: list[float]) -> None:
    given_outputs, given_noise = (torch.tensor([values], dtype=torch.float64) for values in (outputs, noise))
    means, log_stds = given_outputs.chunk(2, dim=-1)
    normal = distributions.Normal(means, log_stds.exp())
    squashed = distributions.TransformedDistribution(normal, [distributions.TanhTransform(cache_size=1)])
    found = sample(given_outputs, given_noise)
    latent = means + log_stds.exp() * given_noise
    expected = (normal.log_prob(latent) - torch.log1p(-latent.tanh().square())).sum(dim=-1)
    if float(latent.abs().max()) < 6:
        assert_allclose(found.log_probs, expected, rtol=1e-6, atol=1e-6)
        assert_allclose(log_densities(given_outputs, found.actions), found.log_probs, rtol=1e-5, atol=1e-5)
        assert_allclose(squashed.log_prob(found.actions).sum(dim=-1), expected, rtol=1e-5, atol=1e-5)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 5.0, 30.0]))
def test_the_gradient_is_autograd_s(seed: int, scale: float) -> None:
    """With a scale of 30, some log σ are clipped and some actions are ±1."""
    rng = np.random.default_rng(seed)
    outputs = torch.tensor(rng.normal(scale=scale, size=(5, 6)), requires_grad=True)
    noise, of_actions = (torch.tensor(rng.normal(size=(5, 3))) for _ in range(2))
    weight = torch.tensor(0.3, dtype=torch.float64)
    found = sample(outputs, noise)
    total = (found.actions * of_actions).sum() + weight * found.log_probs.sum()
    (expected,) = torch.autograd.grad(total, outputs)
    assert_allclose(
        output_gradient(sample(outputs.detach(), noise), of_actions, weight), expected, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize(
    ("before", "after", "std", "ratio"),
    [
        # Φ((12.5 − 9.0109)/0.5) / Φ((12 − 9.0109)/0.5) = 1: both policies nearly always play 1
        (12.0, 12.5, 0.5, 1.0),
        # Φ(11 − 9.0109) / Φ(10 − 9.0109) = 0.97665 / 0.83870
        (10.0, 11.0, 1.0, 1.16449),
        # the same on the other side
        (-10.0, -11.0, 1.0, 1.16449),
    ],
)
def test_an_action_rounded_to_one_has_a_probability(before: float, after: float, std: float, ratio: float) -> None:
    """The normal's density where tanh still tells numbers apart would make these ratios 8e-4, 0.16 and 0.16."""
    action = tensors([math.copysign(1, before)])
    old, new = (log_densities(tensors([mean, math.log(std)]), action) for mean in (before, after))
    assert_allclose((new - old).exp(), [ratio], rtol=1e-4)


def test_the_probability_of_one_is_how_often_it_is_drawn() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(100_000, 1)).astype(np.float32))
    actions = sample(tensors([9.5, 0.0]).expand(100_000, 2), noise).actions
    probability = float(log_densities(tensors([9.5, 0.0]), tensors([1.0])).exp())
    assert float((actions == 1).float().mean()) == pytest.approx(probability, abs=0.01)  # standard deviation 0.0015


# --- property ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [-40.0, -10.0, 9.5, 40.0])
def test_actions_at_the_bounds_have_finite_densities(mean: float) -> None:
    """tanh rounds to ±1 in float32; the ratio of a density to itself stays 1."""
    outputs = tensors([mean, -1.0])
    sampled = sample(outputs, tensors([0.5]))
    densities = log_densities(outputs, sampled.actions)
    assert torch.isfinite(torch.stack([sampled.log_probs, densities])).all()
    assert float(densities - log_densities(outputs, sampled.actions)) == 0
