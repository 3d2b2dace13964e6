"""Atomic writes: a file exists whole or not at all, even after a crash. Cheap to import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """A temporary path to write to that replaces ``path`` on success and is removed on failure.

    It is NAME.part unless ``temporary`` is given. If several processes may write ``path`` at once, each needs its
    own, or one of them puts the half-written file of another in place.
    """
    temporary = path.with_name(path.name + ".part") if temporary is None else temporary
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None:  # a failed write names no file, a failed rename the temporary one
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it exists whole or not at all, even after a crash."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def sync_directory(path: Path) -> None:
    """Make changes to this directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
