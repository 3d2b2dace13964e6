"""Agent uvfa-lambda: equals the agents it is made of without relabelling, resumes, learns, and refuses in words."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import goal_tasks  # noqa: F401  registers environments
import numpy as np
import pytest
import torch
from processes import Server, command_line
from small_runs import differences, resume_to_end, small_config, train_to_end, train_until
from torch import nn

import lambda_replay as lr
from lambda_replay.agents.protocol import Agent
from lambda_replay.agents.run_settings import override
from lambda_replay.agents.table import agent_kind, agents_for
from lambda_replay.agents.uvfa_lambda import UVFALambdaConfig, as_method
from lambda_replay.config import RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.resources import estimate
from lambda_replay.training.assembly import assemble, check_agent, default_agent, make_environments
from lambda_replay.training.loop import Learned
from lambda_replay.training.playing import play
from lambda_replay.training.presets import default_preset, make_config

BITS, LANE, ROAD = "goals/bitflip-4", "goal_tasks:Lane-v0", "goal_tasks:Road-v0"
TINY = [
    "--steps", "420", "--memory.start", "120", "--memory.capacity", "240", "--checkpoint-every", "60", "--threads", "1",
    "--cache.size", "60", "--cache.block-length", "20", "--cache.refresh-every", "60", "--cache.updates", "4",
    "--network.hidden", "16", "--optimizer.batch-size", "32",
]  # fmt: skip
STUDY = """
name = "goals"
environments = ["goals/bitflip-4"]
seeds = 1
baseline = "final"
[defaults]
agent = "uvfa-lambda"
steps = 300
memory = {start = 120, capacity = 240}
cache = {size = 60, block_length = 20, refresh_every = 60, updates = 4}
network = {hidden = [16]}
[arms.final]
hindsight = {strategy = "final"}
"""


def uvfa(env: str, **changes: Any) -> RunConfig:
    return override(small_config(env, "uvfa-lambda", network={"hidden": (16,)}), changes)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line("goal_tasks") as server:
        yield server


@pytest.fixture(scope="module")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the agent that a goal environment gets without being asked for."""
    run = tmp_path_factory.mktemp("bits") / "run"
    ended = server.run("train", BITS, *TINY, "--out", run)
    assert ended.code == 0, ended.err
    return run


def trained(config: RunConfig) -> tuple[Agent, list[dict[str, float | None]]]:
    """The agent at the end of a run, and its rows of metrics."""
    assembly = assemble(config, make_environments(config))
    rows = [event.metrics for event in assembly.loop.run() if isinstance(event, Learned)]
    return assembly.agent, rows


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "actor_critic"), [(BITS, "sac"), (LANE, "sac"), (ROAD, "sac"), (ROAD, "td3")])
def test_without_relabelling_it_is_the_agent_it_is_made_of(env: str, actor_critic: str) -> None:
    """On the flattened observation, from the same weights: the same metrics and weights, to the bit."""
    config = uvfa(
        env, hindsight={"share": 0.0}, actor_critic=actor_critic, memory={"storage": "ram"}, checkpoint_every=0
    )
    spec = make_environment(config).spec
    _, inner = as_method(config, spec)
    name = f"{actor_critic}-lambda" if spec.is_continuous else "dqn-lambda"
    (one, own_rows), (other, rows) = trained(config), trained(replace(inner, agent=name))
    assert own_rows == rows
    assert len(rows) == 6
    for part, tensors in one.get_tensors().items():
        for tensor, value in tensors.items():
            assert value.equal(other.get_tensors()[part][tensor]), tensor
    relabelled, _ = trained(override(config, {"hindsight": {"share": 0.8}}))
    weights = relabelled.get_tensors()["weights"]
    assert not all(value.equal(weights[tensor]) for tensor, value in one.get_tensors()["weights"].items())


# --- a network of one's own -------------------------------------------------------------------------------------------


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    small: dict[str, Any] = {
        "steps": 420,
        "memory": {"start": 120, "capacity": 240},
        "cache": {"size": 60, "block_length": 20, "refresh_every": 60, "updates": 4},
        "evaluate_every": 120,
    }
    run = lr.train(BITS, out=tmp_path / "run", network=make(), **small)
    assert run.config.agent == "uvfa-lambda"
    assert lr.load(run.path, network=make()).act(np.zeros(8)) in range(4)
    with pytest.raises(ConfigError, match="belong to another network"):
        lr.load(run.path)
    continuous = train_to_end(tmp_path / "road", uvfa(ROAD))
    with pytest.raises(ConfigError, match="with Box actions, uvfa-lambda takes no network of your own"):
        lr.load(continuous, network=make())


# --- learning ---------------------------------------------------------------------------------------------------------


def success_rate(config: RunConfig, games: int = 100) -> float:
    agent, _ = trained(config)
    environment = make_environment(config)
    policy = agent_kind(config.agent).load(config, environment.spec, agent.get_tensors()["weights"])
    played = [play(environment, policy, history=1, epsilon=0.0, seed=seed) for seed in range(games)]
    return sum(bool(game.is_success) for game in played) / games


def test_hindsight_learns_what_rewards_alone_do_not() -> None:
    """A random game of nine bits reaches its goal once in sixty; the goal of most games was never seen before."""
    config = override(
        make_config("goals/bitflip-9", agent="uvfa-lambda"),
        {
            "steps": 5_000,
            "checkpoint_every": 0,
            "device": "cpu",
            "memory": {"storage": "ram", "start": 500},
            "cache": {"size": 1_000, "updates": 60},
            "exploration": {"steps": 2_500},
            "network": {"hidden": (64,)},
            "optimizer": {"batch_size": 64},
        },
    )
    assert success_rate(config) >= 0.9
    assert success_rate(override(config, {"hindsight": {"share": 0.0}})) <= 0.3


@pytest.mark.parametrize("actor_critic", ["sac", "td3"])
def test_continuous_actions_learn_in_hindsight(actor_critic: str) -> None:
    """A road of six places, games of twelve steps: walking straight to the goal takes at most ten half steps."""
    config = override(
        make_config(ROAD, agent="uvfa-lambda"),
        {
            "actor_critic": actor_critic,
            "steps": 1_500,
            "checkpoint_every": 0,
            "device": "cpu",
            "memory": {"storage": "ram", "start": 500},
            "cache": {"size": 600, "block_length": 6, "refresh_every": 50, "updates": 40},
            "network": {"hidden": (32, 32)},
            "optimizer": {"batch_size": 64, "learning_rate": 2e-3},
        },
    )
    assert success_rate(config, games=60) >= 0.95


# --- schedules and resume ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        (BITS, {}),
        (BITS, {"envs": 2, "cache": {"schedule": "concurrent", "priority": 0.3}, "memory": {"capacity": 480}}),
        (LANE, {"hindsight": {"strategy": "final"}, "memory": {"history": 2}}),
        (ROAD, {"estimator": "median"}),
        (ROAD, {"actor_critic": "td3", "cache": {"tail": 3}}),
    ],
)
def test_broken_off_and_resumed_to_the_same_bytes(tmp_path: Path, env: str, changes: dict[str, Any]) -> None:
    config = uvfa(env, **changes)
    whole = train_to_end(tmp_path / "whole", config)
    train_until(tmp_path / "run", config, 320)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(whole, tmp_path / "run")


def test_killed_and_resumed_to_the_same_bytes(server: Server, finished: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    train = ["train", BITS, *TINY, "--out"]
    reference = server.run(*train, tmp_path / "whole", die_at=0)
    assert server.run(*train, killed, die_at=reference.calls * 2 // 3).code == -signal.SIGKILL
    assert server.run("resume", killed).code == 0
    assert not differences(finished, killed)


def test_several_environments_learn_from_goals_of_their_own_streams() -> None:
    config = uvfa(BITS, envs=3, memory={"storage": "ram"}, checkpoint_every=0)
    _, rows = trained(config)
    assert np.isfinite([row["loss"] for row in rows[:-1]]).all()  # type: ignore[arg-type]
    assert trained(config)[1] == rows
    assert trained(override(config, {"seed": 1}))[1] != rows


# --- commands ---------------------------------------------------------------------------------------------------------


def test_every_command_knows_it(server: Server, finished: Path, tmp_path: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert (config["agent"], config["hindsight"]) == ("uvfa-lambda", {"share": 0.8, "strategy": "future"})
    evaluated = json.loads(server.run("evaluate", finished, "--games", "8", "--json").out)
    reached = [game["is_success"] for game in evaluated["each"]]
    assert evaluated["success_rate"] == sum(reached) / 8
    assert "% reached the goal" in server.run("evaluate", finished, "--games", "3").out
    film, picture = tmp_path / "film.gif", tmp_path / "block.png"
    assert server.run("watch", finished, "--out", film).code == 0
    assert film.read_bytes().startswith(b"GIF8")
    inspected = server.run("inspect", finished, "--length", "20", "--out", picture)
    assert "20 steps under peng:0.5, nstep:3, peng:0.75, watkins:0.75, median" in inspected.out, inspected.err
    assert server.run("verify", finished).code == 0
    described = server.run("describe", BITS, *TINY)
    assert "hindsight.share" in described.out, described.err
    assert "--hindsight.strategy" in server.run("train", BITS, "--help").out


def test_a_run_with_continuous_actions_is_inspected_without_random_ones(server: Server, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert server.run("train", ROAD, *TINY, "--out", run).code == 0
    inspected = server.run("inspect", run, "--length", "20")
    assert "20 steps under peng:0.5, nstep:3, peng:0.75, median" in inspected.out, inspected.err
    assert json.loads(server.run("evaluate", run, "--games", "2", "--json").out)["success_rate"] in (0, 0.5, 1)


def test_it_is_studied(server: Server, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    ended = server.run("study", "run", tmp_path / "study.toml", "--out", tmp_path / "out", "--workers", "1")
    assert "1 of 1 runs done" in ended.out, ended.err


def test_goal_environments_get_it_and_others_do_not() -> None:
    assert default_agent(BITS) == default_agent(LANE) == default_agent(ROAD) == "uvfa-lambda"
    assert default_agent("goal_tasks:NoGoals-v0") == "dqn-lambda"
    assert default_preset(ROAD, "uvfa-lambda") == default_preset(BITS, "uvfa-lambda") == "goals"
    road = make_environment(make_config(ROAD, agent="sac-lambda")).spec
    assert agents_for(road)[:2] == ["uvfa-lambda", "sac-lambda"]
    assert road.observation_shape == (3,)  # other agents see the flattened observation, goal and all


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CartPole-v1"], "agent uvfa-lambda needs goals, but CartPole-v1 has none"),
        (["goal_tasks:NoGoals-v0"], "needs goals, but goal_tasks:NoGoals-v0 has none"),
        (
            ["goal_tasks:RaisingGoals-v0"],
            "cannot choose goals in hindsight: goal_tasks:RaisingGoals-v0 raised RuntimeE",
        ),
        (["goal_tasks:InfoGoals-v0"], "KeyError: 'reward'"),
        (["goal_tasks:NanGoals-v0"], "returned the reward nan from compute_reward"),
        ([BITS, "--hindsight.share", "1.5"], "hindsight.share is 1.5; give a number from 0 to 1"),
        ([BITS, "--hindsight.share", "nan"], "hindsight.share is nan; give a number from 0 to 1"),
        ([BITS, "--hindsight.strategy", "past"], "hindsight.strategy"),
        (
            [BITS, "--entropy.start", "0.5"],
            "entropy is for Box actions with actor_critic sac, but goals/bitflip-4 has Di",
        ),
        ([BITS, "--actor-critic", "td3"], "actor_critic is for Box actions with actor_critic sac, but goals/bitflip-4"),
        ([ROAD, "--exploration.end", "0.2"], "exploration is for Discrete actions, but goal_tasks:Road-v0 has Box"),
        ([ROAD, "--noise.std", "0.3"], "noise is for Box actions with actor_critic td3"),
        ([ROAD, "--estimator", "watkins:0.9"], "agent uvfa-lambda cannot use watkins:0.9"),
        ([ROAD, "--optimizer.final-learning-rate", "0"], "optimizer.final_learning_rate"),
        ([BITS, "--env-args", "bits=3"], "env_args are for Gymnasium environments"),
        ([BITS, "--preset", "classic"], "preset classic does not fit agent uvfa-lambda; choose one of goals"),
    ],
)
def test_mistakes_are_one_sentence(server: Server, tmp_path: Path, arguments: list[str], words: str) -> None:
    ended = server.run("train", *arguments, "--agent", "uvfa-lambda", "--out", tmp_path / "run")
    assert ended.code == 2, ended.err
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_needs_follow_the_goals() -> None:
    config = make_config("goals/bitflip-100", agent="uvfa-lambda")
    spec = make_environment(config).spec
    _, inner = as_method(config, spec)
    plain = estimate(replace(inner, agent="dqn-lambda"), spec)
    assert estimate(config, spec).ram_bytes == plain.ram_bytes + 2 * 1_600 * 100 * 4


@pytest.mark.parametrize(("name", "value"), [("observe", [0, 1]), ("scale", [2] * 8)])
def test_a_view_that_hides_goals_is_refused(name: str, value: list[int]) -> None:
    config = uvfa(BITS, **{name: value})
    with pytest.raises(ConfigError, match=rf"needs goals whole and in the environment's units; leave {name} out, or"):
        check_agent(config, make_environment(config).spec)


def test_an_agent_for_other_actions_of_a_goal_environment_is_refused() -> None:
    config = make_config(ROAD, agent="dqn-lambda")
    with pytest.raises(ConfigError, match="choose one of uvfa-lambda, sac-lambda"):
        check_agent(config, make_environment(config).spec)


def test_settings_of_its_own_have_defaults_that_a_preset_may_rely_on() -> None:
    config = make_config(BITS, agent="uvfa-lambda").algorithm
    assert isinstance(config, UVFALambdaConfig)
    for name in ("actor_critic", "exploration", "entropy", "noise", "smoothing"):
        assert getattr(config, name) == getattr(UVFALambdaConfig(), name)
