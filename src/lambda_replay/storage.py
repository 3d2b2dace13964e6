"""Arrays in RAM or in files, behind the same interface; what is in them is the memory's business."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lambda_replay.errors import DamageError


def allocate(directory: Path | None, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros in RAM, or one mapped to ``directory/name.bin``, whose content is kept if the file exists."""
    if directory is None:
        return np.zeros(shape, dtype)
    path, wanted = directory / f"{name}.bin", math.prod(shape) * np.dtype(dtype).itemsize
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            # Claim the disk space now: a full disk later would kill the process (SIGBUS) instead of raising an error.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, wanted)
            else:  # macOS has no such call
                file.truncate(wanted)
    found = path.stat().st_size
    if found != wanted:
        raise DamageError(
            f"{path} has {found} bytes, but this memory needs {wanted}; it is damaged or another memory's."
        )
    # A plain view: indexing np.memmap itself costs several times as much.
    return np.memmap(path, mode="r+", dtype=dtype, shape=shape).view(np.ndarray)


def flush(array: NDArray[Any]) -> None:
    """Bring a mapped array to the disk."""
    if isinstance(array.base, np.memmap):
        array.base.flush()
