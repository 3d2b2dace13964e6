"""The run directory: what is written there and how it is read back."""

from __future__ import annotations

import csv
import fcntl
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from lambda_replay.agents.run_settings import from_dict, to_dict
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError, diverged
from lambda_replay.rundir.atomic import sync_directory, write_atomically
from lambda_replay.rundir.files import name_aside, quoted, read_json, set_aside

CONFIG, PROVENANCE, METRICS, TIMING, EPISODES, WEIGHTS, LOCK = (
    "config.json",
    "provenance.json",
    "metrics.jsonl",
    "timing.jsonl",
    "episodes.csv",
    "weights.safetensors",
    "lock",
)
DIVERGED = "diverged.json"  # there when training diverged, with the step and the sentence
BEGINNINGS = {LOCK, PROVENANCE, f"{PROVENANCE}.part", f"{CONFIG}.part"}  # what a directory holds before it is a run
MEMORY = "memory"  # a directory: the replay memory's files
FILMS = "films"  # a directory: the films made while it trains
LOGS = (METRICS, TIMING, EPISODES)
EVALUATIONS = "evaluations.jsonl"  # another log, of runs that are evaluated while they train
BEST_WEIGHTS = "weights-best.safetensors"  # those of the best evaluation
DAMAGED = "damaged"  # added to the name of a damaged file that is kept next to its replacement


def log_names(config: RunConfig) -> tuple[str, ...]:
    """The logs of a run with this config."""
    return (*LOGS, EVALUATIONS) if config.evaluate_every > 0 else LOGS


def create_run(path: Path, config: RunConfig, *, keep_memory: bool = False, signature: str | None = None) -> RunLock:
    """Make the run's directory with its provenance and config, locked from the start; there must be no run yet.

    ``signature`` lets trust.py recognise the user's own runs.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        taken = {entry.name for entry in path.iterdir()} - BEGINNINGS
    except OSError as error:
        raise ConfigError(f"{path} cannot be created ({error.strerror}); give another --out.") from None
    if taken:
        raise taken_error(path)
    lock = RunLock(path)
    try:
        if (path / CONFIG).exists():  # another process was faster
            raise taken_error(path)
        values = {**provenance(config), "keep_memory": keep_memory, "signature": signature, "config": to_dict(config)}
        _write_json(path / PROVENANCE, values)
        _write_json(path / CONFIG, to_dict(config))  # last: a directory with a config is a run
        sync_directory(path.parent)
    except BaseException:
        lock.release()
        raise
    return lock


def taken_error(path: Path) -> ConfigError:
    """The error for a directory that cannot become a new run."""
    if not (path / CONFIG).exists():
        return ConfigError(f"{path} already exists and is not a run; give another --out.")
    return ConfigError(
        f"{path} already exists; give another --out, or continue with: lambda-replay resume {quoted(path)}"
    )


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=2, allow_nan=False).encode() + b"\n")


def free_name(directory: Path, config: RunConfig) -> Path:
    """A directory for a run without a name: environment, agent, estimator, seed, and a number if that is taken."""
    words = (config.env, config.agent, config.estimator, f"seed{config.seed}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-").lower()[:200]  # names of 255 bytes are too long
    candidates = (directory / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def replace_config(path: Path, config: RunConfig) -> None:
    """Change the config of a run, for a run that goes on for longer than planned."""
    _write_json(path / CONFIG, to_dict(config))


def read_config(path: Path) -> RunConfig:
    """The config of a run directory."""
    if not path.is_dir():
        raise ConfigError(f"there is no run {path}; give the directory that lambda-replay train wrote.")
    file = path / CONFIG
    try:
        values = read_json(file)
        if not isinstance(values, dict):
            raise DamageError(f"{file} is damaged (not a table of settings).")
        return from_dict(values)
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is not a run: it has no {CONFIG}; give the directory that lambda-replay train wrote."
        ) from None
    except (ConfigError, OverflowError) as error:
        raise DamageError(f"{file} is damaged or from another version: {error}") from None


def is_finished(path: Path) -> bool:
    """Whether a run has finished: its final weights are written last."""
    return (path / WEIGHTS).exists()


def is_diverged(path: Path) -> bool:
    """Whether the run's training diverged: it has no final weights, and resuming would end the same way."""
    return (path / DIVERGED).exists()


def record_divergence(path: Path, step: int, sentence: str) -> None:
    """Record that training diverged, for anyone who looks at the run later."""
    _write_json(path / DIVERGED, {"step": step, "sentence": sentence})


def read_divergence(path: Path) -> str:
    """The sentence about the divergence of a run; a shorter one if the file is damaged."""
    try:
        return str(read_json(path / DIVERGED)["sentence"])
    except (DamageError, KeyError, TypeError):
        return "training diverged."


def had_checkpoint(path: Path, config: RunConfig) -> bool:
    """Whether a run once had a checkpoint: the first is made before anything is learnt and logged.

    The logs are not read, because they may be damaged. A log is set aside only for one that starts at a checkpoint. A
    run that ends before it learns logs its last step, without a checkpoint.
    """
    learnt = (path / METRICS, path / TIMING)
    return config.steps > config.memory.start and (
        any(log.is_file() and log.stat().st_size > 0 for log in learnt)
        or any(True for name in LOGS for _ in path.glob(f"{name}.{DAMAGED}-*"))
    )


def provenance(config: RunConfig) -> dict[str, Any]:
    """Where the numbers of this run come from."""
    packages = (
        "lambda-replay",
        "numpy",
        "torch",
        "gymnasium",
        "ale-py",
        "opencv-python-headless",
        "MinAtar",
        "mujoco",
        "Box2D",
    )
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


def read_provenance(path: Path) -> dict[str, Any]:
    """The provenance of a run directory."""
    file = path / PROVENANCE
    try:
        values = read_json(file)
    except FileNotFoundError:
        raise DamageError(f"{file} is missing.") from None
    if not isinstance(values, dict) or not isinstance(values.get("notes"), list):
        raise DamageError(f"{file} is damaged (it is not what was written).")
    return values


def amend_provenance(path: Path, config: RunConfig, notes: Sequence[str] = (), /, **changes: Any) -> None:
    """Record what a reader of the results must know; the same note is not made twice.

    A damaged provenance is set aside and replaced by a current one, which says so.
    """
    try:
        values = read_provenance(path)
    except DamageError as error:
        if os.path.lexists(path / PROVENANCE):
            set_aside(path / PROVENANCE, DAMAGED)
        values = {**provenance(config), "keep_memory": True, "config": to_dict(config)}
        values["notes"] = [f"rewritten by a later process, because the original was lost: {error}"]
    values["notes"] += [note for note in notes if note not in values["notes"]]
    _write_json(path / PROVENANCE, {**values, **changes})


def changes_of_machinery(path: Path, config: RunConfig) -> list[str]:
    """What has changed since the run began that the arithmetic depends on, in words."""
    try:
        then, now = read_provenance(path), provenance(config)
    except DamageError:
        return []
    pairs = {name: (then.get(name), now[name]) for name in ("python", "processor")}
    before = then.get("versions")
    for package, version in now["versions"].items():
        pairs[package] = (before.get(package) if isinstance(before, dict) else None, version)
    return [f"{name} {new} instead of {old}" for name, (old, new) in pairs.items() if old != new]


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with a + if it has changes; None outside one."""
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
    """Held while a process works in a run directory, so that a second one is rejected; it ends with its process."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except IsADirectoryError:
            raise ConfigError(f"{path / LOCK} is a directory, but a run needs a file there; rename it.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"another process is working in {path}; wait for it or stop it.") from None
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; releasing twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def looking_at(path: Path) -> Iterator[None]:
    """Keeps other processes from starting work in the run directory, without writing anything."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:  # no process ever worked here, or the directory is a copy
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"another process is working in {path}; wait for it or stop it.") from None
    finally:
        os.close(descriptor)


def renew_log(path: Path, config: RunConfig, name: str, step: int) -> str:
    """Restart a damaged log at a step, and keep what is left of it; returns what happened in one sentence.

    The note is written before anything is renamed, so that no crash leaves a change without one.
    """
    log, fate = path / name, "missing or empty"
    kept = name_aside(log, f"{DAMAGED}-{step}")
    has_content = os.path.lexists(log) and not (log.is_file() and log.stat().st_size == 0)
    if has_content:
        fate = f"damaged and kept as {kept.name}"
    amend_provenance(path, config, [f"{name} starts at step {step}: the previous one was {fate}"])
    if has_content:
        log.rename(kept)
    log.touch()
    sync_directory(path)
    return f"{log} is {fate}; training does not read it, and a new one starts at step {step}."


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """The rows of a sound metrics.jsonl."""
    return [json.loads(line) for line in (path / METRICS).read_text().splitlines()]


class RunLog:
    """The growing files of a run: metrics, timing and evaluations (one JSON object per line), episodes (CSV).

    Only the timing depends on the clock, so that equal runs are equal byte for byte.
    """

    def __init__(
        self,
        path: Path,
        positions: Mapping[str, int] | None = None,
        earlier_seconds: float = 0.0,
        *,
        names: Sequence[str] = LOGS,
    ) -> None:
        """Start the files, or cut them back to the ``positions`` of a checkpoint, taken after ``earlier_seconds``."""
        self._files: dict[str, BinaryIO] = {}
        try:
            for name in names:
                self._files[name] = (path / name).open("w+b" if positions is None else "r+b")
                if positions is not None:
                    self._files[name].truncate(positions[name])
                self._files[name].seek(0, io.SEEK_END)
            sync_directory(path)
        except BaseException:
            self.close()
            raise
        self._earlier_seconds = earlier_seconds
        self._started = time.monotonic()
        self._episodes_text = io.StringIO()

    @property
    def seconds(self) -> float:
        """Time spent on this run, by this and earlier processes."""
        return self._earlier_seconds + time.monotonic() - self._started

    def write_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add a row to both files; raises DivergenceError if a number is not finite, which JSON cannot hold."""
        for name, value in metrics.items():
            if value is not None and not math.isfinite(value):
                raise diverged(f"the metric {name} is")
        self._write(METRICS, json.dumps({"step": step, **metrics}, allow_nan=False))
        self._write(TIMING, json.dumps({"step": step, "seconds": round(self.seconds, 3)}, allow_nan=False))

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        self._write(EVALUATIONS, json.dumps(row, allow_nan=False))

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
        """Write everything to disk; returns the length of each file."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
