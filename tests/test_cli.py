"""Every command on a tiny run, every mistake as one sentence, and the live panel on a real pseudo-terminal."""

from __future__ import annotations

import ast
import csv
import errno
import fcntl
import importlib
import inspect
import io
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import environments
import imageio.v3 as imageio
import pytest
import torch
from gates import Gate

from lambda_replay import __version__
from lambda_replay.agents.run_settings import from_dict, to_dict
from lambda_replay.cli import main
from lambda_replay.cli.evaluate import EvaluateOptions
from lambda_replay.cli.main import COMMANDS
from lambda_replay.cli.options import DescribeOptions, TrainOptions, parse_run
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.files import load_tensors
from lambda_replay.training.presets import make_config

TESTS = Path(environments.__file__).parent
CHAIN = "environments:LinearChain-v0"
COMMON = [
    "--steps", "400", "--envs", "1", "--device", "cpu", "--checkpoint-every", "0",
    "--memory.capacity", "500", "--memory.start", "100",
]  # fmt: skip
TINY = [
    *COMMON, "--estimator", "peng:0.75",
    "--cache.size", "80", "--cache.block-length", "8", "--cache.refresh-every", "100", "--cache.updates", "5",
]  # fmt: skip
# A finished run's files, and no others.
FILES = {
    "config.json",
    "provenance.json",
    "metrics.jsonl",
    "timing.jsonl",
    "episodes.csv",
    "weights.safetensors",
    "curve.png",
    "lock",
}


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test in an empty directory, and the handlers that the command sets taken back."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    """``lambda-replay`` in this process."""

    def run(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # after --help
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of MinAtar Breakout."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", "minatar/breakout", *TINY, "--out", str(path)]) == 0
    return path


def listing(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(directory)), path.lstat().st_mtime_ns) for path in directory.rglob("*"))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def games_of(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "episodes.csv").read_text().splitlines()))


def assert_one_sentence(answer: Answer, *words: str) -> None:
    """Exit code 2, one line on standard error that says what is wrong, nothing else anywhere."""
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("lambda-replay: ")
    assert answer.err.endswith("\n")
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err, answer.err


# --- train ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["dqn-lambda", "dqn"])
def test_train_leaves_exactly_the_files_of_a_run(call: Any, tmp_path: Path, agent: str) -> None:
    options = TINY if agent == "dqn-lambda" else [*COMMON, "--target.copy-every", "100"]
    answer = call("train", CHAIN, "--agent", agent, *options, "--out", "run")
    assert (answer.code, answer.err) == (0, "")
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == FILES
    assert [row["step"] for row in rows_of(run)] == ([100, 200, 300, 400] if agent == "dqn-lambda" else [200, 300, 400])
    timing = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    assert [row["step"] for row in timing] == [row["step"] for row in rows_of(run)]
    games = games_of(run)
    assert len(games) == rows_of(run)[-1]["episodes"] > 10
    assert list(games[0]) == ["episode", "step", "stream", "score", "length", "seed", "ended"]
    assert from_dict(json.loads((run / "config.json").read_text())).agent == agent
    assert imageio.imread(run / "curve.png").ndim == 3
    assert all(value.isfinite().all() for value in load_tensors(run / "weights.safetensors").values())


def test_provenance_says_where_the_numbers_come_from(finished: Path) -> None:
    provenance = json.loads((finished / "provenance.json").read_text())
    assert provenance["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"started", "command", "commit", "python", "platform", "processor", "cores", "device"} <= provenance.keys()


def test_train_speaks_in_plain_lines_where_there_is_no_terminal(call: Any) -> None:
    out = call("train", CHAIN, *TINY, "--out", "run", "--seed", "7").out
    lines = out.splitlines()
    assert "\x1b" not in out
    assert lines[0] == f"{CHAIN} · dqn-lambda · peng:0.75 · seed 7"
    assert re.match(r"step +400 of 400 \| [\d,]+ steps/s \| .* left \| score \(last 100\) ", lines[-3])
    assert lines[-2].startswith("done: mean score of the last 100 games ")
    assert lines[-2].endswith("everything is in run")
    assert lines[-1] == "next: lambda-replay evaluate run · lambda-replay watch run"


def test_a_run_too_short_to_learn_says_so(call: Any) -> None:
    answer = call("train", CHAIN, *TINY, "--steps", "50", "--out", "run")
    assert answer.code == 0
    assert "nothing was learned" in answer.out.splitlines()[-2]
    assert "--memory.start" in answer.out
    assert "nothing was learned" not in call("train", CHAIN, *TINY, "--out", "longer").out


def test_the_saved_config_repeats_the_run(call: Any, tmp_path: Path) -> None:
    first = call(
        "train", CHAIN, *TINY, "--out", "one", "--seed", "3", "--estimator", "median", "--network.hidden", "8", "4",
        "--cache.priority", "0.1", "--optimizer.loss", "huber", "--optimizer.max-grad-norm", "2", "--envs", "2",
    )  # fmt: skip
    assert first.code == 0
    assert call("train", "--config", "one/config.json", "--out", "two").code == 0
    for name in ("config.json", "metrics.jsonl", "episodes.csv", "weights.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_a_saved_config_may_be_changed_and_the_environment_repeated(call: Any, tmp_path: Path) -> None:
    call("train", CHAIN, *TINY, "--out", "one")
    assert call("train", CHAIN, "--config=one/config.json", "--seed", "9", "--out", "two").code == 0
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("one", "two"))
    assert after == {**before, "seed": 9}
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() != (tmp_path / "two" / "metrics.jsonl").read_bytes()


def test_a_saved_config_and_a_preset_contradict_each_other(call: Any) -> None:
    """An option is never ignored in silence."""
    call("train", CHAIN, *TINY, "--out", "one")
    assert_one_sentence(call("train", "--config", "one/config.json", "--preset", "paper", "--out", "two"), "--preset")


def test_runs_that_nobody_named_get_names_of_their_own(call: Any, tmp_path: Path) -> None:
    for _ in range(2):
        assert call("train", CHAIN, *TINY, "--estimator", "nstep:3").code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "environments-linearchain-v0-dqn-lambda-nstep-3-seed0",
        "environments-linearchain-v0-dqn-lambda-nstep-3-seed0-2",
    ]


def test_the_memory_stays_if_asked_for(call: Any, tmp_path: Path) -> None:
    options = [*TINY, "--checkpoint-every", "100", "--keep-memory"]
    assert call("train", CHAIN, *options, "--out", "run").code == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*FILES, "memory", "checkpoints"}


def test_a_run_without_a_finished_game_says_so(call: Any) -> None:
    answer = call("train", "environments:Raising-v0", *TINY, "--steps", "15", "--out", "run")  # games of 20 steps
    assert answer.code == 0
    assert "no game ended" in answer.out


def test_tensorboard_gets_every_number(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert call("train", CHAIN, *TINY, "--out", "run", "--tensorboard").code == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    names = {name for row in rows_of(tmp_path / "run") for name, value in row.items() if value is not None}
    assert set(events.Tags()["scalars"]) == names - {"step"}
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    expected = [
        (row["step"], pytest.approx(row["loss"], rel=1e-5)) for row in rows_of(tmp_path / "run") if "loss" in row
    ]
    assert found == expected


def test_tensorboard_that_is_not_installed_is_noticed_before_anything_is_written(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    assert_one_sentence(call("train", CHAIN, *TINY, "--out", "run", "--tensorboard"), "lambda-replay[tensorboard]")
    assert listing(tmp_path) == []


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[str, list[str]]] = [
    # The list of the issue
    ("Nope-v0", ["no Gymnasium environment 'Nope-v0'"]),
    ("no_such_package:Env-v0", ["no_such_package"]),
    ("atari/pnog", ["no Atari game 'pnog'", "atari/pong"]),
    ("minatar/brekout", ["no MinAtar game 'brekout'", "minatar/breakout"]),
    (f"{CHAIN} --foo 3", ["no option --foo"]),
    (f"{CHAIN} --cache.siez 3", ["no option --cache.siez", "--cache.size"]),
    (f"{CHAIN} --no-cache.newest", ["no option --no-cache.newest", "--cache.n"]),
    (f"{CHAIN} --estimator peng:1.5", ["'peng:1.5'", "from 0 to 1"]),
    (f"{CHAIN} --estimator peng:-0.1", ["'peng:-0.1'", "from 0 to 1"]),
    (f"{CHAIN} --estimator nstep:0", ["'nstep:0'"]),
    (f"{CHAIN} --estimator median/7", ["'median/7'", "even"]),
    (f"{CHAIN} --estimator retrace:0.9@2", ["'retrace:0.9@2'"]),
    (f"{CHAIN} --estimator pong:1", ["'pong:1'", "peng:λ"]),
    (f"{CHAIN} --cache.size 81", ["cache.size (81)", "cache.block_length (8)", "80"]),
    (f"{CHAIN} --memory.start 8", ["memory.start (8", "block"]),
    (f"{CHAIN} --memory.capacity 99", ["memory.capacity (99)", "memory.start (100)"]),
    (f"{CHAIN} --out there", ["there already exists", "resume there"]),
    (f"{CHAIN} --out mine", ["mine already exists and is not a run", "another --out"]),
    (f"{CHAIN} --out file", ["file is not a directory", "another --out"]),
    (f"{CHAIN} --out file/run", ["file is not a directory", "another --out"]),
    (f"{CHAIN} --out nowhere", ["nowhere is not a directory", "another --out"]),  # a link to nothing
    (f"{CHAIN} --out {'a' * 300}", ["File name too long", "another --out"]),
    (f"{'a' * 300}", ["no Gymnasium environment"]),
    (f"{CHAIN} --device cuda", ["device cuda is not available", "cpu or auto"]),
    (f"{CHAIN} --device mps", ["device mps is not available"]),
    (f"{CHAIN} --memory.capacity 1000000000000", ["TB of disk", "lower memory.capacity"]),
    (f"{CHAIN} --memory.capacity 1000000000000 --memory.storage ram", ["TB of memory", "lower memory.capacity"]),
    (f"{CHAIN} --cache.size 800000000000", ["TB of memory", "lower cache.size"]),
    (f"{CHAIN} --optimizer.batch-size 10000000000000", ["PB of memory", "lower optimizer.batch_size (10000000000000)"]),
    (f"{CHAIN} --cache.updates {10**15}", ["EB of memory", "lower cache.updates"]),
    (f"{CHAIN} --network.hidden 10000000000", ["network.hidden is (10000000000)", "1000000"]),
    (f"{CHAIN} --network.hidden 1000000 1000000", ["TB of memory", "lower network.hidden (1000000, 1000000)"]),
    (f"{CHAIN} --estimator median/2000000000", ["misspelt", "k even from 2 to 100"]),
    (f"{CHAIN} --threads 1000000", ["threads is 1000000", "1 to 1024"]),
    (f"{CHAIN} --steps {10**400}", ["steps is 10^400"]),
    (f"{CHAIN} --seed {10**400}", ["seed is 10^400"]),
    (f"{CHAIN} --seed {'1' * 5000}", ["--seed", "fewer digits"]),
    (f"{CHAIN} --config brackets.json", ["brackets.json cannot be read"]),
    (f"{CHAIN} --config long.json", ["long.json cannot be read"]),
    (f"{CHAIN} --config huge.json", ["discount is inf"]),
    (f"{CHAIN} --config /dev/zero", ["/dev/zero cannot be read"]),
    ("environments:SeveralActions-v0", ["MultiDiscrete actions", "Discrete or Box"]),
    ("environments:UnboundedActions-v0", ["from -1 to inf", "finite bounds"]),
    ("environments:UnboundedActions-v0 --agent sac-lambda", ["from -1 to inf", "finite bounds"]),
    ("Pendulum-v1 --agent dqn-lambda", ["dqn-lambda needs Discrete actions", "Pendulum-v1 has Box", "sac-lambda"]),
    ("CartPole-v1 --agent sac-lambda", ["sac-lambda needs Box actions", "CartPole-v1 has Discrete", "dqn-lambda"]),
    ("Pendulum-v1 --estimator watkins:0.5", ["sac-lambda cannot use watkins:0.5", "greedy", "retrace"]),
    ("Pendulum-v1 --estimator tree:0.5", ["sac-lambda cannot use tree:0.5", "finitely many actions"]),
    ("Pendulum-v1 --estimator retrace:0.5@0.1", ["sac-lambda cannot use", "leave out @ε"]),
    ("Pendulum-v1 --estimator watkins-median", ["sac-lambda cannot use watkins-median", "greedy"]),
    ("Pendulum-v1 --estimator qstar:0.1", ["sac-lambda cannot use qstar:0.1", "only for λ close to 0", "use peng"]),
    ("Pendulum-v1 --estimator sarsa:0.1", ["sac-lambda cannot use sarsa:0.1", "peng"]),
    ("Pendulum-v1 --preset classic", ["preset classic does not fit agent sac-lambda", "continuous"]),
    ("CartPole-v1 --preset continuous", ["preset continuous does not fit agent dqn-lambda", "classic"]),
    ("Pendulum-v1 --exploration.end 0.1", ["--exploration.end belongs to agent dqn-lambda, dqn, pqn, drqn-lambda"]),
    ("Pendulum-v1 --noise.epsilon 0.1", ["--noise.epsilon belongs to agent sdqn-lambda only"]),
    ("Pendulum-v1 --noise.correlation=0.5", ["agent td3-lambda, ddpg-lambda, naf-lambda, td3 and uvfa-lambda only"]),
    ("Pendulum-v1 --entropy.start 0", ["entropy.start is 0", "from 1e-30"]),
    ("Pendulum-v1 --entropy.target inf", ["entropy.target is inf", "finite"]),
    ("Pendulum-v1 --network.hidden 0", ["network.hidden is (0)"]),
    ("Pendulum-v1 --network.kind mlp", ["--network.kind"]),
    ("Pendulum-v1 --minimum largest", ["--minimum takes one of step, return"]),
    ("environments:TextObservations-v0", ["Text observations", "Box"]),
    ("ALE/Pong-v5", ["atari/pong", "sticky"]),
    ("PongNoFrameskip-v4", ["atari/pong", "frames"]),
    ("MinAtar/Breakout-v1", ["minatar/breakout", "sticky"]),
    ("CartPole-v1 --env-args length=2", ["CartPole-v1", "'length'", "env_args"]),
    ("CartPole-v1 --env-args length", ["env_args", "'length'", "name=value"]),
    ("CartPole-v1 --env-args render_mode=human", ["env_args", "render_mode"]),
    ("minatar/breakout --env-args sticky=0", ["env_args", "minatar.sticky"]),
    # Others that a person may make
    ("", ["name an environment"]),
    ("''", ["environment"]),
    ("atari", ["atari/pong"]),
    ("minatar", ["minatar/breakout"]),
    ("atari/", ["Atari game"]),
    (f"{CHAIN} CartPole-v1", ["CartPole-v1"]),
    (f"{CHAIN} --env CartPole-v1", ["two environments"]),
    ("--stpes 1500 CartPole-v1", ["no option --stpes", "--steps"]),
    (f"{CHAIN} --steps many", ["--steps", "whole number", "'many'"]),
    (f"{CHAIN} --steps 1.5", ["--steps", "whole number"]),
    (f"{CHAIN} --steps", ["--steps"]),
    (f"{CHAIN} --steps 0", ["steps is 0"]),
    (f"{CHAIN} --discount much", ["--discount", "'much'"]),
    (f"{CHAIN} --discount 1.1", ["discount is 1.1", "from 0 to 1"]),
    (f"{CHAIN} --seed -1", ["seed is -1"]),
    (f"{CHAIN} --envs 3", ["envs (3)"]),
    (f"{CHAIN} --agent sarsa", ["no agent 'sarsa'", "dqn-lambda, dqn"]),
    (f"{CHAIN} --agent", ["--agent"]),
    (f"{CHAIN} --preset huge", ["no preset 'huge'", "paper, atari, mini, minatar, classic"]),
    (f"{CHAIN} --optimizer.loss l1", ["--optimizer.loss", "'l1'", "huber"]),
    (f"{CHAIN} --cache.updates some", ["--cache.updates", "'some'"]),
    (f"{CHAIN} --network.hidden 8 wide", ["--network.hidden", "wide"]),
    (f"{CHAIN} --network.kind atari", ["network.kind atari", "mlp"]),
    (f"{CHAIN} --network.kind minatar", ["network.kind minatar", "mlp"]),
    (f"{CHAIN} --flicker 0.5", ["flicker is 0.5", "are not images"]),
    (f"{CHAIN} --target.copy-every 100", ["--target.copy-every"]),
    (f"{CHAIN} --atari.sticky 0.25", ["--atari.sticky"]),
    (f"{CHAIN} --config missing.json", ["missing.json"]),
    (f"{CHAIN} --config file", ["file"]),
    (f"{CHAIN} --config list.json", ["list.json"]),
    (f"{CHAIN} --config", ["--config"]),
    (f"{CHAIN} --json", ["--json"]),  # describe has it, and train would ignore it
    (f"{CHAIN} --memory.storage tape", ["--memory.storage", "'tape'"]),
    (f"{CHAIN} --memory.storage ram --checkpoint-every 100", ["memory.storage ram", "checkpoint_every"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[arguments[:80] for arguments, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_nothing_is_written(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, words: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("no JSON")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "brackets.json").write_text("[" * 100_000)
    (tmp_path / "long.json").write_text('{"steps": ' + "1" * 5000 + "}")
    (tmp_path / "huge.json").write_text(json.dumps({**to_dict(make_config(CHAIN)), "discount": 10**400}))
    before = listing(tmp_path)
    words_given = ["" if word == "''" else word for word in arguments.split()]
    answer = call("train", *words_given[:1], *TINY, *words_given[1:])  # what is given later counts
    assert_one_sentence(answer, *words)
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    "options",
    [
        "--agent dqn --estimator peng:0.5",
        "--agent dqn --estimator nstep:200",
        "--agent dqn --cache.size 80",
        "--agent dqn --memory.history 300 --memory.start 400 --memory.capacity 400",
        "--agent dqn --target.copy-every 101",
    ],
)
def test_mistakes_with_agent_dqn(call: Any, tmp_path: Path, options: str) -> None:
    assert_one_sentence(call("train", CHAIN, *COMMON, *options.split()))
    assert listing(tmp_path) == []


@pytest.mark.parametrize("names", [[], ["mine.part"], ["mine.txt"]])
def test_a_refused_run_removes_nothing_of_the_users(call: Any, tmp_path: Path, names: list[str]) -> None:
    """Neither a directory that was there before nor what is in it."""
    (tmp_path / "mine").mkdir()
    for name in names:
        (tmp_path / "mine" / name).write_text("precious")
    before = [name for name, _ in listing(tmp_path)]
    assert call("train", CHAIN, *TINY, "--network.kind", "atari", "--out", "mine").code == 2
    assert [name for name, _ in listing(tmp_path)] == before


# What an environment does at step 100, and what is said of it; whether it is an exception of the environment's own.
FAULTS = [
    ("NanObservation-v0", "returned an observation that is not finite", False),
    ("NanReward-v0", "returned the reward nan", False),
    ("InfiniteReward-v0", "returned the reward inf", False),
    ("NoReward-v0", "returned the reward None", False),
    ("FourValues-v0", "returned 4 values from step", False),
    ("Raising-v0", "raised RuntimeError: the simulator fell over (", True),
    ("Exiting-v0", "raised SystemExit: 0 (", True),
    ("Refusing-v0", "raised OSError: [Errno 28] No space left on device: 'simulator.log' (", True),
]


@pytest.mark.parametrize(("env", "words", "has_traceback"), FAULTS, ids=[env for env, *_ in FAULTS])
def test_a_fault_of_the_environment_stops_the_run_which_keeps_what_it_has(
    call: Any, tmp_path: Path, env: str, words: str, has_traceback: bool
) -> None:
    """Exit code 1, the environment's own traceback and no frame of ours, then one sentence that says how to go on."""
    options = ["--memory.start", "40", "--cache.refresh-every", "30", "--checkpoint-every", "30", "--out", "run"]
    answer = call("train", f"environments:{env}", *TINY, *options)
    assert answer.code == 1
    *traceback, sentence = answer.err.splitlines()
    assert sentence.startswith(f"lambda-replay: environments:{env} {words}")
    assert " at step 100; fix the environment" in sentence
    assert sentence.endswith("; continue with: lambda-replay resume run (0 steps will be repeated).")
    assert bool(traceback) == has_traceback
    assert "environments.py" in answer.err or not has_traceback
    assert "lambda_replay" not in "".join(traceback)
    run = tmp_path / "run"
    assert [row["step"] for row in rows_of(run)] == [40, 70, 100]
    assert len(games_of(run)) == 5
    assert not (run / "weights.safetensors").exists()  # the run is not finished …
    assert call("evaluate", run, "--games", "1", "--max-steps", "5").code == 0  # … but what it learnt can be looked at
    # The environment counts its steps in this process anew, so that it fails again, 100 steps of its own later.
    assert call("resume", run).code == 1
    assert (run / "weights-stopped.safetensors").exists()


def test_a_run_that_goes_on_forgets_the_weights_it_stopped_with(call: Any, tmp_path: Path) -> None:
    options = ["--memory.start", "40", "--cache.refresh-every", "30", "--checkpoint-every", "30", "--steps", "130"]
    assert call("train", "environments:NanReward-v0", *TINY, *options, "--out", "run").code == 1
    assert (tmp_path / "run" / "weights-stopped.safetensors").exists()
    assert call("resume", "run").code == 0  # 30 steps are left, and 20 of a game are played again
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES


def test_a_fault_without_checkpoints_says_that_the_run_cannot_be_resumed(call: Any) -> None:
    answer = call("train", "environments:NanReward-v0", *TINY, "--out", "run")
    assert answer.code == 1
    assert answer.err.endswith("; this run has no checkpoints (checkpoint_every 0) and cannot be resumed.\n")


BROKEN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class {name}(CartPoleEnv):
    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.check("constructor")

    def check(self, place):
        from pathlib import Path
        if Path("broken").exists() and Path("broken").read_text() == place:
            raise OSError("a cable is loose")

    def reset(self, **options):
        self.check("reset")
        return super().reset(**options)

    def step(self, action):
        self.check("step")
        return super().step(action)

    def render(self):
        self.check("render")
        return super().render()

gymnasium.register("{name}-v0", {name}, max_episode_steps=100)
"""


@pytest.mark.parametrize("place", ["constructor", "reset", "step", "render"])
def test_every_command_says_the_same_of_a_fault(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    name = f"Broken{place.capitalize()}"
    (tmp_path / f"module_{name}.py").write_text(BROKEN.format(name=name))
    (tmp_path / "study.toml").write_text(
        f'name = "s"\nenvironments = ["module_{name}:{name}-v0"]\nseeds = 1\nbaseline = "a"\n[arms.a]\n'
    )
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which a module beside the user is added
    env = f"module_{name}:{name}-v0"
    options = [*TINY, "--memory.start", "40", "--steps", "140", "--checkpoint-every", "100"]
    assert call("train", env, *options, "--out", "run").code == 0
    commands = {"evaluate run", "inspect run", "watch run"}
    if place != "render":
        commands |= {f"describe {env} {' '.join(options)}", f"train {env} {' '.join(options)} --out other"}
    else:
        commands = {"watch run"}
    if place == "constructor":
        commands |= {"study run study.toml"}
    (tmp_path / "broken").write_text(place)
    for command in sorted(commands):
        answer = call(*command.split())
        assert answer.code == 1, command
        *traceback, sentence = answer.err.splitlines()
        assert sentence.startswith(
            f"lambda-replay: {env} raised OSError: a cable is loose ({tmp_path}/module_{name}.py:13)"
        )
        assert "; fix the environment" in sentence
        assert traceback[0].startswith("Traceback")
        assert "lambda_replay" not in "".join(traceback)


@pytest.mark.parametrize(
    ("place", "when"), [("constructor", ""), ("step", " while replaying the games that were open at step 140")]
)
def test_an_environment_that_fails_on_resuming(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, when: str
) -> None:
    name = f"Resumed{place.capitalize()}"
    (tmp_path / f"module_{name}.py").write_text(BROKEN.format(name=name))
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = [
        *TINY,
        "--memory.start",
        "40",
        "--steps",
        "240",
        "--checkpoint-every",
        "100",
        "--keep-memory",
        "--out",
        "run",
    ]
    assert call("train", f"module_{name}:{name}-v0", *options).code == 0
    (tmp_path / "run" / "weights.safetensors").unlink()  # as if it had been killed before its end
    (tmp_path / "broken").write_text(place)
    answer = call("resume", "run")
    assert answer.code == 1
    assert f"a cable is loose ({tmp_path}/module_{name}.py:13){when}; fix the environment" in answer.err
    assert answer.err.endswith("; try again with: lambda-replay resume run.\n")
    (tmp_path / "broken").unlink()
    assert call("resume", "run").code == 0


LATER_MISTAKES: list[tuple[str, list[str]]] = [
    ("evaluate", ["RUN"]),
    ("evaluate nowhere", ["no run nowhere"]),
    ("evaluate .", ["is not a run"]),
    ("evaluate RUN --games 0", ["--games"]),
    ("evaluate RUN --games few", ["--games"]),
    ("evaluate RUN --epsilon 1.5", ["--epsilon"]),
    ("evaluate RUN --epsilon nan", ["--epsilon"]),
    ("evaluate RUN --seed -1", ["seed"]),
    ("evaluate RUN --max-steps 0", ["--max-steps"]),
    ("evaluate RUN --max-steps -3", ["--max-steps"]),
    ("watch", ["RUN"]),
    ("watch nowhere", ["no run nowhere"]),
    ("watch RUN --out film.avi", ["film.avi", ".gif"]),
    ("watch RUN --out no/film.gif", ["no directory no"]),
    ("watch RUN --out RUN/weights.safetensors", [".gif"]),
    ("watch RUN --out RUN", [".gif"]),
    ("inspect", ["RUN"]),
    ("inspect nowhere", ["no run nowhere"]),
    ("inspect RUN --out RUN/weights.safetensors", ["weights.safetensors", ".png"]),
    ("inspect RUN --out RUN/curve.png", ["learning curve", "another file name"]),
    ("inspect RUN --out picture.pdf", ["picture.pdf", ".png"]),
    ("inspect RUN --out no/picture.png", ["no directory no"]),
    ("inspect RUN --estimators", ["--estimators"]),
    (f"inspect RUN --length {10**400}", ["--length", "2 to 100000"]),
    ("bench --seconds nan", ["--seconds is nan"]),
    ("bench --seconds inf", ["--seconds is inf"]),
    ("bench --seconds 0", ["--seconds is 0"]),
    ("bench --seconds -1", ["--seconds is -1"]),
    ("bench --threads 0", ["--threads is 0"]),
    ("bench --threads 1 -1", ["--threads is 1 -1"]),
    ("bench --envs 0", ["--envs is 0"]),
    ("bench --threads", ["--threads is empty"]),
    ("bench --threads 1000000", ["--threads is 1000000"]),
    ("bench --envs 1.5", ["--envs", "'1.5'"]),
    ("bench --quick", ["no option --quick"]),
    ("bench CartPole-v1", ["CartPole-v1 is an unexpected argument"]),
    ("study run mini.toml --out RUN/config.json", ["config.json is not a directory"]),
    ("watch RUN --max-steps 0", ["--max-steps"]),
    ("watch RUN --best-of 0", ["--best-of"]),
    ("watch RUN --frames-per-second 0", ["--frames-per-second"]),
    ("watch RUN --epsilon 1.5 --max-steps 2", ["--epsilon"]),
    ("watch RUN --seed -1", ["seed"]),
    ("resume", ["RUN"]),
    ("resume nowhere", ["no run nowhere"]),
    ("resume RUN --threads 0", ["--threads"]),
    ("resume RUN --device tpu", ["--device"]),
    ("verify", ["RUN"]),
    ("verify nowhere", ["no run nowhere"]),
    ("pack", ["give RUN first"]),
    ("pack nowhere", ["no run nowhere"]),
    ("pack .", ["is not a run"]),
    ("pack RUN --out run.zip", ["is finished", "nothing to pack", "copy its weights.safetensors"]),
    ("pack RUN --out run.tar", ["run.tar", ".zip"]),
    ("pack RUN --out no/run.zip", ["no directory no"]),
    ("pack RUN --outt run.zip", ["no option --outt", "--out"]),
    ("unpack", ["give FILE first"]),
    ("unpack nowhere.zip", ["nowhere.zip does not exist", "lambda-replay pack"]),
    ("unpack nowhere", ["nowhere does not end in .zip", "--out"]),
    ("unpack RUN --out other", ["is not a file"]),
    ("unpack RUN/config.json --out other", ["config.json is not a packed run"]),
    ("unpack RUN/config.json --out no/other", ["no directory no", "create it first"]),
    ("describe", ["name an environment"]),
    ("describe Nope-v0", ["Nope-v0"]),
    ("describe CartPole-v1 --optimizer.batch-size 10000000000000", ["PB of memory", "lower optimizer.batch_size"]),
    (f"describe CartPole-v1 --cache.updates {10**15}", [f"lower cache.updates ({10**15})"]),
    ("describe CartPole-v1 --network.hidden 1000000 1000000", ["TB of memory", "lower network.hidden"]),
    ("describe CartPole-v1 --threads 1000000", ["threads is 1000000"]),
    (f"describe {CHAIN} --cache.size 81 --cache.block-length 8", ["cache.size (81)"]),
    ("describe --estimators --foo", ["--foo"]),
    ("tran", ["no command 'tran'", "train"]),
    ("fly", ["no command 'fly'"]),
]


@pytest.mark.parametrize(
    ("arguments", "words"), LATER_MISTAKES, ids=[arguments[:80] for arguments, _ in LATER_MISTAKES]
)
def test_a_mistake_with_any_other_command(
    call: Any, finished: Path, tmp_path: Path, arguments: str, words: list[str]
) -> None:
    before = listing(finished)
    assert_one_sentence(call(*(word.replace("RUN", str(finished)) for word in arguments.split())), *words)
    assert listing(finished) == before
    assert listing(tmp_path) == []


@pytest.mark.parametrize(("command", "name"), [("watch", "film.gif"), ("inspect", "picture.png")])
def test_a_directory_or_a_pipe_is_not_written_over(
    call: Any, finished: Path, tmp_path: Path, command: str, name: str
) -> None:
    (tmp_path / name).mkdir()
    assert_one_sentence(call(command, finished, "--out", name), f"{name} is not a file")
    (tmp_path / name).rmdir()
    os.mkfifo(tmp_path / name)
    assert_one_sentence(call(command, finished, "--out", name), f"{name} is not a file")
    assert_one_sentence(call(command, finished, "--out", f"{name}/{name}"), f"there is no directory {name}")


@pytest.mark.parametrize("arguments", ["train CartPole-v1 --out shut/run", "study run x --out shut"])
def test_a_place_without_permission_is_refused_at_once(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    """Whoever runs the tests may be allowed everything, so the system's answer is replaced."""
    (tmp_path / "shut").mkdir()
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place).name != "shut")
    assert_one_sentence(call(*arguments.split()), "no permission to write to shut", "another --out")


STUDY = """
name = "large"
environments = ["CartPole-v1"]
seeds = 1
baseline = "one"
[arms.one]
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("optimizer.batch_size = 10_000_000_000_000", ["PB of memory", "lower optimizer.batch_size"]),
        ("network.hidden = [1_000_000, 1_000_000]", ["TB of memory", "lower network.hidden"]),
        ("threads = 1_000_000", ["line 7", "threads is 1000000"]),
        (f"steps = {10**400}", ["line 7", "steps is 10^400"]),
        (f"discount = {10**400}", ["line 7", "discount is inf"]),
        (f"steps = {'1' * 5000}", ["study.toml cannot be read"]),
        (f"steps = {'[' * 5000}", ["study.toml cannot be read"]),
        (f"steps = 1000\n[thresholds]\nCartPole-v1 = {10**400}", ["line 9", "thresholds"]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_study_of_numbers_too_large_is_refused(call: Any, tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "study.toml").write_text(STUDY + line)
    assert_one_sentence(call("study", "run", "study.toml"), *words)
    assert not list(tmp_path.rglob("config.json"))


def is_whole(value: Any) -> bool:
    return isinstance(value, int | tuple)


def hostile_numbers() -> Iterator[tuple[str, str, str]]:
    """Every numeric option with numbers that its type can be; one option of each type with what it cannot be."""
    for env in ("atari/pong", "minatar/breakout"):
        for option, (_, value) in settings_of(make_config(env)).items():
            if not isinstance(value, bool | str) and (env == "atari/pong" or option.startswith("--minatar")):
                numbers = ["0", "-1", str(10**400)] if is_whole(value) else ["-1", "-0.0", "nan", "inf", "1e308"]
                yield from ((env, option, number) for number in numbers)
    for option in ("--steps", "--discount", "--network.hidden", "--cache.updates", "--optimizer.max-grad-norm"):
        yield from (("atari/pong", option, number) for number in ("", "nan", "inf", "-inf", "1e308", str(10**400)))


def test_every_numeric_option_takes_a_number_or_refuses_it_in_one_sentence() -> None:
    taken, refused = set(), []
    for number, (env, option, value) in enumerate(hostile_numbers()):
        kind = TrainOptions if number % 2 else DescribeOptions
        try:
            parse_run(kind, [env, f"{option}={value}"], "train")
        except ConfigError as error:
            refused.append(str(error))
        else:
            taken.add((option, value))
    assert not [sentence for sentence in refused if "\n" in sentence or len(sentence) > 700]  # no 400 digits
    assert {value for _, value in taken} == {"0", "-0.0", "1e308"}
    assert {option for option, value in taken if value == "1e308"} == {
        "--optimizer.learning-rate",
        "--optimizer.final-learning-rate",
        "--optimizer.epsilon",
        "--optimizer.max-grad-norm",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        "--steps 1500 CartPole-v1",
        "--network.hidden 8 4 CartPole-v1 --steps 1500",
        "--keep-memory CartPole-v1 --steps 1500",
        "--steps=1500 CartPole-v1",
        "--optimizer.batch_size 7 CartPole-v1 --steps 1500",
        "--preset classic --agent dqn-lambda CartPole-v1 --steps 1500",
        "--env CartPole-v1 --steps 1500",
        "--env=CartPole-v1 --steps 1500",
    ],
)
def test_the_environment_may_stand_anywhere(arguments: str) -> None:
    config = parse_run(TrainOptions, arguments.split(), "train").config
    assert (config.env, config.steps) == ("CartPole-v1", 1500)


def test_the_later_of_two_equal_options_counts(call: Any) -> None:
    arguments = ["CartPole-v1", "--agent", "dqn", "--agent", "dqn-lambda", "--preset=paper", "--preset", "classic"]
    config = parse_run(TrainOptions, arguments, "train").config
    assert to_dict(config) == to_dict(make_config("CartPole-v1"))


def test_commands_to_type_quote_their_paths(call: Any, tmp_path: Path) -> None:
    """A path with blanks, and one that looks like an option, like rich's markup and like an emoji."""
    answer = call("train", CHAIN, *TINY, "--out", "my runs/first [/one] :dog:")
    where = "'my runs/first [/one] :dog:'"
    assert answer.code == 0
    assert "everything is in my runs/first [/one] :dog:\n" in answer.out
    assert answer.out.splitlines()[-1] == f"next: lambda-replay evaluate {where} · lambda-replay watch {where}"
    again = call("train", CHAIN, *TINY, "--out", "my runs/first [/one] :dog:")
    assert_one_sentence(again, f"continue with: lambda-replay resume {where}")
    assert call("train", CHAIN, *TINY, "--out=-x").out.splitlines()[-1].startswith("next: lambda-replay evaluate ./-x ")


# --- evaluate, watch, describe, verify, resume ------------------------------------------------------------------------


def test_evaluate_in_words(call: Any, finished: Path) -> None:
    before = listing(finished)
    answer = call("evaluate", finished, "--games", "3", "--max-steps", "50")
    assert (answer.code, answer.err) == (0, "")
    *games, summary = answer.out.splitlines()
    assert len(games) == 3
    scores = [float(re.fullmatch(r"game +\d: score (\S+), \d+ steps, \w+", game)[1]) for game in games]  # type: ignore[index]
    assert summary.startswith(f"mean score of 3 games: {sum(scores) / 3:.4g} ± ")
    assert listing(finished) == before


def test_evaluate_for_scripts(call: Any, finished: Path) -> None:
    options = ["--games", "4", "--epsilon", "0.5", "--max-steps", "40"]
    answer = call("evaluate", finished, *options, "--json")
    assert (answer.code, answer.err) == (0, "")
    values = json.loads(answer.out)
    scores = [game["score"] for game in values["each"]]
    assert (values["games"], len(scores)) == (4, 4)
    assert values["score_mean"] == pytest.approx(sum(scores) / 4)
    assert (values["score_min"], values["score_max"]) == (min(scores), max(scores))
    assert all(game["length"] <= 40 for game in values["each"])
    assert len({game["seed"] for game in values["each"]}) == 4
    assert call("evaluate", finished, *options, "--json").out == answer.out
    other = json.loads(call("evaluate", finished, *options, "--json", "--seed", "5").out)
    assert {game["seed"] for game in other["each"]}.isdisjoint(game["seed"] for game in values["each"])


def test_evaluate_stops_games_that_do_not_end_and_says_so(call: Any) -> None:
    """Games of 37 steps, and the usual limit of Atari where nothing else is said."""
    assert call("train", "restless:Steady-v0", *TINY, "--steps", "15", "--out", "run").code == 0
    answer = call("evaluate", "run", "--games", "3", "--max-steps", "15")
    *games, summary, stopped = answer.out.splitlines()
    assert [game.endswith("15 steps, stopped") for game in games] == [True] * 3
    assert summary.startswith("mean score of 3 games")
    assert stopped == "3 games were stopped after 15 steps, before the end; raise --max-steps to play longer"
    values = json.loads(call("evaluate", "run", "--games", "3", "--max-steps", "15", "--json").out)
    assert (values["stopped"], values["each"][0]["ended"]) == (3, "stopped")
    answer = call("evaluate", "run", "--games", "3")
    assert "stopped" not in answer.out
    assert json.loads(call("evaluate", "run", "--games", "3", "--json").out)["stopped"] == 0
    assert EvaluateOptions().max_steps == 27_000


def test_the_arguments_of_an_environment_go_with_its_run(call: Any, tmp_path: Path) -> None:
    """FrozenLake's larger map, without slipping: 64 states, in training, on playing and in the config."""
    arguments = ["--env-args", "map_name=8x8", "is_slippery=false"]
    assert call("train", "FrozenLake-v1", *TINY, *arguments, "--out", "run").code == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env_args"] == arguments[1:]
    assert call("evaluate", "run", "--games", "1").code == 0
    assert call("watch", "run", "--max-steps", "3").code == 0
    assert call("inspect", "run", "--length", "10").code == 0
    described = json.loads(call("describe", "FrozenLake-v1", *TINY, *arguments, "--json").out)
    assert described["environment"]["observation_shape"] == [64]


def test_evaluate_plays_other_games_than_training_did(call: Any, finished: Path) -> None:
    values = json.loads(call("evaluate", finished, "--games", "3", "--max-steps", "5", "--json").out)
    trained_on = {int(game["seed"]) for game in games_of(finished)}
    assert len(trained_on) > 10
    assert trained_on.isdisjoint(game["seed"] for game in values["each"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio leaves ffmpeg's pipes open
@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_watch_films_a_game(call: Any, finished: Path, tmp_path: Path, kind: str) -> None:
    film = tmp_path / f"film.{kind}"
    options = ["--max-steps", "12", "--best-of", "2", "--epsilon", "0.3"]
    answer = call("watch", finished, "--out", film, *options)
    assert answer.code == 0
    said = re.fullmatch(rf"{re.escape(str(film))}: (\d+) frames, score (\S+) after (\d+) steps, up to .*\n", answer.out)
    assert said is not None
    assert int(said[1]) == int(said[3]) + 1
    frames = imageio.imread(film, index=None)
    assert frames.shape[0] == int(said[1])
    assert frames.shape[1:] == (320, 320, 3)
    assert frames.std() > 5  # it shows something
    assert sorted(path.name for path in tmp_path.iterdir()) == [film.name]


def test_watch_puts_its_film_into_the_run_unless_told_otherwise(call: Any, tmp_path: Path) -> None:
    call("train", CHAIN, *TINY, "--out", "run")
    answer = call("watch", "run", "--max-steps", "5")
    assert answer.code == 0
    assert answer.out.startswith(f"{Path('run/play.gif')}: ")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*FILES, "play.gif"}
    assert imageio.imread(tmp_path / "run" / "play.gif", index=None).shape[1] >= 160  # small pictures are enlarged


def test_a_film_that_does_not_fit_into_memory_is_given_up(
    call: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame is 320×320×3 bytes, and there are 4 copies of a film: room for three frames."""
    monkeypatch.setattr("lambda_replay.training.films.available_ram", lambda: 3 * 320 * 320 * 3 * 4)
    assert call("watch", finished, "--out", "film.gif", "--max-steps", "2").code == 0
    (tmp_path / "film.gif").unlink()
    assert_one_sentence(call("watch", finished, "--out", "film.gif", "--max-steps", "600"), "4 frames", "--max-steps")
    assert listing(tmp_path) == []


def test_describe_says_what_a_run_would_be_and_writes_nothing(call: Any, tmp_path: Path) -> None:
    answer = call("describe", "minatar/breakout", "--steps", "20000", "--estimator", "median")
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "minatar/breakout: observations 10×10×4 bool, actions noop, left, right",
        "steps",
        "20,000",
        "median",
    ):
        assert words in answer.out
    for words in ("replay memory", "cache", "RAM in all", "time"):
        assert re.search(rf"^{words} +", answer.out, re.MULTILINE), words
    assert re.search(r"^  threads +None$", answer.out, re.MULTILINE)  # as its help says: chosen for the machine
    assert "atari" not in answer.out.replace("minatar", "")
    assert re.search(r"^cache +\S+ kB, and \S+ kB of Q-values while it is computed$", answer.out, re.MULTILINE)
    assert listing(tmp_path) == []


def test_describe_for_scripts(call: Any) -> None:
    answer = call("describe", CHAIN, *TINY, "--json")
    assert (answer.code, answer.err) == (0, "")
    values = json.loads(answer.out)
    assert from_dict(values["config"]).steps == 400
    assert values["environment"] == {"observation_shape": [5], "observation_dtype": "float32", "actions": ["0", "1"]}
    assert values["needs"]["replay_bytes"] == 500 * (5 * 4 + 15)
    assert values["needs"]["cache_bytes"] == 21 * values["config"]["cache"]["size"]
    assert values["needs"]["q_values_bytes"] > 0
    assert values["needs"]["seconds"] > 0


@pytest.mark.parametrize(
    "options",
    [
        "--envs 10",
        "--agent dqn --estimator nstep:300",
        "--agent dqn --envs 100",
        "--envs 50 --memory.start 5000 --cache.size 1000 --cache.block-length 20",
        "--memory.history 100 --memory.start 5000",
        "--cache.tail 300",
        "--cache.schedule concurrent",
        "--cache.schedule concurrent --cache.refresh-every 10000",
        "--memory.storage ram --checkpoint-every 0",
        "--steps 500",
        "--memory.start 100",
    ],
)
def test_describe_describes_whatever_train_would_train(call: Any, options: str) -> None:
    answer = call("describe", "CartPole-v1", *options.split())
    assert (answer.code, answer.err) == (0, "")
    assert re.search(r"^time +about \S+ (seconds|minutes|hours)", answer.out, re.MULTILINE)


SLOW_AT_FIRST = """
import time
import lambda_replay as lr
peng, calls = lr.parse_estimator("peng:0.9"), []
def returns(block):
    if block.rewards.size > 1_000:  # not the small one that a new estimator is tried with
        time.sleep(0.0 if calls else 1.0)
        calls.append(block)
    return peng(block)
"""


def test_what_happens_only_once_does_not_count_in_the_time_of_a_run(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries set themselves up at the first update; counted at every refresh, that made minutes hours."""
    (tmp_path / "slow_at_first.py").write_text(SLOW_AT_FIRST)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--agent", "dqn-lambda", "--estimator", "slow_at_first:returns", "--steps", "1000000"]
    described = json.loads(call("describe", CHAIN, *options, "--json").out)
    assert importlib.import_module("slow_at_first").calls
    refreshes = 1_000_000 / described["config"]["cache"]["refresh_every"]
    assert 0 < described["needs"]["seconds"] < refreshes / 2  # of the first second at each of them


def test_describe_lists_the_estimators(call: Any) -> None:
    answer = call("describe", "--estimators")
    assert (answer.code, answer.err) == (0, "")
    rows = json.loads(call("describe", "--estimators", "--json").out)["estimators"]
    spellings = [row["spelling"] for row in rows]
    families = {re.split(r"[:/@]", spelling)[0] for spelling in spellings}
    assert families == {
        "peng", "watkins", "watkins-published", "nstep", "median", "watkins-median", "bounded", "watkins-bounded",
        "tree", "retrace", "qstar", "sarsa",
    }  # fmt: skip
    for row in rows:
        assert row["formula"]
        assert row["source"]
        for value in row.values():
            assert value in answer.out


def test_verify_finds_a_run_sound_and_damage_where_there_is_some(call: Any, tmp_path: Path) -> None:
    call("train", CHAIN, *TINY, "--out", "run")
    before = listing(tmp_path)
    answer = call("verify", "run")
    assert (answer.code, answer.err) == (0, "")
    assert "DAMAGED" not in answer.out
    values = json.loads(call("verify", "run", "--json").out)
    assert values["sound"] is True
    assert {"config.json", "weights.safetensors"} <= {finding["what"] for finding in values["findings"]}
    assert listing(tmp_path) == before

    weights = tmp_path / "run" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    answer = call("verify", "run")
    assert answer.code != 0
    assert re.search(r"DAMAGED +weights\.safetensors", answer.out)
    assert json.loads(call("verify", "run", "--json").out)["sound"] is False
    assert_one_sentence(call("evaluate", "run"), "weights.safetensors", "damaged")


def test_resuming_a_finished_run_does_nothing(call: Any, finished: Path) -> None:
    names = {name for name in FILES if name != "lock"}
    before = {name: (finished / name).read_bytes() for name in names}
    answer = call("resume", finished)
    assert (answer.code, answer.err) == (0, "")
    assert "is already finished" in answer.out
    assert {name: (finished / name).read_bytes() for name in names} == before
    assert {path.name for path in finished.iterdir()} == FILES


# --- help -------------------------------------------------------------------------------------------------------------


def comments_of(kind: type) -> dict[str, str]:
    """The comment behind each field of a dataclass."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(item.target): lines[item.lineno - 1].partition("  # ")[2]
        for item in definition.body
        if isinstance(item, ast.AnnAssign)
    }


def squeezed(text: str) -> str:
    """Without white space and the frame, whose width breaks words anywhere."""
    return re.sub(r"[\s│╭╮╰╯─]+", "", text)


def option_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def settings_of(config: RunConfig) -> dict[str, tuple[str, Any]]:
    """Comment and default of every setting, by its option."""
    found: dict[str, tuple[str, Any]] = {}
    algorithm = type(config.algorithm)
    for name, comment in {**comments_of(RunConfig), **comments_of(algorithm)}.items():
        if name == "algorithm":
            continue
        value = getattr(config, name) if hasattr(config, name) else getattr(config.algorithm, name)
        if is_dataclass(value):
            for part, part_comment in comments_of(type(value)).items():
                found[option_of(f"{name}.{part}")] = (part_comment, getattr(value, part))
        elif value is not None:
            found[option_of(name)] = (comment, value)
    return found


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["train", "--help"], make_config("atari/pong")),
        (["train", "atari/pong", "--agent", "dqn", "-h"], make_config("atari/pong", agent="dqn")),
        (["train", "minatar/breakout", "--help"], make_config("minatar/breakout")),
        (["describe", "CartPole-v1", "--help"], make_config("CartPole-v1")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_shows_the_unit_the_default_and_the_papers_value_of_every_setting(
    call: Any, tmp_path: Path, arguments: list[str], config: RunConfig
) -> None:
    answer = call(*arguments)
    assert (answer.code, answer.err) == (0, "")
    text = squeezed(answer.out)
    settings = settings_of(config)
    assert len(settings) >= 35
    for option, (comment, default) in settings.items():
        shown = " ".join(str(width) for width in default) if isinstance(default, tuple) else default
        assert option in text, option
        assert squeezed(comment) in text, option
        assert squeezed(f"{comment} (default: {shown})") in text, option
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    "command", ["train", "resume", "evaluate", "watch", "describe", "verify", "inspect", "compare", "pack", "unpack"]
)
def test_every_option_of_every_command_has_a_help_text(call: Any, command: str) -> None:
    is_training = command in ("train", "describe")
    module = importlib.import_module(f"lambda_replay.cli.{'options' if is_training else COMMANDS[command].module}")
    name = f"{command.capitalize()}Options"
    answer = call(command, "--help")
    assert answer.code == 0
    assert squeezed(f"usage: lambda-replay {command}") in squeezed(answer.out)
    for field, comment in comments_of(getattr(module, name)).items():
        if field != "config":
            assert option_of(field) in answer.out
            assert comment, f"{command} --{field} has no help text"
            assert squeezed(comment) in squeezed(answer.out)


def test_help_of_train_names_the_saved_config_and_the_estimators_list(call: Any) -> None:
    assert "--config" in call("train", "--help").out
    assert "--estimators" in call("describe", "--help").out


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
def test_the_overview_names_every_command(call: Any, arguments: list[str]) -> None:
    answer = call(*arguments)
    assert (answer.code, answer.err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^ +{command} ", answer.out, re.MULTILINE)
    assert "package:Env-v0" in answer.out


def test_the_version(call: Any) -> None:
    assert call("--version") == (0, f"lambda-replay {__version__}\n", "")


# --- the process ------------------------------------------------------------------------------------------------------


def in_a_process(
    *arguments: str, variables: dict[str, str] | None = None, shell_rest: str = "", **options: Any
) -> subprocess.Popen[Any]:
    """``lambda-replay`` in a process; ``shell_rest``: where a shell sends its output, with the command's exit code."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        environ.pop(name, None)
    command = [sys.executable, "-m", "lambda_replay", *arguments]
    if shell_rest:
        command = ["bash", "-c", f"{shlex.join(command)} {shell_rest}; exit ${{PIPESTATUS[0]}}"]
    return subprocess.Popen(command, env={**environ, **(variables or {})}, **options)


# A command in a process that may have so much more memory than it has when everything is imported.
LITTLE_MEMORY = """
import os, resource, sys
import numpy, torch, environments, lambda_replay.cli.train
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * os.sysconf("SC_PAGE_SIZE") + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(lambda_replay.cli.main(sys.argv[2:]))
"""


def with_little_memory(num_bytes: int, *arguments: str) -> Answer:
    finished = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, str(num_bytes), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return Answer(finished.returncode, finished.stdout, finished.stderr)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_a_run_that_gets_no_memory_says_what_to_lower_and_how_to_go_on(tmp_path: Path) -> None:
    """NumPy has no room for the rows of 400,000 minibatches, 0.4 GB; the machine as a whole has."""
    answer = with_little_memory(
        200_000_000, "train", CHAIN, *TINY, "--cache.updates", "400000", "--checkpoint-every", "100", "--out", "a run"
    )
    assert answer.code == 1, answer
    assert answer.err == (
        "lambda-replay: there is not enough memory; free some, then continue with: lambda-replay resume 'a run'; or "
        "start again with a lower memory.capacity, cache.size, cache.updates, optimizer.batch_size or network.hidden.\n"
    )
    assert (tmp_path / "a run" / "checkpoints" / "100").exists()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_a_network_for_which_torch_gets_no_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    answer = with_little_memory(50_000_000, "train", CHAIN, *TINY, "--network.hidden", "4000", "4000", "--out", "run")
    assert answer.code == 1, answer
    assert answer.err.startswith("lambda-replay: there is not enough memory; free some, then try again; or ")
    assert answer.err.count("\n") == 1
    assert listing(tmp_path) == []


# Commands given as JSON, one after the other in one process, which is quicker; each with its exit code.
SEVERAL = """
import json, sys
from lambda_replay.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    print("exit code", code)
"""


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii", "latin-1", "C"],
)
def test_every_command_speaks_in_every_locale(finished: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    """All output is bytes that the locale has; Greek letters are spelled."""
    commands = {
        "help": ["lambda-replay: lambda-returns"],
        "describe --estimators": ["retrace:lambda@epsilon", "gamma_t"],
        "train --help": ["lambda-replay train ENV", "Adam alpha"],
        f"train {CHAIN} {' '.join(TINY)} --estimator median --out run": ["lambda chosen", "step       400 of 400"],
        f"train {CHAIN} --estimator pong:1": ["peng:lambda"],
        f"describe {CHAIN} {' '.join(TINY)}": ["observations 5 float32"],
        f"evaluate {finished} --games 2 --max-steps 5": ["mean score of 2 games"],
        f"watch {finished} --max-steps 5 --out film.gif": ["6 frames"],
        f"verify {finished}": ["sound"],
        f"inspect {finished} --length 5 --out picture.png": ["5 steps under"],
        f"resume {finished}": ["is already finished"],
        f"study status {TESTS.parent / 'studies' / 'mini.toml'}": ["mini"],
        "bench --help": ["lambda-replay bench"],
        "n\u00f6": ["there is no command"],
    }
    finished_process = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps([command.split() for command in commands])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    encoding = "latin-1" if "latin-1" in variables.values() else "ascii"
    said = finished_process.stdout.decode(encoding, "surrogateescape")
    assert "Traceback" not in said, said
    assert re.findall(r"exit code (\d+)", said) == list("00002000000002"), said
    for words in commands.values():
        for word in words:
            assert word in said, (word, said)


def test_a_file_name_that_no_encoding_explains_is_shown_byte_by_byte(tmp_path: Path) -> None:
    name = b"caf\xe9"
    process = in_a_process(
        "verify", os.fsdecode(name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, variables={"PYTHONUTF8": "1"}
    )
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith(b"lambda-replay: there is no run " + name)


def test_output_that_cannot_be_written_is_said_once() -> None:
    """A reader that left before anything was written, and a full disk."""
    for target, code, words in (("| true", 0, ""), ("> /dev/full", 1, "No space left on device")):
        process = in_a_process(
            "describe", "--estimators", variables={"PYTHONUNBUFFERED": ""}, shell_rest=target,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        out, err = process.communicate()
        assert (process.returncode, out) == (code, ""), err
        assert words in err
        assert err.count("\n") == (1 if words else 0), err


def test_a_run_whose_reader_leaves_says_how_to_go_on(tmp_path: Path) -> None:
    """As in ``lambda-replay train … | head -1``: the second line, at the latest the last, finds nobody."""
    process = in_a_process(
        "train", CHAIN, *TINY, "--checkpoint-every", "100", "--out", "run",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, shell_rest="| true",
    )  # fmt: skip
    out, err = process.communicate()
    assert (process.returncode, out) == (130, ""), err
    assert re.fullmatch(r"lambda-replay: stopped .*: lambda-replay resume run\b.*\n", err)


@pytest.mark.parametrize("arguments", [["train", "--help"], ["describe", "--estimators"], ["fly"]])
def test_closed_output_is_no_fault(arguments: list[str]) -> None:
    process = in_a_process(*arguments, stderr=subprocess.PIPE, text=True, shell_rest=">&-")
    _, err = process.communicate()
    assert process.returncode == (2 if arguments == ["fly"] else 0)
    assert err.count("\n") == (1 if arguments == ["fly"] else 0)


def test_the_live_panel_on_a_terminal(tmp_path: Path) -> None:
    """Steps a second, time left, score, ε, loss, |TD error| and the next refresh, painted over and over."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    stops = [150, 250, 350, 450]
    gate = Gate(tmp_path / "gate", stops[0])
    process = in_a_process(
        "train", "gates:Gated-v0", *TINY, "--steps", "1000", "--out", "run",
        variables=gate.variables, stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    for stop in stops:  # the run waits at each until the panel has shown it
        gate.move(stop)
        while f"step {stop} of 1,000".encode() not in shown:
            shown += (piece := read_some(controller))
            assert piece, shown.decode()
    gate.open()
    while piece := read_some(controller):
        shown += piece
    os.close(controller)
    assert process.wait() == 0
    assert b"\x1b[" in shown
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    panels = text.split("gates:Gated-v0 · dqn-lambda · peng:0.75 · seed 0")[1:]
    for pattern in (
        *(rf"step {stop} of 1,000(?s:.*)next refresh +in 50 steps" for stop in stops),
        r"[\d,]+ steps/s · (\d+ h \d\d min|\d+ min \d\d s) left",
        r"score \(last 100\) +-?[\d.]+",
        r"ε +[\d.]+",
        r"loss +[\d.e-]+",
        r"mean \|TD error\| +[\d.e-]+",
        r"score +[▁▂▃▄▅▆▇█]+",
    ):
        assert any(re.search(pattern, panel) for panel in panels), pattern
    assert "done: mean score of the last 100 games" in text


def read_some(terminal: int) -> bytes:
    """What a process has written to its terminal since; waits for it, and is empty when the process has ended."""
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other end is closed
        return b""


def test_a_reader_who_leaves_early_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in ``lambda-replay describe --estimators | head -1``."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["describe", "--estimators"]) == 0
    assert capsys.readouterr().err == ""


def test_settings_survive_the_way_through_the_command_line() -> None:
    """Every option, given its own default, changes nothing."""
    for env in ("atari/pong", "minatar/breakout", "CartPole-v1"):
        config = make_config(env)
        options: list[str] = []
        for option, (_, value) in settings_of(config).items():
            if option in ("--env", "--agent") or isinstance(value, bool):
                continue
            options += [option, *map(str, value)] if isinstance(value, tuple) else [option, str(value)]
        assert to_dict(parse_run(TrainOptions, [env, *options], "train").config) == to_dict(config)
