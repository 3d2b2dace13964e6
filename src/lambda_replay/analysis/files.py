"""Writing a file whole or not at all; what is in it is decided elsewhere.

What an analysis writes can be made again, so it need not outlast a power failure; but two processes may write the same
report at once, so each has a temporary file of its own. ``lambda_replay.rundir.files`` has it the other way round.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from pathlib import Path

SECONDS_TO_WRITE = 600.0  # far more than any file of a report takes


def write_atomically(path: Path, content: bytes) -> Path:
    """Put the content at the path; whoever looks there sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    _remove_leftovers(path)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)  # os.replace: atomic within a directory
    finally:
        temporary.unlink(missing_ok=True)  # only there when the lines above were interrupted
    return path


def _remove_leftovers(path: Path) -> None:
    """What killed processes left; a young file may belong to one that is writing now."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > SECONDS_TO_WRITE:
                leftover.unlink()
