"""The replay buffer for Stable-Baselines3, with its real agents: the targets they regress on, and what is stored."""

from __future__ import annotations

import ast
import importlib
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from stable_baselines3.her import HerReplayBuffer

from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.sb3 import AttachCallback, LambdaReplayBuffer
from lambda_replay.sb3.critics import ignores_next_states, propose_sac
from lambda_replay.sb3.settings import Settings

DISCRETE, CONTINUOUS = spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)
ALGORITHMS: list[type[OffPolicyAlgorithm]] = [DQN, DDPG, TD3, SAC]


class Counting(gym.Env[Any, Any]):
    """Observes how many steps the game has had, plus 100 for every game; step n pays n, and the third is the last.

    The third step terminates, but truncates if ``truncates`` and the game's number is even.
    """

    def __init__(
        self,
        action_space: spaces.Space[Any] = DISCRETE,
        observe: Callable[[int], Any] | None = None,
        truncates: bool = False,
    ) -> None:
        self.action_space, self.truncates = action_space, truncates
        self.observe = observe or (lambda number: np.array([number], np.float32))
        shown = self.observe(1)
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 1e6, shown.shape, np.float32)
        if shown.dtype == np.uint8:
            self.observation_space = spaces.Box(0, 255, shown.shape, np.uint8)
        self.games = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.games, self.steps = self.games + 1, 0
        return self.observe(100 * self.games), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation, is_last = self.observe(100 * self.games + self.steps), self.steps == 3
        is_truncated = is_last and self.truncates and self.games % 2 == 0
        return observation, float(self.steps), is_last and not is_truncated, is_truncated, {}


class Mixed(gym.Env[Any, Any]):
    """The same in a Dict of three kinds of arrays."""

    observation_space = spaces.Dict(
        {
            "number": spaces.Box(0, 1e6, (1,), np.float64),
            "bytes": spaces.Box(0, 255, (2, 3), np.uint8),
            "step": spaces.Discrete(4),
        }
    )

    def __init__(self, action_space: spaces.Space[Any] = DISCRETE) -> None:
        self.action_space = action_space
        self.inner = Counting(action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.show(self.inner.reset()[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.inner.step(action)
        return self.show(observation), reward, terminated, truncated, info

    def show(self, observation: NDArray[Any]) -> dict[str, Any]:
        number = int(observation[0])
        return {"number": np.array([number]), "bytes": np.full((2, 3), number % 251, np.uint8), "step": number % 100}


def make_model(algorithm: type[OffPolicyAlgorithm], env: Any, **changes: Any) -> Any:
    """A small agent with a LambdaReplayBuffer that does not know it yet; other arguments are the buffer's settings."""
    given: dict[str, Any] = {
        "learning_starts": 10_000,
        "buffer_size": 1_000,
        "batch_size": 16,
        "train_freq": 1,
        "seed": 0,
    }
    own = {name: changes.pop(name) for name in list(changes) if name in MODEL_ARGUMENTS}
    arguments = {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": [8]}, "device": "cpu", **given, **own}
    return cast(Any, algorithm)(
        env=env, replay_buffer_class=LambdaReplayBuffer, replay_buffer_kwargs=changes, **arguments
    )


MODEL_ARGUMENTS = {
    "policy", "policy_kwargs", "gamma", "learning_starts", "buffer_size", "batch_size", "seed", "train_freq", "use_sde",
    "gradient_steps", "ent_coef", "optimize_memory_usage", "n_steps", "learning_rate", "target_policy_noise",
}  # fmt: skip


def play(model: Any, *calls: int) -> Any:
    """The buffer of a model, attached, after so many steps in each call of learn."""
    for steps in calls:
        model.learn(steps)
    model.replay_buffer.attach(model)
    return model.replay_buffer


def action_space_of(algorithm: type[OffPolicyAlgorithm]) -> spaces.Space[Any]:
    return DISCRETE if algorithm is DQN else CONTINUOUS


def constant_q(model: Any, value: float) -> None:
    """Let the network say the same of every state and action."""
    network = model.q_net if isinstance(model, DQN) else model.critic
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.fill_(0)
            if name.endswith("bias") and parameter.shape[0] == (2 if isinstance(model, DQN) else 1):
                parameter.fill_(value)


def returns_by_observation(buffer: LambdaReplayBuffer) -> dict[float, set[float]]:
    """Every return of twenty caches that can be drawn, by the number that its state shows."""
    found: dict[float, set[float]] = {}
    for _ in range(20):
        buffer.refresh(batch_size=16)
        assert buffer.cache is not None
        for row in np.flatnonzero(buffer.cache.is_transition):
            shown = float(buffer.memory.observations[buffer.cache.slots[row], 0])
            found.setdefault(shown, set()).add(float(buffer.cache.returns[row]))
    return found


class Recorded:
    """Runs an agent's own ``train``, and keeps the targets that it regresses on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.targets: list[NDArray[Any]] = []
        for name in ("mse_loss", "smooth_l1_loss"):
            patch.setattr(torch.nn.functional, name, self._recording(getattr(torch.nn.functional, name)))

    def _recording(self, loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def record(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            assert values.shape == targets.shape
            self.targets.append(targets.detach().numpy()[:, 0].copy())
            return loss(values, targets)

        return record

    def train(self, model: Any, updates: int = 1, batch_size: int = 16) -> list[NDArray[Any]]:
        """The target of the first critic in each update."""
        self.targets.clear()
        model.set_logger(Logger(None, []))
        model.train(gradient_steps=updates, batch_size=batch_size)
        return self.targets[:: len(self.targets) // updates]

    def train_on(self, model: Any, samples: Any) -> NDArray[Any]:
        """The target of one update with these samples."""
        kept, model.replay_buffer = model.replay_buffer, OneBatch(samples)
        try:
            return self.train(model, batch_size=len(samples.rewards))[0]
        finally:
            model.replay_buffer = kept


class OneBatch:
    """A buffer that always hands out the same samples."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def sample(self, batch_size: int, env: Any = None) -> Any:
        return self.samples


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


# --- golden -----------------------------------------------------------------------------------------------------------


def test_terminal_observations_are_stored_with_their_episode() -> None:
    memory = play(make_model(DQN, Counting()), 7).memory
    assert memory.observations[:10, 0].tolist() == [100, 101, 102, 103, 200, 201, 202, 203, 300, 301]
    assert memory.rewards[:10].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1, 0]
    assert np.flatnonzero(memory.terminated[:10]).tolist() == [2, 6]
    assert np.flatnonzero(~memory.is_step[:10]).tolist() == [3, 7, 9]


def test_returns_of_a_terminated_episode() -> None:
    """γ = λ = ½ and V = 8: G₂ = 3, G₁ = 2 + ½·(4 + ½·3) = 4.75, G₀ = 1 + ½·(4 + ½·4.75) = 4.1875."""
    model = make_model(DQN, Counting(), gamma=0.5, estimator="peng:0.5", cache_size=90, block_length=9, tail=3)
    constant_q(model, 8)
    buffer = play(model, 30)
    found = returns_by_observation(buffer)
    # A block may begin anywhere, but with a tail of a whole episode none ends too early.
    assert {shown % 100: returns for shown, returns in found.items()} == {0: {4.1875}, 1: {4.75}, 2: {3.0}}


def test_a_time_limit_bootstraps() -> None:
    """Truncated after two steps: G₁ = 2 + ½·8 = 6 and G₀ = 1 + ½·(4 + ½·6) = 4.5; as a termination, 2 and 3.5."""
    for handles, expected in ((True, {0: {4.5}, 1: {6.0}}), (False, {0: {3.5}, 1: {2.0}})):
        env = gym.wrappers.TimeLimit(Counting(), 2)
        options = {"handle_timeout_termination": handles, "cache_size": 90, "block_length": 9, "tail": 3}
        model = make_model(DQN, env, gamma=0.5, estimator="peng:0.5", **options)
        constant_q(model, 8)
        buffer = play(model, 30)
        found = returns_by_observation(buffer)
        assert {shown % 100: returns for shown, returns in found.items()} == expected
        assert buffer.memory.terminated.any() == (not handles)


def test_rewards_are_normalized_before_the_recursion() -> None:
    """Rewards 1, 2, 3 over a standard deviation of 2, clipped at 1: ½, 1, 1. G₁ = 1 + ½·(4 + ½·1) = 3.25, and so on.

    Normalizing returns instead would give 4.75 / 2 = 2.375, clipped to 1.
    """
    env: Any = VecNormalize(DummyVecEnv([Counting]), training=False, norm_obs=True, clip_reward=1.0, clip_obs=1e9)
    env.ret_rms.var = np.array(4 - env.epsilon)
    env.obs_rms.mean, env.obs_rms.var = np.array([100.0]), np.array([25 - env.epsilon])
    model = make_model(DQN, env, gamma=0.5, estimator="peng:0.5", cache_size=90, block_length=9, tail=3)
    constant_q(model, 8)
    buffer = play(model, 30)
    samples = buffer.sample(64, env)
    # G₀ = ½ + ½·(4 + ½·3.25) = 3.3125
    assert set(samples.rewards[:, 0].tolist()) <= {3.3125, 3.25, 1.0}
    observations = samples.observations.numpy()
    assert observations.dtype == np.float32
    shown = 100 + 5 * observations[:, 0]
    by_step = {
        round(float(number)) % 100: float(value) for number, value in zip(shown, samples.rewards[:, 0], strict=True)
    }
    assert by_step == {0: 3.3125, 1: 3.25, 2: 1.0}
    assert buffer.memory.observations[1, 0] == 101  # stored as the environment shows it


def test_the_networks_see_normalized_observations() -> None:
    env: Any = VecNormalize(DummyVecEnv([Counting]), training=False, norm_reward=False)
    env.obs_rms.mean, env.obs_rms.var = np.array([100.0]), np.array([25 - env.epsilon])
    buffer = play(make_model(DQN, env, estimator="peng:0", cache_size=64, block_length=8), 12)
    seen: list[NDArray[Any]] = []
    buffer.model.q_net.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numpy()))
    buffer.refresh(16, env)
    assert set(np.concatenate(seen)[:, 0].tolist()) <= {env.normalize_obs(np.array([n + 0.0]))[0] for n in range(600)}
    assert np.concatenate(seen).max() < 10.1  # clipped, of numbers up to 400


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_peng_0_gives_the_targets_of_the_agent_itself(algorithm: type[OffPolicyAlgorithm], recorded: Recorded) -> None:
    """Bit for bit, with a target network equal to the online one and the same random numbers.

    Blocks have one step. The agent is asked for the target of both states of every block, as the critic is, so that
    both draw the same noise; only that of the second state means anything.
    """
    env = Counting(action_space_of(algorithm), truncates=True)
    sizes = {"cache_size": 40, "block_length": 1, "policy_kwargs": {"net_arch": [32, 32]}}
    model = make_model(algorithm, env, estimator="peng:0", **sizes)
    buffer = play(model, 60)
    recorded.train(model, updates=5)  # so that the networks differ from their targets
    torch.manual_seed(7)
    if algorithm is SAC:
        model.actor.action_log_prob(torch.zeros((80, 1)))  # SAC.train draws actions for its states first
    buffer.refresh(batch_size=40)
    cache, memory = buffer.cache, buffer.memory
    assert cache is not None
    both = torch.as_tensor(memory.observations[np.stack([cache.slots, cache.slots + 1], axis=1).reshape(-1)])
    actions = memory.actions[cache.slots].reshape(40, -1).repeat(2, axis=0)
    samples = ReplayBufferSamples(
        observations=both,
        actions=torch.as_tensor(actions),
        next_observations=both,
        dones=torch.as_tensor(memory.terminated[cache.slots].repeat(2)[:, None].astype(np.float32)),
        rewards=torch.as_tensor(memory.rewards[cache.slots].repeat(2)[:, None]),
    )
    for name in ("q_net", "actor", "critic"):
        if hasattr(model, f"{name}_target"):
            getattr(model, f"{name}_target").load_state_dict(getattr(model, name).state_dict())
    torch.manual_seed(7)
    targets = recorded.train_on(model, samples)[1::2]
    drawn = cache.is_transition
    assert_array_equal(cache.returns[drawn], targets[drawn])
    assert len(np.unique(targets[drawn])) > 15


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_agent_regresses_on_the_returns(algorithm: type[OffPolicyAlgorithm], recorded: Recorded) -> None:
    model = make_model(algorithm, Counting(action_space_of(algorithm)), estimator="peng:0.7", cache_size=64)
    buffer = play(model, 60)
    handed_out: list[NDArray[Any]] = []
    sample = buffer.sample

    def record(batch_size: int, env: Any = None) -> Any:
        samples = sample(batch_size, env)
        handed_out.append(samples.rewards[:, 0].numpy())
        assert buffer.cache is not None
        assert set(handed_out[-1].tolist()) <= set(buffer.cache.returns[buffer.cache.is_transition].tolist())
        assert (samples.dones == 1).all()
        return samples

    buffer.sample = record
    for targets, returns in zip(recorded.train(model, updates=6), handed_out, strict=True):
        assert_array_equal(targets, returns)


def sb3_nstep(model: Any, adds: list[tuple[Any, ...]]) -> tuple[NDArray[Any], Any]:
    """Numbers that states show, and the samples of Stable-Baselines3's own 3-step buffer for all of these steps."""
    spaces_ = (model.observation_space, model.action_space)
    buffer = NStepReplayBuffer(len(adds) + 1, *spaces_, device="cpu", n_steps=3, gamma=model.gamma)
    for add in adds:
        buffer.add(*add)
    samples = buffer._get_samples(np.arange(len(adds)))
    return samples.observations.numpy()[:, 0], samples


def recorded_adds(model: Any) -> list[tuple[Any, ...]]:
    """Filled with what the agent passes to its buffer from now on."""
    adds: list[tuple[Any, ...]] = []
    buffer, add = model.replay_buffer, model.replay_buffer.add

    def record(*arguments: Any) -> None:
        adds.append(arguments)
        add(*arguments)

    buffer.add = record
    return adds


def exact_model(algorithm: type[OffPolicyAlgorithm] = DQN, **changes: Any) -> Any:
    """Q = obs/4 − 2 and obs/8, and γ = ½: every number below is exact in float32, whatever the order of a sum.

    These are the values of DQN's two actions, or those of TD3's two critics for every action.
    """
    arguments = {"gamma": 0.5, "policy_kwargs": {"net_arch": []}, "cache_size": 400, "block_length": 10, "tail": 2}
    env = Counting(action_space_of(algorithm), truncates=True)
    model = make_model(algorithm, env, **{**arguments, **changes})
    weights, biases = torch.tensor([[0.25], [0.125]]), torch.tensor([-2.0, 0.0])
    with torch.no_grad():
        if algorithm is DQN:
            for network in (model.q_net, model.q_net_target):
                network.q_net[0].weight.copy_(weights)
                network.q_net[0].bias.copy_(biases)
        else:
            for critic in (model.critic, model.critic_target):
                for network, weight, bias in zip(critic.q_networks, weights, biases, strict=False):
                    network[0].weight.fill_(0)
                    network[0].weight[:, :1] = weight
                    network[0].bias.fill_(bias)
    return model


@pytest.mark.parametrize("algorithm", [DQN, DDPG, TD3])
def test_nstep_gives_the_targets_of_stable_baselines3(algorithm: type[OffPolicyAlgorithm], recorded: Recorded) -> None:
    model = exact_model(algorithm, estimator="nstep:3")
    adds = recorded_adds(model)
    ours = returns_by_observation(play(model, 50))
    numbers, samples = sb3_nstep(model, adds)
    theirs = dict(zip(numbers.tolist(), recorded.train_on(model, samples).tolist(), strict=True))
    assert len(ours) > 40
    assert ours == {number: {theirs[number]} for number in ours}


def test_nstep_stops_where_learn_resets_the_environment(recorded: Recorded) -> None:
    """Stable-Baselines3's own buffer does not know of the reset, and adds up rewards of two episodes."""
    model = exact_model(estimator="nstep:3")
    adds = recorded_adds(model)
    # The second game is cut off after its first step, which showed 200 and led to 201.
    ours = returns_by_observation(play(model, 4, 46))
    numbers, samples = sb3_nstep(model, adds)
    theirs = dict(zip(numbers.tolist(), recorded.train_on(model, samples).tolist(), strict=True))
    assert ours.pop(200.0) == {1 + 0.5 * (201 / 4 - 2)}
    assert theirs[200.0] == 1 + 0.5 * 1 + 0.25 * 2 + 0.125 * (302 / 4 - 2)
    assert ours == {number: {theirs[number]} for number in ours}


def test_the_entropy_of_every_step_counts(recorded: Recorded) -> None:
    """With Q = 0 and no rewards, three steps to the end are worth γ·αH + γ²·αH, then γ·αH, then nothing.

    Of this, Stable-Baselines3's 3-step buffer keeps nothing: it has the entropy of the state that it bootstraps from.
    """
    discount, alpha = 0.5, 2.0
    sizes = {"cache_size": 3_000, "block_length": 30, "tail": 3, "buffer_size": 4_000}
    model = make_model(SAC, Counting(CONTINUOUS), gamma=discount, ent_coef=alpha, estimator="nstep:3", **sizes)
    constant_q(model, 0)
    with torch.no_grad():
        for layer in (model.actor.mu, model.actor.log_std):  # π does not depend on the state
            layer.weight.fill_(0)
    adds = recorded_adds(model)
    buffer = play(model, 3_000)
    buffer.memory.rewards[:] = 0
    _, log_probs = model.actor.action_log_prob(torch.zeros((20_000, 1)))
    bonus = -alpha * float(log_probs.detach().mean())
    for estimator in ("nstep:3", "peng:1", "peng:0.999999"):
        buffer.estimator = parse_estimator(estimator)
        buffer.refresh(batch_size=16)
        assert buffer.cache is not None
        rows = buffer.cache.is_transition
        steps = buffer.memory.observations[buffer.cache.slots[rows], 0] % 100
        means = [buffer.cache.returns[rows][steps == step].mean() for step in range(3)]
        assert_allclose(means, [(discount + discount**2) * bonus, discount * bonus, 0], atol=0.03 * abs(bonus))
    zero_rewards = [(*add[:3], 0 * add[3], *add[4:]) for add in adds[:300]]
    assert_array_equal(recorded.train_on(model, sb3_nstep(model, zero_rewards)[1])[:297], 0)


def test_the_smaller_critic_at_each_step_or_the_smaller_return() -> None:
    """With λ = 0 there is no difference; with λ = 1 the smaller return is at least as large."""
    returns: dict[tuple[str, str], NDArray[Any]] = {}
    for estimator in ("peng:0", "peng:1"):
        for minimum in ("step", "return"):
            env = Counting(CONTINUOUS, truncates=True)
            sizes = {"cache_size": 400, "block_length": 10, "policy_kwargs": {"net_arch": [32]}}
            model = make_model(TD3, env, estimator=estimator, critic_minimum=minimum, target_policy_noise=0.0, **sizes)
            buffer = play(model, 100)
            buffer.refresh(batch_size=16)
            assert buffer.cache is not None
            returns[estimator, minimum] = buffer.cache.returns
    assert_allclose(returns["peng:0", "step"], returns["peng:0", "return"], rtol=1e-6)
    assert (returns["peng:1", "return"] >= returns["peng:1", "step"] - 1e-4).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_learns_the_same(algorithm: type[OffPolicyAlgorithm]) -> None:
    weights = []
    for seed in (1, 1, 2):
        env = Counting(action_space_of(algorithm))
        model = make_model(algorithm, env, seed=seed, learning_starts=40, train_freq=20, gradient_steps=5)
        model.learn(100, callback=AttachCallback())
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.policy.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


# --- property ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    num_envs=st.integers(1, 3),
    size=st.integers(6, 30),
    ends=st.lists(
        st.tuples(st.sampled_from(["", "", "", "terminated", "truncated", "reset"]), st.integers(0, 2)), max_size=40
    ),
)
def test_what_is_stored_is_what_was_played(num_envs: int, size: int, ends: list[tuple[str, int]]) -> None:
    """Episodes may end anywhere and the ring may wrap; every stored step is one that was passed in, in its order."""
    buffer = LambdaReplayBuffer(
        num_envs * size, spaces.Box(0, 1e6, (1,), np.float32), DISCRETE, "cpu", num_envs, block_length=2, cache_size=2
    )
    numbers, count = [float(stream) for stream in range(num_envs)], 100.0
    played: list[list[tuple[float, float, float, bool]]] = [[] for _ in range(num_envs)]
    for end, victim in ends:
        before = np.array(numbers, np.float32)[:, None]
        after = before + 1000
        done = np.array([end in ("terminated", "truncated") and stream == victim for stream in range(num_envs)])
        infos = [{"TimeLimit.truncated": bool(ended) and end == "truncated"} for ended in done]
        count += 1
        buffer.add(before, after, np.zeros((num_envs, 1), np.int64), np.full(num_envs, count), done, cast(Any, infos))
        for stream in range(num_envs):
            terminated = bool(done[stream]) and end == "terminated"
            played[stream].append((float(before[stream, 0]), count, float(after[stream, 0]), terminated))
            is_new = bool(done[stream]) or (end == "reset" and stream == victim)
            numbers[stream] = count * 10 + stream if is_new else float(after[stream, 0])
    memory = buffer.memory
    for stream in range(num_envs):
        stored = []
        for number in range(max(0, memory.written[stream] - memory.ring.size), memory.written[stream] - 1):
            slot, following = memory.ring.slot(stream, number), memory.ring.slot(stream, number + 1)
            if memory.is_step[slot]:
                observations = memory.observations[[slot, following], 0].tolist()
                step = (observations[0], float(memory.rewards[slot]), observations[1], bool(memory.terminated[slot]))
                stored.append(step)
        assert stored == played[stream][len(played[stream]) - len(stored) :]
        assert len(stored) >= min(len(played[stream]), (size - 1) // 2)
    assert buffer.size() == len(memory) // num_envs


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_dict_observations_come_back_as_they_were(algorithm: type[OffPolicyAlgorithm]) -> None:
    env = DummyVecEnv([lambda: Mixed(action_space_of(algorithm))] * 2)
    sizes = {"learning_starts": 40, "train_freq": 20, "gradient_steps": 5, "policy": "MultiInputPolicy"}
    model = make_model(algorithm, env, **sizes)
    model.learn(80, callback=AttachCallback())
    assert model._n_updates > 0
    samples = model.replay_buffer.sample(200)
    numbers = samples.observations["number"].numpy()
    assert numbers.dtype == np.float64
    assert_array_equal(samples.observations["step"].numpy(), numbers.astype(np.int64) % 100)
    assert_array_equal(samples.observations["bytes"].numpy(), np.tile((numbers % 251)[:, :, None], (1, 2, 3)))
    assert samples.observations["bytes"].dtype == torch.uint8
    assert set((numbers % 100).flatten().tolist()) == {0, 1, 2}  # never a closing slot


def test_discrete_observations() -> None:
    env = gym.make("FrozenLake-v1")
    model = make_model(DQN, DummyVecEnv([lambda: env]), learning_starts=40, train_freq=20, gradient_steps=5)
    model.learn(100, callback=AttachCallback())
    plain = ReplayBuffer(10, env.observation_space, env.action_space, device="cpu")
    zero = np.zeros(1, np.int64)
    plain.add(zero, zero, zero, np.zeros(1), np.zeros(1), [{}])
    ours, theirs = model.replay_buffer.sample(8), plain.sample(8)
    for name in ("observations", "actions", "dones", "rewards"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype


def picture(number: int) -> NDArray[Any]:
    """36 × 36 pixels that show a number."""
    image = np.zeros((36, 36, 1), np.uint8)
    image.reshape(-1)[:4] = number % 100 + 1, number // 100 % 250, 7, 9
    return image


@pytest.mark.parametrize("observe", [None, picture], ids=["vectors", "images"])
def test_each_frame_of_a_stack_is_stored_once(observe: Callable[[int], Any] | None) -> None:
    env = VecFrameStack(DummyVecEnv([lambda: Counting(observe=observe)] * 2), 4)
    policy = "MlpPolicy" if observe is None else "CnnPolicy"
    model = make_model(DQN, env, frame_stack=4, buffer_size=40, policy=policy, policy_kwargs={}, block_length=8)
    adds = recorded_adds(model)
    buffer = play(model, 26)
    whole = LambdaReplayBuffer(40, model.observation_space, model.action_space, "cpu", 2, block_length=8)
    for add in adds:
        whole.add(*add)
    memory = buffer.memory
    written = memory.written[0]
    assert memory.written == (written, written)
    # The oldest three slots of the window need frames that have left it, and are never drawn.
    numbers = np.arange(max(0, written - memory.window + 3), written)
    slots = np.concatenate([memory.ring.slot(stream, numbers) for stream in range(2)])
    assert_array_equal(buffer.layout.restore(memory.states(slots)), whole.layout.restore(whole.memory.states(slots)))
    assert memory.observations.nbytes * 4 == whole.memory.observations.nbytes
    assert model.observation_space.shape == buffer.sample(16).observations.shape[1:]


def test_stacks_that_are_normalized_outside() -> None:
    """VecNormalize hands out final observations normalized; Stable-Baselines3 restores them, with rounding."""
    env = VecNormalize(VecFrameStack(DummyVecEnv([lambda: Counting(truncates=True)]), 4), clip_obs=1.0)
    buffer = play(make_model(DQN, env, frame_stack=4), 60)
    shown = buffer.memory.observations[: buffer.memory.written[0], 0]
    assert_allclose(shown[:3], [100, 101, 102])
    assert_allclose(shown[4:7], [200, 201, 202])
    assert buffer.sample(16, env).observations.shape == (16, 4)


def test_a_stack_of_another_kind_is_rejected() -> None:
    """Gymnasium's wrapper repeats the first frame where VecFrameStack has zeros."""
    env = gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(Counting(), 4))
    with pytest.raises(ConfigError, match="stack frames with VecFrameStack"):
        make_model(DQN, env, frame_stack=4).learn(5)


def test_an_observation_costs_less_than_half() -> None:
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    plain = ReplayBuffer(200, image, DISCRETE)
    size = plain.observations.nbytes + plain.next_observations.nbytes
    assert LambdaReplayBuffer(200, image, DISCRETE).memory.nbytes < 0.53 * size  # a twentieth is spare
    assert LambdaReplayBuffer(200, image, DISCRETE, frame_stack=4).memory.nbytes < 0.14 * size


# --- behaviour --------------------------------------------------------------------------------------------------------


def test_learning_again_begins_a_new_episode() -> None:
    memory = play(make_model(DQN, Counting()), 2, 2).memory
    assert memory.observations[:6, 0].tolist() == [100, 101, 102, 200, 201, 202]
    assert not memory.terminated.any()
    assert np.flatnonzero(~memory.is_step[:6]).tolist() == [2, 5]


def test_learning_on_continues_the_episode() -> None:
    model = make_model(DQN, Counting())
    model.learn(2)
    model.learn(2, reset_num_timesteps=False)
    memory = model.replay_buffer.memory
    assert memory.observations[:6, 0].tolist() == [100, 101, 102, 103, 200, 201]
    assert np.flatnonzero(memory.terminated[:6]).tolist() == [2]


def caches_of(buffer: LambdaReplayBuffer, *batch_sizes: int) -> list[int]:
    """The number of the cache from which each of these minibatches came."""
    numbers, last = [0], buffer.cache
    for batch_size in batch_sizes:
        assert buffer.sample(batch_size).rewards.shape == (batch_size, 1)
        numbers.append(numbers[-1] + (buffer.cache is not last))
        last = buffer.cache
    return numbers[1:]


def test_a_cache_is_refreshed_when_its_minibatches_are_used_up() -> None:
    buffer = play(make_model(DQN, Counting(), cache_size=40, block_length=5, updates_per_refresh=3), 100)
    assert caches_of(buffer, *[16] * 7) == [1, 1, 1, 2, 2, 2, 3]
    assert caches_of(buffer, 16, 8, 8) == [0, 1, 1]  # another size is drawn from a new one


def test_a_cache_is_no_larger_than_the_buffer() -> None:
    """A block is no longer than what has been played, either: the first cache is one block of four steps."""
    env = gym.make("CartPole-v1")
    model = make_model(DQN, env, cache_size=1_000, updates_per_refresh=1, learning_starts=0, train_freq=4)
    sizes = []
    model.replay_buffer.attach(model)
    refresh = model.replay_buffer.refresh

    def record(batch_size: int, env: Any = None) -> None:
        refresh(batch_size, env)
        sizes.append(len(model.replay_buffer.cache.slots))

    model.replay_buffer.refresh = record
    model.learn(40)
    assert sizes[:3] == [4, 8, 12]
    assert sizes == sorted(sizes)
    assert 36 <= sizes[-1] <= 45  # with the closing slots of a few games


def test_a_cache_whose_states_are_overwritten_is_refreshed() -> None:
    model = make_model(DQN, Counting(), buffer_size=100, cache_size=50, block_length=5, updates_per_refresh=1_000)
    buffer = play(model, 200)
    assert buffer.full
    assert caches_of(buffer, 16, 16) == [1, 1]
    model.learn(3, reset_num_timesteps=False)  # 4 slots: there are 5 to spare
    assert caches_of(buffer, 16) == [0]
    model.learn(3, reset_num_timesteps=False)
    assert caches_of(buffer, 16, 16) == [1, 1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_train_freq_in_episodes(algorithm: type[OffPolicyAlgorithm]) -> None:
    env = Counting(action_space_of(algorithm))
    model = make_model(algorithm, env, train_freq=(1, "episode"), gradient_steps=-1, learning_starts=6, cache_size=64)
    model.learn(30, callback=AttachCallback())
    assert model._n_updates == 24


def test_the_pass_through_the_target_network_is_saved_where_it_can_be() -> None:
    rows: dict[str, set[int]] = {}
    for algorithm in ALGORITHMS:
        model = make_model(algorithm, Counting(action_space_of(algorithm)), train_freq=20, learning_starts=20)
        target = model.q_net_target if algorithm is DQN else model.critic_target
        seen = rows.setdefault(algorithm.__name__, set())
        target.register_forward_hook(lambda module, inputs, output, seen=seen: seen.add(len(inputs[0])))
        model.learn(100, callback=AttachCallback())
    assert rows == {"DQN": {1}, "SAC": {1}, "TD3": {16}, "DDPG": {16}}


class OwnDQN(DQN):
    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        super().train(gradient_steps, batch_size)


class Normalized(torch.nn.Sequential):
    """A features extractor with BatchNorm."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4))
        self.features_dim = 4


def test_other_agents_get_their_next_states(recorded: Recorded) -> None:
    batch_norm = {"features_extractor_class": Normalized, "net_arch": [8]}
    for model in (make_model(OwnDQN, Counting()), make_model(DQN, Counting(), policy_kwargs=batch_norm)):
        assert not ignores_next_states(model)
        buffer = play(model, 30)
        samples = buffer.sample(50)
        assert_array_equal(samples.next_observations, samples.observations + 1)
        if isinstance(model, OwnDQN):
            recorded.train(model)


def test_batch_norm_is_evaluated_and_not_moved() -> None:
    model = make_model(DQN, Counting(), policy_kwargs={"features_extractor_class": Normalized, "net_arch": [8]})
    buffer = play(model, 30)
    model.policy.set_training_mode(True)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    buffer.refresh(16)
    assert all(torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    assert model.q_net.training


def test_gsde_draws_noise_for_each_state() -> None:
    model = make_model(SAC, Counting(CONTINUOUS), use_sde=True, learning_starts=20, train_freq=20, gradient_steps=5)
    model.learn(60, callback=AttachCallback())
    assert model._n_updates > 0
    with torch.no_grad():
        actions = propose_sac(model, torch.full((50, 1), 100.0)).actions  # the same state 50 times
    assert len(actions.unique(dim=0)) > 25


def test_priorities_prefer_large_errors() -> None:
    means = []
    for priority in (0.0, 1.0):
        model = make_model(DQN, Counting(), priority=priority, cache_size=500, block_length=5, updates_per_refresh=50)
        buffer = play(model, 600)
        buffer.refresh(32)
        assert buffer.cache is not None
        means.append(float(np.abs(buffer.cache.td_errors[np.concatenate(buffer._minibatches)]).mean()))
    assert means[1] > 1.1 * means[0]


# Saving and loading


def test_a_loaded_buffer_draws_what_the_saved_one_draws_after_its_next_refresh(tmp_path: Path) -> None:
    model = make_model(DQN, Counting(), cache_size=64, block_length=8)
    buffer = play(model, 50)
    buffer.sample(16)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    (file,) = tmp_path.glob("buffer*")
    assert b"policies" not in file.read_bytes()
    assert buffer.model is model  # still attached

    loaded: Any = DQN.load(tmp_path / "model", env=Counting())
    loaded.load_replay_buffer(file)
    assert isinstance(loaded.replay_buffer, LambdaReplayBuffer)
    with pytest.raises(ConfigError, match=r"call model\.replay_buffer\.attach\(model\)"):
        loaded.replay_buffer.sample(16)
    loaded.replay_buffer.attach(loaded)
    buffer.attach(model)  # which drops the cache, as saving does
    ours, theirs = loaded.replay_buffer.sample(16), buffer.sample(16)
    for name in ("observations", "actions", "rewards"):
        assert_array_equal(getattr(ours, name), getattr(theirs, name))
    loaded.learn(10, reset_num_timesteps=False)
    assert loaded.replay_buffer.size() == 60


def test_a_new_buffer_of_a_loaded_model_is_empty_and_has_its_settings(tmp_path: Path) -> None:
    model = make_model(SAC, Counting(CONTINUOUS), estimator="median", cache_size=64)
    model.learn(20, callback=AttachCallback())
    model.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env=Counting(CONTINUOUS))
    buffer = loaded.replay_buffer
    assert isinstance(buffer, LambdaReplayBuffer)
    assert (buffer.size(), repr(buffer.estimator), buffer.settings.cache_size) == (0, "median", 64)


def test_reset_forgets_everything() -> None:
    buffer = play(make_model(DQN, Counting()), 20)
    buffer.sample(16)
    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full, buffer.cache) == (0, 0, False, None)


# What is rejected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimize_memory_usage": True}, "optimize_memory_usage is not needed: LambdaReplayBuffer stores each"),
        ({"estimator": "pong:0.7"}, "there is no estimator 'pong:0.7'"),
        ({"estimator": "retrace:0.9"}, "needs the probability of every stored action"),
        ({"estimator": 0.7}, "estimator is 0.7; give a name such as peng:0.7, or a callable"),
        ({"cache_size": 0}, "cache_size is 0; give a whole number, 1 or more"),
        ({"cache_size": "100"}, "cache_size is '100'; give a whole number, 1 or more"),
        ({"cache_size": 100.5}, "cache_size is 100.5; give a whole number, 1 or more"),
        ({"cache_size": 10}, "cache_size is 10; give 50 rows or more"),
        ({"block_length": 0}, "block_length is 0; give a whole number, 1 or more"),
        ({"updates_per_refresh": 0}, "updates_per_refresh is 0; give a whole number, 1 or more"),
        ({"tail": -1}, "tail is -1; give a whole number of steps, 0 or more"),
        ({"priority": 1.5}, "priority is 1.5; give a number from 0 to 1"),
        ({"priority": "high"}, "priority is 'high'; give a number from 0 to 1"),
        ({"critic_minimum": "mean"}, "critic_minimum is 'mean'; give step or return"),
        ({"frame_stack": True}, "frame_stack is True; give a whole number, 1 or more"),
        ({"handle_timeout_termination": "no"}, "handle_timeout_termination is 'no'; give True or False"),
        ({"frame_stack": 3}, r"frame_stack is 3, but observations have shape \(1,\)"),
        ({"buffer_size": 40}, "give at least 51, or a shorter block_length"),
        ({"cachesize": 10}, "LambdaReplayBuffer has no setting cachesize; choose from estimator, cache_size"),
        ({"gamma_": 1}, "has no setting gamma_"),
        ({"n_sampled_goal": 4}, "HerReplayBuffer draws new goals whenever it samples"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model(DQN, Counting(), **changes)


def test_a_stack_of_dicts_is_rejected() -> None:
    with pytest.raises(ConfigError, match="frame_stack does not work with Dict observations"):
        make_model(DQN, Mixed(), policy="MultiInputPolicy", frame_stack=4)


def test_settings_of_the_nstep_buffer_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"has no setting n_steps; give .* estimator='nstep:3'"):
        LambdaReplayBuffer(100, DISCRETE, DISCRETE, n_steps=3)
    with pytest.warns(UserWarning, match="is ignored"):
        model = make_model(DQN, Counting(), n_steps=3)
    with pytest.raises(ConfigError, match="give replay_buffer_kwargs the estimator 'nstep:3'"):
        model.replay_buffer.attach(model)


@pytest.mark.parametrize("estimator", ["watkins:0.7", "tree:0.7", "sarsa:0.7@0.1"])
def test_an_estimator_that_needs_finitely_many_actions_is_rejected_at_once(estimator: str) -> None:
    model = make_model(SAC, Counting(CONTINUOUS), estimator=estimator)
    with pytest.raises(ConfigError, match="Q-values"):
        model.replay_buffer.attach(model)
    play(make_model(DQN, Counting(), estimator=estimator), 60).sample(16)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("CrossQ", "its BatchNorm needs the next states in every training batch"),
        ("TQC", "its critics are distributions"),
        ("QRDQN", "its critics are distributions"),
    ],
)
def test_agents_that_cannot_learn_from_a_cache_are_rejected(name: str, reason: str) -> None:
    algorithm = getattr(importlib.import_module("sb3_contrib"), name)
    model = make_model(algorithm, Counting(DISCRETE if name == "QRDQN" else CONTINUOUS))
    with pytest.raises(ConfigError, match=f"does not work with {name}: {reason}"):
        model.replay_buffer.attach(model)


def test_a_buffer_of_another_model_is_rejected() -> None:
    one, other = (make_model(DQN, Counting()) for _ in range(2))
    with pytest.raises(ConfigError, match="the buffer of another model"):
        one.replay_buffer.attach(other)


def test_another_number_of_environments_is_rejected() -> None:
    model = make_model(DQN, DummyVecEnv([Counting] * 2))
    model.replay_buffer = make_model(DQN, Counting()).replay_buffer
    with pytest.raises(ConfigError, match="the buffer holds 1 environments, but the model has 2"):
        model.replay_buffer.attach(model)


class Goal(gym.Env[Any, Any]):
    """As little as HerReplayBuffer needs."""

    observation_space = spaces.Dict(
        dict.fromkeys(["observation", "achieved_goal", "desired_goal"], spaces.Box(0, 1, (1,)))
    )
    action_space = DISCRETE

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return {name: np.zeros(1, np.float32) for name in self.observation_space}, {}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        return np.zeros(len(achieved))


def test_goals_are_rejected() -> None:
    model = DQN("MultiInputPolicy", Goal(), replay_buffer_class=HerReplayBuffer, device="cpu")
    with pytest.raises(ConfigError, match="has HerReplayBuffer: HerReplayBuffer draws new goals whenever it samples"):
        model.learn(5, callback=AttachCallback())


def test_the_callback_needs_the_buffer() -> None:
    model = DQN("MlpPolicy", Counting(), device="cpu")
    with pytest.raises(ConfigError, match="AttachCallback needs a LambdaReplayBuffer, but the model has ReplayBuffer;"):
        model.learn(5, callback=AttachCallback())


def test_values_that_are_not_finite_end_the_training() -> None:
    model = make_model(SAC, Counting(CONTINUOUS))
    buffer = play(model, 60)
    constant_q(model, float("nan"))
    with pytest.raises(DivergenceError, match="the critics' values are not finite"):
        buffer.sample(16)


def test_a_missing_package_is_named() -> None:
    code = "import sys; sys.modules['stable_baselines3'] = None; import lambda_replay.sb3"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "lambda_replay.sb3 needs stable_baselines3, which is not installed" in ended.stderr
    assert "pip install 'lambda-replay[sb3]'" in ended.stderr


def test_the_example_on_the_page_runs() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "sb3.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert "model.learn(20_000)" in example
    names: dict[str, Any] = {}
    exec(compile(example.replace("20_000", "140"), "sb3.md", "exec"), names)
    assert names["model"]._n_updates == 40


def test_the_page_names_every_setting() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "sb3.md").read_text(encoding="utf-8")
    table, _, _ = page.partition("How to choose")
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", table, re.MULTILINE))
    defaults = {field.name: field.default for field in fields(Settings)} | {"handle_timeout_termination": True}
    assert {name: ast.literal_eval(text.replace(",", "")) for name, text in rows.items()} == defaults


# --- learning ---------------------------------------------------------------------------------------------------------


class Follow(gym.Env[Any, Any]):
    """Pays −(a − o)² for 5 steps; the truncated end is as good as any other state, so V = 0 if all is learnt."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = -float((action[0] - self.shown[0]) ** 2)
        return self.observe(), reward, False, self.steps == 5, {}

    def observe(self) -> Any:
        self.shown = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.shown


@pytest.mark.parametrize("algorithm", [TD3, SAC])
def test_actors_learn_to_follow(algorithm: type[OffPolicyAlgorithm]) -> None:
    noise = {} if algorithm is SAC else {"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.2))}
    model = cast(Any, algorithm)(
        "MlpPolicy",
        Follow(),
        learning_rate=3e-3,
        learning_starts=200,
        batch_size=64,
        train_freq=50,
        gradient_steps=40,
        gamma=0.9,
        policy_kwargs={"net_arch": [32]},
        seed=0,
        device="cpu",
        replay_buffer_class=LambdaReplayBuffer,
        replay_buffer_kwargs={"estimator": "peng:0.7", "cache_size": 1_000, "block_length": 20},
        **noise,
    )
    model.learn(1_000, callback=AttachCallback())
    shown = np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    actions, _ = model.predict(shown, deterministic=True)
    assert np.abs(actions - shown).mean() < 0.15  # a policy that stands still is 0.44 off


# rl-baselines3-zoo's hyper-parameters, with fewer steps, and an earlier start for TD3.
ZOO: list[tuple[type[OffPolicyAlgorithm], str, int, dict[str, Any]]] = [
    (
        DQN,
        "CartPole-v1",
        25_000,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    (SAC, "Pendulum-v1", 6_000, {"learning_rate": 1e-3}),
    (
        TD3,
        "Pendulum-v1",
        5_000,
        {
            "gamma": 0.98,
            "learning_starts": 1_000,
            "train_freq": (1, "episode"),
            "gradient_steps": -1,
            "action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1)),
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    ),
]


@pytest.mark.torture
@pytest.mark.parametrize(("algorithm", "env", "steps", "zoo"), ZOO, ids=[row[0].__name__ for row in ZOO])
def test_no_worse_than_the_plain_agent(
    algorithm: type[OffPolicyAlgorithm], env: str, steps: int, zoo: dict[str, Any]
) -> None:
    """The mean score of the last ten games of three seeds, less a tenth of what random play leaves to win.

    ``pytest --log-cli-level INFO`` shows the mean of each seed.
    """
    scores: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(3):
        for is_ours in scores:
            changes = {"replay_buffer_class": LambdaReplayBuffer} if is_ours else {}
            model = cast(Any, algorithm)("MlpPolicy", env, seed=seed, device="cpu", **zoo, **changes)
            model.learn(steps, callback=AttachCallback() if is_ours else None)
            last = [episode["r"] for episode in model.ep_info_buffer][-10:]
            logging.info("seed %d, %s: %.0f", seed, "LambdaReplayBuffer" if is_ours else "plain", np.mean(last))
            scores[is_ours] += last
    worst, best = (20, 500) if algorithm is DQN else (-1_200, -150)
    assert np.mean(scores[True]) > np.mean(scores[False]) - 0.1 * (best - worst), scores
