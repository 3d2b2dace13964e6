"""A linear-quadratic regulator: agents with continuous actions find its optimal gain, which is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from lambda_replay.agents.protocol import Policy
from lambda_replay.agents.run_settings import override
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.loop import Learned
from lambda_replay.training.presets import make_config

DRIFT, PUSH, EFFORT, DISCOUNT = 0.9, 0.4, 0.8, 0.9


class Regulator(gymnasium.Env[Any, Any]):
    """x' = A·x + B·a with reward −x² − R·a²; every four steps a new x from −1 to 1, by truncation."""

    observation_space = spaces.Box(-10, 10, shape=(1,))
    action_space = spaces.Box(-1, 1, shape=(1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        cost = float(self._place[0] ** 2 + EFFORT * action[0] ** 2)
        self._place = (DRIFT * self._place + PUSH * action).astype(np.float32)
        return self._place.copy(), -cost, False, False, {}


gymnasium.register("Regulator-v0", Regulator, max_episode_steps=4)  # type: ignore[arg-type]


def optimal_gain() -> float:
    """K of a = −K·x by the discounted Riccati equation P = 1 + γA²P − (γABP)² / (R + γB²P), iterated.

    Bertsekas, Dynamic Programming and Optimal Control, vol. 1, §4.1: K = γABP / (R + γB²P).
    """
    value = 0.0
    for _ in range(1_000):
        pull = DISCOUNT * DRIFT * PUSH * value
        value = 1 + DISCOUNT * DRIFT**2 * value - pull**2 / (EFFORT + DISCOUNT * PUSH**2 * value)
    return DISCOUNT * DRIFT * PUSH * value / (EFFORT + DISCOUNT * PUSH**2 * value)


def regulator_config(agent: str) -> RunConfig:
    small: dict[str, Any] = {
        "env": "Regulator-v0",
        "steps": 2_000,
        "seed": 2,
        "estimator": "peng:0.3",
        "discount": DISCOUNT,
        "checkpoint_every": 0,
        "memory": {"capacity": 1_000, "start": 300, "storage": "ram"},
        "cache": {"size": 1_280, "block_length": 10, "refresh_every": 32, "updates": 32},
        "network": {"hidden": (128, 128)},
        "optimizer": {"batch_size": 128, "learning_rate": 1e-3},
    }
    if agent == "naf-lambda":
        small["precision"] = 1.0
    return override(make_config("Pendulum-v1", agent=agent), small)


def gain_of(policy: Policy) -> float:
    """K of the linear policy −K·x that is nearest to a policy on [−1, 1], by least squares."""
    places = np.linspace(-1, 1, 41, dtype=np.float32)
    actions = policy.act(places[:, None, None], 0.0, np.random.default_rng(0)).actions[:, 0]
    return -float(places @ actions / (places @ places))


@pytest.mark.parametrize("agent", ["td3-lambda", "naf-lambda"])
def test_the_optimal_gain_is_found_within_five_percent(agent: str) -> None:
    """The mean over the policies of the last 20 refreshes: with a constant learning rate they fluctuate.

    Smaller networks miss it by up to 15 %, each seed in its own way; with these, sixteen seeds were within 5 %.
    """
    config = regulator_config(agent)
    assembly, spec = assemble(config, make_environments(config)), make_environment(config).spec
    gains = [
        gain_of(agent_kind(agent).load(config, spec, assembly.agent.get_tensors()["weights"]))
        for event in assembly.loop.run()
        if isinstance(event, Learned)
    ]
    assert gains[0] == pytest.approx(0, abs=0.3)  # it knew nothing
    assert np.mean(gains[-20:]) == pytest.approx(optimal_gain(), rel=0.05)
