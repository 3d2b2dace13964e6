"""SDQN(λ): choices, values and gradients against slow definitions, and a problem whose numbers depend on each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from test_actor_critics import all_blocks, build, played_memory
from torch import Tensor, nn
from value_oracles import assert_literal, valued

import lambda_replay as lr
from lambda_replay.agents.sdqn_lambda import SDQN, SDQNLambdaConfig, SequentialCritic, choose_actions
from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.sequential import SequentialLearner, SequentialNetworks, make_module, sequential_gradient
from lambda_replay.replay.data import Minibatch

BINS = 5
CENTRES = (-1.0, -0.5, 0.0, 0.5, 1.0)


def make_networks(seed: int = 0, *, inputs: int = 3, size: int = 2, layer_norm: bool = False) -> SequentialNetworks:
    module = make_module(inputs, size, BINS, hidden=(8, 8), layer_norm=layer_norm, seed=seed)
    return SequentialNetworks(module, torch.device("cpu"))


def literal_row(networks: SequentialNetworks, state: Tensor, before: list[float]) -> Tensor:
    """Q^d(s, a₁, …, a_{d−1}, ·) [bins] of one state, by the plain module; numbers that are not chosen yet are 0."""
    size = len(networks.each)
    padded = torch.tensor([*before, *[0.0] * (size - 1 - len(before))])
    row: Tensor = networks.module(torch.cat([state, padded])[None])[len(before), 0]
    return row


def nearest_bin(number: float) -> int:
    return min(range(BINS), key=lambda index: abs(CENTRES[index] - number))


def states_of(blocks: lr.Promoted) -> Tensor:
    return torch.from_numpy(blocks.memory.states(blocks.slots.reshape(-1))[:, 0])


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_numbers_are_chosen_one_after_another(size: int) -> None:
    networks, rng = make_networks(size, size=size), np.random.default_rng(1)
    states = rng.normal(size=(30, 1, 3)).astype(np.float32)
    found = choose_actions(networks, states, 0.4, np.random.default_rng(7))
    rng = np.random.default_rng(7)
    is_random, random = rng.random((30, size)) < 0.4, rng.integers(BINS, size=(30, size))
    for number, state in enumerate(torch.from_numpy(states[:, 0])):
        chosen: list[float] = []
        chance = 1.0
        for d in range(size):
            best = int(literal_row(networks, state, chosen).argmax())
            index = int(random[number, d]) if is_random[number, d] else best
            chance *= 0.4 / BINS + (0.6 if index == best else 0.0)
            chosen.append(CENTRES[index])
        assert_array_equal(found.actions[number], chosen)
        assert found.behaviour_probs[number] == pytest.approx(np.log(chance))
    assert found.actions.dtype == np.float32


def test_at_the_start_every_bin_is_as_likely() -> None:
    networks = make_networks()
    actions, log_probs, _ = choose_actions(networks, np.zeros((5_000, 1, 3), np.float32), 1.0, np.random.default_rng(0))
    _, counts = np.unique(actions, axis=0, return_counts=True)
    assert len(counts) == BINS**2
    assert abs(counts - 200).max() < 60  # four standard deviations of √200
    assert_allclose(log_probs, -2 * np.log(BINS))


def test_a_number_between_two_bins_counts_as_the_nearest() -> None:
    networks = make_networks(size=1)
    numbers = [-1.0, -0.76, -0.74, 0.2, 0.26, 1.0]
    assert networks.indices(torch.tensor(numbers)[:, None])[:, 0].tolist() == [nearest_bin(each) for each in numbers]


# --- returns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["peng:0", "peng:0.4", "peng:1", "nstep:1", "nstep:3", "median/4", "bounded:1"])
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_returns_are_those_of_the_definition(seed: int, spelling: str) -> None:
    """V is the largest of the first row; Q(s, a) that of the last, after the numbers before."""
    blocks, networks = all_blocks(played_memory(seed, steps=24), length=6), make_networks(seed)
    cache = build(blocks, SequentialCritic(networks), spelling)
    states, actions = states_of(blocks), blocks.transitions.actions.reshape(-1, 2).tolist()
    with torch.no_grad():
        values = np.array([literal_row(networks, state, []).max().item() for state in states])
        taken = np.array(
            [
                literal_row(networks, state, [first])[nearest_bin(last)].item()
                for state, (first, last) in zip(states, actions, strict=True)
            ]
        )
    values, taken = values.reshape(blocks.slots.shape), taken.reshape(blocks.slots.shape)
    assert_literal(cache, spelling, [valued(blocks, values, taken)], taken)


# --- updates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("layer_norm", "is_huber"), [(False, False), (True, True)])
def test_the_gradient_is_autograd_s_of_the_literal_loss(size: int, layer_norm: bool, is_huber: bool) -> None:
    """The target of a number is the next one's largest value, undiscounted and held fixed; of the last, the return."""
    networks, rng = make_networks(size=size, layer_norm=layer_norm), np.random.default_rng(0)
    states = torch.from_numpy(rng.normal(size=(4, 3)).astype(np.float32))
    indices = rng.integers(BINS, size=(4, size))
    actions = np.array(CENTRES, dtype=np.float32)[indices]
    returns = torch.from_numpy(rng.normal(size=4).astype(np.float32))
    loss_of = nn.functional.huber_loss if is_huber else nn.functional.mse_loss
    loss, errors = torch.zeros(()), np.zeros((size, 4))
    for n in range(4):
        rows = [literal_row(networks, states[n], actions[n, :d].tolist()) for d in range(size)]
        targets = [*(row.max().detach() for row in rows[1:]), returns[n]]
        for d in range(size):
            value = rows[d][indices[n, d]]
            loss = loss + loss_of(value, targets[d]) / 4
            errors[d, n] = float(targets[d] - value.detach())
    expected = torch.autograd.grad(loss, list(networks.module.parameters()))
    with torch.no_grad():
        found = sequential_gradient(networks, states, torch.from_numpy(actions), returns, is_huber=is_huber)
    assert_allclose(found.errors, errors, rtol=1e-4, atol=1e-6)
    for one, other in zip(found.gradients, expected, strict=True):
        assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_the_best_pair_is_found_though_its_first_number_is_worse_on_average() -> None:
    """Returns of all pairs are given; Q¹ must learn the largest of each row of this table, not its mean."""
    table = np.full((BINS, BINS), -1.0)
    table[1, 4], table[3] = 2.0, 1.0  # the first number 1 is best with 4 after it; 3 is safe
    networks = make_networks(seed=3, inputs=1)
    learner = SequentialLearner(networks, OptimizerConfig(learning_rate=1e-2, epsilon=1e-8))
    pairs: NDArray[np.int64] = np.array(list(np.ndindex(BINS, BINS)))
    batch = Minibatch(
        np.zeros((len(pairs), 1, 1), dtype=np.float32),
        np.array(CENTRES, dtype=np.float32)[pairs],
        table[pairs[:, 0], pairs[:, 1]].astype(np.float32),
        np.arange(len(pairs)),
    )
    learner.train([batch] * 600)
    state = torch.zeros((1, 1))
    with torch.no_grad():
        assert_allclose(networks.row(state, torch.zeros((1, 2)), 0)[0], table.max(axis=1), atol=0.1)
    best = choose_actions(networks, np.zeros((1, 1, 1), np.float32), 0.0, np.random.default_rng(0)).actions
    assert_array_equal(best, [[CENTRES[1], CENTRES[4]]])


def test_dead_units_are_those_of_the_inputs_that_each_network_sees() -> None:
    """Units that only the action's first number wakes: the first network never sees it, the second does."""
    networks = make_networks(size=2)
    with torch.no_grad():
        networks.module.weights[0].zero_()
        networks.module.weights[0][:, -1] = 1
        networks.module.biases[0].fill_(-0.25)
    method = SDQN(SDQNLambdaConfig(bins=BINS), networks)
    states, actions = np.zeros((10, 1, 3), dtype=np.float32), np.ones((10, 2), dtype=np.float32)
    batch = Minibatch(states, actions, np.zeros(10, dtype=np.float32), np.arange(10))
    assert method.describe(batch)["dead_share_1"] == 1 / 2


def test_weights_are_copied_saved_and_refused_if_they_belong_to_others() -> None:
    networks, others = make_networks(), make_networks(1)
    states = torch.ones((2, 3))
    twin = networks.copy()
    others.load_weights(networks.weights())
    assert_array_equal(others.values(states).detach(), networks.values(states).detach())
    with torch.no_grad():
        networks.module.biases[-1].add_(1)
    assert_allclose(networks.values(states).detach(), twin.values(states).detach() + 1, rtol=1e-5)
    networks.copy_weights_to(twin)
    assert_array_equal(networks.values(states).detach(), twin.values(states).detach())
    with pytest.raises(lr.ConfigError, match="belong to other networks"):
        networks.load_weights(make_networks(size=3).weights())
