"""Files that are there whole or not at all; what is in them is the callers' business."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lambda_replay.errors import DamageError


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors so that the file is there whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    save_file({name: value.contiguous() for name, value in tensors.items()}, temporary)
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


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
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
