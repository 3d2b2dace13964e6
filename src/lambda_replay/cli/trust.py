"""Asks before importing a module that somebody else's run names, for its environment or its estimator."""

from __future__ import annotations

import sys
from pathlib import Path

from lambda_replay.rundir.trust import MayImport, refuse


def asking(trust: bool) -> MayImport:
    """Yes with ``--trust``; otherwise ask the user at the terminal; without a terminal, no."""
    if trust:
        return lambda path, module: True
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else refuse


def _ask(path: Path, module: str) -> bool:
    print(
        f"{path} was not created by you. It imports the module {module}, which can run any code.\nImport it? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")
