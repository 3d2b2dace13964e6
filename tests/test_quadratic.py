"""NAF(λ): Q-values against an explicit matrix, returns against a slow definition, gradients against autograd's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from test_actor_critics import all_blocks, build, played_memory
from torch import Tensor, nn
from value_oracles import assert_literal, valued

from lambda_replay.agents.naf_lambda import QuadraticCritic
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.quadratic import evaluate, kept_inside, make_modules, make_quadratic, quadratic_gradient


def make_networks(seed: int = 0, *, inputs: int = 3, size: int = 2, layer_norm: bool = False) -> ActorCritic:
    modules = make_modules(inputs, size, hidden=(8, 8), layer_norm=layer_norm, precision=1.0, seed=seed)
    return ActorCritic(*modules, torch.device("cpu"))


def literal_q(policy_outputs: Tensor, critic_outputs: Tensor, action: Tensor) -> float:
    """V − ½·(a − μ)ᵀ·P·(a − μ) of one state, with P = L·Lᵀ filled in entry by entry (Gu et al. 2016, section 4)."""
    size = len(action)
    factor, entries = np.zeros((size, size)), iter(critic_outputs[1:].tolist())
    for row in range(size):
        for column in range(row + 1):
            entry = next(entries)
            factor[row, column] = np.exp(entry) if row == column else entry
    precision = factor @ factor.T
    away = action.numpy().astype(np.float64) - policy_outputs.numpy()
    return float(critic_outputs[0]) - 0.5 * float(away @ precision @ away)


def test_by_hand() -> None:
    """L = [[1, 0], [2, 3]] gives P = [[1, 2], [2, 13]]; away (1, −1) costs ½·(1 − 4 + 13) = 5, so Q = 7 − 5."""
    outputs = torch.tensor([[7.0, 0.0, 2.0, float(np.log(3))]])
    quadratic = make_quadratic(torch.tensor([[-0.5, 0.5]]), outputs)
    assert_allclose(quadratic.factors[0], [[1, 0], [2, 3]], rtol=1e-6)
    assert quadratic.q_values(torch.tensor([[0.5, -0.5]])).item() == pytest.approx(2.0)
    assert quadratic.q_values(torch.tensor([[-0.5, 0.5]])).item() == 7.0  # the best action


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_q_values_are_those_of_the_explicit_matrix(size: int) -> None:
    rng = np.random.default_rng(size)
    policy, critic, actions = (
        torch.from_numpy(rng.normal(size=(6, n)).astype(np.float32)) for n in (size, 1 + size * (size + 1) // 2, size)
    )
    quadratic = make_quadratic(policy, critic)
    expected = [literal_q(*each) for each in zip(policy, critic, actions, strict=True)]
    assert_allclose(quadratic.q_values(actions), expected, rtol=1e-4)
    assert (quadratic.q_values(actions) < quadratic.values).all()


def test_an_enormous_output_does_not_overflow() -> None:
    quadratic = make_quadratic(torch.zeros((1, 1)), torch.tensor([[0.0, 1e6]]))
    assert torch.isfinite(quadratic.q_values(torch.ones((1, 1)))).all()


@pytest.mark.parametrize("spelling", ["peng:0", "peng:0.4", "peng:1", "nstep:1", "nstep:3", "median/4", "bounded:1"])
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32 - 1))
def test_returns_are_those_of_the_definition(seed: int, spelling: str) -> None:
    """V in closed form bootstraps, and is the baseline; TD errors are those of the stored actions."""
    blocks, networks = all_blocks(played_memory(seed)), make_networks(seed)
    cache = build(blocks, QuadraticCritic(networks), spelling)
    states = torch.from_numpy(blocks.memory.states(blocks.slots.reshape(-1))[:, 0])
    with torch.no_grad():
        outputs = [networks.modules[part](states)[0] for part in ("policy", "critics")]
    values = outputs[1][:, 0].numpy().reshape(blocks.slots.shape)
    actions = torch.from_numpy(blocks.transitions.actions.reshape(-1, 2))
    taken = np.array([literal_q(*each) for each in zip(*outputs, actions, strict=True)]).reshape(values.shape)
    assert_literal(cache, spelling, [valued(blocks, values, taken)], taken)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("is_huber", [False, True])
def test_the_gradients_are_autograd_s_on_the_plain_networks(layer_norm: bool, is_huber: bool) -> None:
    networks, rng = make_networks(layer_norm=layer_norm), np.random.default_rng(0)
    states, actions = (torch.from_numpy(rng.normal(size=(6, n)).astype(np.float32)) for n in (3, 2))
    returns = torch.from_numpy(rng.normal(size=6).astype(np.float32))
    policy, critic = networks.modules["policy"], networks.modules["critics"]
    values = make_quadratic(policy(states)[0], critic(states)[0]).q_values(actions)
    loss = (nn.functional.huber_loss if is_huber else nn.functional.mse_loss)(values, returns)
    expected = torch.autograd.grad(loss, [*policy.parameters(), *critic.parameters()])
    with torch.no_grad():
        assert evaluate(networks, states).means.abs().max() < 1  # where the gradient is the plain one
        found = quadratic_gradient(networks, states, actions, returns, is_huber=is_huber)
    assert_allclose(found.values, values.detach(), rtol=1e-5)
    assert_allclose(found.errors, returns - values.detach(), rtol=1e-5)
    for one, other in zip([*found.policy, *found.critic], expected, strict=True):
        assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_a_mean_outside_comes_back_whatever_its_gradient() -> None:
    means = torch.tensor([[0.5, 1.5, -1.5, 1.5, -1.5]])
    gradient = torch.tensor([[-2.0, -2.0, 2.0, 2.0, -2.0]])  # descent would raise the first two
    assert_allclose(kept_inside(gradient, means), [[-2.0, 1.0, -1.0, 2.0, -2.0]])


@pytest.mark.parametrize("size", [1, 3])
def test_the_precision_at_the_start(size: int) -> None:
    modules = make_modules(3, size, hidden=(8,), layer_norm=False, precision=100.0, seed=0)
    factors = evaluate(ActorCritic(*modules, torch.device("cpu")), torch.zeros((1, 3))).factors[0]
    assert_allclose(np.diag((factors @ factors.t()).numpy()), np.full(size, 100.0), rtol=1)
    assert factors.diagonal().min() > 5
