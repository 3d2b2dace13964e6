"""Checkpoints by themselves: what they rely on is never overwritten, crashes while saving, damage; no training here."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_runs import crash_at_call

import lambda_replay as lr
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.run_settings import to_dict
from lambda_replay.config import CacheConfig, MemoryConfig, RunConfig
from lambda_replay.errors import DamageError
from lambda_replay.rundir import checkpoints, memory_checksums
from lambda_replay.rundir.checkpoints import (
    CHECKPOINTS,
    STATE,
    Checkpoint,
    all_steps,
    find_damage,
    find_log_damage,
    forget_logs,
    keep_checkpoints,
    load_checkpoint,
    read_state,
    save_checkpoint,
    saved_steps,
)
from lambda_replay.rundir.files import checksum
from lambda_replay.rundir.memory_checksums import MemoryChecksums, spare_slots

LOG = "metrics.jsonl"


def make_config(*, capacity: int = 40, start: int = 12, envs: int = 1, interval: int = 6) -> RunConfig:
    return RunConfig(
        env="CartPole-v1",
        steps=10_000 * envs,
        envs=envs,
        checkpoint_every=interval,
        memory=MemoryConfig(capacity=capacity, start=start, history=1),
        algorithm=DQNLambdaConfig(cache=CacheConfig(size=2, block_length=2, refresh_every=interval)),
    )


class Story:
    """A run without an agent: streams of numbered observations and a checkpoint at the end of every interval."""

    def __init__(self, run: Path, config: RunConfig) -> None:
        self.run, self.config = run, config
        self.step = 0
        self.checksums = MemoryChecksums()
        self.memory = lr.ReplayMemory(
            config.memory.capacity,
            (2,),
            np.int32,
            num_streams=config.envs,
            spare=spare_slots(config.checkpoint_interval, config.envs),
            directory=run / "memory",
        )
        (run / LOG).write_text("")
        for stream in range(config.envs):
            self._begin(stream)

    def _observation(self, stream: int) -> np.ndarray[Any, Any]:
        return np.array([self.memory.written[stream], self.step * 7 + stream], dtype=np.int32)

    def _begin(self, stream: int) -> None:
        self.memory.begin(self._observation(stream), stream)

    def play(self, is_end: Callable[[], bool], steps: int) -> None:
        """Every stream takes its share of the steps; a step that ends an episode writes two slots."""
        for _ in range(steps // self.config.envs):
            for stream in range(self.config.envs):
                terminated = is_end()
                self.memory.append(self.step % 3, 1.0, self._observation(stream), terminated, stream=stream)
                if terminated:
                    self._begin(stream)
            self.step += self.config.envs
        with (self.run / LOG).open("a") as log:
            log.write(f"{self.step}\n")

    def save(self) -> None:
        state = {
            "config": to_dict(self.config),
            "device": "cpu",
            "threads": 1,
            "seconds": 1.5,
            "loop": {"step": self.step},
            "agent": {},
            "streams": {},
            "memory": self.memory.get_state(),
            "best": None,
            "logs": {LOG: (self.run / LOG).stat().st_size},
        }
        tensors = {"a": torch.full((3,), float(self.step))}
        save_checkpoint(
            self.run,
            Checkpoint(self.step, state, {"weights": tensors, "optimizer": tensors}),
            self.memory,
            self.checksums,
        )

    def damage(self, step: int) -> list[str]:
        state = read_state(self.run, step)
        return [*find_damage(self.run, state, self.run / "memory"), *find_log_damage(self.run, state).values()]

    def go_back(self, step: int, *, restarts: bool) -> None:
        """What a resume does: everything after the checkpoint is forgotten; a game may have to begin anew."""
        keep_checkpoints(self.run, step)
        state = read_state(self.run, step)
        self.memory.set_state(state["memory"])
        self.checksums = MemoryChecksums()
        self.checksums.adopt(state)
        self.step = step
        os.truncate(self.run / LOG, state["logs"][LOG])
        for stream in range(self.config.envs if restarts else 0):
            self.memory.abandon(stream)
            self._begin(stream)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real syncing is tested elsewhere; here it would only take time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(lr.ReplayMemory, "flush", lambda memory: None)


@pytest.fixture
def story(tmp_path: Path, no_sync: None, monkeypatch: pytest.MonkeyPatch) -> Story:
    """Two checkpoints, at 12 and 18, and half an interval after them; the ring has 20 + 26 + 4 slots."""
    monkeypatch.setattr(memory_checksums, "CHUNK", 4)
    story = Story(tmp_path, make_config(capacity=20))
    story.play(lambda: True, 12)  # 25 slots
    story.save()
    story.play(lambda: False, 6)  # 31 slots
    story.save()
    story.play(lambda: True, 3)
    return story


class Endings:
    """Whether a step ends an episode: always, never, or now and then."""

    def __init__(self, kind: str, seed: int) -> None:
        self._share = {"always": 1.0, "never": 0.0, "sometimes": 0.3}[kind]
        self._rng = np.random.default_rng(seed)

    def __call__(self) -> bool:
        return bool(self._rng.random() < self._share)


@pytest.mark.parametrize("chunk", [1, 5, 16])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_a_kept_checkpoint_relies_on_is_ever_overwritten(
    chunk: int, no_sync: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Whatever the sizes, however episodes end, however often the run is killed and falls back to either checkpoint."""
    monkeypatch.setattr(memory_checksums, "CHUNK", chunk)
    envs = data.draw(st.integers(1, 3), "envs")
    interval = envs * data.draw(st.integers(1, 7), "interval")
    capacity = envs * data.draw(st.integers(4, 40), "capacity")
    start = envs * data.draw(st.integers(3, capacity // envs), "start")
    is_end = Endings(data.draw(st.sampled_from(["always", "never", "sometimes"])), data.draw(st.integers(0, 99)))
    story = Story(
        tmp_path_factory.mktemp("run"), make_config(capacity=capacity, start=start, envs=envs, interval=interval)
    )
    story.play(is_end, start)
    story.save()
    for _ in range(data.draw(st.integers(1, 14), "intervals")):
        if data.draw(st.booleans(), "killed"):
            story.play(is_end, data.draw(st.integers(0, interval // envs)) * envs)
            assert not any(story.damage(step) for step in saved_steps(story.run))
            story.go_back(data.draw(st.sampled_from(saved_steps(story.run))), restarts=data.draw(st.booleans()))
        story.play(is_end, interval)
        assert not any(story.damage(step) for step in saved_steps(story.run))
        story.save()
        assert saved_steps(story.run)[0] == story.step
        assert len(saved_steps(story.run)) <= memory_checksums.NUM_KEPT
    shutil.rmtree(story.run)


@given(
    window=st.integers(1, 10**7),
    interval=st.integers(1, 10**7),
    chunk=st.integers(1, 5_000),
    written=st.integers(1, 10**9),
)
def test_the_spare_slots_are_enough_and_hardly_more(window: int, interval: int, chunk: int, written: int) -> None:
    """The oldest slot of the checkpoint's oldest chunk against the newest slot that can be written while it is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_checksums, "CHUNK", chunk)
        ring = window + spare_slots(interval, num_streams=1)
    oldest = max(0, written - window) // chunk * chunk
    last = written + memory_checksums.NUM_KEPT * (2 * interval + 1) - 1
    assert last - ring < oldest  # slot ``last`` takes the place of this one
    assert ring <= window + 4 * interval + 2 + chunk


def test_without_checkpoints_there_is_no_spare() -> None:
    assert spare_slots(0, 4) == 0


def test_a_complete_chunk_is_read_once(tmp_path: Path, no_sync: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_checksums, "CHUNK", 4)
    story = Story(tmp_path, make_config())
    story.play(lambda: False, 12)  # slots 0 to 12: the chunks 0, 1 and 2 are complete, the fourth has one slot
    first = story.checksums.update(story.memory)
    story.memory.observations[:13] += 1
    second = story.checksums.update(story.memory)
    assert [name for name in first if first[name] != second[name]] == ["0.3"]
    fresh = MemoryChecksums().update(story.memory)
    assert all(fresh[name] != first[name] for name in first)


def test_the_checksums_cover_every_byte_of_the_window_and_no_other(story: Story) -> None:
    """Of 31 slots the newest 20 are the window; it begins in the middle of the chunk of the slots 8 to 11.

    The newest slot has its observation and its place in the episode; the rest of it waits for the action.
    """
    assert story.memory.ring.size == 50
    for name, array in story.memory.arrays.items():
        rows = array.view(np.uint8).reshape(story.memory.ring.size, -1)
        vouched = range(8, 31) if name in ("observations", "frames") else range(8, 30)
        for slot in range(story.memory.ring.size):
            rows[slot, -1] ^= 1
            assert bool(story.damage(18)) == (slot in vouched), (name, slot)
            rows[slot, -1] ^= 1


def snapshot(place: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def test_looking_for_damage_changes_nothing(story: Story) -> None:
    before = snapshot(story.run)
    assert not story.damage(12)
    assert not story.damage(18)
    assert snapshot(story.run) == before


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def stray_file(path: Path) -> None:
    path.write_text("mine")


def stray_link(path: Path) -> None:
    """A link to a checkpoint, which must not be removed through it."""
    path.symlink_to(path.with_name("18"))


def stray_link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


DAMAGES = [truncate, empty, lengthen, flip, Path.unlink, become_directory]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", STATE])
def test_damage_to_a_file_of_a_checkpoint_is_found_and_concerns_it_alone(
    story: Story, damage: Callable[[Path], None], name: str
) -> None:
    damage(story.run / CHECKPOINTS / "18" / name)
    if name == STATE:
        with pytest.raises(DamageError, match=STATE):
            read_state(story.run, 18)
    else:
        (sentence,) = story.damage(18)
        assert name in sentence
        with pytest.raises(DamageError, match=name):
            load_checkpoint(story.run, read_state(story.run, 18))
    assert not story.damage(12)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "behaviour_probs", "terminated", "frames"])
def test_damage_to_the_memory_is_found(story: Story, damage: Callable[[Path], None], name: str) -> None:
    path = story.run / "memory" / f"{name}.bin"
    if damage is flip:
        array = story.memory.arrays[name].view(np.uint8)
        array.reshape(story.memory.ring.size, -1)[9, 0] ^= 4  # in both checkpoints' windows
    else:
        damage(path)
    for step in (12, 18):
        sentences = story.damage(step)
        assert len(sentences) == 1
        assert "memory" in sentences[0]


@pytest.mark.parametrize(
    ("content", "sound"),
    [
        ("12\n18\n21\n", [12, 18]),
        ("12\n18\n", [12, 18]),
        ("12\n18\n2#", [12, 18]),
        ("12\n18", [12]),
        ("12\n19\n21\n", [12]),
        ("12\n", [12]),
        ("12", []),
        ("22\n18\n21\n", []),
        ("", []),
        (None, []),
    ],
)
def test_damage_to_a_log_is_found_as_far_as_a_checkpoint_needs_it(
    story: Story, content: str | None, sound: list[int]
) -> None:
    assert (story.run / LOG).read_text() == "12\n18\n21\n"
    (story.run / LOG).unlink() if content is None else (story.run / LOG).write_text(content)
    assert [step for step in (12, 18) if not story.damage(step)] == sound
    assert all(LOG in sentence for step in (12, 18) for sentence in story.damage(step))
    for step in (12, 18):
        state = read_state(story.run, step)
        assert list(find_damage(story.run, state, story.run / "memory")) == []  # nothing that is needed to go on
        assert list(find_log_damage(story.run, state)) == ([] if step in sound else [LOG])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, stray_link_to_nowhere])
def test_what_is_no_file_is_a_damaged_log(story: Story, make: Callable[[Path], None]) -> None:
    (story.run / LOG).unlink()
    make(story.run / LOG)
    assert list(find_log_damage(story.run, read_state(story.run, 18))) == [LOG]


def test_a_checkpoint_can_forget_a_log_and_is_sound_without_it(story: Story) -> None:
    (story.run / LOG).write_text("")
    before = load_checkpoint(story.run, read_state(story.run, 18))
    checkpoint = forget_logs(story.run, before, [LOG])
    assert story.damage(18) == []
    assert story.damage(12) != []
    assert read_state(story.run, 18) == checkpoint.state
    assert checkpoint.state["logs"] == {LOG: 0}
    parts = ("memory", "loop", "config", "slot_bytes")
    assert [checkpoint.state[part] for part in parts] == [before.state[part] for part in parts]


def test_everything_is_on_the_disk_before_the_checkpoint_counts_and_older_ones_go_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape: list[str] = []

    def name_of(file: Any) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file))
        return str(path.relative_to(tmp_path)) if path.is_absolute() else path.name

    def tapes(function: Callable[..., Any], word: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            tape.append(f"{word} {name_of(arguments[-1] if word == 'rename' else arguments[0])}")
            return function(*arguments, **options)

        return call

    def flush(mapped: np.memmap[Any, Any]) -> None:
        assert mapped.filename is not None
        tape.append(f"sync {Path(mapped.filename).name}")

    story = Story(tmp_path, make_config())
    for steps in (12, 6, 6):
        story.play(lambda: False, steps)
        if steps == 6 and story.step == 24:
            monkeypatch.setattr(np.memmap, "flush", flush)
            monkeypatch.setattr(os, "fsync", tapes(os.fsync, "sync"))
            monkeypatch.setattr(os, "replace", tapes(os.replace, "rename"))
            monkeypatch.setattr(os, "unlink", tapes(os.unlink, "remove"))
        story.save()
    files = [f"{name}.bin" for name in story.memory.arrays]
    place = "checkpoints/24"
    lines = [line for line in tape if not (line.startswith("remove") and line.endswith(".part"))]
    assert lines[:-2] == [
        *(f"sync {name}" for name in files),
        *(
            line
            for name in ("weights.safetensors", "optimizer.safetensors", "state.json")
            for line in (f"sync {place}/{name}.part", f"rename {place}/{name}", f"sync {place}")
        ),
        "sync checkpoints",
        "remove checkpoints/12/state.json",
    ]
    assert sorted(lines[-2:]) == ["remove optimizer.safetensors", "remove weights.safetensors"]


def crash(at: int, error: BaseException) -> AbstractContextManager[None]:
    """Let the so-maniest call that changes the disk fail."""
    system = [(os, name) for name in ("fsync", "replace", "mkdir", "unlink", "rmdir")]
    return crash_at_call(at, error, *system, (Path, "write_bytes"), (lr.ReplayMemory, "flush"))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_a_crash_at_any_point_of_saving_leaves_a_sound_checkpoint(
    tmp_path: Path, no_sync: None, error: BaseException
) -> None:
    for at in range(1, 200):
        run = tmp_path / str(at)
        run.mkdir()
        story = Story(run, make_config())
        for steps in (12, 6):
            story.play(lambda: False, steps)
            story.save()
        story.play(lambda: False, 6)
        has_crashed = False
        try:
            with crash(at, error):
                story.save()
        except (OSError, KeyboardInterrupt):
            has_crashed = True
        newest, *older = saved_steps(run)
        assert newest in (18, 24)
        assert not any(story.damage(step) for step in saved_steps(run))
        assert newest == 24 or older == [12]
        story.go_back(newest, restarts=False)
        story.play(lambda: False, 6)
        story.save()
        assert all_steps(run)[0] == newest + 6
        assert len(all_steps(run)) == memory_checksums.NUM_KEPT
        if not has_crashed:
            break
    else:
        pytest.fail("saving never came to its end")
    assert at > 15


def test_names_that_are_no_steps_are_left_alone(story: Story) -> None:
    for name in ("7x", "٣", "012", "-5", "9" * 30, ".18"):
        (story.run / CHECKPOINTS / name).mkdir()
    assert all_steps(story.run) == [18, 12]
    (story.run / CHECKPOINTS / "24").mkdir()
    assert all_steps(story.run) == [24, 18, 12]
    assert saved_steps(story.run) == [18, 12]
    keep_checkpoints(story.run, 18)
    assert all_steps(story.run) == [18, 12]


STRAYS = [stray_file, stray_link, stray_link_to_nowhere, os.mkfifo]


@pytest.mark.parametrize("make", STRAYS)
def test_what_only_has_the_name_of_a_checkpoint_is_none_and_is_set_aside_when_one_is_saved_there(
    story: Story, make: Callable[[Path], None]
) -> None:
    stray = story.run / CHECKPOINTS / "24"
    make(stray)
    inode = stray.lstat().st_ino
    assert checkpoints.strays(story.run) == [stray]
    assert all_steps(story.run) == saved_steps(story.run) == [18, 12]
    keep_checkpoints(story.run, 18)
    assert stray.lstat().st_ino == inode
    story.play(lambda: False, 3)
    story.save()
    assert saved_steps(story.run) == [24, 18]
    assert not story.damage(24)
    assert not story.damage(18)
    assert stray.with_name("24.stray").lstat().st_ino == inode


def test_an_empty_directory_in_a_checkpoints_place_is_taken_for_one_half_written(story: Story) -> None:
    (story.run / CHECKPOINTS / "24").mkdir()
    story.play(lambda: False, 3)
    story.save()
    assert sorted(entry.name for entry in (story.run / CHECKPOINTS).iterdir()) == ["18", "24"]


def test_a_file_in_the_place_of_all_checkpoints_is_set_aside(tmp_path: Path, no_sync: None) -> None:
    story = Story(tmp_path, make_config())
    (tmp_path / CHECKPOINTS).write_text("mine")
    assert all_steps(tmp_path) == []
    story.play(lambda: False, 12)
    story.save()
    assert saved_steps(tmp_path) == [12]
    assert (tmp_path / f"{CHECKPOINTS}.stray").read_text() == "mine"


def revouch(run: Path, step: int, state: Any) -> None:
    """A state.json whose checksum fits, whatever it says."""
    payload = json.dumps(state)
    text = json.dumps({"format": checkpoints.FORMAT, "checksum": checksum(payload.encode()), "payload": payload})
    (run / CHECKPOINTS / str(step) / STATE).write_text(text)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("step",), 19),
        (("step",), True),
        (("device",), "toaster"),
        (("threads",), 0),
        (("seconds",), -1.0),
        (("config", "seed"), "x"),
        (("config", "discount"), 10**400),
        (("memory", "written"), []),
        (("memory", "written"), [0]),
        (("memory", "written"), [10**15]),
        (("memory", "is_open"), [0]),
        (("logs",), {}),
        (("logs", LOG), -1),
        (("slot_bytes", "actions"), 0),
        (("slot_bytes",), {"../../secret": 4}),
        (("checksums", "memory"), {}),
        (("checksums", "files"), {"../other": "0"}),
        (("checksums", "logs"), {LOG: 5}),
    ],
)
def test_a_state_that_contradicts_itself_is_damage(story: Story, path: tuple[str, ...], value: Any) -> None:
    state = inner = read_state(story.run, 18)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    revouch(story.run, 18, state)
    with pytest.raises(DamageError, match="contradict"):
        read_state(story.run, 18)


def test_a_state_of_another_format_says_so(story: Story) -> None:
    path = story.run / CHECKPOINTS / "18" / STATE
    outer = json.loads(path.read_text())
    path.write_text(json.dumps({**outer, "format": 1}))
    with pytest.raises(DamageError, match="has format 1, but this version of lambda-replay reads 3"):
        read_state(story.run, 18)


def test_a_memory_of_another_size_is_found_before_it_is_read(story: Story) -> None:
    state = read_state(story.run, 18)
    state["slot_bytes"]["actions"] = 10**15
    revouch(story.run, 18, state)
    (sentence,) = story.damage(18)
    assert "actions.bin" in sentence


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_state_file_is_damage_and_nothing_else(story: Story, data: Any) -> None:
    path = story.run / CHECKPOINTS / "18" / STATE
    content = path.read_bytes()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    mutated = content[:first] + data.draw(st.binary(max_size=9)) + content[last:]
    try:
        path.write_bytes(mutated)
        assert read_state(story.run, 18) is not None
        assert json.loads(mutated) == json.loads(content)
    except DamageError:
        pass
    finally:
        path.write_bytes(content)
