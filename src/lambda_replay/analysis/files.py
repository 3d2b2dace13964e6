"""Writes the files of an analysis; several processes may write them at once, such as two reports of one study."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from pathlib import Path

from lambda_replay.rundir.atomic import replacing

SECONDS_TO_WRITE = 600.0  # far more than any file of a report takes


def write_shared(path: Path, content: bytes) -> Path:
    """Write the content to the path; a reader sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    with replacing(path, path.with_name(f".{path.name}.{os.getpid()}.part")) as temporary:
        temporary.write_bytes(content)
    return path


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left behind; a recent file may belong to one that is writing now."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > SECONDS_TO_WRITE:
                leftover.unlink()
