"""Turns any exception from an environment's code into an ``EnvironmentFault`` that says what happened and where."""

from __future__ import annotations

import importlib.util
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import final

from lambda_replay.errors import ConfigError, EnvironmentFault

PASSED_ON = (ConfigError, EnvironmentFault, KeyboardInterrupt, MemoryError)  # not its fault, or already reported
LONGEST = 200  # characters of an exception's message that we quote
OURS = Path(__file__).resolve().parents[1]


@final
class FaultGuard:
    """A reusable context manager for calls into an environment's code."""

    def __init__(self, env: str, remedy: str = "fix the environment", *, wanted: str = "") -> None:
        """``wanted`` says what the environment must provide, for errors raised outside its own code."""
        self._env, self._remedy, self._wanted = env, remedy, wanted

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # SystemExit is caught too: an environment must not end the process with its own exit code.
        if error is None or isinstance(error, PASSED_ON):
            return
        what = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
        own = _own_frames(error)
        if own is None:
            wanted = self._wanted and f": {self._wanted}"
            raise EnvironmentFault(f"{self._env} failed with {what}", f"{self._remedy}{wanted}") from None
        did = f"{self._env} raised {what} ({_place(own)})"
        raise EnvironmentFault(did, self._remedy) from error.with_traceback(own)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, cut if it is too long."""
    line = str(error).strip().partition("\n")[0]
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _own_frames(error: BaseException) -> TracebackType | None:
    """The part of the traceback that starts in the environment's own code; None if there is none."""
    trace = error.__traceback__
    while trace is not None and _is_between(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType) -> str:
    """File and line of the innermost frame that is neither installed nor ours, else of the innermost frame."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    file, line = next((one for one in reversed(frames) if not one[0].startswith((*installed, "<"))), frames[-1])
    return f"{file}:{line}"


def _is_between(file: str) -> bool:
    """Whether a frame is ours, the import system's, or Gymnasium's between us and an environment."""
    path = Path(file)
    if file.startswith("<frozen") or path == Path(importlib.__file__) or path.is_relative_to(OURS):
        return True
    gymnasium = importlib.util.find_spec("gymnasium")
    assert gymnasium is not None
    assert gymnasium.origin is not None
    home = Path(gymnasium.origin).parent
    return path.is_relative_to(home) and path.parent.parent != home / "envs"  # where its own environments live
