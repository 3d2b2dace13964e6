"""Minutes of killing, damaging and filling disks: ``make torture``. What takes seconds is in test_resume.py."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import KILLED, Server, command_line
from small_runs import (
    copy_run,
    differences,
    learnt_the_same,
    resume_to_end,
    small_config,
    train_command,
    train_to_end,
    train_until,
)
from test_files import entries, plain, revouched
from test_resume import DAMAGES, flip, mutate, newest

from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.checkpoints import CHECKPOINTS, STATE, read_state, saved_steps
from lambda_replay.rundir.directory import LOGS, read_config, read_provenance
from lambda_replay.rundir.files import parse_tensors
from lambda_replay.rundir.verification import verify_run
from lambda_replay.training.resuming import resume_run

pytestmark = pytest.mark.torture

KILLS = 20
SLICES = 8  # of the calls that change the disk; each is one test


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line() as server:
        yield server


# Killed


@pytest.mark.parametrize("envs", [1, 4])
@pytest.mark.parametrize("agent", ["dqn-lambda", "dqn"])
@pytest.mark.parametrize("env", ["CartPole-v1", "minatar/breakout", "minatar/seaquest", "atari/qbert", "atari/pong"])
def test_killed_at_twenty_random_moments(server: Server, tmp_path: Path, env: str, agent: str, envs: int) -> None:
    kill_often(server, tmp_path, small_config(env, agent, envs, steps=1_200), seed=f"{env} {agent} {envs}")


@pytest.mark.parametrize("envs", [1, 4])
@pytest.mark.parametrize("env", ["CartPole-v1", "minatar/breakout", "atari/qbert"])
def test_killed_while_it_acts_and_trains_at_once(server: Server, tmp_path: Path, env: str, envs: int) -> None:
    config = small_config(env, envs=envs, steps=1_200, cache={"schedule": "concurrent"}, memory={"capacity": 400})
    kill_often(server, tmp_path, config, seed=f"{env} {envs}")


def test_killed_with_the_network_of_the_paper(server: Server, tmp_path: Path) -> None:
    kill_often(server, tmp_path, small_config("atari/qbert", steps=1_200, network={"kind": "atari"}), seed="atari")


@pytest.mark.parametrize("estimator", ["median", "watkins:0.75", "retrace:0.75"])
def test_killed_with_other_estimators(server: Server, tmp_path: Path, estimator: str) -> None:
    config = small_config("minatar/asterix", steps=1_200, estimator=estimator, cache={"priority": 0.3})
    kill_often(server, tmp_path, config, seed=estimator)


def kill_often(server: Server, directory: Path, config: RunConfig, seed: str) -> None:
    """Kill twenty times, anywhere or just before a call that changes the disk, and compare what comes out.

    A run that came to its end between two kills is followed by another one.
    """
    rng = random.Random(seed)
    undisturbed = directory / "undisturbed"
    reference = server.run(*train_command(config, directory, undisturbed), die_at=0)
    assert reference.code == 0, reference.err
    num_kills = 0
    while num_kills < KILLS:
        killed = directory / f"killed-{num_kills}"
        command = train_command(config, directory, killed)
        while not (killed / "weights.safetensors").exists():
            if num_kills == KILLS:
                ended = server.run(*command)
            elif rng.random() < 0.6:
                ended = server.run(*command, die_after=rng.uniform(0.0, 0.2) * reference.cpu_seconds)
            else:
                ended = server.run(*command, die_at=rng.randrange(1, 50))
            assert ended.code in (0, *KILLED), ended.err
            num_kills += ended.code != 0
            command = ["resume", str(killed)] if (killed / "config.json").exists() else command
        assert server.run("resume", killed).code == 0  # in case it was killed while tidying up
        assert not differences(undisturbed, killed)
        assert not (killed / "memory").exists()
        assert all(finding.is_sound for finding in verify_run(killed))


@pytest.mark.parametrize("part", range(SLICES))
def test_killed_before_every_single_call_that_changes_the_disk(server: Server, tmp_path: Path, part: int) -> None:
    """And whatever is left is sound: the two newest checkpoints, or nothing but a run that has not begun."""
    config = small_config(steps=300)
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    calls = server.run(*train_command(config, tmp_path, undisturbed), die_at=0).calls
    assert calls > 100
    for die_at in range(1 + part, calls + 1, SLICES):
        ended = server.run(*train_command(config, tmp_path, run), die_at=die_at)
        assert ended.code == -signal.SIGKILL
        if (run / "config.json").exists():
            assert all(finding.is_sound for finding in verify_run(run)), die_at
            ended = server.run("resume", run)
        else:
            ended = server.run(*train_command(config, tmp_path, run))
        assert ended.code == 0, (die_at, ended.err)
        assert not differences(undisturbed, run), die_at
        shutil.rmtree(run)


@pytest.mark.parametrize("part", range(SLICES))
def test_killed_before_every_single_call_of_a_resume(server: Server, tmp_path: Path, part: int) -> None:
    """With a damaged newest checkpoint, so that it also falls back."""
    config = small_config(steps=300)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "stopped", config, 290)
    os.truncate(newest(tmp_path / "stopped") / "weights.safetensors", 100)
    run = copy_run(tmp_path / "stopped", tmp_path / "counted")
    calls = server.run("resume", run, die_at=0).calls
    for die_at in range(1 + part, calls + 1, SLICES):
        run = copy_run(tmp_path / "stopped", tmp_path / "run")
        assert server.run("resume", run, die_at=die_at).code == -signal.SIGKILL
        ended = server.run("resume", run)
        assert ended.code == 0, (die_at, ended.err)
        assert not differences(undisturbed, run), die_at
        shutil.rmtree(run)


@pytest.mark.parametrize("part", range(SLICES))
def test_killed_before_every_single_call_of_a_resume_without_damaged_logs(
    server: Server, tmp_path: Path, part: int
) -> None:
    config = small_config(steps=300)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    stopped = tmp_path / "stopped"
    train_until(stopped, config, 290)
    lengths = read_state(stopped, 240)["logs"]
    for name in LOGS:
        flip(stopped / name)
    run = copy_run(stopped, tmp_path / "counted")
    calls = server.run("resume", run, die_at=0).calls
    for die_at in range(1 + part, calls + 1, SLICES):
        run = copy_run(stopped, tmp_path / "run")
        assert server.run("resume", run, die_at=die_at).code == -signal.SIGKILL
        ended = server.run("resume", run)
        assert ended.code == 0, (die_at, ended.err)
        assert learnt_the_same(undisturbed, run, lengths), die_at
        kept = {path.name: path.read_bytes() for path in run.glob("*.damaged-*")}
        assert kept == {f"{name}.damaged-240": (stopped / name).read_bytes() for name in LOGS}, die_at
        notes = read_provenance(run)["notes"]
        assert all(sum(name in note and "kept as" in note for note in notes) == 1 for name in LOGS), die_at
        shutil.rmtree(run)


# Damaged


def assert_same(undisturbed: Path, stopped: Path, run: Path) -> None:
    """The same bytes, but for logs of which the provenance says that they were begun anew."""
    try:
        notes = read_provenance(run)["notes"]
    except DamageError:  # and nothing had to be noted
        notes = []
    found = [re.fullmatch(r"(.*) starts at step (\d+): .*", note) for note in notes]
    renewed = {note[1]: read_state(stopped, int(note[2]))["logs"][note[1]] for note in found if note}
    assert learnt_the_same(undisturbed, run, renewed)
    assert bool(set(renewed) & {"metrics.jsonl", "episodes.csv"}) == bool(differences(undisturbed, run))


@pytest.mark.parametrize("env", ["CartPole-v1", "minatar/breakout"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_damaged_in_turn_at_the_command_line(
    server: Server, tmp_path: Path, env: str, damage: Callable[[Path], None]
) -> None:
    config = small_config(env, envs=2)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "stopped", config, 350)
    stopped = tmp_path / "stopped"
    names = [path.relative_to(stopped) for path in sorted(stopped.rglob("*")) if path.is_file()]
    codes = set()
    for name in names:
        if name.name == "lock" and damage.__name__ == "flip":
            continue
        run = copy_run(stopped, tmp_path / "run")
        damage(run / name)
        ended = server.run("resume", run)
        codes.add(ended.code)
        assert all(line.startswith("lambda-replay: ") for line in ended.err.splitlines()), (name, ended.err)
        if ended.code == 0:
            assert_same(undisturbed, stopped, run)
        else:
            assert ended.code == 2, (name, ended.err)
            assert ended.err
        shutil.rmtree(run)
    assert codes == {0, 2}


# Full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB, for which one must be root."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("room", [0, 20_000, 100_000, 300_000, 450_000, 700_000, 1_000_000])
def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(
    server: Server, tmp_path: Path, small_disk: Path, room: int
) -> None:
    config = small_config(envs=2)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    run = small_disk / "run"
    train_until(run, config, 200)
    before = saved_steps(run)
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        os.posix_fallocate(file.fileno(), 0, max(1, free - room))
    ended = server.run("resume", run)
    if ended.code != 0:
        assert ended.code == 1, ended.err
        assert ended.err.count("\n") == 1
        assert "No space left on device" in ended.err
        assert f"lambda-replay resume {run}" in ended.err or "try again" in ended.err
        assert len(saved_steps(run)) == 2 or saved_steps(run) == before
        assert all(finding.is_sound for finding in verify_run(run))
        ballast.unlink()
        ended = server.run("resume", run)
        assert ended.code == 0, ended.err
    assert not differences(undisturbed, run)


def test_a_disk_too_small_for_the_memory_is_refused_before_anything_is_written(
    server: Server, tmp_path: Path, small_disk: Path
) -> None:
    config = small_config("atari/pong", memory={"capacity": 2_000})
    ended = server.run(*train_command(config, tmp_path, small_disk / "run"))
    assert ended.code == 2
    assert "of disk" in ended.err
    assert list(small_disk.iterdir()) == []


# Fuzzed


def fuzzing(number: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "stopped"
    train_until(path, small_config(envs=2), 350)
    return path


def cut_and_paste(content: bytes, data: Any) -> bytes:
    """One to four changes anywhere: bytes replaced, removed, inserted or repeated."""
    for _ in range(data.draw(st.integers(1, 4))):
        first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        piece = data.draw(st.binary(max_size=12) | st.just(content[first : first + 40]))
        content = content[:first] + piece + content[data.draw(st.sampled_from([first, first + len(piece), last])) :]
    return content


@pytest.mark.parametrize("agent", ["dqn-lambda", "dqn"])
@fuzzing(2_000)
@given(data=st.data())
def test_thousands_of_lying_states(tmp_path_factory: pytest.TempPathFactory, agent: str, data: Any) -> None:
    source = tmp_path_factory.getbasetemp() / f"source-{agent}"
    if not source.exists():
        train_until(source, small_config(agent=agent, envs=2), 350)
    run = copy_run(source, tmp_path_factory.mktemp("lie") / "run")
    try:
        mutate(run, data)
        resume_run(run, lambda sentence: None).close()
    except (DamageError, ConfigError) as error:
        assert "\n" not in str(error)  # noqa: PT017 — most lies are harmless or fall back to the older checkpoint
    finally:
        shutil.rmtree(run.parent)


@fuzzing(5_000)
@given(data=st.data())
def test_thousands_of_mutated_states(stopped: Path, data: Any) -> None:
    path = newest(stopped) / STATE
    content = path.read_bytes()
    mutated = cut_and_paste(content, data)
    try:
        path.write_bytes(mutated)
        read_state(stopped, int(path.parent.name))
        assert json.loads(mutated) == json.loads(content)
    except DamageError:
        pass
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
@fuzzing(5_000)
@given(data=st.data())
def test_thousands_of_mutated_tensors(stopped: Path, name: str, data: Any) -> None:
    content = (newest(stopped) / name).read_bytes()
    mutated = cut_and_paste(content, data)
    try:
        parse_tensors(mutated)
    except DamageError:
        return
    assert mutated[-1000:] == content[-1000:]  # only the voucher's own text may differ unnoticed


@fuzzing(5_000)
@given(header=st.dictionaries(st.text(max_size=4), entries | plain, max_size=3) | plain, data=st.binary(max_size=80))
def test_thousands_of_lying_tensors(header: Any, data: bytes) -> None:
    content = revouched(header, data)
    try:
        parse_tensors(content)
    except DamageError as error:
        assert "\n" not in str(error)  # noqa: PT017


@fuzzing(5_000)
@given(data=st.data())
def test_thousands_of_mutated_configs(stopped: Path, tmp_path: Path, data: Any) -> None:
    (tmp_path / "config.json").write_bytes(cut_and_paste((stopped / "config.json").read_bytes(), data))
    try:
        read_config(tmp_path)
    except (DamageError, ConfigError):
        return


@fuzzing(300)
@given(data=st.data())
def test_any_file_of_the_directory_mutated_is_the_same_result_or_one_sentence(
    stopped: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """The whole way, to the final weights."""
    undisturbed = tmp_path_factory.getbasetemp() / "undisturbed"
    if not undisturbed.exists():
        train_to_end(undisturbed, small_config(envs=2))
    run = copy_run(stopped, tmp_path_factory.mktemp("any") / "run")
    names = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    path = run / data.draw(st.sampled_from(names))
    try:
        path.write_bytes(cut_and_paste(path.read_bytes(), data))
        resume_to_end(run)
        assert_same(undisturbed, stopped, run)
    except (DamageError, ConfigError):
        pass
    finally:
        shutil.rmtree(run.parent)


def test_a_run_that_is_killed_for_ever_never_loses_a_checkpoint(server: Server, tmp_path: Path) -> None:
    """Sixty kills of a run without end, each soon after the start: the newest checkpoint never goes back."""
    run = tmp_path / "run"
    config, rng, last = small_config("minatar/breakout", steps=10**9), random.Random(0), 0
    command = train_command(config, tmp_path, run)
    for number in range(60):
        # By turns before a call that changes the disk, which gets it beyond its first checkpoint, and anywhere.
        moment = {"die_after": rng.uniform(0.1, 1.0)} if number % 2 else {"die_at": rng.randrange(1, 400)}
        assert server.run(*command, **moment).code in KILLED
        command = ["resume", str(run)] if (run / "config.json").exists() else command
        steps = saved_steps(run)
        assert not steps or steps[0] >= last
        assert steps or last == 0
        last = steps[0] if steps else 0
        if (run / CHECKPOINTS).exists():
            assert all(finding.is_sound for finding in verify_run(run))
    assert last > 0
