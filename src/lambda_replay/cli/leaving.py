"""Ctrl-C and SIGTERM while a run trains: it stops at the next boundary if that is close, and repeats no step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lambda_replay.training.run import Run

GRACE_SECONDS = 2.0  # to reach a boundary; a study waits 30 s for its runs to stop
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def leaving_at_a_checkpoint(run: Run) -> Iterator[None]:
    """Gives the run a moment to reach a boundary and save a checkpoint there; then, or at a second signal, it stops.

    A save that has begun has all the time it needs. Where the run stops does not change the result: what was not saved
    is repeated exactly.
    """
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}

    def leave_soon(number: int, frame: FrameType | None) -> None:
        for other in SIGNALS:
            signal.signal(other, _leave_now)
        signal.signal(signal.SIGALRM, out_of_time)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        run.leave_soon()

    def out_of_time(number: int, frame: FrameType | None) -> None:
        if not run.is_saving:  # else the run stops by itself as soon as it has saved
            _leave_now(number, frame)

    try:
        if run.config.checkpoint_every > 0:
            for number in SIGNALS:
                signal.signal(number, leave_soon)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_now(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
