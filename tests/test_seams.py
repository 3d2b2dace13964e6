"""A new agent, a new estimator and a new environment work everywhere without a line changed in the package.

They live in toys.py: trained from the command, killed, resumed to the same bytes, evaluated, filmed, described,
inspected, verified and studied.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import Server, command_line
from small_runs import differences

from lambda_replay.rundir.files import load_tensors

TESTS = Path(__file__).resolve().parent
TRAIN = [
    "train",
    "toys:Corridor-v0",
    "--agent",
    "tabular",
    "--estimator",
    "toys:between",
    "--steps",
    "2000",
    "--memory.start",
    "100",
    "--memory.capacity",
    "500",
    "--checkpoint-every",
    "50",
    "--discount",
    "0.9",
    "--refresh-every",
    "50",
]
STUDY = """
name = "toys"
environments = ["toys:Corridor-v0"]
seeds = 2
baseline = "one-step"
[defaults]
agent = "tabular"
steps = 500
memory = {start = 100, capacity = 500}
[arms.one-step]
estimator = "peng:0"
[arms.ours]
estimator = "toys:between"
step_size = 0.1
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line("toys") as server:
        yield server


@pytest.fixture(scope="module")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("toys") / "run"
    ended = server.run(*TRAIN, "--out", run)
    assert ended.code == 0, ended.err
    return run


def test_it_learns_and_its_settings_are_recorded(finished: Path) -> None:
    """Walking right is best everywhere, and worth 0.9ⁿ less the cost of the way: Q(last, right) = 1."""
    config = json.loads((finished / "config.json").read_text())
    assert (config["agent"], config["estimator"], config["refresh_every"]) == ("tabular", "toys:between", 50)
    table = load_tensors(finished / "weights.safetensors")["table"].numpy()  # [cells, A]
    assert (table.argmax(axis=1) == 1).all()
    assert table[-1, 1] == pytest.approx(1, abs=0.01)
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert "td_error_abs_mean" in rows[-2]
    assert np.isfinite([row["epsilon"] for row in rows]).all()


def test_killed_and_resumed_to_the_same_bytes(server: Server, finished: Path, tmp_path: Path) -> None:
    run, num_kills = tmp_path / "run", 0
    command = [*TRAIN, "--out", str(run)]
    while not (run / "weights.safetensors").exists():
        ended = server.run(*command, die_at=90 if num_kills < 4 else None)
        assert ended.code in (0, -signal.SIGKILL), ended.err
        num_kills += ended.code != 0
        command = ["resume", str(run), "--trust"] if (run / "config.json").exists() else command
    assert num_kills == 4
    assert not differences(finished, run)


def test_every_command_knows_it(server: Server, finished: Path, tmp_path: Path) -> None:
    evaluated = server.run("evaluate", finished, "--games", "5", "--json")
    assert json.loads(evaluated.out)["score_mean"] > 0.4, evaluated.err
    film, picture = tmp_path / "film.gif", tmp_path / "block.png"
    assert server.run("watch", finished, "--out", film).code == 0
    assert film.read_bytes().startswith(b"GIF8")
    own = ("--estimators", "toys:between", "peng:0.5", "--length", "20")
    inspected = server.run("inspect", finished, *own, "--out", picture)
    assert "20 steps under toys:between, peng:0.5" in inspected.out, inspected.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert server.run("verify", finished).code == 0
    described = server.run("describe", *TRAIN[1:])
    assert described.code == 0, described.err
    assert "refresh_every" in described.out
    assert "--step-size" in server.run("train", "toys:Corridor-v0", "--agent", "tabular", "--help").out


def test_mistakes_are_told_in_its_own_words(server: Server, tmp_path: Path) -> None:
    for options, words in (
        (["--refresh-every", "0"], "refresh_every is 0; give a number above 0"),
        (["--target.copy-every", "3"], "--target.copy-every belongs to agent dqn only; this is agent tabular"),
        (
            ["--envs", "3", "--steps", "2001", "--memory.start", "102"],
            "refresh_every (50) must be a multiple of envs (3)",
        ),
    ):
        ended = server.run(*TRAIN, *options, "--out", tmp_path / "run")
        assert ended.code == 2
        assert words in ended.err
        assert ended.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_it_is_studied(tmp_path: Path) -> None:
    """In processes of their own, which import the toys at their start, as a user's installation would."""
    (tmp_path / "sitecustomize.py").write_text("import toys\n")
    (tmp_path / "toys.toml").write_text(STUDY)
    paths = [str(tmp_path), str(TESTS), *sys.path]
    finished = subprocess.run(
        [sys.executable, "-m", "lambda_replay", "study", "run", "toys.toml", "--out", "out", "--workers", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "4 of 4 runs done" in finished.stdout
    report = (tmp_path / "out" / "studies" / "toys" / "report.html").read_text()
    assert "ours" in report
