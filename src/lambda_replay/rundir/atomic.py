"""Files that are there whole or not at all, also after a crash; importing this brings nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """A path to write to that takes the place of ``path`` when all went well, and is removed when it did not.

    It is NAME.part unless ``temporary`` is given. Where several processes may write ``path`` at once, each needs one of
    its own, or one of them puts the half-written file of another in place.
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
    """Write a file so that it is there whole or not at all, also after a crash."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def sync_directory(path: Path) -> None:
    """Make what was created, renamed or removed in this directory last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
