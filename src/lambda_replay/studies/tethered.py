"""``python -m lambda_replay.studies.tethered COMMAND``: a command of ours that ends when its starter does.

The starter holds the other end of standard input. However it ends, even killed, that end is closed; then this process
stops as if interrupted, which leaves its run resumable, and never works on in a directory that somebody else takes up.
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
