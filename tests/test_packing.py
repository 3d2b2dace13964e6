"""A run that is packed, unpacked elsewhere and resumed gives the same bytes as one that never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from catch import CatchEmulator
from hypothesis import given
from hypothesis import strategies as st
from processes import Server, command_line
from small_runs import (
    STOPPED_AT,
    copy_run,
    crash_at_call,
    differences,
    finish,
    resume_to_end,
    small_config,
    snapshot,
    train_to_end,
    train_until,
)

from lambda_replay.cli import main
from lambda_replay.config import RunConfig
from lambda_replay.envs import atari
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.replay.ring import Ring
from lambda_replay.rundir.checkpoints import saved_steps
from lambda_replay.rundir.directory import RunLock
from lambda_replay.rundir.files import checksum, file_checksum
from lambda_replay.rundir.memory_checksums import CHUNK, relied_on
from lambda_replay.rundir.pack_reading import PackFile
from lambda_replay.rundir.verification import verify_run
from lambda_replay.training.packing import pack_run, unpack_run
from lambda_replay.training.resuming import resume_run


def pack(run: Path, out: Path) -> int:
    """Pack a sound run; the step of its checkpoint."""
    said: list[str] = []
    step = pack_run(run, out, said.append)
    assert said == []
    return step


@pytest.fixture(scope="module")
def packed(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "stopped.zip"
    assert pack(stopped, out) == 300
    return out


# --- exactness --------------------------------------------------------------------------------------------------------


def assert_moves(tmp_path: Path, config: RunConfig, stop: int) -> None:
    """Pack, unpack elsewhere, resume: the results are those of a run that never stopped."""
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "run", config, stop)
    before = snapshot(tmp_path / "run")
    step = pack(tmp_path / "run", tmp_path / "run.zip")
    assert snapshot(tmp_path / "run") == before
    shutil.rmtree(tmp_path / "run")
    moved = tmp_path / "elsewhere" / "moved"
    assert unpack_run(tmp_path / "run.zip", moved) == step == saved_steps(moved)[0]
    assert all(finding.is_sound for finding in verify_run(moved))
    assert resume_to_end(moved) == []
    assert not differences(undisturbed, moved)


@pytest.mark.parametrize(
    "config",
    [
        small_config("CartPole-v1", cache={"schedule": "concurrent"}, memory={"capacity": 400}),
        small_config("CartPole-v1", "drqn-lambda", observe=(0, 2)),
        small_config("minatar/breakout", "dqn", 3),
        small_config("goals/bitflip-6", "uvfa-lambda", 2),
        small_config("Pendulum-v1", "sac-lambda", 2, estimator="retrace:0.9"),
        small_config("atari/breakout", "pqn", 2),
    ],
    ids=lambda config: f"{config.env}-{config.agent}".replace("/", "-"),
)
def test_a_moved_run_gives_the_same_bytes(tmp_path: Path, config: RunConfig) -> None:
    assert_moves(tmp_path, config, STOPPED_AT)


def test_a_memory_that_has_wrapped_around_and_takes_many_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catch on Atari's screen, in two environments, whose rings are full after about 2,450 steps."""
    monkeypatch.setattr(atari, "_load_emulator", lambda name: CatchEmulator())
    assert_moves(tmp_path, small_config("atari/pong", envs=2, steps=2_700, cache={"updates": 1}), 2_640)


def test_evaluations_films_and_the_best_weights_move_too(tmp_path: Path) -> None:
    config = small_config(
        "environments:LinearChain-v0", evaluate_every=60, evaluate_games=3, film_every=120, checkpoint_every=120
    )
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "run", config, 410)
    assert saved_steps(tmp_path / "run")[0] == 360
    pack(tmp_path / "run", tmp_path / "run.zip")
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert sorted(path.name for path in (tmp_path / "moved" / "films").iterdir()) == ["240.gif", "360.gif"]
    best = "weights-best.safetensors"
    assert (tmp_path / "moved" / best).read_bytes() == (
        tmp_path / "moved" / "checkpoints/360/best.safetensors"
    ).read_bytes()
    resume_to_end(tmp_path / "moved")
    assert not differences(undisturbed, tmp_path / "moved")
    for name in ("evaluations.jsonl", best, "films/240.gif", "films/360.gif"):
        assert (tmp_path / "moved" / name).read_bytes() == (undisturbed / name).read_bytes()


@given(
    window=st.integers(1, 3_000),
    spare=st.integers(CHUNK, 2 * CHUNK),
    written=st.lists(st.integers(1, 9_000), min_size=1, max_size=3),
)
def test_all_chunks_that_a_window_touches_are_packed_wherever_it_begins(
    window: int, spare: int, written: list[int]
) -> None:
    ring = Ring(window + spare)
    for array, unknown in (("observations", 0), ("rewards", 1)):  # the newest slot has no reward yet
        wanted = [
            ring.slot(stream, number)
            for stream, count in enumerate(written)
            for number in range(count - unknown)
            if (number // CHUNK + 1) * CHUNK > count - window
        ]
        spans = relied_on(array, written, window, ring)
        assert [slot for first, last in spans for slot in range(first, last)] == wanted
        assert len(set(wanted)) == len(wanted)


def test_packing_an_unpacked_run_gives_the_same_file(packed: Path, tmp_path: Path) -> None:
    unpack_run(packed, tmp_path / "moved")
    pack(tmp_path / "moved", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_a_finished_run_that_kept_its_memory_is_packed_at_its_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    """Unpacked, it is unfinished; resuming repeats its last steps."""
    finish(resume_kept(tmp_path / "run"))
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert pack(tmp_path / "run", tmp_path / "run.zip") == 360
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert not (tmp_path / "moved" / "weights.safetensors").exists()
    resume_to_end(tmp_path / "moved")
    assert not differences(undisturbed, tmp_path / "moved")


def resume_kept(path: Path) -> Any:
    train_until(path, small_config(), STOPPED_AT)
    return resume_run(path, print, keep_memory=True)


def test_a_checkpoint_before_a_damaged_one_is_packed_and_said(undisturbed: Path, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    os.truncate(run / "checkpoints" / "300" / "weights.safetensors", 100)
    said: list[str] = []
    assert pack_run(run, tmp_path / "run.zip", said.append) == 240
    assert len(said) == 1
    assert "300" in said[0]
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert resume_to_end(tmp_path / "moved") == []
    assert not differences(undisturbed, tmp_path / "moved")


def test_damaged_logs_are_renewed_before_a_run_is_packed(undisturbed: Path, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / "episodes.csv").unlink()
    with pytest.raises(DamageError, match=r"episodes\.csv of .* let lambda-replay resume .* start new ones first"):
        pack_run(run, tmp_path / "run.zip", lambda sentence: None)
    resume_run(run, lambda sentence: None).close()
    pack(run, tmp_path / "run.zip")
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert resume_to_end(tmp_path / "moved") == []
    assert (tmp_path / "moved" / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()


def test_a_run_that_lost_its_provenance_is_packed_without(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / "provenance.json").unlink()
    pack(run, tmp_path / "run.zip")
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert not (tmp_path / "moved" / "provenance.json").exists()
    assert (tmp_path / "moved" / "config.json").exists()


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_anywhere_is_found(packed: Path, tmp_path: Path) -> None:
    content, other = packed.read_bytes(), tmp_path / "other.zip"
    size = len(content)
    places = {*range(64), *range(size - 400, size), *np.random.default_rng(0).integers(size, size=200).tolist()}
    for at in sorted(places):
        other.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises((ConfigError, DamageError), match=r"other\.zip is (damaged|not a packed run)"):
            PackFile(other)
    for change in (content[:-1], content + b"0", content[: size // 2], content[:40], b"", b"PK\x03\x04"):
        other.write_bytes(change)
        with pytest.raises((ConfigError, DamageError), match=r"other\.zip is (damaged|not a packed run)"):
            unpack_run(other, tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


Entries = dict[str, bytes]


def forge(packed: Path, out: Path, change: Callable[[Entries], None]) -> Path:
    """A pack with other entries and a right checksum, as somebody could make it on purpose."""
    with zipfile.ZipFile(packed) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        archive.comment = b"0" * 32
    length = out.stat().st_size - 32
    out.write_bytes(out.read_bytes()[:length] + file_checksum(out, length).encode())
    return out


def change_json(name: str, **values: Any) -> Callable[[Entries], None]:
    def change(entries: Entries) -> None:
        entries[name] = json.dumps({**json.loads(entries[name]), **values}).encode()

    return change


def change_state(**values: Any) -> Callable[[Entries], None]:
    def change(entries: Entries) -> None:
        name = "checkpoints/300/state.json"
        outer = json.loads(entries[name])
        payload = json.dumps({**json.loads(outer["payload"]), **values})
        entries[name] = json.dumps({**outer, "payload": payload, "checksum": checksum(payload.encode())}).encode()

    return change


def change_config(**values: Any) -> Callable[[Entries], None]:
    """In both places that have it."""

    def change(entries: Entries) -> None:
        change_json("config.json", **values)(entries)
        change_state(config=json.loads(entries["config.json"]))(entries)

    return change


def add(name: str) -> Callable[[Entries], None]:
    return lambda entries: entries.update({name: b"harm"})


def rename_log(entries: Entries) -> None:
    """A log that would be written outside of the run."""
    outer = json.loads(entries["checkpoints/300/state.json"])
    payload = json.loads(outer["payload"])
    for table in (payload["logs"], payload["checksums"]["logs"]):
        table["../harm"] = table.pop("episodes.csv")
    change_state(logs=payload["logs"], checksums=payload["checksums"])(entries)
    entries["../harm"] = entries.pop("episodes.csv")


def remove_config(entries: Entries) -> None:
    del entries["config.json"]


def swap_observations(entries: Entries) -> None:
    """The same bytes in another order."""
    name = "memory/observations.bin"
    entries[name] = entries[name][::-1]


def swap_weights(entries: Entries) -> None:
    entries["checkpoints/300/weights.safetensors"] = entries["checkpoints/300/optimizer.safetensors"]


FORGERIES: dict[str, tuple[Callable[[Entries], None], str]] = {
    "format": (change_json("pack.json", format=2), "has format 2, but this version of lambda-replay reads 1"),
    "no format": (change_json("pack.json", format=None), "has format None"),
    "head": (lambda entries: entries.update({"pack.json": b"[" * 100_000}), "not what was written"),
    "step": (change_json("pack.json", step="../.."), "not what was written"),
    "other step": (change_json("pack.json", step=240), "not what was written"),
    "a film to come": (add("films/360.gif"), "contradict each other"),
    "outside": (add("../harm"), "contradict each other"),
    "absolute": (add("/tmp/harm"), "contradict each other"),
    "weights": (add("weights.safetensors"), "contradict each other"),
    "a log outside": (rename_log, "contradict each other"),
    "no config": (remove_config, "not what was written"),
    "config": (change_json("config.json", seed=5), "contradict each other"),
    "config of another version": (change_json("config.json", planet=5), "config in .* is damaged or from another"),
    "a large memory": (
        change_config(memory={"capacity": 10**12, "start": 120, "history": 1, "storage": "disk"}),
        "the run needs .* TB of disk, but only",
    ),
    "state": (change_state(memory={"written": [10**18], "is_open": [1]}), "contradict each other"),
    "slots": (change_state(slot_bytes={"observations": 10**15, "actions": 4}), "contradict each other"),
    "log": (lambda entries: entries.update({"metrics.jsonl": b"{}\n"}), "contradict each other"),
    "array": (lambda entries: entries.update({"memory/rewards.bin": b"1234"}), "contradict each other"),
    "observations": (swap_observations, "contradict each other"),
    "weights of another network": (swap_weights, "contradict each other"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_pack_is_refused_and_writes_nothing(packed: Path, tmp_path: Path, name: str) -> None:
    change, words = FORGERIES[name]
    (tmp_path / "below").mkdir()
    forged = forge(packed, tmp_path / "below" / "forged.zip", change)
    with pytest.raises((ConfigError, DamageError), match=words) as caught:
        unpack_run(forged, tmp_path / "below" / "moved")
    assert str(caught.value).count("\n") == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["below", "forged.zip"]


def test_forging_nothing_changes_nothing(packed: Path, tmp_path: Path) -> None:
    """The forgeries above are refused for what was changed."""
    forged = forge(packed, tmp_path / "forged.zip", lambda entries: None)
    unpack_run(forged, tmp_path / "moved")
    assert all(finding.is_sound for finding in verify_run(tmp_path / "moved"))


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 4, 9])
def test_an_interrupted_unpack_leaves_nothing(packed: Path, tmp_path: Path, call: int) -> None:
    with crash_at_call(call, KeyboardInterrupt(), (os, "fsync")), pytest.raises(KeyboardInterrupt):
        unpack_run(packed, tmp_path / "moved")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_pack_leaves_nothing(stopped: Path, tmp_path: Path) -> None:
    error = OSError(28, "No space left on device")
    with crash_at_call(1, error, (os, "fsync")), pytest.raises(OSError, match="No space"):
        pack_run(stopped, tmp_path / "run.zip", print)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line("lambda_replay.cli.pack", "lambda_replay.cli.unpack") as server:
        yield server


def test_a_killed_unpack_leaves_no_run(server: Server, packed: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Killed before any of the calls that change the disk: what is left is complete, or not a run."""
    calls = server.run("unpack", packed, "--out", tmp_path / "whole", die_at=0).calls
    assert calls > 20
    places = sorted({*range(1, calls, 12), *range(calls - 4, calls)})
    for at in places:
        out = tmp_path / f"killed-{at}"
        assert server.run("unpack", packed, "--out", out, die_at=at).code == -signal.SIGKILL
        if (out / "config.json").exists():
            assert all(finding.is_sound for finding in verify_run(out))
    assert not (tmp_path / f"killed-{places[-5]}" / "config.json").exists()
    assert (tmp_path / f"killed-{places[-1]}" / "config.json").exists()
    resume_to_end(tmp_path / "whole")
    assert not differences(undisturbed, tmp_path / "whole")


# --- code -------------------------------------------------------------------------------------------------------------


def test_no_module_that_a_run_names_is_imported(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the environment's nor the estimator's; resume then asks."""
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('harm').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    forge(packed, tmp_path / "run.zip", change_config(env="evil:Env-v0", estimator="evil:returns"))
    unpack_run("run.zip", "moved")
    pack(Path("moved"), Path("again.zip"))
    unpack_run("again.zip", "again")
    assert "imports the module evil" in refused(capsys, "resume", "again")
    assert not Path("harm").exists()


# --- the commands -----------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lambda-replay: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


def test_the_commands_say_what_they_did_and_what_comes_next(server: Server, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "a run")
    ended = server.run("pack", run)
    assert (ended.code, ended.err) == (0, "")
    first, second = ended.out.splitlines()
    assert first.startswith(f"{run}.zip: ")
    assert first.endswith(", at step 300")
    assert second == f"next: lambda-replay unpack '{run}.zip'"
    shutil.rmtree(run)
    ended = server.run("unpack", f"{run}.zip")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"{run}: unpacked at step 300; every checksum matches",
        f"next: lambda-replay resume '{run}'",
    ]
    assert server.run("resume", run).code == 0
    assert server.run("verify", run).code == 0


def test_a_run_given_as_the_current_directory(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_run(stopped, tmp_path / "run"))
    assert main(["pack", "."]) == 0
    assert (tmp_path / "run.zip").is_file()


def test_runs_that_cannot_be_packed(
    stopped: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.zip"
    assert "is finished and kept no replay memory" in refused(capsys, "pack", undisturbed, "--out", out)
    diverged = copy_run(stopped, tmp_path / "diverged")
    (diverged / "diverged.json").write_text('{"step": 1, "sentence": "training diverged."}')
    assert "diverged and cannot be resumed" in refused(capsys, "pack", diverged, "--out", out)
    train_until(tmp_path / "never", small_config(checkpoint_every=0), 250)
    assert "checkpoint_every 0" in refused(capsys, "pack", tmp_path / "never", "--out", out)
    train_until(tmp_path / "young", small_config(), 60)
    assert "has no checkpoint yet" in refused(capsys, "pack", tmp_path / "young", "--out", out)
    longer = copy_run(stopped, tmp_path / "longer")
    values = json.loads((longer / "provenance.json").read_text())
    values["extends_to"] = {"steps": 600, "stop_at_score": None}
    (longer / "provenance.json").write_text(json.dumps(values))
    assert "was being extended when it stopped" in refused(capsys, "pack", longer, "--out", out)
    lock = RunLock(stopped)
    assert "another process is working in" in refused(capsys, "pack", stopped, "--out", out)
    lock.release()
    assert not out.exists()


def test_places_that_are_taken_or_do_not_exist(
    stopped: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken.zip").write_text("mine")
    assert "taken.zip already exists; give another --out" in refused(
        capsys, "pack", stopped, "--out", tmp_path / "taken.zip"
    )
    assert (tmp_path / "taken.zip").read_text() == "mine"
    assert "does not end in .zip" in refused(capsys, "pack", stopped, "--out", tmp_path / "run.tar")
    assert "there is no directory" in refused(capsys, "pack", stopped, "--out", tmp_path / "no" / "run.zip")
    assert "taken.zip is not a packed run" in refused(capsys, "unpack", tmp_path / "taken.zip")
    assert "does not exist" in refused(capsys, "unpack", tmp_path / "nothing.zip")
    assert "is not a file" in refused(capsys, "unpack", tmp_path, "--out", tmp_path / "moved")
    (tmp_path / "moved").mkdir()
    assert "moved already exists; give another --out" in refused(capsys, "unpack", packed, "--out", tmp_path / "moved")
    plain = copy_file(packed, tmp_path / "plain")
    assert "plain does not end in .zip; give --out" in refused(capsys, "unpack", plain)
    assert main(["unpack", str(plain), "--out", str(tmp_path / "named")]) == 0


def copy_file(source: Path, target: Path) -> Path:
    shutil.copyfile(source, target)
    return target


def test_too_little_disk_space_is_noticed_before_anything_is_written(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Usage(NamedTuple):
        free: int = 10_000

    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage())
    sentence = refused(capsys, "unpack", packed, "--out", tmp_path / "moved")
    assert "of disk, but only 10 kB is free; give an --out with more room" in sentence
    assert list(tmp_path.iterdir()) == []
