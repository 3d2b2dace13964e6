"""Files that are there whole or not at all; what is in them is the callers' business."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lambda_replay.errors import DamageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to that takes the place of ``path`` when all went well, and is removed when it did not."""
    temporary = path.with_name(path.name + ".part")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors so that the file is there whole or not at all."""
    with replacing(path) as temporary:
        save_file({name: value.contiguous() for name, value in tensors.items()}, temporary)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, which can hold nothing that executes."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise DamageError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise DamageError(f"{path} is damaged ({error}).") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a crash."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
