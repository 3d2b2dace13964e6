"""Shows how far a long computation is: one line that changes on a terminal, a plain line now and then otherwise."""

from __future__ import annotations

import sys
import time

PLAIN_EVERY = 10.0  # seconds between plain lines
REDRAW_EVERY = 0.2


class ProgressLine:
    """Says ``what`` has been done, on standard error, so that standard output holds the result alone."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._width = 0  # of the line on the terminal

    def __call__(self, done: int, total: int) -> None:
        is_done = done == total and self._width > 0
        if not is_done and time.monotonic() - self._said_at < (REDRAW_EVERY if self._is_terminal else PLAIN_EVERY):
            return
        self._said_at = time.monotonic()
        line = f"{self._what}: {done:,} of {total:,}"
        if self._is_terminal:
            print(f"\r{line:<{self._width}}", end="\n" if is_done else "", file=sys.stderr, flush=True)
            self._width = 0 if is_done else len(line)
        else:
            print(line, file=sys.stderr, flush=True)
