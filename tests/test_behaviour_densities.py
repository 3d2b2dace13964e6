"""log μ(a|s) as agents with continuous actions store it: against scipy's densities, and against how often they act."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import stats
from small_runs import small_config
from test_actor_critics import make_networks
from test_quadratic import make_networks as make_quadratic_networks

from lambda_replay.agents.actor_critic import Method
from lambda_replay.agents.deterministic import (
    DeterministicCritic,
    DeterministicMethod,
    ExplorationNoise,
    NoiseConfig,
)
from lambda_replay.agents.naf_lambda import NAF, NAFLambdaConfig
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import OptimizerConfig, RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.errors import ConfigError
from lambda_replay.learning.deterministic_learner import DeterministicLearner
from lambda_replay.training.assembly import Assembly, assemble, make_environments

SOFT, NOISY = ("sac-lambda", "sac"), ("td3-lambda", "ddpg-lambda", "naf-lambda", "td3")
START, STEPS, STD = 120, 420, 0.6
Array = NDArray[np.float64]


class Wander(gymnasium.Env[Any, Any]):
    """Three random numbers are seen, whatever is done; the two numbers of an action have ranges of their own."""

    observation_space = spaces.Box(-10, 10, shape=(3,))
    action_space = spaces.Box(np.array([-2.0, 0.0], dtype=np.float32), np.array([4.0, 0.5], dtype=np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.normal(size=3).astype(np.float32), 0.0, bool(self.np_random.random() < 0.1), False, {}


gymnasium.register("Wander-v0", Wander)  # type: ignore[arg-type]


def wandering(agent: str) -> RunConfig:
    """One round of learning, at the start: afterwards the networks stay as they are."""
    rounds = ("polyak", "train_every") if agent in ("sac", "td3") else ("cache", "refresh_every")
    values: dict[str, Any] = {
        "steps": STEPS,
        "checkpoint_every": 0,
        "memory": {"capacity": 1_000, "start": START, "storage": "ram"},
        rounds[0]: {rounds[1]: STEPS},
        **({"noise": {"std": STD}} if agent in NOISY else {}),
    }
    return small_config("Wander-v0", agent, **values)


def make(agent: str) -> tuple[RunConfig, Assembly]:
    config = wandering(agent)
    return config, assemble(config, make_environments(config))


def soft_log_density(outputs: Array, actions: Array) -> Array:
    """Σ log N(atanh a; μ, σ) − log(1 − a²) [n] for outputs μ and log σ [n, 4], and actions [n, 2]."""
    means, log_stds = np.split(outputs, 2, axis=1)
    each: Array = stats.norm.logpdf(np.arctanh(actions), means, np.exp(log_stds)) - np.log1p(-(actions**2))
    return each.sum(axis=1)


def noisy_log_density(means: Array, actions: Array, std: float = STD) -> Array:
    """Σ log N(a; π(s), σ) [n]."""
    each: Array = stats.norm.logpdf(actions, means, std)
    return each.sum(axis=1)


# --- what the memory holds --------------------------------------------------------------------------------------------


def played(agent: str) -> tuple[Array, Array, Array, Array]:
    """From a run: the policy's outputs [n, …], actions [n, 2] and stored log μ [n] of its steps; log μ before those."""
    config, (loop, learner, memory, _) = make(agent)
    for _ in loop.run():
        pass
    policy: Any = agent_kind(agent).load(config, make_environment(config).spec, learner.get_tensors()["weights"])
    slots = np.flatnonzero(memory.is_step[: memory.written[0]])
    assert len(slots) == STEPS
    at_random, slots = slots[:START], slots[START:]
    with torch.no_grad():
        outputs = policy.critic.networks.modules["policy"](torch.from_numpy(memory.states(slots)[:, 0]))[0].numpy()
    columns = (outputs, memory.actions[slots], memory.behaviour_probs[slots], memory.behaviour_probs[at_random])
    return tuple(column.astype(np.float64) for column in columns)  # type: ignore[return-value]


@pytest.mark.parametrize("agent", SOFT)
def test_a_soft_agent_stores_the_density_of_the_stored_action(agent: str) -> None:
    outputs, actions, log_probs, at_random = played(agent)
    assert_allclose(log_probs, soft_log_density(outputs, actions), rtol=1e-4, atol=1e-4)
    assert_allclose(at_random, -2 * math.log(2), rtol=1e-6)
    # The definition itself sums to 1 over the whole range of an action: ∫ μ(a) da with a = tanh(u), da = (1 − a²)·du.
    places = np.tanh(np.linspace(-9, 9, 181))
    grid = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)
    areas = (0.1 * (1 - grid**2)).prod(axis=1)
    for row in outputs[:3]:
        assert np.exp(soft_log_density(row[None], grid)) @ areas == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("agent", NOISY)
def test_a_noisy_agent_stores_the_density_of_its_noise(agent: str) -> None:
    """Which is that of the stored action, unless this was clipped: then it was further away, and its density lower."""
    outputs, actions, log_probs, at_random = played(agent)
    expected = noisy_log_density(outputs if agent == "naf-lambda" else np.tanh(outputs), actions)
    is_clipped = (np.abs(actions) == 1).any(axis=1)
    assert 30 < is_clipped.sum() < 90  # 1 − (1 − 2·Φ(−1/0.6))² = 18 % of 300, were π(s) = 0
    assert_allclose(log_probs[~is_clipped], expected[~is_clipped], rtol=1e-4, atol=1e-4)
    assert (log_probs[is_clipped] < expected[is_clipped]).all()
    assert_allclose(at_random, -2 * math.log(2), rtol=1e-6)


def make_methods(std: float) -> dict[str, tuple[Method, Array, NDArray[np.float32]]]:
    """Agents with this noise, what they do without it in twenty states, and these states."""
    states = np.random.default_rng(0).normal(size=(20, 1, 3)).astype(np.float32)
    plain, quadratic = make_networks(outputs=1, critics=1), make_quadratic_networks()
    learner = DeterministicLearner(plain, OptimizerConfig(), policy_every=1)
    noise = ExplorationNoise(NoiseConfig(std=std), 20, 2)
    methods: dict[str, Method] = {
        "plain": DeterministicMethod(plain, learner, lambda rng: DeterministicCritic(plain, rng), noise=noise),
        "quadratic": NAF(NAFLambdaConfig(), quadratic, noise),
    }
    with torch.no_grad():
        of_plain, of_quadratic = (
            networks.modules["policy"](torch.from_numpy(states[:, 0]))[0].double() for networks in (plain, quadratic)
        )
    best = {"plain": of_plain.tanh().numpy(), "quadratic": of_quadratic.numpy()}
    return {name: (method, best[name], states) for name, method in methods.items()}


@pytest.mark.parametrize("name", ["plain", "quadratic"])
def test_a_clipped_action_has_the_density_of_the_number_before(name: str) -> None:
    method, best, states = make_methods(1.0)[name]
    found = method.explore(method.networks, states, np.random.default_rng(7))
    before = best + np.random.default_rng(7).standard_normal((20, 2), dtype=np.float32)
    assert 5 < (np.abs(before) > 1).sum() < 35
    assert_allclose(found.actions, np.clip(before, -1, 1), atol=1e-6)
    assert_allclose(found.behaviour_probs, noisy_log_density(best, before, std=1.0), rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "quadratic"])
def test_without_noise_there_is_no_density(name: str) -> None:
    method, best, states = make_methods(0.0)[name]
    found = method.explore(method.networks, states, np.random.default_rng(7))
    assert_allclose(found.actions, best, atol=1e-6)
    assert_array_equal(found.behaviour_probs, np.zeros(20))


def test_correlated_noise_remembers_the_noise_before() -> None:
    """ε_t = ρ·ε_{t−1} + σ·√(1−ρ²)·ξ_t, whose density is that of its new part, and σ its long-run deviation."""
    noise = ExplorationNoise(NoiseConfig(std=0.5, correlation=0.9), 400, 2)
    rng, literal = np.random.default_rng(3), np.random.default_rng(3)
    before, drawn = np.zeros((400, 2)), []
    for _ in range(200):
        drawn_now, log_densities = noise.draw(400, rng)
        found = drawn_now.astype(np.float64)
        fresh = 0.5 * math.sqrt(1 - 0.81) * literal.standard_normal((400, 2), dtype=np.float32)
        assert_allclose(found, 0.9 * before + fresh, atol=1e-6)
        assert_allclose(log_densities, noisy_log_density(0.9 * before, found, std=0.5 * math.sqrt(0.19)), atol=1e-3)
        before = found
        drawn.append(before)
    late = np.stack(drawn[50:])  # [150, 400, 2]
    assert late.std() == pytest.approx(0.5, rel=0.02)
    assert np.corrcoef(late[:-1].reshape(-1), late[1:].reshape(-1))[0, 1] == pytest.approx(0.9, abs=0.01)


def test_noise_continues_from_its_tensors_and_white_noise_has_none() -> None:
    one, other = (ExplorationNoise(NoiseConfig(std=0.5, correlation=0.9), 3, 2) for _ in range(2))
    for _ in range(5):
        one.draw(3, np.random.default_rng(0))
    other.set_tensors(one.get_tensors())
    assert_array_equal(one.draw(3, np.random.default_rng(1))[0], other.draw(3, np.random.default_rng(1))[0])
    assert ExplorationNoise(NoiseConfig(std=0.5), 3, 2).get_tensors() == {}
    with pytest.raises(ConfigError, match=r"noise.correlation is 1; give a number from 0 to below 1"):
        NoiseConfig(correlation=1)


# --- how often --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [*SOFT, *NOISY, "sdqn-lambda"])
def test_actions_are_as_frequent_as_their_density_says(agent: str) -> None:
    """E[ 1/μ(a|s) where a is in a region ] is the size of the region, for any density that is positive in it."""
    _, assembly = make(agent)
    states = np.full((40_000, 1, 3), 0.5, dtype=np.float32)
    actions, log_probs, _ = assembly.agent.act(states, START + 1)
    if agent == "sdqn-lambda":  # μ is the probability of one of 21² actions
        assert np.exp(-log_probs).mean() == pytest.approx(21**2, rel=0.1)
        return
    for low, high in (([-0.6, -0.6], [0.6, 0.6]), ([-0.2, 0.0], [0.7, 0.5])):
        is_inside = ((actions > low) & (actions < high)).all(axis=1)
        size = float(np.prod(np.subtract(high, low)))
        assert np.where(is_inside, np.exp(-log_probs), 0.0).mean() == pytest.approx(size, rel=0.05)
