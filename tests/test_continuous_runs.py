"""Runs with continuous actions: every command knows them, they resume to the same bytes, learn, and refuse in words."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from processes import Server, command_line
from small_runs import differences, resume_to_end, small_config, train_to_end, train_until

from lambda_replay.agents.run_settings import override
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.checkpoints import read_state, saved_steps, tensor_file
from lambda_replay.rundir.files import load_tensors
from lambda_replay.rundir.resources import estimate
from lambda_replay.training.assembly import assemble, default_agent, make_environments
from lambda_replay.training.presets import make_config
from lambda_replay.training.resuming import resume_run

CACHED = ("sac-lambda", "td3-lambda", "ddpg-lambda", "naf-lambda", "sdqn-lambda")
BASELINES = ("sac", "td3")
DETERMINISTIC = ("td3-lambda", "ddpg-lambda", "naf-lambda", "td3")
AGENTS = CACHED + BASELINES
SHORT = [
    "--steps", "420", "--memory.start", "120", "--memory.capacity", "240", "--checkpoint-every", "60", "--threads", "1",
    "--network.hidden", "16", "--optimizer.batch-size", "32",
]  # fmt: skip
TINY = [
    *SHORT,
    "--cache.size", "60", "--cache.block-length", "20", "--cache.refresh-every", "60", "--cache.updates", "4",
]  # fmt: skip
TINY_BASELINE = [*SHORT, "--polyak.train-every", "60", "--polyak.updates", "5", "--estimator", "nstep:2"]
STUDY = """
name = "pendulum"
environments = ["Pendulum-v1"]
seeds = 1
baseline = "one-step"
[defaults]
agent = "sac-lambda"
steps = 300
memory = {start = 120, capacity = 240}
cache = {size = 60, block_length = 20, refresh_every = 60, updates = 4}
network = {hidden = [16]}
[arms.one-step]
estimator = "peng:0"
[arms.td3]
agent = "td3-lambda"
policy_every = 1
"""


class Reach(gymnasium.Env[Any, Any]):
    """A point on a line that should go to the origin: x' = x + a/2, reward −x² − a²/10, ten steps."""

    observation_space = spaces.Box(-10, 10, shape=(1,))
    action_space = spaces.Box(-1, 1, shape=(1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        cost = float(self._place[0] ** 2 + action[0] ** 2 / 10)
        self._place = self._place + action / 2
        return self._place.copy(), -cost, False, False, {}


gymnasium.register("Reach-v0", Reach, max_episode_steps=10)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line() as server:
        yield server


@pytest.fixture(scope="module")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the agent that Pendulum gets without being asked for."""
    run = tmp_path_factory.mktemp("pendulum") / "run"
    ended = server.run("train", "Pendulum-v1", *TINY, "--out", run)
    assert ended.code == 0, ended.err
    return run


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# --- the start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("agent", "largest"), [*((name, 0.003) for name in DETERMINISTIC), ("sac-lambda", 0.0625)])
def test_a_deterministic_policy_starts_in_the_middle_of_its_range(agent: str, largest: float) -> None:
    small = {"memory": {"capacity": 20_000, "storage": "ram"}, "checkpoint_every": 0}
    config = override(make_config("Pendulum-v1", agent=agent), small)
    weights = assemble(config, make_environments(config)).agent.get_tensors()["weights"]
    found = float(weights["policy.weights.2"].abs().max())  # 256 units before it: nn.Linear draws from ±1/16
    assert largest / 2 < found <= largest


# --- commands ---------------------------------------------------------------------------------------------------------


def test_the_metrics_of_a_refresh_are_all_there(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert (config["agent"], config["estimator"]) == ("sac-lambda", "peng:0.7")
    first, *_, last = rows_of(finished)
    for name in (
        "loss", "gradient_norm", "q_1_mean", "q_2_mean", "alpha", "entropy", "priority", "td_error_abs_mean",
        "return_mean", "q_std_states", "trace_mean", "sample_age_mean", "dead_share_1", "weight_norm",
    ):  # fmt: skip
        assert np.isfinite(first[name]), name
    assert first["alpha"] == 1.0  # as it starts
    assert last["episodes"] == 2
    weights = load_tensors(finished / "weights.safetensors")
    assert weights["policy.weights.1"].shape == (1, 16, 2)
    assert weights["critics.weights.0"].shape == (2, 4, 16)
    assert 0 < float(weights["log_alpha"].exp()) < 1


def test_every_command_knows_them(server: Server, finished: Path, tmp_path: Path) -> None:
    evaluated = server.run("evaluate", finished, "--games", "2", "--json")
    assert json.loads(evaluated.out)["games"] == 2, evaluated.err
    film, picture = tmp_path / "film.gif", tmp_path / "block.png"
    assert server.run("watch", finished, "--max-steps", "5", "--out", film).code == 0
    assert film.read_bytes().startswith(b"GIF8")
    inspected = server.run("inspect", finished, "--length", "20", "--out", picture)
    assert "20 steps under peng:0.7, nstep:3, peng:0.75, median" in inspected.out, inspected.err
    refused = server.run("inspect", finished, "--estimators", "watkins:0.5", "--out", picture)
    assert (refused.code, "greedy" in refused.err) == (2, True)
    assert server.run("verify", finished).code == 0
    described = server.run("describe", "Pendulum-v1", *TINY)
    assert "observations 3 float32, actions of 1 number (-2 to 2)" in described.out, described.err
    shown = server.run("train", "--agent", "td3-lambda", "Pendulum-v1", "--help").out
    assert "--smoothing.clip" in shown
    assert "--entropy" not in shown
    assert "--entropy.target" in server.run("train", "Pendulum-v1", "--help").out


def test_they_are_studied(server: Server, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    ended = server.run("study", "run", tmp_path / "study.toml", "--out", tmp_path / "out", "--workers", "1")
    assert "2 of 2 runs done" in ended.out, ended.err
    assert "td3" in (tmp_path / "out" / "studies" / "pendulum" / "report.html").read_text()
    (tmp_path / "study.toml").write_text(STUDY.replace('agent = "sac-lambda"', ""))
    refused = server.run("study", "run", tmp_path / "study.toml", "--out", tmp_path / "other")
    assert refused.code == 2
    assert "agent dqn-lambda needs Discrete actions, but Pendulum-v1 has Box ones" in refused.err
    assert not list((tmp_path / "other").rglob("config.json"))


@pytest.mark.parametrize(
    ("env", "arguments", "agent"),
    [
        ("atari/pong", (), "dqn-lambda"),
        ("CartPole-v1", (), "dqn-lambda"),
        ("Pendulum-v1", (), "sac-lambda"),
        ("LunarLander-v3", (), "dqn-lambda"),
        ("LunarLander-v3", ("continuous=true",), "sac-lambda"),
    ],
)
def test_the_agent_that_an_environment_gets(env: str, arguments: tuple[str, ...], agent: str) -> None:
    assert default_agent(env, arguments) == agent


def test_the_agent_follows_the_arguments_of_the_environment(server: Server, tmp_path: Path) -> None:
    for given in (["--env-args", "continuous=true", "gravity=-9.0"], ["--env-args=continuous=true"]):
        described = server.run("describe", "LunarLander-v3", *given, *TINY, "--json")
        assert json.loads(described.out)["config"]["agent"] == "sac-lambda", described.err


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_killed_and_resumed_to_the_same_bytes(server: Server, tmp_path: Path, agent: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train = ["train", "Pendulum-v1", "--agent", agent, *(TINY if agent in CACHED else TINY_BASELINE), "--out"]
    reference = server.run(*train, whole, die_at=0)
    assert reference.code == 0, reference.err
    assert server.run(*train, killed, die_at=reference.calls * 2 // 3).code == -signal.SIGKILL
    assert server.run("resume", killed).code == 0
    assert not differences(whole, killed)


def test_a_game_is_replayed_from_its_actions_in_the_checkpoint(tmp_path: Path) -> None:
    config = small_config("Pendulum-v1", "sac-lambda")
    whole = train_to_end(tmp_path / "whole", config)
    train_until(tmp_path / "run", config, 350)
    (game,) = read_state(tmp_path / "run", 300)["loop"]["games"]
    assert len(game["actions"]) == 100
    assert all(len(action) == 1 and -1 <= action[0] <= 1 for action in game["actions"])
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(whole, tmp_path / "run")


@pytest.mark.parametrize("agent", ["td3-lambda", "naf-lambda", "td3"])
def test_correlated_noise_goes_on_where_it_was(tmp_path: Path, agent: str) -> None:
    config = small_config("Pendulum-v1", agent, 2, noise={"std": 0.5, "correlation": 0.9})
    whole = train_to_end(tmp_path / "whole", config)
    train_until(tmp_path / "run", config, 350)
    assert load_tensors(tensor_file(tmp_path / "run" / "checkpoints" / "300", "noise"))["last"].shape == (2, 1)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(whole, tmp_path / "run")


@pytest.mark.parametrize("action", [0, [0.1, 0.2], [1.5], ["a"]])
def test_a_checkpoint_with_impossible_actions_is_damaged(
    tmp_path: Path, action: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_until(tmp_path / "run", small_config("Pendulum-v1", "sac-lambda"), 350)
    found = read_state(tmp_path / "run", saved_steps(tmp_path / "run")[0])
    found["loop"]["games"][0]["actions"][3] = action
    monkeypatch.setattr("lambda_replay.training.resuming.read_state", lambda path, step: found)
    with pytest.raises(DamageError, match="does not match this run's environment or agent"):
        resume_run(tmp_path / "run", lambda sentence: None)


# --- learning ---------------------------------------------------------------------------------------------------------


def reach_config(agent: str, **changes: Any) -> RunConfig:
    small: dict[str, Any] = {
        "env": "Reach-v0",
        "steps": 1_500,
        "discount": 0.9,
        "checkpoint_every": 0,
        "memory": {"capacity": 2_000, "start": 300, "storage": "ram"},
        "network": {"hidden": (32, 32)},
        "optimizer": {"batch_size": 64, "learning_rate": 2e-3},
    }
    if agent in CACHED:
        small["cache"] = {"size": 640, "block_length": 10, "refresh_every": 30, "updates": 30}
    else:
        small["polyak"] = {"rate": 0.02, "train_every": 30, "updates": 30}
    return override(override(make_config("Pendulum-v1", agent=agent), small), changes)


@pytest.mark.parametrize("agent", AGENTS)
def test_they_learn_to_reach(agent: str) -> None:
    """A random walk costs about 10 a game, no action at all about 3.3; the best linear gain stays below 1.2."""
    config = reach_config(agent, **({"entropy": {"start": 0.1}} if agent.startswith("sac") else {}))
    assembly = assemble(config, make_environments(config))
    for _ in assembly.loop.run():
        pass
    policy = agent_kind(agent).load(config, make_environment(config).spec, assembly.agent.get_tensors()["weights"])
    places, costs = np.linspace(-1, 1, 21)[:, None], np.zeros(21)
    for _ in range(10):
        actions, *_ = policy.act(places[:, None].astype(np.float32), 0.0, np.random.default_rng(0))
        costs += (places**2 + actions**2 / 10)[:, 0]
        places = places + actions / 2
    assert costs.mean() < 1.2


# --- acting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_a_policy_plays_the_same_and_explores_as_asked(agent: str) -> None:
    config = small_config("Pendulum-v1", agent)
    assembly = assemble(config, make_environments(config))
    spec = make_environment(config).spec
    policy = agent_kind(agent).load(config, spec, assembly.agent.get_tensors()["weights"])
    states = np.random.default_rng(0).normal(size=(200, 1, 3)).astype(np.float32)
    greedy = policy.act(states, 0.0, np.random.default_rng(1)).actions
    assert np.array_equal(greedy, policy.act(states, 0.0, np.random.default_rng(2)).actions)
    mixed = policy.act(states, 0.5, np.random.default_rng(1))
    assert 60 < (mixed.actions != greedy).sum() < 140
    assert np.isfinite(mixed.behaviour_probs).all()
    start = assembly.agent.act(states, 0)
    choices = 21 if agent == "sdqn-lambda" else 2  # bins, or the length of the interval
    assert np.allclose(start.behaviour_probs, -np.log(choices))
    later = assembly.agent.act(states, 200)
    assert later.actions.dtype == np.float32
    assert np.abs(later.actions).max() <= 1
    assert not np.array_equal(later.actions, assembly.agent.act(states, 200).actions)


# --- needs and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_needs_follow_the_settings(agent: str) -> None:
    config = make_config("Pendulum-v1", agent=agent)
    spec = make_environment(config).spec
    needs = estimate(config, spec)
    large = estimate(override(config, {"network": {"hidden": (4_096, 4_096)}}), spec)
    assert large.ram_bytes > needs.ram_bytes + 4_096**2 * 4 * 9
    assert large.to_lower == "network.hidden (4096, 4096)"
    slots = config.memory.capacity + 2 * (2 * config.checkpoint_interval + 1) + 1024
    assert needs.disk_bytes == slots * (3 * 4 + 4 + 4 + 4 + 1 + 1 + 1)


@pytest.mark.parametrize("agent", CACHED)
def test_estimators_that_do_not_fit_are_refused_with_the_reason(agent: str) -> None:
    kind = agent_kind(agent)
    config = make_config("Pendulum-v1", agent=agent)
    fitting = ["peng:0.5", "nstep:3", "median", "bounded:0.1", *(["retrace:0.9"] if agent == "sac-lambda" else [])]
    for spelling in fitting:
        assert repr(kind.estimator(override(config, {"estimator": spelling}))) == spelling
    others = ["watkins:0.5", "watkins-published:0.5", "tree:0.5", "qstar:0.5", "sarsa:0.5", "watkins-bounded:1"]
    for spelling in [*others, "retrace:0.5@0.1", *([] if agent == "sac-lambda" else ["retrace:0.9"])]:
        with pytest.raises(ConfigError) as caught:
            kind.estimator(override(config, {"estimator": spelling}))
        sentence = str(caught.value)
        assert sentence.startswith(f"agent {agent} cannot use {spelling}: ")
        assert sentence.endswith(".")
        assert ". " not in sentence
        named = re.findall(r"peng|nstep|retrace|median|bounded", sentence.rpartition("; ")[2])  # as remedies
        assert set(named) <= {name.partition(":")[0] for name in fitting}
        assert caught.value.settings == ("estimator", "agent")


@pytest.mark.parametrize("agent", BASELINES)
def test_a_baseline_takes_n_step_returns_only(agent: str) -> None:
    kind, config = agent_kind(agent), make_config("Pendulum-v1", agent=agent)
    assert repr(kind.estimator(override(config, {"estimator": "nstep:5"}))) == "nstep:5"
    sentence = f"agent {agent} takes the estimator nstep:n, not peng:0.7; use agent {agent}-lambda for λ-returns."
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        kind.estimator(override(config, {"estimator": "peng:0.7"}))
    for rate in (0.0, 1.5):
        with pytest.raises(ConfigError, match=rf"polyak\.rate is {rate}; give a number above 0, up to 1\."):
            override(config, {"polyak": {"rate": rate}})


@pytest.mark.parametrize(
    ("agent", "changes", "sentence"),
    [
        ("naf-lambda", {"precision": 0.0}, "precision is 0.0; give a number above 0."),
        ("naf-lambda", {"noise": {"std": 3.0}}, "noise.std is 3.0; give a number from 0 to 2."),
        ("sdqn-lambda", {"bins": 1}, "bins is 1; give a number from 2 to 10000."),
        ("sdqn-lambda", {"noise": {"epsilon": 1.5}}, "noise.epsilon is 1.5; give a number from 0 to 1."),
        ("sdqn-lambda", {"bins": 10**18}, "bins is 1000000000000000000; give a number up to 1000000000000000."),
        (
            "td3-lambda",
            {"policy_every": 10**18},
            "policy_every is 1000000000000000000; give a number up to 1000000000000000.",
        ),
        ("td3", {"policy_every": 10**18}, "policy_every is 1000000000000000000; give a number up to 1000000000000000."),
        (
            "sac-lambda",
            {"network": {"hidden": (10**9,)}},
            "network.hidden is (1000000000); give widths from 1 to 1000000.",
        ),
        ("sac-lambda", {"entropy": {"alpha": 1e-50}}, "entropy.alpha is 1e-50; give a number from 1e-30 to 1e+30."),
        ("sac", {"entropy": {"start": 0.0}}, "entropy.start is 0.0; give a number from 1e-30 to 1e+30."),
        (
            "sac",
            {"entropy": {"alpha": 0.2, "target": -2.0}},
            "entropy.target (-2.0) is what a learned α aims at, but entropy.alpha (0.2) fixes it; leave one out.",
        ),
    ],
)
def test_settings_out_of_range_are_refused(agent: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        override(make_config("Pendulum-v1", agent=agent), changes)


@pytest.mark.parametrize("agent", ["sac-lambda", "sac"])
def test_an_entropy_that_no_policy_reaches_is_refused(agent: str) -> None:
    """The uniform distribution has the most: log 2 for each number between −1 and 1. α would rise for ever."""
    config = make_config("Pendulum-v1", agent=agent)
    check, spec = agent_kind(agent).check, make_environment(config).spec
    check(override(config, {"entropy": {"target": 0.69}}), spec, None)
    sentence = (
        "entropy.target is 0.7, but the entropy of actions of size 1 between −1 and 1 stays below 0.69; give less."
    )
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check(override(config, {"entropy": {"target": 0.7}}), spec, None)


def greedy_returns(block: Any) -> Any:
    """A user's estimator for discrete actions."""
    return block.rewards + block.discounts * block.q_values.max(axis=-1)[..., 1:]


@pytest.mark.parametrize("agent", CACHED)
def test_an_estimator_of_one_s_own_that_needs_a_row_of_q_values_is_refused(agent: str) -> None:
    spelling = "test_continuous_runs:greedy_returns"
    config = make_config("Pendulum-v1", agent=agent)
    sentence = (
        f"agent {agent} cannot use {spelling}: it reads q_values, which is not known here; let it use next_values() "
        "and action_values."
    )
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        agent_kind(agent).estimator(override(config, {"estimator": spelling}))


@pytest.mark.parametrize("agent", AGENTS)
def test_a_falling_learning_rate_is_refused(agent: str) -> None:
    with pytest.raises(ConfigError, match=r"final_learning_rate works with discrete actions only; leave it out"):
        override(make_config("Pendulum-v1", agent=agent), {"optimizer": {"final_learning_rate": 0.0}})


def test_a_network_of_one_s_own_is_refused() -> None:
    config = make_config("Pendulum-v1", agent="sac-lambda")
    with pytest.raises(ConfigError, match="sac-lambda takes no network of your own"):
        agent_kind("sac-lambda").check(config, make_environment(config).spec, torch.nn.Linear(3, 1))
