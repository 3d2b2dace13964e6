"""SAC(λ), TD3(λ), DDPG(λ): returns against slow definitions, a known problem and Stable-Baselines3; their updates."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sb3_peer import DISCOUNT, Peer, as_samples, next_noise, wide_memory
from torch import Tensor, nn

import lambda_replay as lr
from lambda_replay.agents.continuous import Minimum
from lambda_replay.agents.deterministic import DeterministicCritic
from lambda_replay.agents.sac_lambda import SoftCritic
from lambda_replay.learning.actor_critic import ActorCritic, make_ensembles
from lambda_replay.learning.critic_training import critic_gradient
from lambda_replay.learning.deterministic_learner import deterministic_policy_gradient
from lambda_replay.learning.soft_learner import soft_policy_gradient
from lambda_replay.learning.squashed_gaussian import sample
from lambda_replay.replay.critic import promote_slots

ALPHA = 0.05
CPU = torch.device("cpu")


def make_networks(
    *, outputs: int, critics: int, inputs: int = 3, size: int = 2, layer_norm: bool = False, seed: int = 0
) -> ActorCritic:
    ensembles = make_ensembles(
        inputs,
        size,
        policy_outputs=outputs * size,
        num_critics=critics,
        hidden=(8, 8),
        layer_norm=layer_norm,
        policy_bound=None,
        seed=seed,
    )
    return ActorCritic(*ensembles, CPU)


def played_memory(seed: int = 0, steps: int = 40) -> lr.ReplayMemory:
    """Random steps in episodes that end anywhere, terminated or truncated; states of three numbers, actions of two."""
    rng = np.random.default_rng(seed)
    memory = lr.ReplayMemory(200, (3,), np.float32, action_shape=(2,))
    is_open = False
    for _ in range(steps):
        if not is_open:
            memory.begin(rng.normal(size=3).astype(np.float32))
        terminated, truncated = rng.random(2) < 0.1
        action, log_prob = rng.uniform(-0.9, 0.9, 2).astype(np.float32), float(rng.normal())
        next_observation = rng.normal(size=3).astype(np.float32)
        memory.append(action, float(rng.normal()), next_observation, terminated, truncated, log_prob)
        is_open = not (terminated or truncated)
    return memory


def all_blocks(memory: lr.ReplayMemory, length: int = 12) -> lr.Promoted:
    """Blocks from every slot that can start one."""
    starts = np.arange(memory.written[0] - length)
    return promote_slots(memory, starts[:, None] + np.arange(length + 1), discount=DISCOUNT, length=length)


def build(blocks: lr.Promoted, critic: lr.Critic, estimator: str) -> lr.Cache:
    return lr.build_cache(blocks, critic, lr.parse_estimator(estimator))


# --- literal slow definitions -----------------------------------------------------------------------------------------


def literal_returns(
    blocks: lr.Promoted, lambda_: float, values: NDArray[Any], baselines: NDArray[Any]
) -> NDArray[np.float64]:
    """G_t = r_t + γ·[ V(s') − λ·b(s') + λ·G_{t+1} ] step by step, of one critic; V alone where the episode ends at t.

    Values and baselines are [K, L+1]; NaN at closing slots.
    """
    rewards, terminated, is_step = blocks.rewards, blocks.transitions.terminated, blocks.transitions.is_step
    returns = np.full(rewards.shape, np.nan)
    for k, t in itertools.product(range(rewards.shape[0]), range(rewards.shape[1] - 1, -1, -1)):
        if not is_step[k, t]:
            continue
        future = float(values[k, t + 1])
        if t < rewards.shape[1] - 1 and is_step[k, t + 1]:
            future += lambda_ * (returns[k, t + 1] - float(baselines[k, t + 1]))
        returns[k, t] = rewards[k, t] + (0.0 if terminated[k, t] else DISCOUNT * future)
    return returns


def plain_values(networks: ActorCritic, states: Tensor, actions: Tensor) -> NDArray[np.float32]:
    """Q_j(s, a) [N, n] of the plain modules."""
    with torch.no_grad():
        found = networks.modules["critics"](torch.cat([states, actions], dim=1))
    values: NDArray[np.float32] = found[..., 0].numpy()
    return values


def smallest(minimum: Minimum, returns_of: Any, values: NDArray[Any]) -> NDArray[np.float64]:
    """Returns of the smaller critic at each step, or the smaller of each critic's returns; values are [N, K, L+1]."""
    if minimum == "step":
        found: NDArray[np.float64] = returns_of(values.min(axis=0))
        return found
    return np.min([returns_of(own) for own in values], axis=0)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    lambda_=st.sampled_from([0.0, 0.4, 1.0]),
    minimum=st.sampled_from(["step", "return"]),
    is_soft=st.booleans(),
)
def test_soft_returns_are_those_of_the_definition(seed: int, lambda_: float, minimum: Minimum, is_soft: bool) -> None:
    blocks, networks = all_blocks(played_memory(seed)), make_networks(outputs=2, critics=2, seed=seed)
    critic = SoftCritic(networks, 0.7, np.random.default_rng(5), is_soft, minimum)
    cache = build(blocks, critic, f"peng:{lambda_}")
    states = torch.from_numpy(blocks.memory.states(blocks.slots.reshape(-1))[:, 0])
    noise = np.random.default_rng(5).standard_normal((len(states), 2), dtype=np.float32)
    with torch.no_grad():
        drawn = sample(networks.modules["policy"](states)[0], torch.from_numpy(noise))
    entropies = -0.7 * drawn.log_probs.numpy().reshape(blocks.slots.shape) if is_soft else np.zeros(blocks.slots.shape)
    q_values = plain_values(networks, states, drawn.actions).reshape(2, *blocks.slots.shape)
    expected = smallest(minimum, lambda own: literal_returns(blocks, lambda_, own + entropies, own), q_values)
    is_step = blocks.transitions.is_step[:, :-1]
    assert_allclose(cache.returns.reshape(is_step.shape)[is_step], expected[is_step], rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    lambda_=st.sampled_from([0.0, 0.4, 1.0]),
    minimum=st.sampled_from(["step", "return"]),
    num_critics=st.integers(1, 2),
)
def test_deterministic_returns_are_those_of_the_definition(
    seed: int, lambda_: float, minimum: Minimum, num_critics: int
) -> None:
    """With two critics and smoothing TD3, with one and none DDPG."""
    blocks, networks = all_blocks(played_memory(seed)), make_networks(outputs=1, critics=num_critics, seed=seed)
    smoothing = 0.2 if num_critics == 2 else 0.0
    critic = DeterministicCritic(networks, np.random.default_rng(5), smoothing, 0.3, minimum)
    cache = build(blocks, critic, f"peng:{lambda_}")
    states = torch.from_numpy(blocks.memory.states(blocks.slots.reshape(-1))[:, 0])
    noise = smoothing * np.random.default_rng(5).standard_normal((len(states), 2), dtype=np.float32)
    with torch.no_grad():
        policy = networks.modules["policy"](states)[0].tanh().numpy()
    actions = np.clip(policy + np.clip(noise, -0.3, 0.3), -1, 1).astype(np.float32)
    values = plain_values(networks, states, torch.from_numpy(actions)).reshape(num_critics, *blocks.slots.shape)
    expected = smallest(minimum, lambda own: literal_returns(blocks, lambda_, own, own), values)
    is_step = blocks.transitions.is_step[:, :-1]
    assert_allclose(cache.returns.reshape(is_step.shape)[is_step], expected[is_step], rtol=1e-4, atol=1e-4)


def test_retrace_takes_the_ratio_of_the_policy_s_density_to_the_stored_one() -> None:
    memory, networks = played_memory(1), make_networks(outputs=2, critics=2)
    blocks = all_blocks(memory)
    block = SoftCritic(networks, ALPHA, np.random.default_rng(0)).evaluate(blocks)
    states = torch.from_numpy(memory.states(blocks.slots.reshape(-1))[:, 0])
    with torch.no_grad():
        means, log_stds = networks.modules["policy"](states)[0].chunk(2, dim=-1)
        actions = torch.from_numpy(blocks.transitions.actions.reshape(-1, 2))
        normal = torch.distributions.Normal(means, log_stds.exp())
        log_probs = (normal.log_prob(actions.atanh()) - torch.log(1 - actions**2)).sum(dim=-1).numpy()
    ratios = np.exp(log_probs - blocks.transitions.behaviour_probs.reshape(-1)).reshape(blocks.slots.shape)
    is_step = blocks.transitions.is_step
    assert block.ratios is not None
    assert_allclose(block.ratios[is_step], ratios[is_step], rtol=1e-4)
    # c = λ·min(1, ratio): with ratios so small that every trace is cut, what is left is the one-step return.
    cut = replace(block, ratios=np.zeros_like(block.ratios))
    one_step = lr.parse_estimator("nstep:1")(replace(block, baselines=None))
    assert_allclose(lr.parse_estimator("retrace:1")(cut)[is_step[:, :-1]], one_step[is_step[:, :-1]], rtol=1e-5)


# --- a problem with known soft values ---------------------------------------------------------------------------------

REWARDS = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])  # [states, actions]
NEXT = np.array([[0, 1, 1], [1, 0, 0]])  # the state that each action leads to
POLICY = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
SPREAD = -(POLICY * np.log(POLICY)).sum(axis=1)  # the policy's entropy in each state
BLOCK = 4  # steps


def solve(rewards: NDArray[Any], entropies: NDArray[Any]) -> NDArray[np.float64]:
    """Q = r + γ·P·(Σ_a π(a)·Q(·, a) + entropy) as a linear system over the six pairs of state and action."""
    moves = np.zeros((6, 6))  # from a pair to the next
    for pair, state in enumerate(NEXT.reshape(-1)):
        moves[pair, 3 * state : 3 * state + 3] = POLICY[state]
    constant = rewards.reshape(-1) + DISCOUNT * entropies[NEXT.reshape(-1)]
    return np.linalg.solve(np.eye(6) - DISCOUNT * moves, constant).reshape(2, 3)


def all_paths() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """States and actions [K, L+1] of every path from every state, and its probability given its first action."""
    states, actions, weights = [], [], []
    for first, *choices in itertools.product(range(2), *[range(3)] * (BLOCK + 1)):
        path = [first]
        for action in choices[:-1]:
            path.append(int(NEXT[path[-1], action]))
        states.append(path)
        actions.append(choices)
        weights.append(np.prod([POLICY[s, a] for s, a in zip(path[1:], choices[1:], strict=True)]))
    return np.array(states), np.array(actions), np.array(weights)


def evaluate_policy(spelling: str, *, keeps_entropy: bool) -> NDArray[np.float64]:
    """Repeat Q(s, a) ← the exact mean of the returns of all paths that begin with (s, a) until nothing changes."""
    states, actions, weights = all_paths()
    estimator, q_values = lr.parse_estimator(spelling), np.zeros((2, 3))
    for _ in range(400):
        baselines = (POLICY * q_values).sum(axis=1)[states]  # [K, L+1]
        block = lr.ValueBlock(
            rewards=REWARDS[states, actions][:, :-1],
            discounts=np.full((len(states), BLOCK), DISCOUNT),
            values=baselines + SPREAD[states],
            action_values=q_values[states, actions],
            continues=np.ones((len(states), BLOCK), dtype=np.bool_),
            baselines=baselines if keeps_entropy else None,
        )
        first = estimator(block)[:, 0]
        for state, action in itertools.product(range(2), range(3)):
            own = (states[:, 0] == state) & (actions[:, 0] == action)
            q_values[state, action] = np.average(first[own], weights=weights[own])
    return q_values


@pytest.mark.parametrize("spelling", ["peng:0", "peng:0.3", "peng:0.7", "peng:1", "nstep:1", "nstep:3"])
def test_a_soft_critic_finds_the_exact_soft_values_whatever_lambda_is(spelling: str) -> None:
    assert_allclose(evaluate_policy(spelling, keeps_entropy=True), solve(REWARDS, SPREAD), rtol=1e-6)


@pytest.mark.parametrize("lambda_", [0.3, 0.7, 1.0])
def test_lambda_returns_that_replace_the_entropy_keep_a_share_of_it(lambda_: float) -> None:
    """The common mistake b = V: the values are those of an entropy weighted with (1 − λ)."""
    found = evaluate_policy(f"peng:{lambda_}", keeps_entropy=False)
    # A block's last step has no successor, so its entropy counts in full: λ acts on the others alone.
    first = solve(REWARDS, np.zeros(2))
    share = found - first
    assert (share > 0).all()
    expected = truncated_share(lambda_)
    assert_allclose(share, expected, rtol=1e-6)
    assert (solve(REWARDS, SPREAD) - found > 1).all()


def truncated_share(lambda_: float) -> NDArray[np.float64]:
    """What is left of the entropy with b = V in blocks of L steps: e = Σ_{i≥1} γⁱ·λⁱ⁻¹·(1 − λ)·(H + e) … + the last.

    A λ-return of L steps is a mean of n-step returns with weights (1 − λ)·λⁿ⁻¹, and λᴸ⁻¹ for n = L; each has the
    entropy of its last state alone, and bootstraps from values that hold e.
    """
    lengths = np.arange(1, BLOCK + 1)
    weights = np.where(lengths < BLOCK, (1 - lambda_) * lambda_ ** (lengths - 1.0), lambda_ ** (BLOCK - 1.0))
    return n_step_share(dict(zip(lengths.tolist(), weights.tolist(), strict=True)))


def n_step_share(weights: dict[int, float]) -> NDArray[np.float64]:
    """e(s, a) = Σ_n w_n·γⁿ·E[ (H + Σ_a π·e)(s_{t+n}) ] as a linear system."""
    between = np.zeros((2, 2))  # between states, under the policy
    for state, action in itertools.product(range(2), range(3)):
        between[state, NEXT[state, action]] += POLICY[state, action]
    first = np.zeros((6, 2))
    first[np.arange(6), NEXT.reshape(-1)] = 1
    ahead = sum(
        (weight * DISCOUNT**n * first @ np.linalg.matrix_power(between, n - 1) for n, weight in weights.items()),
        start=np.zeros((6, 2)),
    )  # [pairs, states]
    average = np.zeros((2, 6))
    for state in range(2):
        average[state, 3 * state : 3 * state + 3] = POLICY[state]
    return np.linalg.solve(np.eye(6) - ahead @ average, ahead @ SPREAD).reshape(2, 3)


@pytest.mark.parametrize("n", [2, 3])
def test_n_step_returns_without_the_entropies_between_keep_every_nth_only(n: int) -> None:
    """The other common mistake: bootstrap from a soft value after n steps, and forget the entropies passed."""
    found = evaluate_policy(f"nstep:{n}", keeps_entropy=False)
    assert_allclose(found - solve(REWARDS, np.zeros(2)), n_step_share({n: 1.0}), rtol=1e-6)
    assert (solve(REWARDS, SPREAD) - found > 1).all()


# --- Stable-Baselines3 ------------------------------------------------------------------------------------------------


def test_without_lambda_a_soft_return_is_the_peer_s_target_and_so_is_the_policy_s_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    networks = make_networks(outputs=2, critics=2, inputs=8)
    with torch.no_grad():
        # Away from ±1, where the peer's log(1 − a² + 10⁻⁶) differs from the logarithm itself.
        networks.modules["policy"].biases[-1][..., 2:] -= 2
    blocks = all_blocks(wide_memory())
    samples, is_step = as_samples(blocks)
    peer = Peer(stable_baselines3.SAC, networks, monkeypatch, ent_coef=ALPHA, learning_rate=1e-2)
    of_policy = torch.randn(samples.actions.shape, generator=torch.Generator().manual_seed(0))
    targets = peer.train(samples, [of_policy, next_noise(blocks, is_step, seed=9)])
    cache = build(blocks, SoftCritic(networks, ALPHA, np.random.default_rng(9)), "peng:0")
    assert_allclose(cache.returns.reshape(is_step.shape)[is_step], targets, rtol=0, atol=1e-6)
    # Its policy's step comes after that of its critics, so ours must start from those.
    for number, network in enumerate(peer.model.critic.q_networks):
        for own, layer in enumerate(layer for layer in network if isinstance(layer, nn.Linear)):
            with torch.no_grad():
                networks.modules["critics"].weights[own][number] = layer.weight.t()
                networks.modules["critics"].biases[own][number, 0] = layer.bias
    alpha = torch.tensor(ALPHA)
    gradients, _ = soft_policy_gradient(networks.policy, networks.critics, samples.observations, of_policy, alpha)
    first = next(layer for layer in peer.model.actor.latent_pi if isinstance(layer, nn.Linear))
    assert first.weight.grad is not None
    assert_allclose(gradients[0][0].t(), first.weight.grad, rtol=1e-3, atol=1e-6)
    of_outputs = torch.cat([peer.model.actor.mu.weight.grad, peer.model.actor.log_std.weight.grad])
    assert_allclose(gradients[2][0].t(), of_outputs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["TD3", "DDPG"])
def test_without_lambda_a_deterministic_return_is_the_peer_s_target(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    num_critics, smoothing, clip = (2, 0.2, 0.3) if kind == "TD3" else (1, 0.0, 0.0)
    networks = make_networks(outputs=1, critics=num_critics, inputs=8)
    blocks = all_blocks(wide_memory())
    samples, is_step = as_samples(blocks)
    options: dict[str, Any] = {"target_policy_noise": smoothing, "target_noise_clip": clip} if kind == "TD3" else {}
    peer = Peer(getattr(stable_baselines3, kind), networks, monkeypatch, **options)
    targets = peer.train(samples, [next_noise(blocks, is_step, seed=9)])
    critic = DeterministicCritic(networks, np.random.default_rng(9), smoothing, clip)
    cache = build(blocks, critic, "peng:0")
    assert_allclose(cache.returns.reshape(is_step.shape)[is_step], targets, rtol=0, atol=1e-6)


# --- updates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_gradients_of_an_update_are_autograd_s(layer_norm: bool) -> None:
    rng = np.random.default_rng(0)
    states, noise = (torch.from_numpy(rng.normal(size=(6, n)).astype(np.float32)) for n in (3, 2))
    actions = torch.from_numpy(rng.uniform(-1, 1, (6, 2)).astype(np.float32))
    returns, alpha = torch.from_numpy(rng.normal(size=6).astype(np.float32)), torch.tensor(0.3)
    soft = make_networks(outputs=2, critics=2, layer_norm=layer_norm)
    policy, critics = soft.modules["policy"], soft.modules["critics"]
    for is_huber, loss_of in ((False, nn.functional.mse_loss), (True, nn.functional.huber_loss)):
        values = critics(torch.cat([states, actions], dim=1))[..., 0]
        loss = sum((loss_of(own, returns) for own in values), start=torch.zeros(()))
        expected = torch.autograd.grad(loss, list(critics.parameters()))
        found = critic_gradient(soft.critics, torch.cat([states, actions], dim=1), returns, is_huber=is_huber)
        assert_allclose(found.errors, returns - values.detach(), atol=1e-6)
        for one, other in zip(found.gradients, expected, strict=True):
            assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    drawn = sample(policy(states)[0], noise)
    q_values = critics(torch.cat([states, drawn.actions], dim=1))[..., 0].amin(dim=0)
    expected = torch.autograd.grad((alpha * drawn.log_probs - q_values).mean(), list(policy.parameters()))
    gradients, log_probs = soft_policy_gradient(soft.policy, soft.critics, states, noise, alpha)
    assert_allclose(log_probs, drawn.log_probs.detach(), rtol=1e-5)
    for one, other in zip(gradients, expected, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    plain = make_networks(outputs=1, critics=2, layer_norm=layer_norm)
    policy, critics = plain.modules["policy"], plain.modules["critics"]
    first = critics(torch.cat([states, policy(states)[0].tanh()], dim=1))[0, :, 0]
    expected = torch.autograd.grad(-first.mean(), list(policy.parameters()))
    gradients = deterministic_policy_gradient(plain.policy, plain.critics.each[0], states, action_size=2)
    for one, other in zip(gradients, expected, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_weights_are_copied_saved_and_refused_if_they_belong_to_others() -> None:
    networks, others = make_networks(outputs=2, critics=2), make_networks(outputs=2, critics=2, seed=1)
    saved = networks.weights()
    assert not all(torch.equal(value, others.weights()[name]) for name, value in saved.items())
    others.load_weights(saved)
    states = torch.zeros((4, 3))
    assert_array_equal(others.act(states), networks.act(states))
    twin = networks.copy()
    with torch.no_grad():
        networks.modules["policy"].biases[-1].add_(1)
    assert not torch.equal(twin.act(states), networks.act(states))
    networks.copy_weights_to(twin)
    assert_array_equal(twin.act(states), networks.act(states))
    with pytest.raises(lr.ConfigError, match="belong to other networks"):
        others.load_weights(make_networks(outputs=1, critics=2).weights())
