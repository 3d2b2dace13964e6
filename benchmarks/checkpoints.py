"""What crash safety costs: saving, checking on resume, and a memory in files instead of RAM, at Atari size.

    python benchmarks/checkpoints.py --directory DIRECTORY_ON_A_REAL_DISK

takes about ten minutes, 10 GB of disk and 17 GB of RAM, prints tables and one line of JSON, and removes its files.
``--capacity 100000`` needs a tenth of all that.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro

from lambda_replay.agents.run_settings import override, to_dict
from lambda_replay.config import RunConfig
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.rundir.checkpoints import Checkpoint, find_damage, read_state, save_checkpoint
from lambda_replay.rundir.memory_checksums import MemoryChecksums, spare_slots
from lambda_replay.rundir.resources import SLOT_FIELDS_BYTES, available_ram, in_words
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.loop import Boundary
from lambda_replay.training.presets import make_config

SLOT_BYTES = 84 * 84 + SLOT_FIELDS_BYTES
LOG = "metrics.jsonl"
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Options:
    """What to measure, and where."""

    directory: Path = Path()  # a directory on the disk to measure; a temporary one is created in it
    capacity: int = 1_000_000  # slots of the largest memory; the paper has 1,000,000
    cycles: int = 8  # pairs of refreshes per contender when comparing files with RAM
    limits: tuple[float, ...] = (4.0, 2.0, 1.0)  # GB of memory, page cache included, for runs whose memory does not fit
    only: tuple[str, ...] = ("saving", "checking", "files-or-ram", "too-small")  # parts to measure
    measure_limited: Path | None = None  # internal: measure training on the memory files in this directory


@dataclass(frozen=True)
class Saving:
    """One checkpoint."""

    memory_slots: int
    steps_since_last: int
    seconds: float
    bytes_written: int


def atari_config(capacity: int, storage: str) -> RunConfig:
    """The paper's settings with a tenth of F, S and the updates, so a cycle takes seconds; the ratios are unchanged."""
    return override(
        make_config("atari/pong", "paper"),
        {
            "steps": 10**9,
            "checkpoint_every": 50_000 if storage == "disk" else 0,
            "device": "cpu",
            "memory": {"capacity": capacity, "storage": storage, "start": min(50_000, capacity // 2)},
            "cache": {"size": 8_000, "refresh_every": 1_000},
        },
    )


def fill(memory: ReplayMemory, slots: int) -> None:
    """Fill the memory as ``slots`` steps of games of 1,000 steps each would."""
    rng = np.random.default_rng(0)
    block = rng.integers(0, 256, (1_024, *memory.observation_shape), dtype=np.uint8)
    for first in range(0, slots, len(block)):
        last = min(slots, first + len(block))
        memory.observations[first:last] = block[: last - first]
        memory.observations[first:last, 0, 0] = first % 251
    memory.actions[:slots] = rng.integers(0, 6, slots)
    memory.is_step[:slots] = True
    memory.is_step[999:slots:1_000] = False
    memory.actions[999:slots:1_000] = 0
    memory.behaviour_probs[:slots] = 0.5
    memory.frames[:slots] = 4
    memory.set_state({"written": [slots], "is_open": [0]})


def append(memory: ReplayMemory, steps: int) -> None:
    frames = np.random.default_rng(1).integers(0, 256, (64, *memory.observation_shape), dtype=np.uint8)
    for number in range(steps):
        memory.append(number % 6, 0.0, frames[number % 64], behaviour_prob=0.5)


def disk_bytes(kind: str = "write_bytes") -> int:
    """Bytes that this process has made the kernel write or read so far, through files or mapped pages."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


class Savings:
    """Checkpoints of one memory on disk, as a run with the paper's config makes them."""

    def __init__(self, run: Path, capacity: int) -> None:
        run.mkdir()
        (run / LOG).write_text("")
        self._run, self._config, self._step = run, atari_config(capacity, "disk"), 0
        self.memory = ReplayMemory(
            capacity,
            (84, 84),
            np.uint8,
            4,
            spare=spare_slots(self._config.checkpoint_interval, 1),
            directory=run / "memory",
        )
        small = override(self._config, {"memory": {"capacity": 2_000, "start": 1_000}})
        self._tensors = assemble(small, make_environments(small)).agent.get_tensors()
        self._checksums = MemoryChecksums()

    def save(self, steps: int) -> Saving:
        written = disk_bytes()
        append(self.memory, steps)
        self._step += steps + 1
        state = {
            "config": to_dict(self._config),
            "device": "cpu",
            "threads": 1,
            "seconds": 0.0,
            "loop": {},
            "agent": {},
            "streams": {},
            "memory": self.memory.get_state(),
            "best": None,
            "logs": {LOG: 0},
        }
        began = time.perf_counter()
        checkpoint = Checkpoint(self._step, state, self._tensors)
        save_checkpoint(self._run, checkpoint, self.memory, self._checksums)
        seconds = time.perf_counter() - began
        return Saving(self.memory.window, steps, seconds, disk_bytes() - written)

    def check(self) -> float:
        """Seconds to check the newest checkpoint, as resume does."""
        began = time.perf_counter()
        assert not list(find_damage(self._run, read_state(self._run, self._step), self._run / "memory"))
        return time.perf_counter() - began


def measure_saving(place: Path, options: Options) -> Iterator[Saving]:
    """Seconds and bytes per checkpoint, by steps since the last one and by the size of the memory."""
    for capacity in (options.capacity // 10, options.capacity // 3, options.capacity):
        savings = Savings(place / f"saving-{capacity}", capacity)
        fill(savings.memory, capacity)
        savings.memory.begin(np.zeros((84, 84), np.uint8))
        savings.save(0)  # reads the whole memory once; a run reads each chunk while it is new
        for steps in (1_000, 10_000, 50_000) if capacity == options.capacity else (50_000,):
            for _ in range(3):
                yield savings.save(steps)
        if capacity < options.capacity or "checking" not in options.only:
            shutil.rmtree(place / f"saving-{capacity}")
        else:
            yield from _measure_checking(savings, place / f"saving-{capacity}")


CHECKING: dict[str, float] = {}


def _measure_checking(savings: Savings, run: Path) -> Iterator[Saving]:
    CHECKING["seconds, from the page cache"] = savings.check()
    forget(run / "memory")
    CHECKING["seconds, from the disk"] = savings.check()
    shutil.rmtree(run)
    yield from ()


def forget(directory: Path) -> None:
    """Write the files to disk and drop them from the page cache."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class Cycle(NamedTuple):
    """From one boundary to the next."""

    steps: int
    seconds: float
    processor_seconds: float


class Training:
    """The real loop on a full memory; a cycle is one refresh with its updates and 1,000 steps of Pong."""

    def __init__(self, config: RunConfig, directory: Path | None, *, is_full: bool = False) -> None:
        loop, _, memory, _ = assemble(
            config,
            make_environments(config),
            spare_slots=spare_slots(config.checkpoint_interval, 1),
            memory_directory=directory,
            reopen_memory=is_full,
        )
        if is_full:
            memory.set_state({"written": [config.memory.capacity], "is_open": [0]})
        else:
            fill(memory, config.memory.capacity)
        self._cycle_steps = config.algorithm.boundary_every
        loop.step = config.memory.start
        self._events = loop.run()
        self.cycle()  # up to the first boundary

    def cycle(self) -> Cycle:
        """Run to the next boundary."""
        began, worked = time.perf_counter(), time.process_time()
        while not isinstance(next(self._events), Boundary):
            pass
        return Cycle(self._cycle_steps, time.perf_counter() - began, time.process_time() - worked)


def measure_files_or_ram(place: Path, options: Options) -> dict[str, Any]:
    """Training on files against training in RAM: cycles alternate in the order ABBA, so drift affects both equally.

    Other work on the machine affects wall-clock time a lot and processor time little.
    """
    in_files = Training(atari_config(options.capacity, "disk"), place / "files")
    in_ram = Training(atari_config(options.capacity, "ram"), None)
    pairs = [pair_of_cycles(in_files, in_ram, number) for number in range(2 * options.cycles)]
    shutil.rmtree(place / "files")
    files, ram = (total(list(cycles)) for cycles in zip(*pairs, strict=True))
    return {
        "slots": options.capacity,
        "steps_per_second_in_files": files.steps / files.seconds,
        "steps_per_second_in_ram": ram.steps / ram.seconds,
        "ratio_by_the_clock": ram.seconds / files.seconds,
        "ratio_by_processor_time": ram.processor_seconds / files.processor_seconds,
        "ratios_by_processor_time": [round(other.processor_seconds / one.processor_seconds, 3) for one, other in pairs],
    }


def pair_of_cycles(one: Training, other: Training, number: int) -> tuple[Cycle, Cycle]:
    """One cycle of each, alternating which goes first."""
    if number % 2:
        second = other.cycle()
        return one.cycle(), second
    return one.cycle(), other.cycle()


def total(cycles: list[Cycle]) -> Cycle:
    return Cycle(*(sum(column) for column in zip(*cycles, strict=True)))


def measure_too_small(place: Path, options: Options) -> dict[str, Any]:
    """Training speed on files under memory limits that include the page cache, each in its own process."""
    config = atari_config(options.capacity, "disk")
    memory = ReplayMemory(
        options.capacity,
        (84, 84),
        np.uint8,
        4,
        spare=spare_slots(config.checkpoint_interval, 1),
        directory=place / "limited",
    )
    fill(memory, options.capacity)
    del memory
    results: dict[str, Any] = {}
    for limit in (None, *options.limits):
        forget(place / "limited")
        words = "no limit" if limit is None else f"{limit:g} GB"
        results[words] = _run_limited(place / "limited", options, limit)
    shutil.rmtree(place / "limited")
    return results


def _run_limited(memory: Path, options: Options, limit: float | None) -> Any:
    group = None
    command = [sys.executable, __file__, "--measure-limited", str(memory), "--capacity", str(options.capacity)]
    try:
        if limit is not None:
            group = make_group(int(limit * 1e9))
            command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            return f"failed with exit code {ended.returncode}: {ended.stderr.strip()[-200:]}"
        return json.loads(ended.stdout)
    except OSError as error:
        return f"could not be measured: {error}"
    finally:
        if group is not None:
            group.rmdir()


def make_group(limit: int) -> Path:
    """Create a control group with a memory limit (needs root): version 2 or 1, whichever has the controller."""
    is_second = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if is_second else CGROUPS / "memory") / f"lambda-replay-benchmark-{os.getpid()}"
    group.mkdir()
    (group / ("memory.max" if is_second else "memory.limit_in_bytes")).write_text(str(limit))
    return group


def train_limited(memory: Path, capacity: int) -> dict[str, float]:
    """Time a few cycles once the page cache holds as much of the files as it can."""
    for path in memory.iterdir():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    training = Training(atari_config(capacity, "disk"), memory, is_full=True)
    training.cycle()
    read = disk_bytes("read_bytes")
    cycles = total([training.cycle() for _ in range(4)])
    read = disk_bytes("read_bytes") - read
    return {"steps_per_second": cycles.steps / cycles.seconds, "bytes_read_per_step": read / cycles.steps}


def check_room(options: Options) -> None:
    disk, ram = 1.3 * options.capacity * SLOT_BYTES + 1e9, 2.3 * options.capacity * SLOT_BYTES + 1e9
    free = shutil.disk_usage(options.directory).free
    if disk > free:
        sys.exit(f"this needs {in_words(disk)} of disk but only {in_words(free)} is free; lower --capacity.")
    if "files-or-ram" in options.only and ram > available_ram():
        sys.exit(f"this needs {in_words(ram)} of RAM but only {in_words(available_ram())} is free; lower --capacity.")


def main() -> None:
    options = tyro.cli(Options, config=(tyro.conf.FlagConversionOff,))
    torch.set_num_threads(1)
    if options.measure_limited is not None:
        print(json.dumps(train_limited(options.measure_limited, options.capacity)))
        return
    check_room(options)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        if "saving" in options.only:
            results["saving"] = [asdict(saving) for saving in print_savings(measure_saving(place, options))]
            results["checking"] = {"memory_slots": options.capacity, **CHECKING}
            print(f"checking {options.capacity:,} slots on resume: {CHECKING}", flush=True)
        if "files-or-ram" in options.only:
            results["files_or_ram"] = measure_files_or_ram(place, options)
            print(f"training on files and in RAM: {results['files_or_ram']}", flush=True)
        if "too-small" in options.only:
            results["too_small"] = measure_too_small(place, options)
            print(f"training under a limit on memory: {results['too_small']}", flush=True)
    if {"saving", "files_or_ram"} <= results.keys():
        results["share"] = share_of_training_time(results)
        print(f"share of training time at the default interval: {100 * results['share']:.2f} %")
    print(json.dumps(results))


def share_of_training_time(results: dict[str, Any]) -> float:
    """The share of training time taken by one checkpoint every 50,000 steps."""
    largest = max(saving["memory_slots"] for saving in results["saving"])
    seconds = [
        saving["seconds"]
        for saving in results["saving"]
        if saving["memory_slots"] == largest and saving["steps_since_last"] == 50_000
    ]
    training = 50_000 / results["files_or_ram"]["steps_per_second_in_files"]
    return float(statistics.median(seconds) / (statistics.median(seconds) + training))


def print_savings(savings: Iterator[Saving]) -> list[Saving]:
    print(f"{'memory slots':>12} {'steps since last':>16} {'seconds':>8} {'written':>8}")
    rows = []
    for row in savings:
        print(
            f"{row.memory_slots:>12,} {row.steps_since_last:>16,} {row.seconds:>8.2f} {in_words(row.bytes_written):>8}",
            flush=True,
        )
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
