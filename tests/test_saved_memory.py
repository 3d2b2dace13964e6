"""A replay memory saved to one file and loaded: the same memory in every respect; anything else is refused."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lambda_replay as lr
from lambda_replay.errors import DamageError


def filled(steps: int, **options: Any) -> lr.ReplayMemory:
    """Games of 7 steps in two streams, the second with half as many steps."""
    memory = lr.ReplayMemory(60, (2, 3), np.uint8, history=3, num_streams=2, **options)
    rng = np.random.default_rng(0)
    for stream, count in ((0, steps), (1, steps // 2)):
        for step in range(count):
            if step % 7 == 0:
                memory.begin(rng.integers(256, size=(2, 3), dtype=np.uint8), stream)
            append(memory, rng, stream, terminated=step % 14 == 6, truncated=step % 14 == 13)
    return memory


def append(memory: lr.ReplayMemory, rng: np.random.Generator, stream: int, **ends: bool) -> None:
    action: Any = rng.normal(size=2).astype(np.float32) if memory.action_shape else int(rng.integers(4))
    columns: dict[str, Any] = {"goal": rng.normal(size=2).astype(np.float32)} if memory.columns else {}
    observation = rng.integers(256, size=(2, 3), dtype=np.uint8)
    memory.append(action, rng.normal(), observation, **ends, behaviour_prob=0.25, stream=stream, **columns)


def assert_same(one: lr.ReplayMemory, other: lr.ReplayMemory) -> None:
    assert (one.get_state(), len(one), one.window, one.ring) == (
        other.get_state(), len(other), other.window, other.ring,
    )  # fmt: skip
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.dtype == other.arrays[name].dtype
        np.testing.assert_array_equal(array, other.arrays[name])


@pytest.mark.parametrize("steps", [0, 1, 10, 34, 500])  # empty, open, several games, one stream full, both wrapped
@pytest.mark.parametrize(
    "options", [{}, {"spare": 5}, {"action_shape": (2,), "columns": {"goal": ((2,), np.float32)}}], ids=str
)
def test_the_loaded_memory_is_the_saved_one(tmp_path: Path, steps: int, options: dict[str, Any]) -> None:
    memory = filled(steps, **options)
    memory.save(str(tmp_path / "memory.npz"))
    loaded = lr.ReplayMemory.load(tmp_path / "memory.npz")
    assert_same(memory, loaded)
    assert [path.name for path in tmp_path.iterdir()] == ["memory.npz"]


@given(steps=st.integers(2, 200), more=st.integers(0, 100))
def test_it_goes_on_like_the_saved_one(tmp_path_factory: pytest.TempPathFactory, steps: int, more: int) -> None:
    """The open game continues, and the same draws give the same blocks and states."""
    path = tmp_path_factory.mktemp("memory") / "memory.npz"
    memory = filled(steps)
    memory.save(path)
    loaded = lr.ReplayMemory.load(path)
    for one in (memory, loaded):
        rng = np.random.default_rng(1)
        for step in range(more):
            if not one.get_state()["is_open"][0]:
                one.begin(np.full((2, 3), step % 256, dtype=np.uint8))
            append(one, rng, 0, terminated=step % 5 == 4)
    assert_same(memory, loaded)
    if len(memory):
        blocks = [one.sample_blocks(20, 1, np.random.default_rng(2))[:, 0] for one in (memory, loaded)]
        np.testing.assert_array_equal(blocks[0], blocks[1])
        np.testing.assert_array_equal(memory.states(blocks[0]), loaded.states(blocks[0]))


def test_into_files_and_out_of_them(tmp_path: Path) -> None:
    memory = filled(100, directory=tmp_path / "one")
    memory.save(tmp_path / "memory.npz")
    loaded = lr.ReplayMemory.load(tmp_path / "memory.npz", directory=tmp_path / "two")
    assert_same(memory, loaded)
    assert (tmp_path / "two" / "observations.bin").exists()
    with pytest.raises(lr.ConfigError, match="already exists"):
        lr.ReplayMemory.load(tmp_path / "memory.npz", directory=tmp_path / "two")


def test_the_file_holds_what_is_stored_only(tmp_path: Path) -> None:
    """A million slots of which ten are written take the room of ten."""
    memory = lr.ReplayMemory(1_000_000, (4,), np.float32)
    memory.begin(np.zeros(4))
    for _ in range(9):
        memory.append(0, 0.0, np.zeros(4))
    memory.save(tmp_path / "memory.npz")
    assert (tmp_path / "memory.npz").stat().st_size < 10_000


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "memory.npz"
    filled(50).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=200):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with contextlib.suppress(DamageError):
            assert_same(filled(50), lr.ReplayMemory.load(path))  # a byte that says nothing, such as a date
    for text in (b"", b"PK", whole[:300]):
        path.write_bytes(text)
        with pytest.raises(DamageError, match="is damaged"):
            lr.ReplayMemory.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, rewards=np.zeros(3))
    with pytest.raises(DamageError, match="not a replay memory"):
        lr.ReplayMemory.load(path)
    with pytest.raises(DamageError, match="there is no replay memory"):
        lr.ReplayMemory.load(tmp_path / "nothing.npz")
    filled(20).save(path)
    with zipfile.ZipFile(path) as file:
        assert all(name.endswith(".npy") for name in file.namelist())


def test_a_place_that_cannot_hold_the_file_is_refused(tmp_path: Path) -> None:
    memory = filled(5)
    with pytest.raises(lr.ConfigError, match=r"there is no directory .*nowhere for m\.npz; create it first"):
        memory.save(tmp_path / "nowhere" / "m.npz")
    with pytest.raises(lr.ConfigError, match="is a directory; give the name of a file"):
        memory.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.npz"
    filled(20).save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        filled(40).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory.npz"]
