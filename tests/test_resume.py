"""A run killed at any moment and resumed gives the same bytes as one never killed; damage, full disks, locks, signals.

What takes seconds is here; the same with many more kills, games and damages is in test_torture.py.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gates import Gate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import Ended, Server, command_line, wait_for
from small_runs import (
    INTERVAL,
    RESULTS,
    STOPPED_AT,
    Stopped,
    copy_run,
    crash_at_call,
    differences,
    finish,
    learnt_the_same,
    resume_to_end,
    small_config,
    snapshot,
    stop_at,
    train_command,
    train_to_end,
    train_until,
)

from lambda_replay.agents.run_settings import override, to_dict
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.checkpoints import CHECKPOINTS, FORMAT, STATE, read_state, saved_steps
from lambda_replay.rundir.directory import LOGS, RunLock, create_run, read_config, read_provenance
from lambda_replay.rundir.files import checksum, load_tensors, save_tensors
from lambda_replay.rundir.verification import verify_run
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import start_run


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line() as server:
        yield server


def newest(run: Path) -> Path:
    return run / CHECKPOINTS / str(saved_steps(run)[0])


def is_one_sentence(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("lambda-replay: ") and "Traceback" not in text


# Exactness


@pytest.mark.parametrize(
    "config",
    [
        small_config("CartPole-v1", "dqn-lambda", 1),
        small_config("CartPole-v1", "dqn", 3),
        small_config("CartPole-v1", "dqn-lambda", 1, cache={"schedule": "concurrent"}, memory={"capacity": 400}),
        small_config("minatar/breakout", "dqn-lambda", 3),
        small_config("minatar/asterix", "dqn", 1),
        small_config("minatar/breakout", "pqn", 4),
        small_config("CliffWalking-v1", "dqn-lambda", 2, max_game_steps=25),  # which has no end for a random walker
        small_config("Pendulum-v1", "sac-lambda", 2, estimator="retrace:0.9", cache={"priority": 0.5}),
        small_config("Pendulum-v1", "td3-lambda", 1, cache={"schedule": "concurrent"}, memory={"capacity": 400}),
    ],
    ids=[
        "cartpole",
        "cartpole-dqn-3",
        "cartpole-concurrent",
        "minatar-3",
        "minatar-dqn",
        "minatar-pqn",
        "endless",
        "sac-2",
        "td3",
    ],
)
def test_a_run_killed_three_times_gives_the_same_bytes(server: Server, tmp_path: Path, config: RunConfig) -> None:
    """Killed once in the middle of saving something, once anywhere, once while it resumes."""
    rng = random.Random(str(to_dict(config)))
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    reference = server.run(*train_command(config, tmp_path, undisturbed), die_at=0)
    assert reference.code == 0
    ended = server.run(*train_command(config, tmp_path, killed), die_at=rng.randrange(60, reference.calls - 40))
    assert ended.code == -signal.SIGKILL
    server.run("resume", killed, die_after=rng.uniform(0.0, 0.7) * reference.cpu_seconds)
    server.run("resume", killed, die_at=rng.randrange(1, 40))
    assert server.run("resume", killed).code == 0
    assert not differences(undisturbed, killed)
    assert not (killed / "memory").exists()


def test_stopped_here_and_resumed_gives_the_same_bytes(undisturbed: Path, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    assert resume_to_end(run) == []
    assert not differences(undisturbed, run)
    assert not (run / "memory").exists()
    assert not (run / CHECKPOINTS).exists()


def test_atari_in_the_middle_of_a_game(tmp_path: Path) -> None:
    """Q*bert, whose emulator's own snapshots are not exact."""
    config = small_config("atari/qbert", envs=2, steps=300)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "run", config, 250)
    games = read_state(tmp_path / "run", 240)["loop"]["games"]
    assert all(len(game["actions"]) > 10 for game in games)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(undisturbed, tmp_path / "run")


def test_what_a_resume_repeats_of_an_endless_game_is_bounded(tmp_path: Path) -> None:
    config = small_config("CliffWalking-v1", max_game_steps=50)
    train_until(tmp_path / "run", config, 310)
    for step in (240, 300):
        (game,) = read_state(tmp_path / "run", step)["loop"]["games"]
        assert len(game["actions"]) < 50
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(undisturbed, tmp_path / "run")
    rows = list(csv.DictReader((undisturbed / "episodes.csv").read_text().splitlines()))
    assert {(row["length"], row["ended"]) for row in rows} >= {("50", "truncated")}
    assert max(int(row["length"]) for row in rows) == 50


@pytest.mark.parametrize("step", [0, 60, 119])
def test_a_run_stopped_before_its_first_checkpoint_begins_again(undisturbed: Path, tmp_path: Path, step: int) -> None:
    train_until(tmp_path / "run", small_config(), step)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(undisturbed, tmp_path / "run")


def test_only_what_is_vouched_for_is_used(undisturbed: Path, stopped: Path, tmp_path: Path) -> None:
    """As after a power failure: whatever was written after the checkpoint is replaced by rubbish."""
    run = copy_run(stopped, tmp_path / "run")
    state, config = read_state(run, 300), read_config(run)
    written = state["memory"]["written"][0]
    for name, size in state["slot_bytes"].items():
        rows = np.fromfile(run / "memory" / f"{name}.bin", dtype=np.uint8).reshape(-1, size)
        first, last = max(0, written - config.memory.capacity) // 1024 * 1024, written
        is_vouched = np.zeros(len(rows), dtype=bool)
        is_vouched[np.arange(first, last if name in ("observations", "frames") else last - 1) % len(rows)] = True
        rows[~is_vouched] = np.random.default_rng(0).integers(0, 256, (int((~is_vouched).sum()), size))
        rows.tofile(run / "memory" / f"{name}.bin")
    for name, length in state["logs"].items():
        content = (run / name).read_bytes()
        assert len(content) > length or name == "timing.jsonl"
        (run / name).write_bytes(content[:length] + b"\xff{rubbish" * 20)
    (run / CHECKPOINTS / "360").mkdir()
    (run / CHECKPOINTS / "360" / "weights.safetensors").write_bytes(b"half of it")
    (sentence,) = resume_to_end(run)
    assert "checkpoint 360 has no state.json" in sentence
    assert not differences(undisturbed, run)


def test_times_go_on_where_they_stopped_and_stay_beside_the_metrics(
    undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    before = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    saved = read_state(run, 300)["seconds"]
    resume_to_end(run)
    rows = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [row["step"] for row in metrics]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert rows[:3] == before[:3]
    assert seconds[3] >= round(saved, 3)


# Damage


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One bit, of a log or of the memory in the part that both checkpoints rely on."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if path.suffix == ".safetensors" else min(len(content) // 2, 30)] ^= 8
    path.write_bytes(content)


DAMAGES = [truncate, empty, flip, Path.unlink]
CHECKPOINT_FILES = ["weights.safetensors", "optimizer.safetensors", STATE]
MEMORY_FILES = [
    f"memory/{name}.bin" for name in ("observations", "actions", "rewards", "behaviour_probs", "terminated", "frames")
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    undisturbed: Path, stopped: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    damage(newest(run) / name)
    said: list[str] = []
    resumed = resume_run(run, said.append)
    assert resumed.loop.step == 240
    assert saved_steps(run) == [240]
    assert len(said) == 1
    assert "300" in said[0]
    assert name in said[0]
    finish(resumed)
    assert not differences(undisturbed, run)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", MEMORY_FILES)
def test_damage_to_the_memory_that_both_checkpoints_need_is_refused(
    stopped: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    damage(run / name)
    said: list[str] = []
    with pytest.raises(DamageError, match="no checkpoint of"):
        resume_run(run, said.append)
    assert {sentence[:15] for sentence in said} == {"checkpoint 300:", "checkpoint 240:"}
    assert all(name in sentence or "replay memory" in sentence for sentence in said)


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


LOG_DAMAGES = [empty, flip, Path.unlink, become_directory, become_link, become_pipe]


@pytest.mark.parametrize("damage", LOG_DAMAGES)
@pytest.mark.parametrize("name", LOGS)
def test_a_damaged_log_is_set_aside_and_begins_anew_which_is_said_and_recorded(
    undisturbed: Path, stopped: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    damage(run / name)
    inode = (run / name).lstat().st_ino if os.path.lexists(run / name) else None
    length = read_state(run, 300)["logs"][name]
    *found, done = resume_to_end(run)
    assert {sentence[:15] for sentence in found} == {"checkpoint 300:", "checkpoint 240:"}
    kept = run / f"{name}.damaged-300"
    fate = "missing or empty" if damage in (empty, Path.unlink) else f"damaged and kept as {kept.name}"
    assert done == f"{run / name} is {fate}; training does not read it, and a new one starts at step 300."
    assert read_provenance(run)["notes"] == [f"{name} starts at step 300: the previous one was {fate}"]
    assert os.path.lexists(kept) == ("kept" in fate)
    assert not os.path.lexists(kept) or kept.lstat().st_ino == inode
    assert learnt_the_same(undisturbed, run, {name: length})
    assert all(finding.is_sound for finding in verify_run(run))
    times = [json.loads(line)["step"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert times == ([300, 360, 420] if name == "timing.jsonl" else [120, 180, 240, 300, 360, 420])


def test_all_logs_may_be_damaged_at_once_and_the_checkpoint_is_sound_without_them(
    undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    lengths = read_state(run, 300)["logs"]
    for name in LOGS:
        flip(run / name)
    kept = {name: (run / name).read_bytes() for name in LOGS}
    resume_run(run, lambda sentence: None).close()
    assert resume_to_end(run) == []  # not a second time
    assert len(read_provenance(run)["notes"]) == len(LOGS)
    assert learnt_the_same(undisturbed, run, lengths)
    assert {name: (run / f"{name}.damaged-300").read_bytes() for name in LOGS} == kept


def test_no_file_of_somebody_else_is_overwritten_by_a_log_that_is_set_aside(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / "metrics.jsonl.damaged-300").write_text("somebody else's")
    flip(run / "metrics.jsonl")
    damaged = (run / "metrics.jsonl").read_bytes()
    resume_run(run, lambda sentence: None).close()
    assert (run / "metrics.jsonl.damaged-300").read_text() == "somebody else's"
    assert (run / "metrics.jsonl.damaged-300-2").read_bytes() == damaged
    (note,) = read_provenance(run)["notes"]
    assert note.endswith("kept as metrics.jsonl.damaged-300-2")


def test_a_log_that_is_damaged_again_is_cut_back_to_where_it_began(
    undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    """The checkpoint at which it began relies on nothing of it, and is sound."""
    run = copy_run(stopped, tmp_path / "run")
    flip(run / "metrics.jsonl")
    resumed = resume_run(run, lambda sentence: None)
    with pytest.raises(Stopped):
        resumed.train(stop_at(400))
    resumed.close()
    assert saved_steps(run) == [360, 300]
    flip(run / "metrics.jsonl")
    (sentence,) = resume_to_end(run)
    assert sentence.startswith("checkpoint 360: ")
    assert learnt_the_same(undisturbed, run, {"metrics.jsonl": read_state(stopped, 300)["logs"]["metrics.jsonl"]})


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_log_without_access_may_be_sound_and_is_not_given_up(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / "metrics.jsonl").chmod(0)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl cannot be read; make it readable"):
        resume_run(run, print)
    (run / "metrics.jsonl").chmod(0o644)
    assert resume_to_end(run) == []


def crash(at: int) -> AbstractContextManager[None]:
    """Stop at the so-maniest call that changes the disk."""
    system = [(os, name) for name in ("fsync", "replace", "rename", "unlink", "rmdir")]
    return crash_at_call(at, KeyboardInterrupt(), *system, (Path, "touch"), (Path, "write_bytes"))


def test_a_resume_broken_off_while_it_sets_logs_aside_loses_nothing(stopped: Path, tmp_path: Path) -> None:
    """At every call that changes the disk; resumed again, it is where it would have been."""
    damaged = copy_run(stopped, tmp_path / "damaged")
    for name in LOGS:
        flip(damaged / name)
    wanted = copy_run(damaged, tmp_path / "wanted")
    resume_run(wanted, lambda sentence: None).close()
    for at in range(1, 200):
        run = copy_run(damaged, tmp_path / f"run-{at}")
        has_crashed = False
        try:
            with crash(at):
                resume_run(run, lambda sentence: None).close()
        except KeyboardInterrupt:
            has_crashed = True
        resume_run(run, lambda sentence: None).close()
        assert read_state(run, 300) == read_state(wanted, 300)
        assert [(run / name).read_bytes() for name in LOGS] == [b"", b"", b""]
        kept = {path.name: path.read_bytes() for path in run.glob("*.damaged-*")}
        assert kept == {f"{name}.damaged-300": (damaged / name).read_bytes() for name in LOGS}
        notes = read_provenance(run)["notes"]
        assert all(sum(name in note and "kept as" in note for note in notes) == 1 for name in LOGS)
        if not has_crashed:
            break
    assert at > 20


def test_damage_to_more_than_logs_is_still_refused_and_changes_nothing(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    flip(run / "metrics.jsonl")
    for step in saved_steps(run):
        empty(run / CHECKPOINTS / str(step) / "weights.safetensors")
    before = snapshot(run)
    with pytest.raises(DamageError, match="no checkpoint of"):
        resume_run(run, print)
    assert snapshot(run) == before


def test_the_newest_checkpoint_without_its_logs_is_used_before_an_older_one(
    undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    """Of the newer one only a log is damaged, of the older one the weights; and the reverse."""
    for older, newer in ((240, 300), (300, 240)):
        run = copy_run(stopped, tmp_path / f"run-{newer}")
        length = read_state(run, newer)["logs"]["episodes.csv"]
        flip(run / "episodes.csv")
        empty(run / CHECKPOINTS / str(older) / "weights.safetensors")
        resume_to_end(run)
        assert (run / f"episodes.csv.damaged-{newer}").is_file()
        assert learnt_the_same(undisturbed, run, {"episodes.csv": length})


def test_damage_to_a_log_after_the_older_checkpoint_costs_the_newer_one(
    undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    content = bytearray((run / "metrics.jsonl").read_bytes())
    content[read_state(run, 240)["logs"]["metrics.jsonl"] + 3] ^= 1
    (run / "metrics.jsonl").write_bytes(content)
    (sentence,) = resume_to_end(run)
    assert sentence.startswith("checkpoint 300: ")
    assert "metrics.jsonl is damaged" in sentence
    assert not differences(undisturbed, run)


def test_with_no_sound_checkpoint_the_command_line_says_so(server: Server, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    for step in saved_steps(run):
        empty(run / CHECKPOINTS / str(step) / "weights.safetensors")
    before = snapshot(run)
    ended = server.run("resume", run)
    assert ended.code == 2
    assert "no checkpoint of" in ended.err.splitlines()[-1]
    assert all(line.startswith("lambda-replay: ") for line in ended.err.splitlines())
    assert snapshot(run) == before  # nothing was thrown away


def test_a_run_that_lost_all_its_checkpoints_does_not_begin_again_in_silence(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    shutil.rmtree(run / CHECKPOINTS)
    before = snapshot(run)
    with pytest.raises(DamageError, match=r"no checkpoint of .* is sound"):
        resume_run(run, print)
    assert snapshot(run) == before


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b'{"step": Infinity}\n', b"[" * 100_000])
def test_nor_if_its_metrics_are_damaged_too_or_were_just_begun_anew(
    stopped: Path, tmp_path: Path, content: bytes
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    flip(run / "metrics.jsonl")
    resume_run(run, lambda sentence: None).close()
    (run / "metrics.jsonl").write_bytes(content)
    (run / "timing.jsonl").unlink()
    shutil.rmtree(run / CHECKPOINTS)
    before = snapshot(run)
    with pytest.raises(DamageError, match=r"no checkpoint of .* is sound"):
        resume_run(run, print)
    assert snapshot(run) == before


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["config.json", "provenance.json", "lock"])
def test_damage_to_the_rest_of_the_directory(
    undisturbed: Path, stopped: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    if name == "lock" and damage is flip:
        return  # it has no bits
    damage(run / name)
    if name == "config.json":
        with pytest.raises((DamageError, ConfigError), match=r"config\.json"):
            resume_run(run, print)
        return
    resume_to_end(run)
    assert not differences(undisturbed, run)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "provenance.json is missing"),
        (truncate, "provenance.json is damaged"),
        (become_directory, "provenance.json cannot be read (Is a directory)"),
    ],
)
def test_a_lost_provenance_is_written_anew_when_there_is_something_to_note(
    stopped: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    damage(run / "provenance.json")
    resume_run(run, print, threads=2).close()
    notes = read_provenance(run)["notes"]
    assert words in notes[0]
    assert notes[1] == "from step 300 on, threads 2 instead of 1"
    assert (run / "provenance.json.damaged").exists() == (damage is not Path.unlink)


# Strays


def stray_file(path: Path) -> None:
    path.write_text("mine")


def stray_directory(path: Path) -> None:
    path.mkdir()


def stray_link(path: Path) -> None:
    path.symlink_to(path.parent.parent)


@pytest.mark.parametrize("make", [stray_file, stray_directory, stray_link, os.mkfifo])
@pytest.mark.parametrize("name", ["360", "420", "6000", "notes.txt", "360.stray"])
def test_a_stray_among_the_checkpoints_stops_nothing_and_is_not_lost(
    undisturbed: Path, stopped: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    stray = run / CHECKPOINTS / name
    make(stray)
    inode = stray.lstat().st_ino
    said = resume_to_end(run)
    assert len(said) == name.isdigit()
    assert all(str(stray) in sentence or f"checkpoint {name} has no {STATE}" in sentence for sentence in said)
    assert not differences(undisturbed, run)
    is_ours = name.isdigit() and make is stray_directory  # as a crash leaves it
    kept = {entry.lstat().st_ino: entry.name for entry in (run / CHECKPOINTS).glob("*")}
    assert kept == ({} if is_ours else {inode: "360.stray" if name == "360" else name})


@pytest.mark.parametrize("step", [60, STOPPED_AT])
@pytest.mark.parametrize("make", [stray_file, stray_directory, stray_link])
@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        "memory",
        "memory/notes.txt",
        "memory/rewards.bin",
        "lock",
        "curve.png",
        "provenance.json",
        "provenance.json.part",
        "weights-stopped.safetensors",
        "weights.safetensors.part",
        "metrics.jsonl",
        "thesis.tex",
    ],
)
def test_whatever_stands_in_the_directory_is_harmless_or_one_sentence(
    undisturbed: Path, tmp_path: Path, name: str, make: Callable[[Path], None], step: int
) -> None:
    run = tmp_path / "run"
    train_until(run, small_config(), step)
    if os.path.lexists(run / name):
        (run / name).rename(tmp_path / "moved")
    make(run / name)
    inode = (run / name).lstat().st_ino
    renewed = {name: read_state(run, 300)["logs"][name]} if step == STOPPED_AT and name in LOGS else {}
    try:
        resume_to_end(run)
        assert learnt_the_same(undisturbed, run, renewed)
        assert renewed or not differences(undisturbed, run)
    except (DamageError, ConfigError) as error:
        assert "\n" not in str(error)  # noqa: PT017
    except OSError as error:
        assert error.errno is not None  # noqa: PT017 — the command line makes a sentence of it
    is_like_ours = name.endswith((".part", ".bin", "-stopped.safetensors")) or (
        make is stray_directory and name in ("checkpoints", "memory")
    )
    assert is_like_ours or inode in {path.lstat().st_ino for path in run.rglob("*")}


@pytest.mark.parametrize("name", ["memory", "checkpoints"])
def test_a_directory_that_is_a_link_to_another_place_is_used_and_the_link_stays(
    undisturbed: Path, stopped: Path, tmp_path: Path, name: str
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    assert resume_to_end(run) == []
    assert not differences(undisturbed, run)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# What a person did


@pytest.mark.parametrize(
    ("change", "names"),
    [({"seed": 7}, "seed"), ({"steps": 480, "discount": 0.5}, "steps, discount"), ({"device": "auto"}, "device")],
)
@pytest.mark.parametrize("step", [60, STOPPED_AT])
def test_a_changed_config_is_refused_by_name(tmp_path: Path, change: dict[str, Any], names: str, step: int) -> None:
    train_until(tmp_path / "run", small_config(), step)
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    before = snapshot(tmp_path / "run")
    with pytest.raises(ConfigError, match=re.escape(f"has changed since this run began ({names})")):
        resume_run(tmp_path / "run", print)
    assert snapshot(tmp_path / "run") == before


def test_a_change_inside_a_part_is_named_in_full(server: Server, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    values = json.loads((run / "config.json").read_text())
    values["cache"]["size"] = 80
    (run / "config.json").write_text(json.dumps(values))
    ended = server.run("resume", run)
    assert ended.code == 2
    assert is_one_sentence(ended.err)
    assert "(cache.size)" in ended.err


def test_other_threads_are_used_when_asked_for_and_remembered(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    try:
        resumed = resume_run(run, print, threads=2)
        assert torch.get_num_threads() == 2
        try:
            resumed.train(lambda event: (_ for _ in ()).throw(KeyboardInterrupt) if event.step > 380 else None)
        except KeyboardInterrupt:
            resumed.close()
        assert read_config(run) == small_config(threads=1)
        resumed = resume_run(run, print)
        assert resumed.loop.step == 360
        assert resumed.config.threads == 2
        resumed.close()
        assert read_provenance(run)["notes"] == ["from step 300 on, threads 2 instead of 1"]
    finally:
        torch.set_num_threads(1)


def test_the_device_stays_that_of_the_checkpoint_unless_asked(tmp_path: Path) -> None:
    config = small_config(device="auto")
    train_until(tmp_path / "run", config, STOPPED_AT)
    assert read_state(tmp_path / "run", 300)["device"] == torch.accelerator.current_accelerator() or "cpu"
    resumed = resume_run(tmp_path / "run", print)
    resumed.close()
    assert resumed.config.device == "cpu"
    with pytest.raises(ConfigError, match="device cuda is not available"):
        resume_run(tmp_path / "run", print, device="cuda")


def test_a_package_of_another_version_is_noted(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    values = read_provenance(run)
    now = values["versions"]["numpy"]
    values["versions"]["numpy"] = "1.2.3"
    (run / "provenance.json").write_text(json.dumps(values))
    resume_run(run, print).close()
    resume_run(run, print).close()
    assert read_provenance(run)["notes"] == [f"from step 300 on, numpy {now} instead of 1.2.3"]


def test_a_finished_run_is_left_as_it_is(server: Server, undisturbed: Path, tmp_path: Path) -> None:
    run = copy_run(undisturbed, tmp_path / "run")
    with pytest.raises(ConfigError, match="is finished"):
        resume_run(run, print)
    ended = server.run("resume", run)
    assert (ended.code, ended.err) == (0, "")
    assert "is already finished" in ended.out
    assert not differences(undisturbed, run)
    assert (run / "curve.png").exists()


def test_the_memory_stays_if_that_was_asked_for_once(undisturbed: Path, tmp_path: Path) -> None:
    config = small_config()
    run = start_run(tmp_path / "run", config, keep_memory=True)
    with pytest.raises(KeyboardInterrupt):
        run.train(lambda event: (_ for _ in ()).throw(KeyboardInterrupt) if event.step > 200 else None)
    run.close()
    resume_to_end(tmp_path / "run")
    assert not differences(undisturbed, tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [360, 300]
    assert all(finding.is_sound for finding in verify_run(tmp_path / "run"))


def test_a_run_killed_while_tidying_up_is_tidied_by_resume(
    server: Server, undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    """It had written its final weights, and removed neither its memory nor its checkpoints."""
    run = copy_run(stopped, tmp_path / "run")
    for name in RESULTS:
        shutil.copy(undisturbed / name, run / name)
    assert server.run("resume", run).code == 0
    assert not (run / CHECKPOINTS).exists()
    assert not (run / "memory").exists()
    assert (run / "curve.png").exists()
    assert not differences(undisturbed, run)


def test_a_run_shorter_than_its_random_start_begins_again(tmp_path: Path) -> None:
    config = small_config(steps=60)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    run = copy_run(undisturbed, tmp_path / "run")
    (run / "weights.safetensors").unlink()
    assert resume_to_end(run) == []
    assert not differences(undisturbed, run)


def test_a_run_without_checkpoints_cannot_be_resumed(tmp_path: Path) -> None:
    train_until(tmp_path / "run", small_config(checkpoint_every=0), 200)
    assert not (tmp_path / "run" / CHECKPOINTS).exists()
    with pytest.raises(ConfigError, match="checkpoint_every 0"):
        resume_run(tmp_path / "run", print)


def test_what_is_no_run_is_not_touched(server: Server, tmp_path: Path) -> None:
    for command in ("resume", "verify"):
        for path in (tmp_path / "nowhere", tmp_path):
            ended = server.run(command, path)
            assert ended.code == 2
            assert is_one_sentence(ended.err)
    assert list(tmp_path.iterdir()) == []


# Locks


def test_a_second_process_is_refused_before_anything_is_touched(
    server: Server, stopped: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for source, commands in ((stopped, ("resume", "verify")), (undisturbed, ("resume", "verify"))):
        run = copy_run(source, tmp_path / source.name)
        lock = RunLock(run)
        before = snapshot(run)
        for command in commands:
            ended = server.run(command, run)
            assert ended.code == 2
            assert is_one_sentence(ended.err)
            assert "another process is working in" in ended.err
        assert snapshot(run) == before
        lock.release()
    assert server.run("resume", tmp_path / "stopped").code == 0


def test_a_failed_resume_lets_go_of_the_run(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    with pytest.raises(ConfigError):
        resume_run(run, print, device="cuda")
    RunLock(run).release()


def test_a_directory_belongs_to_the_first_who_takes_it(tmp_path: Path) -> None:
    config = small_config()
    (tmp_path / "empty").mkdir()
    create_run(tmp_path / "empty", config).release()
    (tmp_path / "begun").mkdir()  # another process was killed here before it had a config
    for name in ("lock", "provenance.json", "config.json.part"):
        (tmp_path / "begun" / name).touch()
    create_run(tmp_path / "begun", config).release()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    for name in ("empty", "begun", "taken", "file"):
        with pytest.raises(ConfigError, match=r"already exists|cannot be created .File exists"):
            create_run(tmp_path / name, config)
    assert [entry.name for entry in (tmp_path / "taken").iterdir()] == ["thesis.tex"]


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        start_run(tmp_path / "run", small_config())
    assert list(tmp_path.iterdir()) == []


# Signals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_once_and_says_how_to_go_on(server: Server, tmp_path: Path, signum: int) -> None:
    """Also in the middle of learning: a million updates are due at step 120, and it does not wait for their end."""
    run = tmp_path / "run"
    child = server.start(*train_command(small_config(cache={"updates": 1_000_000}), tmp_path, run))
    wait_for(lambda: bool(saved_steps(run)), child.is_alive)
    used = child.cpu_seconds()
    wait_for(lambda: child.cpu_seconds() > used + 0.2)  # the checkpoint takes less; it is learning now
    child.kill(signum)
    ended = child.wait()
    assert ended.code == 130
    assert is_one_sentence(ended.err)
    assert f"stopped at step 120; continue with: lambda-replay resume {run} (0 steps will be repeated)" in ended.err
    assert (run / "metrics.jsonl").read_text() == ""  # the updates would have left a row


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_many_steps_it_will_repeat(server: Server, tmp_path: Path, signum: int) -> None:
    gate, config = Gate(tmp_path / "gate", 350), small_config("gates:Gated-v0")
    child = server.start(*train_command(config, tmp_path, tmp_path / "run"), variables=gate.variables)
    wait_for(lambda: gate.arrivals() == [child.pid], child.is_alive)
    child.kill(signum)
    ended = child.wait()
    assert ended.code == 130
    assert "stopped at step 350; " in ended.err
    assert "(50 steps will be repeated)" in ended.err


# Environments that do not repeat themselves


def test_a_game_that_is_not_repeated_begins_anew_which_is_said_once_and_recorded(tmp_path: Path) -> None:
    train_until(tmp_path / "run", small_config("restless:Restless-v0", envs=3), STOPPED_AT)
    step = saved_steps(tmp_path / "run")[0]
    for _ in range(2):
        said: list[str] = []
        resumed = resume_run(tmp_path / "run", said.append)
        (sentence,) = said
        assert "restless:Restless-v0 is not deterministic" in sentence
        assert "stream 0, 1, 2" in sentence
        resumed.close()
    finish(resume_run(tmp_path / "run", said.append))
    (note,) = read_provenance(tmp_path / "run")["notes"]
    assert f"at step {step} the environment did not repeat its game" in note
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [120, 180, 240, 300, 360, 420]
    assert verify_run(tmp_path / "run")


def test_a_game_of_ones_own_that_repeats_itself_goes_on(tmp_path: Path) -> None:
    config = small_config("restless:Steady-v0", envs=3)
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "run", config, STOPPED_AT)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(undisturbed, tmp_path / "run")
    assert read_provenance(tmp_path / "run")["notes"] == []


# Full disks


def assert_full_and_then_resumed(server: Server, run: Path, ended: Ended, undisturbed: Path) -> None:
    """The disk was full in the middle of a run; now there is room again."""
    assert ended.code == 1
    assert is_one_sentence(ended.err)
    assert f"continue with: lambda-replay resume {run}" in ended.err
    assert all(finding.is_sound for finding in verify_run(run))
    assert server.run("resume", run).code == 0
    assert not differences(undisturbed, run)


def test_a_file_that_may_not_grow_stops_the_run_and_it_is_resumable(
    server: Server, undisturbed: Path, stopped: Path, tmp_path: Path
) -> None:
    """The weights are the largest file: with the limit below them the first checkpoint fails, or the next one."""
    limit = (newest(stopped) / "weights.safetensors").stat().st_size - 1
    ended = server.run(*train_command(small_config(), tmp_path, tmp_path / "run"), largest_file=limit)
    assert not saved_steps(tmp_path / "run")
    assert_full_and_then_resumed(server, tmp_path / "run", ended, undisturbed)
    run = copy_run(stopped, tmp_path / "later")
    ended = server.run("resume", run, largest_file=limit)
    assert saved_steps(run) == [300, 240]
    assert_full_and_then_resumed(server, run, ended, undisturbed)


def test_no_room_for_the_memory_is_said_at_once(server: Server, tmp_path: Path) -> None:
    ended = server.run(*train_command(small_config(), tmp_path, tmp_path / "run"), largest_file=4_000)
    assert ended.code == 1
    assert is_one_sentence(ended.err)
    assert "try again" in ended.err
    assert not (tmp_path / "run").exists()


# Verifying


def test_verify_changes_nothing_and_says_what_is_sound(
    server: Server, stopped: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for source in (stopped, undisturbed):
        run = copy_run(source, tmp_path / source.name)
        (run / "lock").unlink()
        before = snapshot(run)
        ended = server.run("verify", run, "--json")
        assert ended.code == 0
        values = json.loads(ended.out)
        assert values["sound"] is True
        assert all(finding["is_sound"] for finding in values["findings"])
        assert snapshot(run) == before
    names = [finding["what"] for finding in values["findings"]]
    assert names == [
        "config.json",
        "provenance.json",
        "weights.safetensors",
        "metrics.jsonl",
        "episodes.csv",
        "checkpoints",
    ]
    assert [finding.what for finding in verify_run(stopped)][-2:] == ["checkpoint 300", "checkpoint 240"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["provenance.json", "weights.safetensors", "metrics.jsonl", "episodes.csv"])
def test_verify_finds_the_damage_to_a_finished_run(
    undisturbed: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = copy_run(undisturbed, tmp_path / "run")
    if not (name == "weights.safetensors" and damage is Path.unlink):  # then it is not finished
        damage(run / name)
        assert name in {finding.what for finding in verify_run(run) if not finding.is_sound} or (
            name == "provenance.json" and damage is flip  # a letter in a note may change unnoticed
        )


def test_verify_says_which_checkpoint_is_damaged(server: Server, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    flip(newest(run) / "optimizer.safetensors")
    ended = server.run("verify", run)
    assert ended.code == 2
    (line,) = (line for line in ended.out.splitlines() if line.startswith("DAMAGED"))
    assert "checkpoint 300" in line
    assert "optimizer.safetensors" in line


def test_verify_names_damaged_logs_and_says_that_the_run_goes_on_without_them(
    server: Server, stopped: Path, tmp_path: Path
) -> None:
    run = copy_run(stopped, tmp_path / "run")
    flip(run / "metrics.jsonl")
    (run / "timing.jsonl").unlink()
    before = snapshot(run)
    ended = server.run("verify", run)
    assert ended.code == 2
    assert snapshot(run) == before
    lines = [line.split(maxsplit=1)[1] for line in ended.out.splitlines() if line.startswith("DAMAGED")]
    assert lines == [
        *(
            f"checkpoint {step}: {run / name}"
            for step in (300, 240)
            for name in (
                "metrics.jsonl is damaged (its checksum does not match).",
                "timing.jsonl cannot be read (No such file or directory).",
            )
        ),
        "metrics.jsonl: training does not read it; resume continues from step 300 without it.",
        "timing.jsonl: training does not read it; resume continues from step 300 without it.",
    ]
    resume_run(run, lambda sentence: None).close()
    unsound = [finding.what for finding in verify_run(run) if not finding.is_sound]
    assert set(unsound) == {"checkpoint 240"}  # it relies on what was set aside


def test_verify_does_not_promise_what_resume_refuses(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    shutil.rmtree(run / CHECKPOINTS)
    (finding,) = (finding for finding in verify_run(run) if not finding.is_sound)
    assert (finding.what, finding.sentence) == (CHECKPOINTS, "none, but the run had some; it cannot be resumed.")


def test_verify_names_a_changed_config(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    values = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**values, "seed": 5}))
    unsound = {finding.what: finding.sentence for finding in verify_run(run) if not finding.is_sound}
    assert set(unsound) == {"provenance.json", "checkpoint 300", "checkpoint 240"}
    assert all("(seed)" in sentence for sentence in unsound.values())


# Malice


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every plain value is, the tables and lists too."""
    yield path
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))


STRANGE = st.sampled_from(
    [None, True, -1, 0, 1, 2**31, 2**63, 2**128, 10**400, -0.5, 1e300, float("nan"), "", "x", [], {}, [1], {"a": 1}]
)


def mutate(run: Path, data: Any) -> None:
    """Replace one value of the newest state by something strange, or remove it, with a checksum that fits."""
    path = newest(run) / STATE
    state = json.loads(json.loads(path.read_text())["payload"])
    parts = {name: value for name, value in state.items() if name != "config"}
    place = data.draw(st.sampled_from([where for where in leaves(parts) if where]), "where")
    inner = state
    for key in place[:-1]:
        inner = inner[key]
    if data.draw(st.booleans(), "removed"):
        inner.pop(place[-1])
    else:
        inner[place[-1]] = data.draw(STRANGE, "value")
    payload = json.dumps(state)
    path.write_text(json.dumps({"format": FORMAT, "checksum": checksum(payload.encode()), "payload": payload}))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_state_that_lies_with_a_fitting_checksum_is_refused_or_harmless(
    stopped: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    run = copy_run(stopped, tmp_path_factory.mktemp("lie") / "run")
    try:
        mutate(run, data)
        resume_run(run, lambda sentence: None).close()
    except (DamageError, ConfigError) as error:
        assert "\n" not in str(error)  # noqa: PT017 — most lies are harmless or fall back to the older checkpoint
    finally:
        shutil.rmtree(run.parent)


@pytest.mark.parametrize("lie", [{"num_updates": float("nan")}, {"num_updates": 1.5}, {"loss": float("inf")}, {"x": 1}])
def test_values_that_an_agent_never_had_are_refused(tmp_path: Path, lie: dict[str, float]) -> None:
    run = tmp_path / "run"
    train_until(run, small_config(agent="dqn"), STOPPED_AT)
    for step in saved_steps(run):
        path = run / CHECKPOINTS / str(step) / STATE
        state = json.loads(json.loads(path.read_text())["payload"])
        state["agent"] |= lie
        payload = json.dumps(state)
        path.write_text(json.dumps({"format": FORMAT, "checksum": checksum(payload.encode()), "payload": payload}))
    with pytest.raises(DamageError, match=r"does not fit the environment or the agent|does not match"):
        resume_run(run, lambda sentence: None)


def replace_tensors(place: Path, name: str, changes: dict[str, torch.Tensor]) -> None:
    """Other tensors in a file of a checkpoint, with a fitting checksum."""
    path = place / f"{name}.safetensors"
    save_tensors(path, {**load_tensors(path), **changes})
    state = json.loads(json.loads((place / STATE).read_text())["payload"])
    content = path.read_bytes()
    state["checksums"]["files"][name] = checksum(str(len(content)).encode(), content)
    payload = json.dumps(state)
    text = json.dumps({"format": FORMAT, "checksum": checksum(payload.encode()), "payload": payload})
    (place / STATE).write_text(text)


@pytest.mark.parametrize("name", ["weights", "optimizer"])
def test_tensors_of_another_network_are_refused(stopped: Path, tmp_path: Path, name: str) -> None:
    run = copy_run(stopped, tmp_path / "run")
    first = next(iter(load_tensors(newest(run) / f"{name}.safetensors")))
    replace_tensors(newest(run), name, {first: torch.zeros(7)})
    with pytest.raises(ConfigError, match="another network"):
        resume_run(run, print)


def test_a_count_that_was_saved_as_a_float_is_read(undisturbed: Path, stopped: Path, tmp_path: Path) -> None:
    """Earlier versions saved Adam's count of its steps so."""
    run = copy_run(stopped, tmp_path / "run")
    count = load_tensors(newest(run) / "optimizer.safetensors")["step.0"]
    assert (count.dtype, count.ndim) == (torch.int64, 0)
    replace_tensors(newest(run), "optimizer", {"step.0": count.float()})
    assert resume_to_end(run) == []
    assert not differences(undisturbed, run)


@pytest.mark.parametrize("count", [1.5, -1.0, float("nan"), float("inf")])
def test_a_float_that_counts_nothing_is_refused(stopped: Path, tmp_path: Path, count: float) -> None:
    run = copy_run(stopped, tmp_path / "run")
    replace_tensors(newest(run), "optimizer", {"step.0": torch.tensor(count)})
    with pytest.raises(ConfigError, match="another network"):
        resume_run(run, print)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_config_is_one_sentence(stopped: Path, tmp_path: Path, data: Any) -> None:
    content = (stopped / "config.json").read_bytes()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    (tmp_path / "config.json").write_bytes(content[:first] + data.draw(st.binary(max_size=9)) + content[last:])
    try:
        read_config(tmp_path)
    except (DamageError, ConfigError) as error:
        assert str(error)  # noqa: PT017 — some mutations are valid configs


def test_intervals_are_whole_boundaries() -> None:
    assert small_config(checkpoint_every=INTERVAL + 1).checkpoint_interval == 2 * INTERVAL


def test_a_memory_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_memory keeps the memory beside the last checkpoints, but"):
        start_run(tmp_path / "run", override(small_config(), {"checkpoint_every": 0}), keep_memory=True)
    assert not (tmp_path / "run").exists()
