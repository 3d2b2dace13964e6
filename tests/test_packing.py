"""A run that is packed, unpacked elsewhere and resumed gives the same bytes as one that never stopped."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
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
from lambda_replay.replay.storage import KNOWN_AT_NEWEST
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


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lambda-replay: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


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
    moved = tmp_path / "moved"
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
    for name in ("0240.gif", "00.gif", "-60.gif", "play.gif", "420.gif"):  # not ours, and one that will be made again
        (tmp_path / "run" / "films" / name).write_bytes(b"film")
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
    train_until(tmp_path / "run", small_config(), STOPPED_AT)
    finish(resume_run(tmp_path / "run", print, keep_memory=True))
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert pack(tmp_path / "run", tmp_path / "run.zip") == 360
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert not (tmp_path / "moved" / "weights.safetensors").exists()
    resume_to_end(tmp_path / "moved")
    assert not differences(undisturbed, tmp_path / "moved")


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


class Contents(NamedTuple):
    """What a forger changes."""

    entries: dict[str, bytes]
    lies: dict[str, dict[str, int]]  # what the archive's directory says of an entry instead of the truth


Change = Callable[[Contents], None]
STATE, WEIGHTS, LOG = "checkpoints/300/state.json", "checkpoints/300/weights.safetensors", "metrics.jsonl"
OBSERVATIONS, REWARDS = "memory/observations.bin", "memory/rewards.bin"


def seal(path: Path, content: bytes) -> Path:
    """A file with a right checksum at its end, as somebody could make it on purpose."""
    path.write_bytes(content[:-32])
    path.write_bytes(content[:-32] + file_checksum(path).encode())
    return path


def forge(packed: Path, out: Path, change: Change = lambda contents: None) -> Path:
    with zipfile.ZipFile(packed) as archive:
        contents = Contents({name: archive.read(name) for name in archive.namelist()}, {})
    change(contents)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.entries.items():
            archive.writestr(name, content)
        for name, fields in contents.lies.items():
            for field, value in fields.items():
                setattr(archive.getinfo(name), field, value)
        archive.comment = b"0" * 32
    return seal(out, out.read_bytes())


def put(name: str, content: bytes = b"harm") -> Change:
    return lambda contents: contents.entries.update({name: content})


def remove(name: str) -> Change:
    return lambda contents: contents.entries.__delitem__(name)


def reverse(name: str) -> Change:
    return lambda contents: contents.entries.update({name: contents.entries[name][::-1]})


def claim(name: str, **fields: int) -> Change:
    return lambda contents: contents.lies.update({name: fields})


def change_json(name: str, **values: Any) -> Change:
    return lambda contents: put(name, json.dumps({**json.loads(contents.entries[name]), **values}).encode())(contents)


def read_payload(contents: Contents) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(json.loads(contents.entries[STATE])["payload"])
    return payload


def change_state(**values: Any) -> Change:
    def change(contents: Contents) -> None:
        payload = json.dumps({**read_payload(contents), **values})
        change_json(STATE, payload=payload, checksum=checksum(payload.encode()))(contents)

    return change


def change_config(**values: Any) -> Change:
    """In both places that have it."""

    def change(contents: Contents) -> None:
        change_json("config.json", **values)(contents)
        change_state(config=json.loads(contents.entries["config.json"]))(contents)

    return change


def rename_log(contents: Contents) -> None:
    """A log that would be written outside of the run."""
    payload = read_payload(contents)
    for table in (payload["logs"], payload["checksums"]["logs"], contents.entries):
        table["../harm"] = table.pop(LOG)
    change_state(logs=payload["logs"], checksums=payload["checksums"])(contents)


def make_step_zero(contents: Contents) -> None:
    change_json("pack.json", step=0)(contents)
    change_state(step=0)(contents)
    for name in [name for name in contents.entries if name.startswith("checkpoints/300/")]:
        contents.entries[name.replace("300", "0")] = contents.entries.pop(name)


def claim_slots(width: int, *, lies: bool) -> Change:
    """Observations of so many bytes each, and perhaps a directory that says that they are there."""

    def change(contents: Contents) -> None:
        slot_bytes = read_payload(contents)["slot_bytes"]
        if lies:
            claim(OBSERVATIONS, file_size=len(contents.entries[OBSERVATIONS]) // slot_bytes["observations"] * width)(
                contents
            )
        change_state(slot_bytes={**slot_bytes, "observations": width})(contents)

    return change


def empty_memory(contents: Contents) -> None:
    """The only slot has no reward yet, so that nothing else in the file says how large one is."""
    payload = read_payload(contents)
    for array, size in payload["slot_bytes"].items():
        put(f"memory/{array}.bin", bytes(size if array in KNOWN_AT_NEWEST else 0))(contents)
    newest = contents.entries[OBSERVATIONS] + contents.entries["memory/frames.bin"]
    change_state(
        memory={"written": [1], "is_open": [1]},
        slot_bytes={**payload["slot_bytes"], "rewards": 10**5},
        checksums={**payload["checksums"], "memory": {"0.0": checksum(newest)}},
    )(contents)


CHANGED, CONTRADICTION = "it is not what was written", "its parts contradict each other"
FORGERIES: dict[str, tuple[Change, str]] = {
    "format": (change_json("pack.json", format=2), "has format 2, but this version of lambda-replay reads 1"),
    "no format": (change_json("pack.json", format=None), CHANGED),
    "head": (put("pack.json", b"[" * 100_000), CHANGED),
    "step": (change_json("pack.json", step="../.."), CHANGED),
    "other step": (change_json("pack.json", step=240), CHANGED),
    "step zero": (make_step_zero, CHANGED),
    "config": (change_json("config.json", seed=5), CONTRADICTION),
    "config of another version": (change_json("config.json", planet=5), "config in .* is damaged or from another"),
    "state": (change_state(memory={"written": [10**18], "is_open": [1]}), CONTRADICTION),
    "no config": (remove("config.json"), CHANGED),
    "no weights": (remove(WEIGHTS), CONTRADICTION),
    "no log": (remove(LOG), CONTRADICTION),
    "no rewards": (remove(REWARDS), CONTRADICTION),
    "outside": (put("../harm"), CONTRADICTION),
    "absolute": (put("/harm/lambda-replay"), CONTRADICTION),
    "a log outside": (rename_log, CONTRADICTION),
    "final weights": (put("weights.safetensors"), CONTRADICTION),
    "a film to come": (put("films/360.gif"), CONTRADICTION),
    "a long name": (put(f"films/{'1' * 300}.gif"), CHANGED),
    "length of a log": (put(LOG, b"{}\n"), CONTRADICTION),
    "length of rewards": (put(REWARDS, b"1234"), CONTRADICTION),
    "large slots": (claim_slots(10**5, lies=False), CONTRADICTION),
    "large slots that are said to be there": (claim_slots(10**5, lies=True), CHANGED),
    "large slots of an empty memory": (empty_memory, CONTRADICTION),
    "a large memory": (
        change_config(memory={"capacity": 10**12, "start": 120, "history": 1, "storage": "disk"}),
        "the run needs .* TB of disk, but only .* is free; give an --out with more room",
    ),
    "size": (claim(WEIGHTS, file_size=2**40), CHANGED),
    "size in the file": (claim(WEIGHTS, file_size=2**40, compress_size=2**40), CHANGED),
    "place": (claim(WEIGHTS, header_offset=2**62), CHANGED),
    "method": (claim(WEIGHTS, compress_type=zipfile.ZIP_BZIP2), CHANGED),
}
FOUND_LATER: dict[str, tuple[Change, str]] = {  # by checksums, when the bytes are there
    "another place": (claim(WEIGHTS, header_offset=40), CHANGED),
    "encrypted": (claim(WEIGHTS, flag_bits=1), CHANGED),
    "slots a little larger": (claim_slots(20, lies=True), CONTRADICTION),
    "observations": (reverse(OBSERVATIONS), CONTRADICTION),
    "weights": (reverse(WEIGHTS), CONTRADICTION),
    "log": (reverse(LOG), CONTRADICTION),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_pack_is_refused_before_anything_is_written(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, words = FORGERIES[name]
    forged = forge(packed, tmp_path / "forged.zip", change)
    with crash_at_call(1, AssertionError("something was written"), (os, "mkdir")):
        sentence = refused(capsys, "unpack", forged, "--out", tmp_path / "moved")
    assert re.search(words, sentence)
    assert os.listdir(tmp_path) == ["forged.zip"]


@pytest.mark.parametrize("name", FOUND_LATER)
def test_a_forged_pack_that_looks_right_is_refused_and_leaves_nothing(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, words = FOUND_LATER[name]
    forged = forge(packed, tmp_path / "forged.zip", change)
    assert words in refused(capsys, "unpack", forged, "--out", tmp_path / "moved")
    assert os.listdir(tmp_path) == ["forged.zip"]


def test_any_change_under_a_right_checksum_is_refused_or_does_no_harm(packed: Path, tmp_path: Path) -> None:
    """Of the entries, of the directory, and of the record that ends the file."""
    content, rng = packed.read_bytes(), np.random.default_rng(0)
    start, end = content.index(b"PK\x01\x02"), len(content) - 32
    places = [*rng.integers(start, size=50), *rng.integers(start, end, size=150), *range(end - 22, end)]
    sentences = list[str]()
    for at in places:
        changed = bytearray(content)
        changed[at] ^= int(rng.choice([0x01, 0x80, 0xFF]))
        other = seal(tmp_path / "other.zip", bytes(changed))
        try:
            unpack_run(other, tmp_path / "moved")
        except (ConfigError, DamageError) as error:
            sentences.append(str(error))
            assert os.listdir(tmp_path) == ["other.zip"]
        else:
            assert all(finding.is_sound for finding in verify_run(tmp_path / "moved"))
            shutil.rmtree(tmp_path / "moved")
    assert 50 < len(sentences) < len(places) - 50  # dates and attributes do not matter
    assert all(re.search(r"other\.zip is (damaged|not a packed run)", sentence) for sentence in sentences)


def test_forging_nothing_changes_nothing(packed: Path, tmp_path: Path) -> None:
    """The forgeries above are refused for what was changed."""
    forged = forge(packed, tmp_path / "forged.zip")
    unpack_run(forged, tmp_path / "moved")
    assert all(finding.is_sound for finding in verify_run(tmp_path / "moved"))


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_an_unpack_that_is_interrupted_anywhere_leaves_nothing_or_a_whole_run(packed: Path, tmp_path: Path) -> None:
    for call in count(1):
        crash = crash_at_call(call, KeyboardInterrupt(), (os, "mkdir"), (os, "fsync"), (os, "replace"))
        with crash, suppress(KeyboardInterrupt):
            unpack_run(packed, tmp_path / "moved")
        if os.listdir(tmp_path):
            break
    assert os.listdir(tmp_path) == ["moved"]
    assert all(finding.is_sound for finding in verify_run(tmp_path / "moved"))
    assert call > 30


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_failed_pack_leaves_nothing(stopped: Path, tmp_path: Path, call: str) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    with crash_at_call(1, error, (os, call)), pytest.raises(OSError, match=r"No space left on device: .*run\.zip'"):
        pack_run(stopped, tmp_path / "run.zip", print)
    assert os.listdir(tmp_path) == []


def at_first_sync(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when a file is first made durable."""
    fsync = os.fsync

    def act_and_sync(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        act()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", act_and_sync)


def test_of_two_packs_with_the_same_target_one_is_refused(
    stopped: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second starts and ends while the first one writes."""
    out = tmp_path / "run.zip"
    at_first_sync(monkeypatch, lambda: pack(stopped, out))
    with pytest.raises(ConfigError, match=r"run\.zip already exists; give another --out"):
        pack_run(stopped, out, print)
    assert out.read_bytes() == packed.read_bytes()
    assert os.listdir(tmp_path) == ["run.zip"]


def test_a_file_system_without_links_gets_the_same_file(stopped: Path, packed: Path, tmp_path: Path) -> None:
    with crash_at_call(1, OSError(errno.EPERM, "Operation not permitted"), (os, "link")):
        pack(stopped, tmp_path / "run.zip")
    assert (tmp_path / "run.zip").read_bytes() == packed.read_bytes()
    assert os.listdir(tmp_path) == ["run.zip"]


def test_everything_is_on_the_disk_before_the_directory_has_its_name(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has the bytes, and a directory the entries, that it had when it was last synced."""
    synced: dict[int, Any] = {}  # by inode, as files are synced before they are renamed
    unsure: list[Path] | None = None
    fsync, rename = os.fsync, Path.rename

    def content(path: Path) -> Any:
        return set(os.listdir(path)) if path.is_dir() else path.read_bytes()

    def watched_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced[path.stat().st_ino] = content(path)
        fsync(descriptor)

    def watched_rename(draft: Path, target: Path) -> Path:
        nonlocal unsure
        unsure = [entry for entry in (draft, *draft.rglob("*")) if synced.get(entry.stat().st_ino) != content(entry)]
        return rename(draft, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    unpack_run(packed, tmp_path / "moved")
    assert unsure == []
    assert len(synced) > 12
    assert synced[tmp_path.stat().st_ino] == {"moved"}


def test_of_two_unpacks_with_the_same_target_one_is_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second starts and ends while the first one writes."""
    out = tmp_path / "moved"
    at_first_sync(monkeypatch, lambda: unpack_run(packed, out))
    with pytest.raises(ConfigError, match=r"moved already exists; give another --out"):
        unpack_run(packed, out)
    assert os.listdir(tmp_path) == ["moved"]
    assert all(finding.is_sound for finding in verify_run(out))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line("lambda_replay.cli.pack", "lambda_replay.cli.unpack") as server:
        yield server


def test_a_killed_pack_leaves_a_whole_file_or_none(server: Server, stopped: Path, packed: Path, tmp_path: Path) -> None:
    calls = server.run("pack", stopped, "--out", tmp_path / "whole.zip", die_at=0).calls
    are_whole = []
    for at in range(calls - 6, calls + 1):
        out = tmp_path / f"{at}.zip"
        assert server.run("pack", stopped, "--out", out, die_at=at).code == -signal.SIGKILL
        are_whole.append(out.exists())
        assert not are_whole[-1] or out.read_bytes() == packed.read_bytes()
    assert are_whole == sorted(are_whole)
    assert {*are_whole} == {False, True}


def test_a_killed_unpack_leaves_a_whole_run_or_none(
    server: Server, packed: Path, undisturbed: Path, tmp_path: Path
) -> None:
    calls = server.run("unpack", packed, "--out", tmp_path / "whole", die_at=0).calls
    places = [*range(2, calls, 12), *range(calls - 5, calls + 1)]
    for at in places:
        assert server.run("unpack", packed, "--out", tmp_path / str(at), die_at=at).code == -signal.SIGKILL
    whole = [at for at in places if (tmp_path / str(at)).exists()]
    assert 0 < len(whole) < 6
    assert whole == places[-len(whole) :]
    for at in whole:
        assert all(finding.is_sound for finding in verify_run(tmp_path / str(at)))
    resume_to_end(tmp_path / str(calls))
    assert not differences(undisturbed, tmp_path / str(calls))

    unpack_run(packed, tmp_path / str(places[0]))  # what is left of the killed one is not in the way


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
    (tmp_path / "link").symlink_to(stopped)
    for place in (stopped, stopped / "checkpoints", tmp_path / "link"):
        assert "run.zip is inside the run" in refused(capsys, "pack", stopped, "--out", place / "run.zip")
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
    assert "there is no directory" in refused(capsys, "unpack", packed, "--out", tmp_path / "p1" / "p2" / "p3")
    assert not (tmp_path / "p1").exists()
    too_long = refused(capsys, "unpack", packed, "--out", tmp_path / ("n" * 250))
    assert "n cannot be created (File name too long); give another --out." in too_long
    assert "stopped already exists; give another --out" in refused(capsys, "unpack", packed, "--out", stopped)
    plain = Path(shutil.copyfile(packed, tmp_path / "plain"))
    assert "plain does not end in .zip; give --out" in refused(capsys, "unpack", plain)
    assert main(["unpack", str(plain), "--out", str(tmp_path / "named")]) == 0
