"""The run directory: what is written there and how it is read back; what a run does is decided elsewhere."""

from __future__ import annotations

import csv
import fcntl
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from lambda_replay.config import RunConfig, from_dict, to_dict
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.files import write_atomically

CONFIG, PROVENANCE, METRICS, TIMING, EPISODES, WEIGHTS, LOCK = (
    "config.json",
    "provenance.json",
    "metrics.jsonl",
    "timing.jsonl",
    "episodes.csv",
    "weights.safetensors",
    "lock",
)
MEMORY = "memory"  # a directory: the replay memory's files
LOGS = (METRICS, TIMING, EPISODES)


def create_run(path: Path, config: RunConfig) -> None:
    """Make the run's directory with its config and provenance; it must not exist yet."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already; give another --out, or go on with: lambda-replay resume {path}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be created ({error.strerror}); give another --out.") from None
    write_atomically(path / CONFIG, json.dumps(to_dict(config), indent=2).encode() + b"\n")
    write_atomically(path / PROVENANCE, json.dumps(provenance(config), indent=2).encode() + b"\n")


def free_name(directory: Path, config: RunConfig) -> Path:
    """A directory for a run that nobody named: environment, agent, estimator, seed, and a number where it is taken."""
    words = (config.env, config.agent, config.estimator, f"seed{config.seed}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-").lower()
    candidates = (directory / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def read_config(path: Path) -> RunConfig:
    """The config of a run directory."""
    file = path / CONFIG
    if not path.is_dir():
        raise ConfigError(f"there is no run {path}; give the directory that lambda-replay train wrote.")
    try:
        values = json.loads(file.read_text())
        if not isinstance(values, dict):
            raise DamageError(f"{file} is damaged (not a table of settings).")
        return from_dict(values)
    except FileNotFoundError:
        raise ConfigError(f"{path} is not a run: it has no {CONFIG}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamageError(f"{file} is damaged ({error}).") from None
    except ConfigError as error:
        raise DamageError(f"{file} is damaged or of another version: {error}") from None


def is_finished(path: Path) -> bool:
    """Whether a run came to its end: its final weights are written last."""
    return (path / WEIGHTS).exists()


def provenance(config: RunConfig) -> dict[str, Any]:
    """Where the numbers of this run come from."""
    packages = ("lambda-replay", "numpy", "torch", "gymnasium", "ale-py", "opencv-python-headless", "MinAtar")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": _commit(),
        "versions": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": config.device,
        "notes": [],
    }


def add_note(path: Path, note: str) -> None:
    """Record in the provenance something that a reader of the results must know."""
    file = path / PROVENANCE
    values = json.loads(file.read_text())
    values["notes"].append(note)
    write_atomically(file, json.dumps(values, indent=2).encode() + b"\n")


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with a + if it has changes; None outside of one."""
    try:
        git = ["git", "-C", str(Path(__file__).parent)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


class RunLock:
    """Held while a process works in a run directory, so that a second one is refused."""

    def __init__(self, path: Path) -> None:
        self._file = (path / LOCK).open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"another process is working in {path}; wait for it or stop it.") from None

    def release(self) -> None:
        self._file.close()


class RunLog:
    """The growing files of a run: metrics and timing (one JSON object a line), episodes (CSV).

    Metrics and episodes hold nothing that depends on the clock, so that equal runs are equal byte by byte.
    """

    def __init__(self, path: Path, positions: Mapping[str, int] | None = None) -> None:
        """Start the files, or cut them back to the ``positions`` of a checkpoint."""
        self._files: dict[str, BinaryIO] = {}
        for name in LOGS:
            file = (path / name).open("r+b" if positions is not None and (path / name).exists() else "w+b")
            file.truncate(0 if positions is None else positions[name])
            file.seek(0, io.SEEK_END)
            self._files[name] = file
        self._earlier_seconds = 0.0 if positions is None else self._last_seconds(path)
        self._started = time.monotonic()
        self._episodes_text = io.StringIO()

    @property
    def seconds(self) -> float:
        """Time spent on this run, by this and earlier processes."""
        return self._earlier_seconds + time.monotonic() - self._started

    def write_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._write(METRICS, json.dumps({"step": step, **metrics}))
        self._write(TIMING, json.dumps({"step": step, "seconds": round(self.seconds, 3)}))

    def write_episode(self, row: Mapping[str, float | int | str]) -> None:
        writer = csv.DictWriter(self._episodes_text, fieldnames=list(row), lineterminator="\n")
        if self._files[EPISODES].tell() == 0:
            writer.writeheader()
        writer.writerow(row)
        self._files[EPISODES].write(self._episodes_text.getvalue().encode())
        self._episodes_text.seek(0)
        self._episodes_text.truncate()

    def _write(self, name: str, line: str) -> None:
        self._files[name].write(line.encode() + b"\n")
        for file in self._files.values():
            file.flush()

    def sync(self) -> dict[str, int]:
        """Bring everything to the disk; how long each file now is."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _last_seconds(self, path: Path) -> float:
        lines = (path / TIMING).read_text().splitlines()
        return float(json.loads(lines[-1])["seconds"]) if lines else 0.0
