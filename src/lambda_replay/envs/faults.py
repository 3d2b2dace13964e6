"""Turns whatever the code of an environment raises into an ``EnvironmentFault`` that says what it was and where."""

from __future__ import annotations

import importlib.util
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import final

from lambda_replay.errors import ConfigError, EnvironmentFault

PASSED_ON = (ConfigError, EnvironmentFault, KeyboardInterrupt, MemoryError)  # not the environment's, or said already
LONGEST = 200  # characters of an exception's message that a sentence has room for
OURS = Path(__file__).resolve().parents[1]


@final
class FaultGuard:
    """A context for calls into the code of an environment; it may be entered any number of times."""

    def __init__(self, env: str, remedy: str = "repair the environment", *, wanted: str = "") -> None:
        """``wanted`` says what the environment must offer, for errors that arise where none of its code is running."""
        self._env, self._remedy, self._wanted = env, remedy, wanted

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # SystemExit is caught as well: an environment must not end the process with an exit code of its own.
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
    """The first line of an exception's message, cut where it is too long for a sentence."""
    line = str(error).strip().partition("\n")[0]
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _own_frames(error: BaseException) -> TracebackType | None:
    """The part of the traceback that begins with the environment's own code; None where that is not in it."""
    trace = error.__traceback__
    while trace is not None and _is_between(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType) -> str:
    """File and line of the innermost frame that is neither installed nor ours; of the innermost if there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    file, line = next((one for one in reversed(frames) if not one[0].startswith((*installed, "<"))), frames[-1])
    return f"{file}:{line}"


def _is_between(file: str) -> bool:
    """Whether a frame is ours, that of an import, or Gymnasium's own between us and an environment."""
    path = Path(file)
    if file.startswith("<frozen") or path == Path(importlib.__file__) or path.is_relative_to(OURS):
        return True
    gymnasium = importlib.util.find_spec("gymnasium")
    assert gymnasium is not None
    assert gymnasium.origin is not None
    home = Path(gymnasium.origin).parent
    return path.is_relative_to(home) and path.parent.parent != home / "envs"  # where its own environments are
