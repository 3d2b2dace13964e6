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
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from processes import Server, command_line
from small_runs import (
    Stopped,
    copy_run,
    crash_at_call,
    differences,
    finish,
    resume_to_end,
    small_config,
    stop_at,
    train_to_end,
    train_until,
)

from lambda_replay.cli import main
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec, Step, atari
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.rundir.checkpoints import read_state, saved_steps
from lambda_replay.rundir.directory import RunLock
from lambda_replay.rundir.files import checksum, file_checksum
from lambda_replay.rundir.memory_checksums import CHUNK
from lambda_replay.rundir.memory_files import OBSERVATIONS, PackedGame, SlotMap
from lambda_replay.rundir.pack_reading import PackFile
from lambda_replay.rundir.packs import npy_header
from lambda_replay.rundir.trust import sign
from lambda_replay.rundir.verification import verify_run
from lambda_replay.training.packing import Packed, pack_run, unpack_run
from lambda_replay.training.replaying import Storage, find_games, repeats, replay_slots
from lambda_replay.training.resuming import resume_run

STOPPED_AT = 350  # the newest checkpoint is at 300
LONG: dict[str, Any] = {
    "steps": 2_700,
    "cache": {"updates": 1},
}  # with two environments, the ring is full after about 2,450


def pack(run: Path, out: Path, **options: Any) -> Packed:
    """Pack a sound run."""
    said: list[str] = []
    packed = pack_run(run, out, said.append, **options)
    assert said == []
    return packed


def snapshot(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Path:
    return train_to_end(place / "undisturbed", small_config())


@pytest.fixture(scope="module")
def stopped(place: Path) -> Path:
    train_until(place / "stopped", small_config(), STOPPED_AT)
    return place / "stopped"


@pytest.fixture(scope="module")
def packed(place: Path, stopped: Path) -> Path:
    assert pack(stopped, place / "stopped.zip").stored == 0
    return place / "stopped.zip"


# --- exactness --------------------------------------------------------------------------------------------------------


def assert_moves(tmp_path: Path, config: RunConfig, stop: int) -> Packed:
    """Pack, unpack elsewhere, resume: the results are those of a run that never stopped."""
    undisturbed = train_to_end(tmp_path / "undisturbed", config)
    train_until(tmp_path / "run", config, stop)
    before = snapshot(tmp_path / "run")
    packed = pack(tmp_path / "run", tmp_path / "run.zip")
    assert snapshot(tmp_path / "run") == before
    shutil.rmtree(tmp_path / "run")
    moved = tmp_path / "elsewhere" / "moved"
    assert unpack_run(tmp_path / "run.zip", moved) == packed.step == saved_steps(moved)[0]
    assert all(finding.is_sound for finding in verify_run(moved))
    assert resume_to_end(moved) == []
    assert not differences(undisturbed, moved)
    return packed


CONCURRENT: dict[str, Any] = {"cache": {"schedule": "concurrent"}, "memory": {"capacity": 400}}


@pytest.mark.parametrize(
    "config",
    [
        small_config("minatar/breakout", envs=3),
        small_config("minatar/asterix", "dqn", flicker=0.5),
        small_config("minatar/breakout", "pqn", 4),
        small_config("CartPole-v1", "drqn-lambda", observe=(0, 2)),
        small_config("CartPole-v1", **CONCURRENT),
        small_config("CliffWalking-v1", envs=2, max_game_steps=25),
        small_config("goals/bitflip-6", "uvfa-lambda", envs=2),
        small_config("Pendulum-v1", "sac-lambda", 2, estimator="retrace:0.9"),
        small_config("Pendulum-v1", "td3-lambda", **CONCURRENT),
        small_config("Pendulum-v1", "sdqn-lambda"),
        small_config("Pendulum-v1", "sac"),
    ],
    ids=lambda config: f"{config.env}-{config.agent}".replace("/", "-"),
)
def test_a_moved_run_gives_the_same_bytes(tmp_path: Path, config: RunConfig) -> None:
    """All of the memory is still there, so nothing needs to be stored."""
    packed = assert_moves(tmp_path, config, STOPPED_AT)
    assert packed.stored == 0
    assert packed.replayed > 300


def test_atari_with_lives_and_the_real_emulator(tmp_path: Path) -> None:
    packed = assert_moves(tmp_path, small_config("atari/breakout", envs=2, steps=600), 550)
    assert packed.stored == 0
    assert packed.games >= 3  # one in each stream is open
    assert packed.replayed > 540 + 2  # losing a life takes a slot more


def test_a_memory_that_has_wrapped_around_with_several_environments(tmp_path: Path) -> None:
    """The first slots belong to games whose beginnings were overwritten; all others are rebuilt."""
    config = small_config("CartPole-v1", envs=2, **LONG)
    packed = assert_moves(tmp_path, config, 2_640)
    assert 0 < packed.stored < 150
    assert packed.replayed > 400


def test_atari_with_lives_whose_memory_has_wrapped_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch, whose games have five lives and take about 50 steps."""
    monkeypatch.setattr(atari, "_load_emulator", lambda name: CatchEmulator())
    packed = assert_moves(tmp_path, small_config("atari/pong", envs=2, **LONG), 2_640)
    assert 0 < packed.stored < 200
    assert packed.replayed > 400


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


def test_packing_an_unpacked_run_gives_the_same_file(packed: Path, tmp_path: Path) -> None:
    unpack_run(packed, tmp_path / "moved")
    pack(tmp_path / "moved", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_a_finished_run_that_kept_its_memory_is_packed_at_its_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    """Unpacked, it is unfinished; resuming repeats its last steps."""
    finish(resume_kept(tmp_path / "run"))
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert pack(tmp_path / "run", tmp_path / "run.zip").step == 360
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
    assert pack_run(run, tmp_path / "run.zip", said.append).step == 240
    assert len(said) == 1
    assert "300" in said[0]
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert resume_to_end(tmp_path / "moved") == []
    assert not differences(undisturbed, tmp_path / "moved")


# --- what cannot be rebuilt -------------------------------------------------------------------------------------------


def test_an_environment_that_does_not_repeat_is_packed_whole(tmp_path: Path) -> None:
    train_until(tmp_path / "run", small_config("restless:Restless-v0"), STOPPED_AT)
    packed = pack(tmp_path / "run", tmp_path / "run.zip")
    assert (packed.games, packed.replayed) == (0, 0)
    assert packed.stored == read_state(tmp_path / "run", packed.step)["memory"]["written"][0]
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert all(finding.is_sound for finding in verify_run(tmp_path / "moved"))
    (sentence,) = resume_to_end(tmp_path / "moved")
    assert "is not deterministic" in sentence


def test_games_that_an_abandoned_one_separates_are_found_all_the_same(tmp_path: Path) -> None:
    """An environment that did not repeat, and now does: only the games from before are stored."""
    run = tmp_path / "run"
    train_until(run, small_config("restless:Restless-v0"), 250)
    before, after = (sign(small_config(f"restless:{name}-v0")) or "" for name in ("Restless", "Steady"))
    for path in (run / "config.json", run / "provenance.json", *run.glob("checkpoints/*/state.json")):
        text = path.read_text().replace("Restless-v0", "Steady-v0").replace(before, after)
        if path.name == "state.json":
            payload = json.loads(text)["payload"]
            text = json.dumps({**json.loads(text), "checksum": checksum(payload.encode())})
        path.write_text(text)
    (sentence,) = resume_to_step(run, 400)
    assert "not deterministic" in sentence
    packed = pack(run, tmp_path / "run.zip")
    state = read_state(run, 360)
    assert packed.step == 360
    # Of the games of 37 steps and 38 slots, those from before step 240 are stored, the seventh of which was abandoned.
    assert packed.stored == 240 + 6 + 1
    assert packed.stored + packed.replayed == state["memory"]["written"][0]
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert resume_to_end(tmp_path / "moved") == []


def resume_to_step(run: Path, step: int) -> list[str]:
    said: list[str] = []
    resumed = resume_run(run, said.append)
    with pytest.raises(Stopped):
        resumed.train(stop_at(step))
    resumed.close()
    return said


def test_games_that_no_log_knows_are_stored(undisturbed: Path, stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / "episodes.csv").unlink()
    with pytest.raises(DamageError, match=r"episodes\.csv of .* let lambda-replay resume .* start new ones first"):
        pack_run(run, tmp_path / "run.zip", lambda sentence: None)
    resume_run(run, lambda sentence: None).close()
    packed = pack(run, tmp_path / "run.zip")
    first_slot = read_state(run, 300)["loop"]["games"][0]["first_slot"]
    assert (packed.games, packed.stored) == (1, first_slot)  # the open one alone is known
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    resume_to_end(tmp_path / "moved")
    assert (tmp_path / "moved" / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()


def test_observations_are_stored_if_asked_for_and_nothing_is_replayed(
    undisturbed: Path, stopped: Path, packed: Path, tmp_path: Path
) -> None:
    whole = pack(stopped, tmp_path / "run.zip", stores_observations=True)
    assert (whole.games, whole.replayed) == (0, 0)
    assert (tmp_path / "run.zip").stat().st_size > packed.stat().st_size
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert resume_to_end(tmp_path / "moved") == []
    assert not differences(undisturbed, tmp_path / "moved")


# --- wherever the window begins ---------------------------------------------------------------------------------------


class Lives:
    """A game that depends on its seed and every action; now and then a life is lost, and at last the game ends."""

    spec = EnvironmentSpec((3,), np.dtype(np.int32), 3, tuple("abc"))

    def __init__(self, length: int) -> None:
        self._length = length  # about how many steps a game has

    def reset(self, seed: int) -> NDArray[np.int32]:
        self._rng, self._sum = np.random.default_rng(seed), 0
        return self._observe()

    def step(self, action: int) -> Step:
        self._sum = self._sum * 31 % 65_536 + action
        chance = self._rng.random() * self._length
        is_lost, is_over = chance < 4, chance < 1
        return Step(self._observe(), 0.0, is_lost, False, is_over, 0.0)

    def _observe(self) -> NDArray[np.int32]:
        return np.array([self._rng.integers(1_000), self._sum, 7], dtype=np.int32)

    def render(self) -> NDArray[np.uint8]:
        raise NotImplementedError

    def close(self) -> None: ...


class Played(NamedTuple):
    storage: Storage
    episodes: str
    games: list[PackedGame]  # all that were ever played, in order


def play(rng: np.random.Generator, *, streams: int, steps: int, window: int, length: int, limit: int) -> Played:
    """Play in lock-step as the loop does, and write down where each game lies."""
    spare = int(rng.integers(CHUNK, 2 * CHUNK))
    memory = ReplayMemory(streams * window, (3,), np.int32, num_streams=streams, spare=spare)
    environments = [Lives(length) for _ in range(streams)]
    lines, games = ["episode,step,stream,score,length,seed,ended"], list[PackedGame]()

    def begin(stream: int) -> dict[str, Any]:
        seed, first_slot = int(rng.integers(10**6)), memory.written[stream]
        memory.begin(environments[stream].reset(seed), stream)
        return {"seed": seed, "first_slot": first_slot, "actions": []}

    open_games = [begin(stream) for stream in range(streams)]
    for step in range(steps):
        for stream, environment in enumerate(environments):
            game, action = open_games[stream], int(rng.integers(3))
            outcome = environment.step(action)
            game["actions"].append(action)
            is_over = outcome.game_over or len(game["actions"]) == limit
            memory.append(action, 0.0, outcome.observation, outcome.terminated, is_over, stream=stream)
            if is_over:
                at, taken = step * streams + stream + 1, len(game["actions"])
                lines.append(f"{len(games)},{at},{stream},0.0,{taken},{game['seed']},terminated")
                games.append(PackedGame(stream, game["seed"], game["first_slot"], memory.written[stream]))
                open_games[stream] = begin(stream)
            elif outcome.terminated:
                memory.begin(outcome.observation, stream)
    games += [PackedGame(n, g["seed"], g["first_slot"], memory.written[n]) for n, g in enumerate(open_games)]
    arrays = {name: array.reshape(len(array), -1).view(np.uint8) for name, array in memory.arrays.items()}
    slots = SlotMap(memory.ring, window, list(memory.written), {name: a.shape[1] for name, a in arrays.items()})
    return Played(Storage(slots, arrays, open_games, steps * streams), "\n".join(lines) + "\n", games)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    streams=st.integers(1, 3),
    steps=st.integers(1, 2_600),
    window=st.integers(4, 1_500),
    length=st.sampled_from([8, 60, 400, 4_000]),
    limit=st.sampled_from([1, 30, 10**6]),
)
def test_games_are_found_and_rebuilt_wherever_the_window_begins(
    *, seed: int, streams: int, steps: int, window: int, length: int, limit: int
) -> None:
    rng = np.random.default_rng(seed)
    storage, episodes, played = play(rng, streams=streams, steps=steps, window=window, length=length, limit=limit)
    slots = storage.slots
    starts = [slots.numbers(OBSERVATIONS, stream).start for stream in range(streams)]
    whole = [g for g in played if g.first >= starts[g.stream] or g.last == slots.written[g.stream]]
    games = find_games(storage, episodes)
    assert games == sorted(whole, key=lambda game: (game.stream, game.first))
    environment = Lives(length)
    assert all(repeats(environment, storage, game) for game in games)
    rebuilt = np.zeros_like(storage.arrays[OBSERVATIONS])
    for first, last in slots.spans(OBSERVATIONS, games):
        rebuilt[first:last] = storage.arrays[OBSERVATIONS][first:last]
    for game in games:
        for slot, observation in replay_slots(environment, storage, game):
            assert not rebuilt[slot].any()  # every slot comes from one place
            rebuilt[slot] = observation
    for first, last in slots.spans(OBSERVATIONS):
        assert np.array_equal(rebuilt[first:last], storage.arrays[OBSERVATIONS][first:last])
    changed = int(rng.integers(slots.numbers(OBSERVATIONS, 0).start, slots.written[0]))
    storage.arrays[OBSERVATIONS][slots.ring.slot(0, changed), 8] ^= 1
    broken = [game for game in games if not repeats(environment, storage, game)]
    assert broken == [game for game in games if game.stream == 0 and game.first <= changed < game.last]


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


def change_games(change_rows: Callable[[NDArray[np.int64]], Any]) -> Callable[[Entries], None]:
    def change(entries: Entries) -> None:
        rows = np.frombuffer(entries["games.npy"][128:], dtype="<i8").reshape(-1, 4).copy()
        changed = change_rows(rows)
        rows = rows if changed is None else np.array(changed)
        entries["games.npy"] = npy_header("<i8", *rows.shape) + rows.tobytes()

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


FORGERIES: dict[str, tuple[Callable[[Entries], None], str]] = {
    "format": (change_json("pack.json", format=2), "has format 2, but this version of lambda-replay reads 1"),
    "no format": (change_json("pack.json", format=None), "has format None"),
    "head": (lambda entries: entries.update({"pack.json": b"[" * 100_000}), "not what was written"),
    "step": (change_json("pack.json", step="../.."), "not what was written"),
    "other step": (change_json("pack.json", step=240), "not what was written"),
    "films": (change_json("pack.json", films=[240]), "contradict each other"),
    "film": (change_json("pack.json", films=[-1]), "not what was written"),
    "outside": (add("../harm"), "contradict each other"),
    "absolute": (add("/tmp/harm"), "contradict each other"),
    "weights": (add("weights.safetensors"), "contradict each other"),
    "a log outside": (rename_log, "contradict each other"),
    "no config": (remove_config, "not what was written"),
    "config": (change_json("config.json", seed=5), "contradict each other"),
    "config of another version": (change_json("config.json", planet=5), "config in .* is damaged or from another"),
    "a large memory": (change_json("config.json", memory=3), "config in .* is damaged or from another"),
    "state": (change_state(memory={"written": [10**18], "is_open": [1]}), "contradict each other"),
    "open games": (change_state(loop={}), "contradict each other"),
    "slots": (change_state(slot_bytes={"observations": 10**15, "actions": 4}), "contradict each other"),
    "log": (lambda entries: entries.update({"metrics.jsonl": b"{}\n"}), "contradict each other"),
    "array": (lambda entries: entries.update({"memory/rewards.npy": b"\x93NUMPY"}), "contradict each other"),
    "array's type": (
        lambda entries: entries.update(
            {"memory/rewards.npy": entries["memory/rewards.npy"].replace(b"|u1", b"|O8", 1)}
        ),
        "contradict each other",
    ),
    "overlapping games": (change_games(lambda rows: np.repeat(rows, 2, axis=0)), "contradict each other"),
    "many games": (change_games(lambda rows: np.repeat(rows, 1_000, axis=0)), "contradict each other"),
    "stream": (change_games(lambda rows: rows.__setitem__((0, 0), -1)), "contradict each other"),
    "seed": (change_games(lambda rows: rows.__setitem__((0, 1), -1)), "contradict each other"),
    "other seed": (change_games(lambda rows: rows.__setitem__((0, 1), 12)), "did not come out the same here"),
    "first slot": (change_games(lambda rows: rows.__setitem__((0, 2), -3)), "contradict each other"),
    "last slot": (change_games(lambda rows: rows.__setitem__((-1, 3), 10**12)), "contradict each other"),
    "no games": (change_games(lambda rows: rows[:0]), "contradict each other"),
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


def test_weights_of_another_checkpoint_are_found(packed: Path, tmp_path: Path) -> None:
    def change(entries: Entries) -> None:
        entries["checkpoints/300/weights.safetensors"] = entries["checkpoints/300/optimizer.safetensors"]

    with pytest.raises(DamageError):
        unpack_run(forge(packed, tmp_path / "forged.zip", change), tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


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


# --- trust ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of somebody else's, whose environment is a module that does harm when it is imported."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    train_until(tmp_path / "run", small_config("restless:Steady-v0"), STOPPED_AT)
    shutil.rmtree(tmp_path / "state")
    return tmp_path / "run"


def test_no_module_of_a_foreign_run_is_imported(foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run was not created by you.*the module restless.*--trust"):
        pack_run(foreign, tmp_path / "run.zip", print)
    assert not (tmp_path / "run.zip").exists()
    asked: list[tuple[Path, str]] = []

    def agree(path: Path, module: str) -> bool:
        asked.append((path, module))
        return True

    pack_run(foreign, tmp_path / "run.zip", print, may_import=agree)
    with pytest.raises(ConfigError, match=r"run\.zip was not created by you.*the module restless.*--trust"):
        unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert not (tmp_path / "moved").exists()
    unpack_run(tmp_path / "run.zip", tmp_path / "moved", may_import=agree)
    assert asked == [(foreign, "restless"), (tmp_path / "run.zip", "restless")]


def test_without_games_to_replay_nothing_is_imported_and_nobody_is_asked(foreign: Path, tmp_path: Path) -> None:
    pack_run(foreign, tmp_path / "run.zip", print, stores_observations=True)
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert all(finding.is_sound for finding in verify_run(tmp_path / "moved"))


def test_ones_own_run_is_unpacked_without_a_question(tmp_path: Path) -> None:
    train_until(tmp_path / "run", small_config("restless:Steady-v0"), STOPPED_AT)
    packed = pack(tmp_path / "run", tmp_path / "run.zip")
    assert unpack_run(tmp_path / "run.zip", tmp_path / "moved") == packed.step


def test_a_run_that_lost_its_provenance_is_packed_without(stopped: Path, tmp_path: Path) -> None:
    run = copy_run(stopped, tmp_path / "run")
    (run / "provenance.json").unlink()
    pack(run, tmp_path / "run.zip")
    unpack_run(tmp_path / "run.zip", tmp_path / "moved")
    assert not (tmp_path / "moved" / "provenance.json").exists()
    assert (tmp_path / "moved" / "config.json").exists()


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
    assert ", at step 300; " in first
    assert "games give back" in first
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
