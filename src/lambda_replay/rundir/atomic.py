"""Atomic writes: a file exists whole or not at all, even after a crash. Cheap to import."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP)  # what file systems say that have no hard links, such as FAT


def replacing(path: Path, temporary: Path | None = None) -> AbstractContextManager[Path]:
    """A temporary path to write to that replaces ``path`` on success and is removed on failure.

    It is NAME.part unless ``temporary`` is given. If several processes may write ``path`` at once, each needs its
    own, or one of them puts the half-written file of another in place.
    """
    temporary = path.with_name(path.name + ".part") if temporary is None else temporary
    return _writing(path, temporary, os.replace)


def creating(path: Path) -> AbstractContextManager[Path]:
    """The same for a new file: raises FileExistsError if there is something at ``path`` on success.

    Several processes may do this at once: one of them succeeds.
    """
    return _writing(path, _own_part(path), _link)


@contextmanager
def creating_directory(path: Path) -> Iterator[Path]:
    """A new directory to write to that gets the name ``path`` on success and is removed on failure.

    What is in it must be durable by then. Raises FileExistsError if there is something at ``path`` on success. Several
    processes may do this at once: one of them succeeds.
    """
    temporary = _own_part(path)
    try:
        temporary.mkdir()
        yield temporary
        if os.path.lexists(path):  # rename would replace an empty directory
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        temporary.rename(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and str(error.filename) == str(temporary):
            error.filename, error.filename2 = str(path), None
        raise
    sync_directory(path.parent)


def _own_part(path: Path) -> Path:
    """A temporary name that no other process uses."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")


@contextmanager
def _writing(path: Path, temporary: Path, publish: Callable[[Path, Path], None]) -> Iterator[Path]:
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        publish(temporary, path)
    except OSError as error:
        if error.errno is not None:  # a failed write names no file, a failed rename the temporary one
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        temporary.replace(path)  # link looks at the name first: it was free a moment ago


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
