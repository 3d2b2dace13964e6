"""SAC and TD3 with target networks: n-step returns against slow definitions and Stable-Baselines3; their targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sb3_peer import DISCOUNT, Peer, as_samples, wide_memory
from small_runs import small_config
from test_actor_critics import make_networks, plain_values, played_memory
from torch import Tensor

import lambda_replay as lr
from lambda_replay.agents.n_step import sample_slots
from lambda_replay.agents.protocol import Acted
from lambda_replay.agents.run_settings import override
from lambda_replay.agents.sac import SACConfig, SoftTargets
from lambda_replay.agents.sac_lambda import SAC, EntropyConfig
from lambda_replay.agents.target_actor_critic import TargetActorCritic, TargetValues
from lambda_replay.agents.td3 import SmoothedTargets
from lambda_replay.agents.td3_lambda import SmoothingConfig
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.squashed_gaussian import sample
from lambda_replay.learning.target_networks import TargetNetworks
from lambda_replay.randomness import RandomStreams, make_streams
from lambda_replay.replay.critic import promote_slots
from lambda_replay.replay.data import Minibatch
from lambda_replay.training.assembly import assemble, make_environments

ALPHA, BATCH = 0.7, 32
SMOOTHING = SmoothingConfig(std=0.2, clip=0.3)


class Recorder:
    """A method that keeps the minibatches it is given, and learns nothing."""

    def __init__(self, networks: ActorCritic) -> None:
        self.networks, self.minibatches = networks, list[Minibatch]()

    def train(
        self, minibatches: Iterable[Minibatch], shape: tuple[int, int], rng: np.random.Generator
    ) -> tuple[CriticSummary, dict[str, float]]:
        self.minibatches = list(minibatches)
        return CriticSummary(0.0, 0.0, [0.0], 0.0), {}

    def explore(self, networks: ActorCritic, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        raise AssertionError

    def critic(self, rng: np.random.Generator) -> lr.Critic:
        raise AssertionError

    def describe(self, batch: Minibatch) -> dict[str, float]:
        return {}

    def get_tensors(self) -> dict[str, dict[str, Tensor]]:
        return {}

    def set_tensors(self, tensors: Mapping[str, dict[str, Tensor]]) -> None: ...

    def check_finite(self) -> None: ...


def other_targets(networks: ActorCritic, parts: Any) -> TargetNetworks:
    """Targets that are far from the trained networks."""
    targets = TargetNetworks(networks, 0.5, parts)
    targets.load_weights({name: 0.7 * value + 0.05 for name, value in targets.weights().items()})
    return targets


def soft_targets(networks: ActorCritic, alpha: float, *, is_soft: bool = True) -> tuple[TargetNetworks, SoftTargets]:
    targets = other_targets(networks, ["critics"])
    method = SAC(SACConfig(entropy=EntropyConfig(alpha=alpha)), networks, 2)
    return targets, SoftTargets(targets.networks, method, is_soft, 2)


def smoothed_targets(networks: ActorCritic) -> tuple[TargetNetworks, SmoothedTargets]:
    targets = other_targets(networks, ["policy", "critics"])
    return targets, SmoothedTargets(targets.networks, SMOOTHING, 2)


def train_once(
    memory: lr.ReplayMemory, networks: ActorCritic, targets: TargetNetworks, values: TargetValues, n: int
) -> tuple[Minibatch, NDArray[Any], NDArray[np.float32]]:
    """The first minibatch that an agent trains on; its slots [B, n+1], and the noise [B, n, D] drawn for them."""
    config = override(
        small_config("Pendulum-v1", "sac"),
        {"estimator": f"nstep:{n}", "discount": DISCOUNT, "optimizer": {"batch_size": BATCH}},
    )
    streams: RandomStreams = make_streams(5, 1)
    recorder = Recorder(networks)
    agent = TargetActorCritic(
        config,
        config.algorithm.polyak,  # type: ignore[attr-defined]
        batch_size=BATCH,
        method=recorder,
        targets=targets,
        values=values,
        follow_every=100,
        memory=memory,
        streams=streams,
    )
    work = agent.learn(config.memory.start)
    assert work is not None
    work.train(lambda: True)
    rng = make_streams(5, 1).batches
    slots = sample_slots(memory, BATCH, n, rng)
    noise = rng.standard_normal((BATCH * n, 2), dtype=np.float32).reshape(BATCH, n, 2)
    return recorder.minibatches[0], slots, noise


def literal_return(memory: lr.ReplayMemory, slots: NDArray[Any], values: NDArray[Any], bonuses: NDArray[Any]) -> float:
    """Σ γⁱ·r_{t+i} and the bonuses of the states passed, then γᵐ·V where the return ends; one sample, step by step.

    Slots are [n+1]; values and bonuses [n] belong to the states after each step.
    """
    found, total, weight, n = memory.transitions(slots), 0.0, 1.0, len(slots) - 1
    for i in range(n):
        total += weight * float(found.rewards[i])
        if found.terminated[i]:
            return total
        weight *= DISCOUNT
        is_truncated = not found.is_step[i + 1]
        if is_truncated or i == n - 1:
            return total + weight * float(values[i])
        total += weight * float(bonuses[i])
    raise AssertionError


# --- literal definitions ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 5), is_soft=st.booleans())
def test_soft_n_step_returns_are_those_of_the_definition(seed: int, n: int, is_soft: bool) -> None:
    """The entropy of every step on the way counts; Q comes from the target critics, ã from the present policy."""
    memory, networks = played_memory(seed), make_networks(outputs=2, critics=2, seed=seed)
    targets, values = soft_targets(networks, ALPHA, is_soft=is_soft)
    batch, slots, noise = train_once(memory, networks, targets, values, n)
    assert_array_equal(batch.rows, slots[:, 0])
    assert_array_equal(batch.actions, memory.actions[slots[:, 0]])
    assert_array_equal(batch.states, memory.states(slots[:, 0]))
    states = torch.from_numpy(memory.states(slots[:, 1:].reshape(-1))[:, 0])
    with torch.no_grad():
        drawn = sample(networks.modules["policy"](states)[0], torch.from_numpy(noise.reshape(-1, 2)))
    entropies = (-ALPHA * drawn.log_probs.numpy() if is_soft else np.zeros(len(states))).reshape(BATCH, n)
    smaller = plain_values(targets.networks, states, drawn.actions).min(axis=0).reshape(BATCH, n)
    expected = [literal_return(memory, *each) for each in zip(slots, smaller + entropies, entropies, strict=True)]
    assert_allclose(batch.returns, expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 5))
def test_smoothed_n_step_returns_are_those_of_the_definition(seed: int, n: int) -> None:
    """Both the policy and the critics are the targets."""
    memory, networks = played_memory(seed), make_networks(outputs=1, critics=2, seed=seed)
    targets, values = smoothed_targets(networks)
    batch, slots, noise = train_once(memory, networks, targets, values, n)
    states = torch.from_numpy(memory.states(slots[:, 1:].reshape(-1))[:, 0])
    with torch.no_grad():
        policy = targets.networks.modules["policy"](states)[0].tanh().numpy()
    actions = np.clip(policy + np.clip(0.2 * noise.reshape(-1, 2), -0.3, 0.3), -1, 1).astype(np.float32)
    smaller = plain_values(targets.networks, states, torch.from_numpy(actions)).min(axis=0).reshape(BATCH, n)
    expected = [literal_return(memory, *each, np.zeros(n)) for each in zip(slots, smaller, strict=True)]
    assert_allclose(batch.returns, expected, rtol=1e-4, atol=1e-4)


# --- Stable-Baselines3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SAC", "TD3"])
def test_one_step_returns_are_the_peer_s_targets(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same trained weights, target weights, transitions and noise."""
    memory = wide_memory()
    networks = make_networks(outputs=2 if kind == "SAC" else 1, critics=2, inputs=8)
    if kind == "SAC":
        with torch.no_grad():
            # Away from ±1, where the peer's log(1 − a² + 10⁻⁶) differs from the logarithm itself.
            networks.modules["policy"].biases[-1][..., 2:] -= 2
    targets, values = soft_targets(networks, 0.05) if kind == "SAC" else smoothed_targets(networks)
    batch, slots, noise = train_once(memory, networks, targets, values, n=1)
    samples, _ = as_samples(promote_slots(memory, slots, discount=DISCOUNT, length=1))
    of_policy = torch.zeros((BATCH, 2))
    options = {"ent_coef": 0.05} if kind == "SAC" else {"target_policy_noise": 0.2, "target_noise_clip": 0.3}
    peer = Peer(getattr(stable_baselines3, kind), networks, monkeypatch, targets.networks, **options)
    noises = [*([of_policy] if kind == "SAC" else []), torch.from_numpy(noise[:, 0])]
    assert_allclose(batch.returns, peer.train(samples, noises), rtol=0, atol=1e-6)


# --- target networks --------------------------------------------------------------------------------------------------


def test_targets_follow_slowly_and_a_part_without_one_is_the_trained_part() -> None:
    networks = make_networks(outputs=2, critics=2)
    targets = TargetNetworks(networks, 0.25, ["critics"])
    assert list(targets.weights()) == [name for name in networks.weights() if name.startswith("critics.")]
    before = targets.weights()
    with torch.no_grad():
        for module in networks.modules.values():
            for parameter in module.parameters():
                parameter.add_(1)
    targets.follow()
    for name, value in targets.weights().items():
        assert_allclose(value, 0.25 * networks.weights()[name] + 0.75 * before[name], rtol=1e-6)
    states = torch.ones((4, 3))
    assert_array_equal(targets.networks.act(states), networks.act(states))
    assert not torch.equal(targets.networks.values(states, states[:, :2]), networks.values(states, states[:, :2]))
    with torch.no_grad():
        next(networks.modules["critics"].parameters()).fill_(torch.nan)
    targets.check_finite()
    targets.follow()
    with pytest.raises(lr.DivergenceError, match="the target networks' weights are"):
        targets.check_finite()


@pytest.mark.parametrize(("agent", "times"), [("sac", 5), ("td3", 2)])
def test_the_targets_of_td3_follow_when_its_policy_is_trained(
    agent: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five updates, a delay of two leaves the second and the fourth; the next is the first of the next five."""
    config = small_config("Pendulum-v1", agent)
    assembly = assemble(config, make_environments(config))
    events = assembly.loop.run()
    while assembly.loop.step < config.memory.start:
        next(events)
    follow, moved = TargetNetworks.follow, list[bool]()
    policy = assembly.agent.get_tensors()["weights"]["policy.weights.0"]

    def observe(targets: TargetNetworks) -> None:
        nonlocal policy
        now = assembly.agent.get_tensors()["weights"]["policy.weights.0"]
        moved.append(not torch.equal(now, policy))
        policy = now
        follow(targets)

    monkeypatch.setattr(TargetNetworks, "follow", observe)
    next(event for event in events if type(event).__name__ == "Learned")
    assert moved == [True] * times
    next(event for event in events if type(event).__name__ == "Learned")
    assert moved == [True] * (5 if agent == "td3" else 10)
    assert assembly.agent.get_state() == {"num_updates": 10}
