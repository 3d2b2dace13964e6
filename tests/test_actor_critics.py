"""SAC(λ), TD3(λ), DDPG(λ): returns against Stable-Baselines3's, what acting stores, and their updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from sb3_peer import DISCOUNT, Peer, as_samples, next_noise, wide_memory
from torch import Tensor, nn

import lambda_replay as lr
from lambda_replay.agents.deterministic import DeterministicCritic
from lambda_replay.agents.sac_lambda import SoftCritic
from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.actor_critic import ActorCritic, make_ensembles
from lambda_replay.learning.critic_training import critic_gradient
from lambda_replay.learning.deterministic_learner import DeterministicLearner, deterministic_policy_gradient
from lambda_replay.learning.soft_learner import soft_policy_gradient
from lambda_replay.learning.squashed_gaussian import sample
from lambda_replay.replay.critic import promote_slots
from lambda_replay.replay.data import Minibatch

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


def plain_values(networks: ActorCritic, states: Tensor, actions: Tensor) -> NDArray[np.float32]:
    """Q_j(s, a) [N, n] of the plain modules."""
    with torch.no_grad():
        found = networks.modules["critics"](torch.cat([states, actions], dim=1))
    values: NDArray[np.float32] = found[..., 0].numpy()
    return values


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


@pytest.mark.parametrize("policy_every", [2, 3])
def test_the_delay_is_counted_where_float32_ends(policy_every: int) -> None:
    """At 2²⁴, from where 1 can no longer be added to a float32; after each update another learner goes on."""
    rng, config = np.random.default_rng(0), OptimizerConfig(learning_rate=0.01)
    states, actions = (rng.uniform(-1, 1, (8, *shape)).astype(np.float32) for shape in ((1, 3), (2,)))
    batch = Minibatch(states, actions, np.ones(8, dtype=np.float32), np.arange(8))
    networks = make_networks(outputs=1, critics=2)
    learner = DeterministicLearner(networks, config, policy_every=policy_every)
    learner.load_optimizer_state({**learner.optimizer_state(), "critics.step.0": torch.tensor(2**24 - 3)})
    for number in range(2**24 - 2, 2**24 + 8):
        before = networks.weights()["policy.weights.0"]
        learner.train([batch])
        moved = not torch.equal(before, networks.weights()["policy.weights.0"])
        assert moved == (number % policy_every == 0), number
        saved = load_bytes(save_bytes(learner.optimizer_state()))
        assert int(saved["critics.step.0"]) == number
        learner = DeterministicLearner(networks, config, policy_every=policy_every)
        learner.load_optimizer_state(saved)


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
