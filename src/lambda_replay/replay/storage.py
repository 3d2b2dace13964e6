"""The memory's arrays, in RAM or in files, behind the same interface."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lambda_replay.errors import ConfigError, DamageError

Columns = Mapping[str, tuple[tuple[int, ...], DTypeLike]]  # name -> shape and dtype of one slot's value
Layout = dict[str, tuple[tuple[int, ...], DTypeLike]]  # name -> shape, dtype


OWN_ARRAYS = ("observations", "actions", "rewards", "behaviour_probs", "terminated", "is_step", "frames")
KNOWN_AT_NEWEST = ("observations", "frames")  # what the newest slot of a stream holds before its action
# Names that a column cannot have: the memory's own arrays, and the arguments of append.
TAKEN_NAMES = {*OWN_ARRAYS, "self", "action", "reward", "next_observation", "truncated", "behaviour_prob", "stream"}


def memory_layout(
    slots: int,
    observation_shape: tuple[int, ...],
    observation_dtype: DTypeLike,
    action_shape: tuple[int, ...],
    columns: Columns,
) -> Layout:
    """Shape and dtype of every array; ``frames`` counts the episode's frames up to a slot, at most ``history``."""
    if np.dtype(observation_dtype).kind not in "fiub":
        raise ConfigError(
            f"observation_dtype is {np.dtype(observation_dtype)}; give a float, integer or boolean dtype."
        )
    taken = next((name for name in columns if name in TAKEN_NAMES or not name.isidentifier()), None)
    if taken is not None:
        raise ConfigError(f"a column cannot be called {taken!r}; give another name, made of letters and digits.")
    for name, (_, dtype) in columns.items():
        if np.dtype(dtype).kind not in "fiub":
            raise ConfigError(f"the column {name} has dtype {dtype}; give a float, integer or boolean dtype.")
    return {
        "observations": ((slots, *observation_shape), observation_dtype),
        "actions": ((slots, *action_shape), np.float32 if action_shape else np.int32),
        "rewards": ((slots,), np.float32),
        "behaviour_probs": ((slots,), np.float32),
        "terminated": ((slots,), np.bool_),
        "is_step": ((slots,), np.bool_),
        "frames": ((slots,), np.uint8),
        **{name: ((slots, *shape), dtype) for name, (shape, dtype) in columns.items()},
    }


def allocate(directory: Path | None, layout: Layout, *, reopen: bool) -> dict[str, NDArray[Any]]:
    """Arrays by name: zeros in RAM, or mapped to files ``directory/name.bin``, which are new unless ``reopen``."""
    if directory is None:
        if reopen:
            raise ConfigError("reopen needs the directory of the replay memory's files; give it, or leave reopen out.")
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
    paths = {name: directory / f"{name}.bin" for name in layout}
    sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in layout.items()}
    if reopen:
        _check_sizes({paths[name]: size for name, size in sizes.items()})
    else:
        _create({paths[name]: size for name, size in sizes.items()})
    # A plain view: indexing np.memmap itself costs several times as much.
    return {
        name: np.memmap(paths[name], mode="r+", dtype=dtype, shape=shape).view(np.ndarray)
        for name, (shape, dtype) in layout.items()
    }


def _create(sizes: dict[Path, int]) -> None:
    """Create files of these sizes, or none at all."""
    existing = next((path for path in sizes if path.exists()), None)
    if existing is not None:
        raise ConfigError(
            f"{existing} already exists and would be overwritten; give the replay memory a new directory, or "
            "set reopen=True to continue with this one."
        )
    created: list[Path] = []
    try:
        for path, size in sizes.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                created.append(path)
                # Claim the disk space now: a full disk later would kill the process (SIGBUS) instead of raising an
                # error.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:  # macOS has no such call
                    file.truncate(size)
    except OSError:
        for path in created:
            path.unlink()
        raise


def _check_sizes(sizes: dict[Path, int]) -> None:
    for path, wanted in sizes.items():
        if not path.exists():
            raise DamageError(
                f"{path} is missing, so the replay memory cannot be reopened; it is damaged, or of another version."
            )
        found = path.stat().st_size
        if found != wanted:
            raise DamageError(
                f"{path} has {found} bytes, but this memory needs {wanted}; it is damaged or belongs to another memory."
            )


def flush(array: NDArray[Any]) -> None:
    """Write a mapped array to disk."""
    if isinstance(array.base, np.memmap):
        array.base.flush()
