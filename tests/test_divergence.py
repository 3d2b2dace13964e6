"""Training that diverges, under every agent and schedule, stops with one sentence and never passes for success."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from environments import tiny_config
from numpy.testing import assert_array_equal
from small_runs import small_config, train_to_end
from torch import Tensor, nn

import lambda_replay
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.run_settings import override
from lambda_replay.cli import main
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DivergenceError, EnvironmentFault
from lambda_replay.learning.networks import make_network
from lambda_replay.rundir.checkpoints import CHECKPOINTS, saved_steps
from lambda_replay.rundir.directory import DIVERGED, WEIGHTS, RunLog, is_diverged, is_finished
from lambda_replay.rundir.files import load_tensors, save_tensors
from lambda_replay.rundir.verification import verify_run
from lambda_replay.training.events import Learned, RunEvent
from lambda_replay.training.policy import STOPPED_WEIGHTS, load_policy
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import start_run, train_run

Kind = Literal["burst", "concurrent", "dqn"]
Part = Literal["values", "gradients"]
HUGE = ["--optimizer.learning-rate", "1e30"]
SHORT = ["--device", "cpu", "--memory.start", "200", "--memory.capacity", "500", "--cache.refresh-every", "100"]


def config_of(kind: Kind, **changes: Any) -> RunConfig:
    """Boundaries with a checkpoint at 120, 180, …, 360 of 420 steps: 5 × 4 updates, or, under dqn, 75."""
    config = small_config(agent="dqn") if kind == "dqn" else small_config(cache={"schedule": kind})
    return override(config, changes)


class Diverging(nn.Module):
    """A user's network whose values, or whose gradients alone, are not numbers from its ``at``-th update on."""

    def __init__(self, at: int, part: Part) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self._at, self._part, self._updates = at, part, 0

    def forward(self, states: Tensor) -> Tensor:
        q_values: Tensor = self.layer(states.flatten(1))
        if not torch.is_grad_enabled():
            return q_values
        self._updates += 1
        if self._updates < self._at:
            return q_values
        if self._part == "values":
            return q_values * math.nan
        q_values.register_hook(lambda gradient: gradient * math.nan)
        return q_values


def diverge(path: Path, config: RunConfig, network: nn.Module | None = None) -> str:
    """Train until it diverges; the sentence."""
    torch.manual_seed(0)
    with pytest.raises(DivergenceError) as caught:
        train_run(path, config, network=network)
    return str(caught.value)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def strict_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=refuse_constant) for line in path.read_text().splitlines()]


# Every agent, every schedule, every window.


@pytest.mark.parametrize(
    ("kind", "part", "at", "noticed"),
    [
        ("burst", "values", 1, (120, "the Q-values")),
        ("burst", "values", 10, (240, "the Q-values")),
        ("burst", "values", 20, (360, "the Q-values")),
        ("burst", "gradients", 4, (180, "the weights")),  # the last update of a window: noticed at the next checkpoint
        ("burst", "gradients", 12, (300, "the weights")),
        ("burst", "gradients", 20, (420, "the weights")),  # the last update of all
        ("concurrent", "values", 1, (180, "the Q-values")),  # noticed at the end of the window
        ("concurrent", "values", 10, (300, "the Q-values")),
        ("concurrent", "values", 20, (420, "the Q-values")),
        ("concurrent", "gradients", 4, (180, "the weights")),
        ("concurrent", "gradients", 20, (420, "the weights")),
        ("dqn", "values", 1, (120, "the Q-values")),
        ("dqn", "values", 40, (276, "the Q-values")),
        ("dqn", "values", 75, (416, "the Q-values")),
        ("dqn", "gradients", 1, (124, "the Q-values")),  # noticed by the next update
        ("dqn", "gradients", 75, (420, "the weights")),
    ],
)
def test_it_stops_with_a_sentence_and_leaves_no_weights_that_are_not_finite(
    tmp_path: Path, kind: Kind, part: Part, at: int, noticed: tuple[int, str]
) -> None:
    step, what = noticed
    run = tmp_path / "run"
    sentence = diverge(run, config_of(kind), Diverging(at, part))
    assert sentence == (
        f"at step {step} {what} are not finite: training diverged; "
        "lower the learning rate, or clip gradients harder (max_grad_norm)."
    )
    assert all(row.get("loss", 0.0) < 10 for row in strict_rows(run / "metrics.jsonl"))
    assert json.loads((run / DIVERGED).read_text()) == {"step": step, "sentence": sentence}
    assert is_diverged(run)
    assert not is_finished(run)
    steps = saved_steps(run)
    assert steps
    assert all(saved < step for saved in steps if (what, part) == ("the weights", "gradients"))
    for saved in steps:
        weights = load_tensors(run / CHECKPOINTS / str(saved) / WEIGHTS)
        assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


@pytest.mark.parametrize("kind", ["burst", "concurrent", "dqn"])
def test_a_huge_learning_rate_is_noticed_without_a_warning(tmp_path: Path, kind: Kind) -> None:
    """With our own network, whose acting is done in NumPy, which warns of overflows; here a warning is an error."""
    sentence = diverge(tmp_path / "run", config_of(kind, optimizer={"learning_rate": 1e30}))
    assert "the Q-values are not finite" in sentence


@pytest.mark.parametrize("agent", ["sac-lambda", "td3-lambda", "ddpg-lambda", "naf-lambda", "sdqn-lambda"])
@pytest.mark.parametrize("rate", [1e10, 1e30])
def test_a_policy_that_its_last_update_ruined_is_noticed_when_it_acts(tmp_path: Path, agent: str, rate: float) -> None:
    """One update per window: its loss is still finite, and no checkpoint comes between it and the next action."""
    changes = {"optimizer": {"learning_rate": rate}, "cache": {"updates": 1}, "checkpoint_every": 0}
    config = override(small_config("Pendulum-v1", agent), changes)
    sentence = diverge(tmp_path / "run", config)
    assert re.match(r"at step 1[28]\d the (actions are|Q-values are|loss is) not finite: training diverged; ", sentence)
    assert is_diverged(tmp_path / "run")


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_so_is_one_that_is_trained_at_every_step(tmp_path: Path, agent: str) -> None:
    changes = {"optimizer": {"learning_rate": 1e10}, "polyak": {"train_every": 1, "updates": 1}}
    config = override(small_config("Pendulum-v1", agent), {**changes, "checkpoint_every": 0})
    assert "not finite: training diverged" in diverge(tmp_path / "run", config)
    assert is_diverged(tmp_path / "run")


@pytest.mark.parametrize("kind", ["burst", "dqn"])
def test_a_run_without_checkpoints_is_noticed_at_the_latest_at_its_end(tmp_path: Path, kind: Kind) -> None:
    at = 20 if kind == "burst" else 75
    sentence = diverge(tmp_path / "run", config_of(kind, checkpoint_every=0), Diverging(at, "gradients"))
    assert sentence.startswith("at step 420 the weights are not finite")


def test_values_that_are_not_finite_and_not_learnt_are_the_users_own(tmp_path: Path) -> None:
    """A mask of −∞ in a buffer is no divergence."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("mask", torch.full((3,), -math.inf))

        def forward(self, states: Tensor) -> Tensor:
            q_values: Tensor = self.layer(states.flatten(1))
            return q_values

    train_run(tmp_path / "run", config_of("burst"), network=Masked())
    assert is_finished(tmp_path / "run")


def test_a_metric_that_is_not_finite_is_never_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write_metrics(10, {"loss": 0.5, "score_mean_100": None})
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(DivergenceError, match="the metric q_mean is not finite: training diverged"):
            log.write_metrics(20, {"loss": 0.5, "q_mean": value})
    log.close()
    assert strict_rows(tmp_path / "metrics.jsonl") == [{"step": 10, "loss": 0.5, "score_mean_100": None}]
    assert len(strict_rows(tmp_path / "timing.jsonl")) == 1


def test_returns_that_overflow_are_noticed_though_no_minibatch_has_one(tmp_path: Path) -> None:
    """Q-values near the largest float32: all are finite, but their mean is not."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, states: Tensor) -> Tensor:
            q_values: Tensor = self.layer(states.flatten(1))
            return q_values * 0 + (0.0 if torch.is_grad_enabled() else 3e38)

    sentence = diverge(tmp_path / "run", config_of("burst"), Large())
    assert sentence.startswith("at step 120 the ")
    assert strict_rows(tmp_path / "run" / "metrics.jsonl") == []


def test_library_users_can_tell_divergence_from_other_mistakes() -> None:
    assert lambda_replay.DivergenceError is DivergenceError
    assert issubclass(DivergenceError, ConfigError)
    memory = lambda_replay.ReplayMemory(100, (), np.float32)
    memory.begin(np.zeros((), dtype=np.float32))
    for _ in range(50):
        memory.append(0, 1.0, np.zeros((), dtype=np.float32))
    with pytest.raises(DivergenceError, match="the Q-values are not finite: training diverged; lower the learning"):
        lambda_replay.refresh(
            memory,
            lambda states: np.full((len(states), 2), np.nan, dtype=np.float32),
            lambda_replay.parse_estimator("peng:0.5"),
            discount=0.9,
            size=20,
            block_length=10,
            rng=np.random.default_rng(0),
        )


# What is made of a diverged run later.


def network_of(config: RunConfig, observation_shape: tuple[int, ...]) -> nn.Module:
    """The config's own network for 2 actions, to be handed to a run so that it can be spoilt."""
    assert isinstance(config.algorithm, DQNLambdaConfig)
    return make_network(config.algorithm.network, config.state_shape(observation_shape), 2, seed=0)


@torch.no_grad()
def spoil(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.mul_(math.nan)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that diverged in its fourth window, so it has checkpoints."""
    run = tmp_path_factory.mktemp("late") / "run"
    config = config_of("burst", optimizer={"learning_rate": 1e-3})
    network = network_of(config, (4,))
    training = start_run(run, config, network)

    def spoil_late(event: RunEvent) -> None:
        if event.step >= 300:
            spoil(network)

    with pytest.raises(DivergenceError):
        training.train(spoil_late)
    training.close()
    return run


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that diverged before it had anything to keep."""
    run = tmp_path_factory.mktemp("early") / "run"
    diverge(run, config_of("burst", checkpoint_every=0, optimizer={"learning_rate": 1e30}))
    return run


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Answer]]:
    """``lambda-replay`` in this process."""
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, handler)


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.mark.parametrize("agent", ["dqn", "dqn-lambda"])
def test_train_exits_with_2_and_one_sentence(call: Any, tmp_path: Path, agent: str) -> None:
    short = SHORT[:-2] if agent == "dqn" else SHORT
    answer = call("train", "CartPole-v1", "--agent", agent, *HUGE, *short, "--steps", "300", "--out", tmp_path / "run")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("lambda-replay: at step 20")
    assert "done" not in answer.out
    assert not (tmp_path / "run" / WEIGHTS).exists()
    for name in ("metrics.jsonl", "timing.jsonl"):
        strict_rows(tmp_path / "run" / name)


def test_resume_refuses_what_would_only_diverge_again(call: Any, late: Path, early: Path) -> None:
    for run in (late, early):
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        answer = call("resume", run)
        assert (answer.code, answer.err) == (
            2,
            f"lambda-replay: {run} diverged and would diverge again, because a run is deterministic; "
            "start a new run with a lower learning rate.\n",
        )
        with pytest.raises(ConfigError, match="diverged and would diverge again"):
            resume_run(run, print)
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_verify_calls_it_diverged(call: Any, late: Path, early: Path) -> None:
    for run, rest in ((late, "checkpoint 240: every checksum matches"), (early, "checkpoints: none; the run diverged")):
        answer = call("verify", run)
        assert answer.code == 2
        assert f"DIVERGED  diverged.json: {json.loads((run / DIVERGED).read_text())['sentence']}\n" in answer.out
        assert f"sound     {rest}" in answer.out
        assert "finished" not in answer.out
        assert "DAMAGED" not in answer.out
    values = json.loads(call("verify", late, "--json").out, parse_constant=refuse_constant)
    assert values["sound"] is False
    assert [finding["what"] for finding in values["findings"] if finding["is_diverged"]] == ["diverged.json"]


def test_a_damaged_word_about_a_divergence_is_still_one(tmp_path: Path, early: Path) -> None:
    (tmp_path / "config.json").write_bytes((early / "config.json").read_bytes())
    (tmp_path / DIVERGED).write_text("{")
    assert ("diverged.json", "training diverged.") in [
        (finding.what, finding.sentence) for finding in verify_run(tmp_path) if finding.is_diverged
    ]


def test_what_it_learnt_before_can_be_looked_at(call: Any, late: Path) -> None:
    assert load_policy(late).step == saved_steps(late)[0] == 300
    answer = call("evaluate", late, "--games", "1", "--json")
    assert answer.code == 0
    json.loads(answer.out, parse_constant=refuse_constant)


@pytest.mark.parametrize("command", ["evaluate", "watch", "inspect"])
def test_nothing_to_look_at_is_one_sentence(call: Any, early: Path, command: str) -> None:
    answer = call(command, early)
    assert answer.code == 2
    assert answer.err == (
        f"lambda-replay: {early} has no weights to use: it diverged before its first checkpoint; start a new run with "
        "a lower learning rate.\n"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_an_older_version_called_final_are_not_sound(call: Any, tmp_path: Path, value: float) -> None:
    run = train_to_end(tmp_path / "run", small_config())
    weights = load_tensors(run / WEIGHTS)
    weights["layers.0.bias"][3] = value
    save_tensors(run / WEIGHTS, weights, {})
    answer = call("verify", run)
    assert answer.code == 2
    assert (
        "DIVERGED  weights.safetensors: the checksum matches, but values of layers.0.bias are not finite" in answer.out
    )
    answer = call("evaluate", run)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "weights.safetensors cannot be used: the weights are not finite: training diverged" in answer.err


def test_describe_describes_a_run_that_would_diverge(call: Any) -> None:
    answer = call("describe", "CartPole-v1", *HUGE, "--json")
    assert (answer.code, answer.err) == (0, "")
    json.loads(answer.out, parse_constant=refuse_constant)


# An environment that fails: the other way in which a run ends without final weights.


@pytest.mark.parametrize("agent", ["dqn", "dqn-lambda"])
def test_library_users_too_get_the_weights_of_the_moment_the_environment_failed(tmp_path: Path, agent: Any) -> None:
    run = start_run(tmp_path / "run", tiny_config("environments:NanReward-v0", agent, memory={"start": 40}))
    with pytest.raises(EnvironmentFault):
        run.train(lambda event: None)
    run.close()
    learnt, kept = run.weights(), load_tensors(tmp_path / "run" / STOPPED_WEIGHTS)
    assert learnt.keys() == kept.keys()
    for name, value in learnt.items():
        assert_array_equal(kept[name], value)
    with pytest.raises(EnvironmentFault):
        train_run(tmp_path / "other", tiny_config("environments:NanReward-v0", agent, memory={"start": 40}))
    assert (tmp_path / "other" / STOPPED_WEIGHTS).read_bytes() == (tmp_path / "run" / STOPPED_WEIGHTS).read_bytes()
    assert load_policy(tmp_path / "other").step is None


def test_weights_that_are_not_finite_are_not_kept_when_the_environment_fails(tmp_path: Path) -> None:
    config = tiny_config("environments:NanReward-v0", memory={"start": 60})
    network = network_of(config, (2,))
    run = start_run(tmp_path / "run", config, network)

    def spoil_once_learnt(event: RunEvent) -> None:
        if isinstance(event, Learned):
            spoil(network)

    with pytest.raises(EnvironmentFault):
        run.train(spoil_once_learnt)
    run.close()
    assert not (tmp_path / "run" / STOPPED_WEIGHTS).exists()
