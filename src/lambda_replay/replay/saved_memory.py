"""A replay memory as one .npz file: its arrays and, as JSON, its settings; reading it can execute no code."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.replay.data import Integers
from lambda_replay.replay.ring import Ring
from lambda_replay.replay.storable import check_sizes
from lambda_replay.replay.storage import Columns, memory_layout

FORMAT = 1
SETTINGS = "settings"  # the entry that is not an array
ARRAY = "array."  # begins the names of those that are


class Settings(NamedTuple):
    """What a memory must be created with to take the saved slots, and where its rings stand."""

    window: int
    spare: int
    history: int
    num_streams: int
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    columns: Columns
    written: list[int]
    is_open: list[int]

    @property
    def slots(self) -> Integers:
        return stored_slots(Ring(self.window + self.spare), self.written)


class SavedMemory(NamedTuple):
    """What a file holds."""

    settings: Settings
    arrays: dict[str, NDArray[Any]]  # those of ``settings.slots``


def stored_slots(ring: Ring, written: list[int]) -> Integers:
    """Every slot that holds something, stream by stream, oldest first."""
    numbers = [np.arange(max(0, count - ring.size), count) for count in written]
    return np.concatenate([ring.slot(stream, part) for stream, part in enumerate(numbers)])


def write_memory(path: Path, settings: Settings, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the file whole or not at all."""
    if not path.parent.is_dir():
        raise ConfigError(f"there is no directory {path.parent} for {path.name}; create it first.")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; give the name of a file in it.")
    values = settings._asdict()
    values["columns"] = {name: [shape, np.dtype(dtype).str] for name, (shape, dtype) in settings.columns.items()}
    values["observation_dtype"] = settings.observation_dtype.str
    entries = {SETTINGS: np.array(json.dumps({"format": FORMAT, **values}))}
    entries |= {ARRAY + name: array[settings.slots] for name, array in arrays.items()}
    draft = path.with_name(path.name + ".part")
    try:
        with draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **entries)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_memory(path: Path) -> SavedMemory:
    """What ``write_memory`` wrote; every entry has a checksum, which is checked. DamageError if it is not that."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            entries = {name: loaded[name] for name in loaded.files}
        settings = _read_settings(json.loads(str(entries.pop(SETTINGS))))
        arrays = {name.removeprefix(ARRAY): array for name, array in entries.items()}
        _check(settings, arrays)
    except FileNotFoundError:
        raise DamageError(f"there is no replay memory {path}.") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise _damage(path) from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, RecursionError):
        raise _damage(path) from None
    return SavedMemory(settings, arrays)


def _damage(path: Path) -> DamageError:
    return DamageError(f"{path} is damaged, or not a replay memory saved by this version of lambda-replay.")


def _read_settings(values: dict[str, Any]) -> Settings:
    if values.pop("format") != FORMAT:
        raise ValueError
    for name in ("observation_shape", "action_shape"):
        values[name] = tuple(values[name])
    values["observation_dtype"] = np.dtype(values["observation_dtype"])
    values["columns"] = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in values["columns"].items()}
    return Settings(**values)


def _check(settings: Settings, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError if a memory with these settings could not take these arrays."""
    numbers = [*settings[:4], *settings.written, *settings.is_open]
    if not all(type(number) is int for number in numbers):
        raise ValueError
    if not len(settings.written) == len(settings.is_open) == settings.num_streams:
        raise ValueError
    check_sizes(settings.window * settings.num_streams, settings.history, settings.num_streams, settings.spare)
    layout = memory_layout(
        len(settings.slots),
        settings.observation_shape,
        settings.observation_dtype,
        settings.action_shape,
        settings.columns,
    )
    wanted = {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in layout.items()}
    if {name: (array.shape, array.dtype) for name, array in arrays.items()} != wanted:
        raise ValueError
