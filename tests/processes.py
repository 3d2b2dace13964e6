"""The command line in processes that can be killed, forked from one that has imported everything, so that it is quick.

``python processes.py`` is that server. It reads one JSON object a line, forks a child that runs the command, answers
with the child's number and, when it ended, with how.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src"
PRELOADED = (
    "cv2",
    "ale_py",
    "lambda_replay.cli",
    "lambda_replay.cli.train",
    "lambda_replay.cli.resume",
    "lambda_replay.cli.verify",
    "lambda_replay.cli.evaluate",
    "lambda_replay.envs.gymnasium",
    "matplotlib.pyplot",
    "torch",
)
# Calls that change what is on the disk, as Python's audit events name them; os.fsync has no event and is wrapped.
WATCHED = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "mmap.__new__")
HUNG_SECONDS = 1_800.0  # what takes longer hangs, even with every core kept busy; nothing else depends on it
KILLED = (-signal.SIGKILL, -signal.SIGPROF)  # the codes of a child that died without a chance to say so


def wait_for(condition: Callable[[], bool], is_alive: Callable[[], bool] = lambda: True) -> None:
    """Wait, for as long as it takes, until a condition holds that lasts; ``is_alive``: whether it may still come."""
    deadline = time.monotonic() + HUNG_SECONDS
    while not condition():
        assert is_alive() or condition(), "what was waited for has ended"
        assert time.monotonic() < deadline, "this test hangs"
        time.sleep(0.05)


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # as a shell would say it, −9 for SIGKILL
    out: str
    err: str
    cpu_seconds: float
    calls: int  # watched calls the child made, if it was counting and lived


class Child:
    """A command that is running."""

    def __init__(self, server: Server, pid: int, directory: Path) -> None:
        self.pid = pid
        self._server, self._directory = server, directory

    def kill(self, signum: int = signal.SIGKILL) -> None:
        os.kill(self.pid, signum)

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def cpu_seconds(self) -> float:
        """The processor time it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, see proc(5)

    def wait(self) -> Ended:
        answer = self._server.read()
        out, err, calls = ((self._directory / name).read_text() for name in ("out", "err", "calls"))
        return Ended(answer["code"], out, err, answer["cpu_seconds"], int(calls or 0))


class Server:
    """Runs one command at a time."""

    def __init__(self, directory: Path, modules: Sequence[str] = ()) -> None:
        """``modules``: further ones to import before any command runs."""
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(SOURCE), str(Path(__file__).parent)]),
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "200",
            },
        )

    def start(
        self,
        *arguments: str | Path,
        largest_file: int | None = None,
        die_at: int | None = None,
        die_after: float | None = None,
        variables: dict[str, str] | None = None,
    ) -> Child:
        """Run a command, with further environment ``variables``.

        ``die_at``: kill it just before its so-maniest watched call; 0: only count them.
        ``die_after``: kill it, wherever it is, after so many seconds of its own processor time; other work on the
        machine does not use those up.
        """
        for name in ("out", "err", "calls"):
            (self._directory / name).write_text("")
        request = {
            "arguments": [str(argument) for argument in arguments],
            "directory": str(self._directory),
            "largest_file": largest_file,
            "die_at": die_at,
            "die_after": die_after,
            "variables": variables or {},
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Child(self, int(self.read()["pid"]), self._directory)

    def run(self, *arguments: str | Path, **options: Any) -> Ended:
        return self.start(*arguments, **options).wait()

    def read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def command_line(*modules: str) -> Iterator[Server]:
    """A server, for as long as this is entered, which has imported these modules too."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory), modules)
        try:
            yield server
        finally:
            server.close()


def serve() -> None:
    """Fork a child for each request until the input ends."""
    for module in (*PRELOADED, *sys.argv[1:]):
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run_child(request)
        _answer({"pid": pid})
        _, status, usage = os.wait4(pid, 0)
        _answer({"code": os.waitstatus_to_exitcode(status), "cpu_seconds": usage.ru_utime + usage.ru_stime})


def _answer(values: dict[str, float]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _run_child(request: dict[str, Any]) -> None:
    directory = Path(request["directory"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(directory / name, os.O_WRONLY | os.O_APPEND), descriptor)
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], resource.RLIM_INFINITY))
    os.environ.update(request["variables"])
    if request["die_after"] is not None:  # SIGPROF ends a process that does not handle it, as suddenly as SIGKILL
        signal.setitimer(signal.ITIMER_PROF, max(request["die_after"], 1e-6))
    counter = None if request["die_at"] is None else _watch(request["arguments"], request["die_at"])
    from lambda_replay.cli import main

    code = 70
    try:
        code = main(request["arguments"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 70
    except BaseException:  # noqa: BLE001 — what a person would see
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if counter is not None:
            (directory / "calls").write_text(str(counter[0]))
        os._exit(code)


def _watch(arguments: Sequence[str], die_at: int) -> list[int]:
    """Count the calls that touch the run's directory, in the list returned, and die before one of them."""
    places = [argument for argument in arguments if argument.startswith("/")]
    counter = [0]

    def count() -> None:
        counter[0] += 1
        if counter[0] == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event in WATCHED and (event == "mmap.__new__" or any(str(values[0]).startswith(place) for place in places)):
            count()

    fsync = os.fsync

    def counted_fsync(descriptor: int) -> None:
        count()
        fsync(descriptor)

    os.fsync = counted_fsync  # type: ignore[assignment]
    sys.addaudithook(hook)
    return counter


if __name__ == "__main__":
    serve()
