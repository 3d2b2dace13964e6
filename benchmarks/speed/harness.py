"""Runs the whole benchmark: rounds over all contenders, with each measurement in its own process, and the results.

To reduce the effect of noise, contenders take turns within a round, every other round reverses the order, and ratios
are taken between measurements of the same round.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.speed.measurement import allowed_cores
from benchmarks.speed.workloads import (
    BASELINE,
    CONTENDERS,
    WORKLOADS,
    Job,
    Workload,
    is_available,
    job_to_dict,
)
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.resources import SLOT_FIELDS_BYTES, available_ram

Say = Callable[[str], None]
ROOT = Path(__file__).resolve().parents[2]  # of the repository
PATIENCE = 300.0  # seconds that a measurement may take beyond the time it was asked for
PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "MinAtar",
    "stable-baselines3",
    "tianshou",
    "torchrl",
    "tensordict",
)
ARITHMETIC_PARTS = {"acting": "acting", "refresh: forward": "refresh", "training: step": "training"}
MOST_SECONDS = 3600.0  # of one measurement
LARGEST_COUNT = 10_000  # of repeats, cores, environments or threads
SMALLEST_MEMORY, LARGEST_MEMORY = 1_000, 10**12  # slots
FRAME_BYTES = 84 * 84 + SLOT_FIELDS_BYTES  # of a slot in a memory of Atari frames


@dataclass(frozen=True)
class Plan:
    """What to measure and for how long."""

    workloads: tuple[Workload, ...] = tuple(WORKLOADS.values())
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    envs: tuple[int, ...] = (1, 8)
    threads: tuple[int, ...] = (1, 2)
    repeats: int = 3
    seconds: float = 2.5  # timed per measurement, times the workload's weight
    cores: int = 2
    memory_sizes: tuple[int, ...] = (100_000, 300_000, 1_000_000)
    paper_blocks: int = 800

    def __post_init__(self) -> None:
        unknown = [name for name in self.contenders if name not in CONTENDERS]
        if unknown:
            raise ConfigError(f"there is no contender {unknown[0]!r}; choose one of {', '.join(CONTENDERS)}.")
        if not 0 < self.seconds <= MOST_SECONDS:
            raise ConfigError(f"--seconds is {self.seconds}; give a number above 0, up to {MOST_SECONDS:.0f}.")
        counts = {"repeats": (self.repeats,), "cores": (self.cores,), "envs": self.envs, "threads": self.threads}
        for name, values in counts.items():
            if not all(1 <= value <= LARGEST_COUNT for value in values) or not values:
                given = " ".join(map(str, values)) or "empty"
                raise ConfigError(f"--{name} is {given}; give whole numbers from 1 to {LARGEST_COUNT}.")
        if not all(SMALLEST_MEMORY <= slots <= LARGEST_MEMORY for slots in self.memory_sizes):
            raise ConfigError(
                f"--memory-sizes is out of range; give numbers of slots from {SMALLEST_MEMORY} to {LARGEST_MEMORY}."
            )
        if max(self.threads) > self.cores or self.cores > len(allowed_cores()):
            raise ConfigError(
                f"{max(self.threads)} threads on {self.cores} cores do not fit: threads may not exceed cores, and this "
                f"process may use {len(allowed_cores())}; lower --threads or --cores."
            )


class Fault(Exception):
    """A measurement failed; the message says why."""


def run_plan(plan: Plan, say: Say) -> dict[str, Any]:
    """Measure everything, reporting progress to ``say``; returns plain values for JSON."""
    runner = _Runner(plan, say)
    skipped = {name: _missing(name) for name in plan.contenders if not is_available(CONTENDERS[name])}
    for sentence in skipped.values():
        say(sentence)
    contenders = [name for name in plan.contenders if name not in skipped]
    peaks, rounds = runner.rounds(contenders)
    speed = [row for key in rounds for row in _rows(key, rounds[key])]
    peak = {threads: max(values) for threads, values in peaks.items()}
    runner.add_bounds(speed, peak)
    return {
        "machine": _machine(),
        "settings": {
            "envs": plan.envs,
            "threads": plan.threads,
            "cores": plan.cores,
            "repeats": plan.repeats,
            "seconds": plan.seconds,
            "workloads": {workload.name: vars(workload) for workload in plan.workloads},
        },
        "peak_flops_per_second": {str(threads): value for threads, value in peak.items()},
        "speed": speed,
        "parts": runner.parts(speed),
        "estimators": runner.once("estimators", {"seconds": 2 * plan.seconds, "num_blocks": plan.paper_blocks}),
        "memory_sizes": runner.memory_sizes(),
        "skipped": {**skipped, **runner.faults},
    }


def _missing(name: str) -> str:
    return f"skipped {name}: {CONTENDERS[name].package} is not installed (pip install -e '.[bench]')."


Key = tuple[str, int]  # workload, environments
Samples = dict[str, list[dict[str, Any]]]  # contender -> one measurement per round, with its best number of threads


class _Runner:
    """Runs the measurements of one plan."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan, self._say = plan, say
        self._cores = allowed_cores()[: plan.cores]
        self.faults: dict[str, str] = {}
        self._known_flops: dict[tuple[str, str], dict[str, Any]] = {}

    def rounds(self, contenders: list[str]) -> tuple[dict[int, list[float]], dict[Key, Samples]]:
        """Peaks by threads and samples by workload; after the first round, only the best number of threads is used."""
        peaks: dict[int, list[float]] = {threads: [] for threads in self._plan.threads}
        samples: dict[Key, Samples] = {}
        for number in range(self._plan.repeats):
            for threads, values in peaks.items():
                arguments = {"seconds": self._plan.seconds / 2}
                values.append(run_task("peak", arguments, threads, self._cores)["flops_per_second"])
            for workload in self._plan.workloads:
                for envs in self._plan.envs:
                    self._say(f"round {number + 1} of {self._plan.repeats}: {workload.name}, {envs} environment(s)")
                    known = samples.setdefault((workload.name, envs), {name: [] for name in contenders})
                    self._round(number, workload, envs, known)
        return peaks, samples

    def _round(self, number: int, workload: Workload, envs: int, known: Samples) -> None:
        order = list(known)[:: -1 if number % 2 else 1]
        for name in order:
            key = f"{name} on {workload.name}, {envs} environment(s)"
            if key in self.faults:
                continue
            threads = self._plan.threads if not known[name] else (known[name][0]["threads"],)
            job = Job(workload, name, envs, 1, self._plan.seconds * workload.weight)
            try:
                tried = [self._speed(replace(job, threads=count)) for count in threads]
            except Fault as fault:
                self.faults[key] = f"{key} failed: {fault}"
                self._say(self.faults[key])
                continue
            best = max(tried, key=lambda sample: sample["steps_per_second"])
            others = {str(sample["threads"]): sample["steps_per_second"] for sample in tried}
            known[name].append({**best, "by_threads": others})

    def _speed(self, job: Job) -> dict[str, Any]:
        values = run_task("speed", job_to_dict(job), job.threads, self._cores, job.seconds)
        self._say(f"  {job.contender}, {job.threads} thread(s): {values['steps_per_second']:,.0f} steps/s")
        return {"threads": job.threads, **values}

    def add_bounds(self, rows: list[dict[str, Any]], peak: dict[int, float]) -> None:
        """Add to each row its algorithm's arithmetic and the share of the machine's peak that it reaches."""
        for row in rows:
            flops = self._flops(row)["total"]
            row["flops_per_step"] = flops
            row["bound_steps_per_second"] = max(peak.values()) / flops
            row["share_of_bound"] = row["steps_per_second"] / row["bound_steps_per_second"]
            pairs = zip(row["samples"], row["sgemm_flops_per_second"], strict=True)
            row["share_of_bound_then"] = statistics.median(speed * flops / sgemm for speed, sgemm in pairs)

    def _flops(self, row: dict[str, Any]) -> dict[str, Any]:
        """The operations per agent step of a row's algorithm, in total and by part."""
        kind = row["workload"], CONTENDERS[row["contender"]].agent
        if kind not in self._known_flops:
            workload = next(workload for workload in self._plan.workloads if workload.name == row["workload"])
            job = Job(workload, row["contender"], 1, 1, 1.0)
            self._known_flops[kind] = run_task("flops", job_to_dict(job), 1, self._cores)
        return self._known_flops[kind]

    def parts(self, speed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Where dqn-lambda spends its time, for each of its rows, with the same number of threads."""
        found = []
        workloads = {workload.name: workload for workload in self._plan.workloads}
        for row in speed:
            if row["contender"] != "dqn-lambda":
                continue
            self._say(f"parts of {row['workload']}, {row['envs']} environment(s)")
            job = Job(workloads[row["workload"]], "dqn-lambda", row["envs"], row["threads"], 2 * self._plan.seconds)
            values = self.once("parts", job_to_dict(job), row["threads"])
            if values is not None:
                seconds = values["seconds_per_step"]
                rest = 1 / row["steps_per_second"] - sum(seconds.values())
                flops, sgemm = self._flops(row)["parts"], values["sgemm_flops_per_second"]
                shares = {part: flops[key] / seconds[part] / sgemm for part, key in ARITHMETIC_PARTS.items()}
                found.append(
                    {
                        "workload": row["workload"],
                        "envs": row["envs"],
                        "threads": row["threads"],
                        "seconds_per_step": seconds,
                        "rest": rest,
                        "share_of_sgemm": shares,
                    }
                )
        return found

    def memory_sizes(self) -> list[dict[str, Any]]:
        """The cost of a refresh by size of the memory, for the sizes that fit into RAM."""
        found = []
        for slots in self._plan.memory_sizes:
            if slots * FRAME_BYTES > 0.7 * available_ram():
                self.faults[f"memory of {slots}"] = f"skipped a memory of {slots:,} slots: it does not fit into RAM."
                continue
            self._say(f"refresh from a memory of {slots:,} slots")
            blocks = max(1, self._plan.paper_blocks // 10)
            values = self.once("memory-size", {"slots": slots, "seconds": self._plan.seconds, "num_blocks": blocks})
            if values is not None:
                found.append(values)
        return found

    def once(self, task: str, arguments: dict[str, Any], threads: int = 1) -> dict[str, Any] | None:
        try:
            return run_task(task, arguments, threads, self._cores, self._plan.seconds)
        except Fault as fault:
            self.faults[task] = f"{task} failed: {fault}"
            self._say(self.faults[task])
            return None


def run_task(
    task: str, arguments: dict[str, Any], threads: int, cores: Sequence[int], seconds: float = 0.0
) -> dict[str, Any]:
    """Run one task of worker.py in a new process, pinned to the cores."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        order = {"cores": list(cores), "threads": threads, "result": str(result), "arguments": arguments}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.speed.worker", task]
        try:
            finished = subprocess.run(
                command,
                input=json.dumps(order),
                text=True,
                encoding="utf-8",
                errors="replace",
                capture_output=True,
                cwd=ROOT,
                env={**os.environ, **limits},
                timeout=PATIENCE + 4 * seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Fault(f"it took longer than {PATIENCE:.0f} seconds") from error
        if finished.returncode != 0 or not result.exists():
            raise Fault(_reason(finished.stderr) or f"exit code {finished.returncode}")
        values: dict[str, Any] = json.loads(result.read_text())
        return values


def _reason(complaint: str) -> str:
    """The line of a traceback that names the error."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Fault|Interrupt)\b", line)]
    return (named or lines or [""])[-1]


def _rows(key: Key, samples: Samples) -> list[dict[str, Any]]:
    """One row per contender: median and spread of its speed, and of its ratio to the baseline in the same round."""
    rows = []
    baseline = [sample["steps_per_second"] for sample in samples.get(BASELINE, [])]
    for name, found in samples.items():
        if not found:
            continue
        speeds = [sample["steps_per_second"] for sample in found]
        ratios = [one / other for one, other in zip(speeds, baseline, strict=False)]
        rows.append(
            {
                "workload": key[0],
                "envs": key[1],
                "contender": name,
                "threads": found[0]["threads"],
                "steps_per_second": statistics.median(speeds),
                "low": min(speeds),
                "high": max(speeds),
                "samples": speeds,
                "sgemm_flops_per_second": [sample["sgemm_flops_per_second"] for sample in found],
                "by_threads": found[0]["by_threads"],
                "ratio": statistics.median(ratios) if ratios else None,
                "ratios": ratios,
                "peak_bytes": max(sample["peak_bytes"] for sample in found),
                "replay_bytes_per_step": found[0]["replay_bytes_per_step"],
                "parameters": found[0]["parameters"],
            }
        )
    return rows


def _machine() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": len(allowed_cores()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
        "load_at_end": list(os.getloadavg()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
