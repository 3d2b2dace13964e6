"""One run of a study in its own process: how it is started and stopped, and what its exit means."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from lambda_replay.agents.run_settings import to_dict
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.atomic import write_atomically
from lambda_replay.rundir.directory import CONFIG, RunLock, is_diverged, is_finished
from lambda_replay.studies.layout import Layout
from lambda_replay.studies.plan import PlannedRun

ATTEMPTS = 2  # a failed run is tried once more
SECONDS_TO_FREE = 120.0  # for a process that lost its parent to stop; a network file system frees its locks after 90
SECONDS_TO_STOP = 30.0  # before a process that does not stop is killed; its run can still be resumed
BUSY = "another process is working on it; run the command again when that is done."
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Attempt:
    """A process that trains or resumes one run."""

    def __init__(self, run: PlannedRun, layout: Layout, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; ``environment`` holds additional variables for it."""
        self._run, self._layout = run, layout
        command = _prepare(run, layout)
        self._log = _open_log(layout.log(run), command)
        self._said_before = self._log.tell()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lambda_replay.studies.tethered", *command],
            stdin=subprocess.PIPE,  # closed when this process ends, which tells the child to stop
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**_variables(run), **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches the study, which stops its children itself
        )
        _write_json(layout.mark(run), {"host": socket.gethostname(), "pid": self._process.pid, "started": _now()})

    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> str | None:
        """Tidy up after the process; return why the run failed, in one sentence, or None if it finished or diverged."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._log.close()
        self._layout.mark(self._run).unlink(missing_ok=True)
        path = self._layout.run(self._run)
        if is_diverged(path) or (self._process.returncode == 0 and is_finished(path)):
            return None
        return _reason(self._layout.log(self._run), self._said_before, self._process.returncode)

    def terminate(self) -> None:
        """Ask it to stop; the run can be resumed."""
        if self.is_running():
            self._process.terminate()

    def kill_at(self, deadline: float) -> None:
        """Wait for it to stop, and kill it at the deadline."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_all(attempts: Iterable[Attempt]) -> None:
    """Stop the processes; a second interrupt while they stop kills them."""
    attempts = list(attempts)
    for attempt in attempts:
        attempt.terminate()
    deadline = time.monotonic() + SECONDS_TO_STOP
    for attempt in attempts:
        try:
            attempt.kill_at(deadline)
        except KeyboardInterrupt:
            deadline = 0.0
            attempt.kill_at(deadline)
        attempt.close()


def record_failure(run: PlannedRun, layout: Layout, reason: str, attempts: int) -> None:
    """Record the reason for a failure where ``study status`` and the next ``study run`` find it."""
    values = {"reason": reason, "attempts": attempts, "log": str(layout.log(run)), "host": socket.gethostname()}
    _write_json(layout.failure(run), {**values, "when": _now()})


def _prepare(run: PlannedRun, layout: Layout) -> list[str]:
    """Prepare the run's directory, which must be free; return the arguments that start or resume the run."""
    path, config = layout.run(run), layout.config(run)
    layout.failure(run).unlink(missing_ok=True)
    _write_json(config, to_dict(run.config))
    if path.exists():
        has_begun = (path / CONFIG).exists()
        if has_begun and run.config.checkpoint_every > 0:
            return ["resume", str(path), "--trust"]  # the study's own file names the environment
        shutil.rmtree(path)  # nothing to resume: it was stopped before it began, or has no checkpoints
    return ["train", "--config", str(config), "--out", str(path)]


def is_free(path: Path) -> bool:
    """Whether no process is working on a run directory, which need not exist."""
    if not path.exists():
        return True
    try:
        RunLock(path).release()
    except ConfigError:
        return False
    return True


def wait_until_free(path: Path) -> bool:
    """Wait for the process of an earlier study, which stops by itself; return whether it did."""
    deadline = time.monotonic() + SECONDS_TO_FREE
    while not is_free(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _variables(run: PlannedRun) -> dict[str, str]:
    """The child sees the same modules as this process and uses its config's threads, however many run beside it."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(run.config.threads or 1))
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}


def _open_log(path: Path, command: list[str]) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.open("ab")
    log.write(f"--- {_now()} {socket.gethostname()}: lambda-replay {' '.join(command)}\n".encode())
    log.flush()
    return log


def _reason(log: Path, start: int, returncode: int) -> str:
    """Why the process whose output starts at ``start`` failed, in one sentence."""
    if returncode < 0:
        guess = ", perhaps for lack of memory" if -returncode == signal.SIGKILL else ""
        return f"it was killed by {signal.Signals(-returncode).name}{guess}; see {log}"
    with log.open("rb") as file:
        file.seek(start)
        said = file.read().decode(errors="replace")
    return find_reason(said) or f"it ended with exit code {returncode} and no output"


def find_reason(said: str) -> str:
    """The last sentence about a failure: one of ours, or the exception below a traceback; otherwise the last line."""
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    reason = lines[-1] if lines else ""
    is_traceback = False
    for line in lines:
        if line.startswith("lambda-replay: "):
            reason = line.removeprefix("lambda-replay: ")
        elif is_traceback and not line.startswith(" "):
            reason, is_traceback = line, False
        is_traceback = is_traceback or line.startswith("Traceback ")
    return reason.strip()


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=2, allow_nan=False).encode() + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
