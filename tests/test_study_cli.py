"""``lambda-replay study`` as a user has it: interrupted, killed, failing, repeated; results are the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gates import Gate
from processes import HUNG_SECONDS, wait_for

from lambda_replay.agents.run_settings import to_dict
from lambda_replay.cli import main
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.directory import RunLock, is_finished
from lambda_replay.studies import attempt, cluster, execute
from lambda_replay.studies.execute import lock_study
from lambda_replay.studies.layout import Layout, make_layout
from lambda_replay.studies.plan import Study, read_study
from lambda_replay.studies.status import read_status

SAME_BYTES = ("metrics.jsonl", "episodes.csv", "weights.safetensors", "config.json")
ENVIRONMENT = "gates:Gated-v0"  # waits where a test holds it, so that no run ends before it is killed
HELD_AT = 500  # steps of a process: beyond its first checkpoint, before its end
STUDY = f"""
name = "small"
environments = ["{ENVIRONMENT}"]
seeds = 1
baseline = "dqn"
[defaults]
steps = 1_200
checkpoint_every = 200
memory = {{start = 200, capacity = 1_000}}
cache = {{size = 400, refresh_every = 200, updates = 40}}
target = {{copy_every = 200, update_every = 1}}
[arms.dqn]
agent = "dqn"
[arms.peng]
estimator = "peng:0.5"
"""
# Two environments of a package of the user's own. One fails always; the other only the first time.
ENVIRONMENTS = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Broken(CartPoleEnv):
    def reset(self, **options):
        raise OSError("the arm of the robot is off")

class Shaky(CartPoleEnv):
    def reset(self, **options):
        flag = Path(__file__).with_name("shaken")
        if not flag.exists():
            flag.touch()
            raise OSError("a cable is loose")
        return super().reset(**options)

gymnasium.register("Broken-v0", Broken)
gymnasium.register("Shaky-v0", Shaky)
"""


def study_command(action: str, file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "lambda_replay", "study", action, str(file), "--out", str(file.parent), *options]


def variables() -> dict[str, str]:
    """The environment of a process that finds the modules of this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def study_at(gate: Gate, file: Path, *, workers: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A study whose runs wait at a gate; killed at the latest when this is left."""
    command, environ = study_command("run", file, "--workers", str(workers)), {**variables(), **gate.variables}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def wait_for_arrivals(number: int, gate: Gate, driver: subprocess.Popen[str]) -> None:
    wait_for(lambda: len(gate.arrivals()) >= number, lambda: driver.poll() is None)


def study(action: str, file: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = study_command(action, file, *options)
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=HUNG_SECONDS, check=False, env=variables()
    )
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


def read_json(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(study("status", file, "--json").stdout)
    return values


def is_free(path: Path) -> bool:
    """Whether no process works in a run directory any more."""
    try:
        RunLock(path).release()
    except ConfigError:
        return False
    return True


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which a study command is refused."""
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["study", *arguments]) == 2
    signal.signal(signal.SIGTERM, handler)
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    return sentence


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a study that two workers have finished."""
    file = tmp_path_factory.mktemp("finished") / "small.toml"
    file.write_text(STUDY)
    gate, said = Gate(file.with_name("gate"), HELD_AT), ""
    with study_at(gate, file, workers=2) as driver:
        assert driver.stdout is not None
        while said.count("started ") < 2:
            said += (line := driver.stdout.readline())
            assert line, said
        gate.open()
        rest, complaints = driver.communicate(timeout=HUNG_SECONDS)
    assert driver.returncode == 0, complaints
    said += rest
    assert said.count("started ") == 2
    assert said.count("finished ") == 2
    assert "2 of 2 runs done" in said
    return file


def test_a_finished_study_has_everything_in_its_place(finished_study: Path) -> None:
    directory = finished_study.parent / "studies" / "small"
    for arm in ("dqn", "peng"):
        assert (directory / "runs/gates-Gated-v0" / arm / "seed-0/weights.safetensors").exists()
        assert "done: mean score" in (directory / "logs/gates-Gated-v0" / arm / "seed-0.log").read_text()
    assert (directory / "report.html").stat().st_size > 10_000
    status = read_json(finished_study)
    assert status["counts"] == {"finished": 2, "running": 0, "waiting": 0, "failed": 0, "diverged": 0}
    assert [(run["arm"], run["step"], run["steps"]) for run in status["runs"]] == [
        ("dqn", 1_200, 1_200),
        ("peng", 1_200, 1_200),
    ]


def test_finished_runs_are_not_run_again_and_a_changed_file_is_refused(
    finished_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = finished_study.parent / "studies/small/runs/gates-Gated-v0/peng/seed-0/weights.safetensors"
    before = weights.stat().st_mtime_ns
    assert "started " not in study("run", finished_study).stdout
    assert weights.stat().st_mtime_ns == before
    changed = finished_study.with_name("changed.toml")
    changed.write_text(STUDY.replace("peng:0.5", "peng:0.6"))
    for action in ("run", "status", "report"):
        assert "(estimator)" in refuse(capsys, action, str(changed), "--out", str(changed.parent))


def test_killed_and_interrupted_with_one_worker_it_gives_the_same_bytes(finished_study: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    plan = read_study(file)
    layout, expected = make_layout(tmp_path, plan), make_layout(finished_study.parent, plan)
    first, second = plan.runs
    gate = Gate(tmp_path / "gate", HELD_AT)

    with study_at(gate, file) as driver:
        wait_for_arrivals(1, gate, driver)
        assert [status.state for status in read_status(plan, layout)] == ["running", "waiting"]
        with pytest.raises(ConfigError, match="another process is working in"):
            lock_study(layout)
        driver.kill()
    wait_for(lambda: is_free(layout.run(first)))
    assert [status.state for status in read_status(plan, layout)] == ["waiting", "waiting"]

    gate.admit_one()
    with study_at(gate, file) as driver:
        wait_for_arrivals(3, gate, driver)  # the first run passed, the second is there now
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=HUNG_SECONDS)
    assert driver.returncode == 130
    assert "stopped with 1 of 2 runs done" in said
    assert f"continue with: lambda-replay study run {file}" in said
    assert not layout.mark(second).exists()

    study("report", file)
    study("run", file, "--workers", "1")
    for run in plan.runs:
        assert "lambda-replay resume" in layout.log(run).read_text()
        for name in SAME_BYTES:
            assert (layout.run(run) / name).read_bytes() == (expected.run(run) / name).read_bytes(), (run.label, name)


def test_a_failed_run_is_tried_once_more_and_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key of the user's own too (trust.py): the study's file names the environment."""
    (tmp_path / "robots.py").write_text(ENVIRONMENTS)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "robots.py"))
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "robots.toml"
    short = STUDY.replace("1_200", "300").replace(ENVIRONMENT, "robots:Broken-v0").partition("[arms.dqn]")[0]
    short = short.replace('["robots:Broken-v0"]', '["robots:Broken-v0", "robots:Shaky-v0"]').replace('"dqn"', '"peng"')
    file.write_text(short.replace("target =", "# ") + '[arms.peng]\nestimator = "peng:0.5"\n')
    finished = study("run", file, "--workers", "2", code=1)
    reason = "the arm of the robot is off"
    assert f"robots:Broken-v0 · peng · seed 0 failed: robots:Broken-v0 raised OSError: {reason} (" in finished.stderr
    assert "1 of 2 runs done" in finished.stdout
    broken, shaky = read_json(file)["runs"]
    assert (broken["state"], shaky["state"]) == ("failed", "finished")
    assert reason in broken["reason"]
    layout = make_layout(tmp_path, read_study(file))
    for run in read_study(file).runs:
        assert layout.log(run).read_text().count("--- ") == 2  # both were tried twice
    assert json.loads(layout.failure(read_study(file).runs[0]).read_text())["attempts"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("run",), "give FILE first: lambda-replay study run FILE"),
        (("run", "--workers", "2", "{file}"), "give FILE first: lambda-replay study run FILE"),
        (("go", "x.toml"), "run|status|report"),
        (("run", "none.toml"), "there is no study file none.toml"),
        (("run", "{file}", "--workers", "0"), "--workers is 0"),
        (("run", "{file}", "--workers", "two"), "not 'two' (see lambda-replay study run --help)"),
        (("run", "{file}", "--cpus-per-run", "two"), "--cpus-per-run takes a number, not 'two'"),
        (("run", "{file}", "other.toml"), "other.toml is an unexpected argument"),
        (("status", "{file}", "--outt", "x"), "there is no option --outt; did you mean --out?"),
        (("run", "{file}", "--out", "{file}/x"), "study.toml is not a directory; give another --out"),
        (("status", "{file}", "--out", "{file}"), "study.toml is not a directory; give another --out"),
        (("run", "{file}", "--workers", "2", "--ray", "auto"), "--cpus-per-run"),
        (("run", "{file}", "--gpus-per-run", "1"), "belong to --ray"),
        (("run", "{file}", "--cpus_per_run", "1"), "belong to --ray"),
        (("run", "{file}", "--ray", "auto", "--cpus-per-run", "nan"), "a number above 0"),
        (("report", "{file}", "--out", "my runs"), "start with: lambda-replay study run study.toml --out 'my runs'"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: Any, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    assert said in refuse(capsys, *(option.format(file="study.toml") for option in options))


def test_an_unknown_game_is_told_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY.replace(ENVIRONMENT, "minatar/brekout").replace("[defaults]", "[defaults]\nenvs = 1"))
    sentence = refuse(capsys, "run", str(file), "--out", str(tmp_path))
    assert "minatar/breakout?" in sentence
    assert f"{file}, line 3: " in sentence
    assert not (tmp_path / "studies").exists()


def test_an_arm_that_cannot_be_made_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(f'{STUDY}[arms.blind]\nnetwork.kind = "atari"\n')
    assert f"{file}, line 17: network.kind" in refuse(capsys, "run", str(file), "--out", str(tmp_path))
    assert not (tmp_path / "studies").exists()


def small_plan(root: Path) -> tuple[Study, Layout]:
    """Two short runs; the directory of the first one is there."""
    file = root / "small.toml"
    file.write_text(STUDY.replace("1_200", "400"))
    plan = read_study(file)
    layout = make_layout(root, plan)
    layout.run(plan.runs[0]).mkdir(parents=True)
    return plan, layout


def test_a_run_that_somebody_works_on_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "SECONDS_TO_FREE", 0.5)
    plan, layout = small_plan(tmp_path)
    lock = RunLock(layout.run(plan.runs[0]))
    for _ in execute.run_locally(plan, layout, workers=1):
        pass
    lock.release()
    busy, other = read_status(plan, layout)
    assert (busy.state, other.state) == ("failed", "finished")
    assert "another process is working on it" in busy.reason


def test_a_run_that_somebody_leaves_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "SECONDS_TO_FREE", HUNG_SECONDS)  # the other run may take its time
    plan, layout = small_plan(tmp_path)
    lock = RunLock(layout.run(plan.runs[0]))
    for _ in execute.run_locally(plan, layout, workers=1):
        if is_finished(layout.run(plan.runs[1])):
            lock.release()
    assert [status.state for status in read_status(plan, layout)] == ["finished", "finished"]


def test_a_run_that_somebody_works_on_is_no_fault_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "SECONDS_TO_FREE", 0.3)
    plan, layout = small_plan(tmp_path)
    run = plan.runs[0]
    lock = RunLock(layout.run(run))
    order = {"environment": run.environment, "arm": run.arm, "seed": run.seed, "config": to_dict(run.config)}
    cluster.conduct(order, str(layout.directory), has_gpu=False)
    lock.release()
    failure = json.loads(layout.failure(run).read_text())
    assert (failure["reason"], failure["attempts"]) == (attempt.BUSY, 0)


# Divergence


@pytest.mark.parametrize(
    ("diverging", "surviving"), [("dqn", "peng"), ("peng", "dqn")], ids=["baseline", "another arm"]
)
def test_a_diverged_run_is_neither_finished_nor_failed_and_not_tried_again(
    tmp_path: Path, diverging: str, surviving: str
) -> None:
    file = tmp_path / "small.toml"
    huge = f"[arms.{diverging}]\noptimizer.learning_rate = 1e30\n"
    file.write_text(STUDY.replace("1_200", "600").replace(f"[arms.{diverging}]\n", huge))
    said = study("run", file, "--workers", "1")
    assert said.stderr == ""
    assert said.stdout.count(f"diverged  {ENVIRONMENT} · {diverging} · seed 0: at step 20") == 1
    assert "1 of 2 runs done and 1 diverged; everything is in" in said.stdout
    assert said.stdout.count(f"{ENVIRONMENT} · {diverging} · seed 0 diverged: at step 20") == 1
    values = json.loads(study("status", file, "--json").stdout, parse_constant=pytest.fail)
    assert values["counts"] == {"finished": 1, "running": 0, "waiting": 0, "failed": 0, "diverged": 1}
    states = {run["arm"]: (run["state"], run["reason"]) for run in values["runs"]}
    assert states[surviving] == ("finished", "")
    assert states[diverging][0] == "diverged"
    assert "the Q-values are not finite: training diverged" in states[diverging][1]
    plan = read_study(file)
    layout = make_layout(tmp_path, plan)
    run = next(run for run in plan.runs if run.arm == diverging)
    assert layout.log(run).read_text().count("--- ") == 1  # it was tried once
    assert not layout.failure(run).exists()
    assert f"<b>{diverging}</b>: the only run in {ENVIRONMENT} diverged." in layout.report.read_text()

    again = study("run", file, "--workers", "1").stdout
    assert "started " not in again
    assert "1 of 2 runs done and 1 diverged" in again
    assert "1 of 2 runs are done and 1 diverged" in study("report", file).stdout


def test_a_run_that_diverged_on_a_node_that_was_lost_is_not_a_failure(tmp_path: Path) -> None:
    """Ray gives the task to another node, which finds the run as it was left."""
    file = tmp_path / "small.toml"
    file.write_text(STUDY.replace("1_200", "400").replace("[defaults]", "[defaults]\noptimizer.learning_rate = 1e30"))
    plan = read_study(file)
    layout, run = make_layout(tmp_path, plan), plan.runs[1]
    order = {"environment": run.environment, "arm": run.arm, "seed": run.seed, "config": to_dict(run.config)}
    for _ in range(2):
        cluster.conduct(order, str(layout.directory), has_gpu=False)
        assert not layout.failure(run).exists()
        assert [status.state for status in read_status(plan, layout)] == ["waiting", "diverged"]
