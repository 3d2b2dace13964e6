"""The presets, value by value where the paper or the design fixes one; the others were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from environments import cached

from lambda_replay.agents.run_settings import from_dict, to_dict
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig, flatten
from lambda_replay.envs import make_environment
from lambda_replay.errors import ConfigError
from lambda_replay.learning.networks import MLP, AtariNetwork, MinAtarNetwork, make_network
from lambda_replay.training.presets import PRESETS, default_preset, make_config

AGENTS: tuple[str, ...] = ("dqn-lambda", "dqn")
ENVS = ("atari/pong", "minatar/breakout", "CartPole-v1")

PAPER: dict[str, Any] = {
    "steps": 10_000_000,
    "envs": 1,
    "discount": 0.99,
    "flicker": 0.0,
    "observe": (),
    "scale": (),
    "memory.capacity": 1_000_000,
    "memory.start": 50_000,
    "memory.history": 4,
    "exploration.start": 1.0,
    "exploration.end": 0.1,
    "exploration.steps": 1_000_000,
    "optimizer.batch_size": 32,
    "optimizer.learning_rate": 1e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-4,
    "optimizer.loss": "squared",
    "optimizer.max_grad_norm": None,
    "optimizer.final_learning_rate": None,
    "optimizer.rectified": False,
    "atari.frame_skip": 4,
    "network.width": 1.0,
    "network.layer_norm": False,
    "atari.noop_max": 30,
    "atari.max_frames": 108_000,
    "atari.life_loss_terminal": True,
    "atari.clip_rewards": True,
    "atari.sticky": 0.0,
    "atari.fire_on_reset": False,
    "atari.all_actions": False,
}
PAPER_CACHE: dict[str, Any] = {
    "agent": "dqn-lambda",
    "cache.refresh_every": 10_000,
    "cache.size": 80_000,
    "cache.block_length": 100,
    "cache.updates": None,  # a quarter of the steps: 2,500
    "cache.schedule": "burst",
    "cache.tail": 0,
    "cache.priority_quantile": 0.5,
    "cache.newest": False,
    "cache.sampling": "independent",
}
PAPER_TARGET: dict[str, Any] = {
    "agent": "dqn",
    "estimator": "nstep:3",
    "target.copy_every": 10_000,
    "target.update_every": 4,
}
ATARI_CACHE: dict[str, Any] = {  # the runs of results/atari
    "estimator": "peng:0.8",
    "envs": 40,
    "steps": 1_000_000,
    "discount": 0.99,
    "memory.capacity": 200_000,
    "memory.start": 10_000,
    "memory.history": 4,
    "cache.refresh_every": 2_000,
    "cache.size": 8_000,
    "cache.block_length": 50,  # what each environment adds between refreshes
    "cache.updates": 250,
    "cache.newest": True,
    "cache.sampling": "systematic",
    "exploration.end": 0.01,
    "exploration.steps": 100_000,
    "optimizer.batch_size": 32,
    "optimizer.learning_rate": 2.5e-4,
    "optimizer.final_learning_rate": 0.0,
    "optimizer.rectified": True,
    "optimizer.epsilon": 1e-8,
    "optimizer.loss": "huber",
    "network.width": 0.5,
    "network.layer_norm": True,
}
MINATAR: dict[str, Any] = {
    "memory.capacity": 100_000,
    "memory.start": 5_000,
    "memory.history": 1,
    "discount": 0.99,
    "exploration.start": 1.0,
    "exploration.end": 0.1,
    "exploration.steps": 100_000,
}
MINATAR_CACHE: dict[str, Any] = {
    "envs": 100,
    "steps": 1_000_000,
    "estimator": "median",
    "exploration.end": 0.01,
    "cache.refresh_every": 4_000,
    "cache.block_length": 40,  # what each environment adds between refreshes
    "cache.newest": True,
    "cache.sampling": "systematic",
    "cache.updates": 125,
    "optimizer.batch_size": 128,
    "optimizer.final_learning_rate": 0.0,
    "network.layer_norm": True,
}
MINATAR_TARGET: dict[str, Any] = {
    "envs": 100,
    "steps": 1_000_000,
    "estimator": "nstep:3",
    "target.copy_every": 4_000,
    "target.update_every": 32,  # as many samples per step as dqn-lambda
    "optimizer.batch_size": 128,
    "network.layer_norm": True,
}
CLASSIC: dict[str, Any] = {
    "memory.capacity": 50_000,
    "memory.start": 1_000,
    "memory.history": 1,
    "discount": 0.99,
    "steps": 200_000,
}


CONTINUOUS: dict[str, Any] = {
    "memory.history": 1,
    "optimizer.batch_size": 256,
    "network.hidden": (256, 256),
    "network.layer_norm": True,
}
CONTINUOUS_CACHE: dict[str, Any] = {
    "estimator": "peng:0.7",
    "cache.refresh_every": 64,
    "cache.updates": 64,  # one per step
    "cache.block_length": 50,
}
CONTINUOUS_TARGET: dict[str, Any] = {
    "estimator": "nstep:1",
    "polyak.rate": 0.005,
    "polyak.train_every": 64,  # as often as the others refresh
    "polyak.updates": 64,
}


GOALS: dict[str, Any] = {
    "steps": 150_000,
    "discount": 0.95,
    "memory.history": 1,
    "hindsight.share": 0.8,  # Andrychowicz et al. 2017: four goals in hindsight for each own one
    "hindsight.strategy": "future",
}


def values_of(config: RunConfig, names: dict[str, Any]) -> dict[str, Any]:
    return {name: flatten(to_dict(config))[name] for name in names}


# --- golden -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "preset", "agent", "table"),
    [
        ("atari/pong", "paper", "dqn-lambda", PAPER | PAPER_CACHE),
        ("atari/breakout", "paper", "dqn", PAPER | PAPER_TARGET),
        ("atari/breakout", None, "dqn-lambda", ATARI_CACHE),
        ("minatar/breakout", "mini", "dqn-lambda", MINATAR),
        ("minatar/asterix", "mini", "dqn", MINATAR | {"estimator": "nstep:3"}),
        ("minatar/breakout", None, "dqn-lambda", MINATAR_CACHE),
        ("minatar/asterix", None, "dqn", MINATAR_TARGET),
        ("CartPole-v1", None, "dqn-lambda", CLASSIC),
        ("CartPole-v1", None, "dqn", CLASSIC | {"estimator": "nstep:3"}),
    ],
)
def test_the_table_of_the_design(env: str, preset: str | None, agent: str, table: dict[str, Any]) -> None:
    assert values_of(make_config(env, preset, agent), table) == table


def test_mini_takes_a_million_steps_and_a_quarter_as_many_updates() -> None:
    config = make_config("minatar/breakout", "mini")
    assert config.steps >= 1_000_000
    cache = cached(config).cache
    assert cache.updates_per_refresh == cache.refresh_every // 4


@pytest.mark.parametrize(
    ("env", "network"), [("atari/pong", AtariNetwork), ("minatar/breakout", MinAtarNetwork), ("CartPole-v1", MLP)]
)
def test_the_network_is_that_of_the_table(env: str, network: type) -> None:
    config = make_config(env)
    spec = make_environment(config).spec
    state_shape = (config.memory.history, *spec.observation_shape)
    assert isinstance(make_network(cached(config).network, state_shape, spec.num_actions, seed=0), network)


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("atari/pong", "atari"),
        ("minatar/freeway", "minatar"),
        ("CartPole-v1", "classic"),
        ("package:Env-v0", "classic"),
        ("atari-like-v0", "classic"),
    ],
)
def test_the_preset_that_suits_an_environment(env: str, preset: str) -> None:
    assert default_preset(env) == preset
    assert make_config(env) == make_config(env, preset)


# --- property ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_preset_is_complete_for_every_environment_and_agent(env: str, preset: str, agent: str) -> None:
    if preset in ("continuous", "goals"):
        with pytest.raises(ConfigError, match=f"preset {preset} does not fit agent {agent}; choose one of paper, "):
            make_config(env, preset, agent)
        return
    config = make_config(env, preset, agent)
    assert (config.env, config.agent, config.seed) == (env, agent, 0)
    assert ("cache" in to_dict(config), "target" in to_dict(config)) == (agent == "dqn-lambda", agent == "dqn")
    assert (config.atari is not None, config.minatar is not None) == (env[:5] == "atari", env[:7] == "minatar")
    assert from_dict(to_dict(config)) == config
    agent_kind(agent).estimator(config)
    assert config.steps > config.memory.start  # so that something is learnt


@pytest.mark.parametrize("agent", PRESETS["continuous"].agents)
def test_agents_with_continuous_actions_have_one_preset(agent: str) -> None:
    assert agent_kind(agent).actions == "Box"
    config = make_config("Pendulum-v1", agent=agent)
    assert default_preset("Pendulum-v1", agent) == "continuous"
    assert config == make_config("Pendulum-v1", "continuous", agent)
    table = CONTINUOUS | (CONTINUOUS_CACHE if agent.endswith("-lambda") else CONTINUOUS_TARGET)
    assert values_of(config, table) == table
    assert from_dict(to_dict(config)) == config
    agent_kind(agent).estimator(config)
    for preset in set(PRESETS) - {"continuous"}:
        with pytest.raises(ConfigError, match=f"preset {preset} does not fit agent {agent}; choose one of continuous"):
            make_config("Pendulum-v1", preset, agent)


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_a_baseline_differs_from_its_agent_in_the_targets_alone(agent: str) -> None:
    own, other = (flatten(to_dict(make_config("Pendulum-v1", agent=name))) for name in (agent, f"{agent}-lambda"))
    differing = {name for name in {**own, **other} if own.get(name) != other.get(name)}
    assert {name for name in differing if not name.startswith(("cache.", "polyak."))} == {
        "agent",
        "estimator",
        "minimum",  # of the two critics' returns: an n-step return has one bootstrap
    }


def test_goals_have_one_preset_for_both_kinds_of_actions() -> None:
    config = make_config("goals/bitflip-15", agent="uvfa-lambda")
    assert values_of(config, GOALS) == GOALS
    assert from_dict(to_dict(config)) == config
    assert replace(make_config("Any-v0", "goals", "uvfa-lambda"), env=config.env) == config


def test_a_config_is_made_anew_each_time() -> None:
    assert make_config("CartPole-v1") == make_config("CartPole-v1")
    assert make_config("CartPole-v1") is not make_config("CartPole-v1")


@pytest.mark.parametrize(
    ("preset", "agent", "words"),
    [
        ("fast", "dqn-lambda", ["no preset 'fast'", "paper, atari, mini, minatar, classic"]),
        ("paper", "sarsa", ["no agent 'sarsa'", "dqn-lambda, dqn"]),
    ],
)
def test_unknown_names_are_one_sentence(preset: str, agent: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config("CartPole-v1", preset, agent)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
