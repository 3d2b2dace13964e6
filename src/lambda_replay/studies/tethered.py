"""``python -m lambda_replay.studies.tethered COMMAND``: one of our commands, stopped when its parent ends.

The parent holds the other end of standard input. However it ends, even if killed, that end closes. This process then
stops as if interrupted: its run can be resumed, and it never keeps working in a directory that another process takes.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
import time

STANDARD_INPUT = 0
SECONDS_TO_STOP = 20.0
INTERRUPTED = 130


def _stop_with_starter() -> None:
    while os.read(STANDARD_INPUT, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_STOP)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_starter, daemon=True).start()
    runpy.run_module("lambda_replay", run_name="__main__", alter_sys=True)
