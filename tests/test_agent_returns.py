"""The returns of SAC(λ), TD3(λ) and DDPG(λ) with every estimator that they accept, against slow definitions.

Those of NAF(λ) and SDQN(λ) are in test_quadratic.py and test_sequential.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from test_actor_critics import all_blocks, build, make_networks, plain_values, played_memory
from torch import Tensor
from value_oracles import assert_literal, valued

import lambda_replay as lr
from lambda_replay.agents.continuous import Minimum
from lambda_replay.agents.deterministic import DeterministicCritic
from lambda_replay.agents.sac_lambda import SoftCritic
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.squashed_gaussian import sample
from lambda_replay.replay.data import ValueBlock

ESTIMATORS = ["peng:0", "peng:0.4", "peng:1", "nstep:1", "nstep:3", "median/4", "bounded:1"]
ALPHA = 0.7


def states_and_actions(blocks: lr.Promoted) -> tuple[Tensor, Tensor]:
    """Of every slot, in one row each; at a closing slot the action means nothing."""
    states = blocks.memory.states(blocks.slots.reshape(-1))[:, 0]
    return torch.from_numpy(states), torch.from_numpy(blocks.transitions.actions.reshape(len(states), -1))


def density_ratios(networks: ActorCritic, blocks: lr.Promoted) -> NDArray[np.float32]:
    """π(a|s)/μ(a|s) [K, L+1] of the stored actions, with torch's own Gaussian."""
    states, actions = states_and_actions(blocks)
    with torch.no_grad():
        means, log_stds = networks.modules["policy"](states)[0].chunk(2, dim=-1)
        normal = torch.distributions.Normal(means, log_stds.exp())
        log_probs = (normal.log_prob(actions.atanh()) - torch.log(1 - actions**2)).sum(dim=-1).numpy()
    ratios: NDArray[np.float32] = np.exp(log_probs.reshape(blocks.slots.shape) - blocks.transitions.behaviour_probs)
    return ratios


def critics_of(
    blocks: lr.Promoted, values: NDArray[np.float32], taken: NDArray[np.float32], minimum: Minimum
) -> list[ValueBlock]:
    """Each critic alone, from V(s) and Q(s, a) [N, K, L+1], or one that has the smallest of them at each step."""
    if minimum == "step":
        return [valued(blocks, values.min(axis=0), taken.min(axis=0))]
    return [valued(blocks, *own) for own in zip(values, taken, strict=True)]


@pytest.mark.parametrize("spelling", [*ESTIMATORS, "retrace:0.6", "retrace:1"])
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32 - 1), minimum=st.sampled_from(["step", "return"]), is_soft=st.booleans())
def test_soft_returns_are_those_of_the_definition(seed: int, spelling: str, minimum: Minimum, is_soft: bool) -> None:
    blocks, networks = all_blocks(played_memory(seed)), make_networks(outputs=2, critics=2, seed=seed)
    cache = build(blocks, SoftCritic(networks, ALPHA, np.random.default_rng(5), is_soft, minimum), spelling)
    states, actions = states_and_actions(blocks)
    noise = np.random.default_rng(5).standard_normal((len(states), 2), dtype=np.float32)
    with torch.no_grad():
        drawn = sample(networks.modules["policy"](states)[0], torch.from_numpy(noise))
    shape = (2, *blocks.slots.shape)
    of_drawn, taken = (plain_values(networks, states, each).reshape(shape) for each in (drawn.actions, actions))
    entropies = -ALPHA * drawn.log_probs.numpy().reshape(shape[1:])
    ratios = density_ratios(networks, blocks)
    critics = [
        replace(own, values=own.values + entropies, baselines=own.values, ratios=ratios)
        if is_soft
        else replace(own, ratios=ratios)
        for own in critics_of(blocks, of_drawn, taken, minimum)
    ]
    assert_literal(cache, spelling, critics, taken.mean(axis=0))


@pytest.mark.parametrize("spelling", ESTIMATORS)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32 - 1), minimum=st.sampled_from(["step", "return"]), num_critics=st.integers(1, 2))
def test_deterministic_returns_are_those_of_the_definition(
    seed: int, spelling: str, minimum: Minimum, num_critics: int
) -> None:
    """With two critics and smoothing TD3, with one and none DDPG."""
    blocks, networks = all_blocks(played_memory(seed)), make_networks(outputs=1, critics=num_critics, seed=seed)
    smoothing = 0.2 if num_critics == 2 else 0.0
    cache = build(blocks, DeterministicCritic(networks, np.random.default_rng(5), smoothing, 0.3, minimum), spelling)
    states, actions = states_and_actions(blocks)
    noise = smoothing * np.random.default_rng(5).standard_normal((len(states), 2), dtype=np.float32)
    with torch.no_grad():
        policy = networks.modules["policy"](states)[0].tanh().numpy()
    smoothed = torch.from_numpy(np.clip(policy + np.clip(noise, -0.3, 0.3), -1, 1).astype(np.float32))
    shape = (num_critics, *blocks.slots.shape)
    of_smoothed, taken = (plain_values(networks, states, each).reshape(shape) for each in (smoothed, actions))
    assert_literal(cache, spelling, critics_of(blocks, of_smoothed, taken, minimum), taken.mean(axis=0))


def test_retrace_takes_the_ratio_of_the_policy_s_density_to_the_stored_one() -> None:
    networks, blocks = make_networks(outputs=2, critics=2), all_blocks(played_memory(1))
    block = SoftCritic(networks, ALPHA, np.random.default_rng(0)).evaluate(blocks)
    is_step = blocks.transitions.is_step
    assert block.ratios is not None
    assert_allclose(block.ratios[is_step], density_ratios(networks, blocks)[is_step], rtol=1e-4)
    # c = λ·min(1, ratio): with ratios so small that every trace is cut, what is left is the one-step return.
    cut = replace(block, ratios=np.zeros_like(block.ratios))
    one_step = lr.parse_estimator("nstep:1")(replace(block, baselines=None))
    assert_allclose(lr.parse_estimator("retrace:1")(cut)[is_step[:, :-1]], one_step[is_step[:, :-1]], rtol=1e-5)
