"""Is training as fast as before? Times small runs of every kind with two versions of the package.

    python benchmarks/same_speed.py --before COMMIT [--rounds 8]

Each round trains every run with both versions at the same time on the same core, which switches between them every few
milliseconds, so whatever else slows down the machine slows down both. What counts is the processor time of each between
the rows of its timing.jsonl; imports and setup come before the first row and are not counted. Both versions do the same
work between two rows in every round, so the shortest time that this took in any round is the one disturbed least. The
table shows the speed of the working tree divided by that of the commit: from the sums of these shortest times, and from
the rounds one by one (lowest to highest).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# The command, with timing.jsonl in processor seconds; threading keeps the real clock, because it is imported first.
TRAIN = """
import runpy, threading, time
time.monotonic = time.process_time
runpy.run_module("lambda_replay", run_name="__main__")
"""
ROOT = Path(__file__).resolve().parents[1]
SAME = "--device cpu --threads 1 --seed 3 --checkpoint-every 0 --memory.storage ram"
RUNS = {
    "CartPole, dqn-lambda": "CartPole-v1 --steps 20000",
    "CartPole, dqn": "CartPole-v1 --steps 40000 --agent dqn",
    "CartPole, 8 environments": "CartPole-v1 --steps 24000 --envs 8 --cache.refresh-every 104",
    "MinAtar, dqn-lambda": "minatar/breakout --steps 40000",
    "MinAtar, dqn": "minatar/breakout --steps 40000 --agent dqn",
    "MinAtar, 8 environments, concurrent": (
        "minatar/breakout --steps 16000 --memory.start 2000 --envs 8 --cache.schedule concurrent"
    ),
    "Pendulum, sac-lambda": "Pendulum-v1 --steps 3000",
    "Pendulum, td3-lambda": "Pendulum-v1 --steps 3000 --agent td3-lambda",
    "Atari, the preset": "atari/pong --steps 6400 --memory.start 2400 --memory.capacity 10000",
    "Atari, dqn-lambda": (
        "atari/breakout --preset paper --steps 2000 --memory.start 400 --memory.capacity 4000 "
        "--cache.size 1600 --cache.refresh-every 200 --cache.updates 50"
    ),
    "Atari, dqn": (
        "atari/breakout --preset paper --steps 1600 --memory.start 400 --memory.capacity 4000 --agent dqn "
        "--target.copy-every 200"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of a commit with that of the working tree.")
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default="", help="time only runs whose names contain this")
    options = parser.parse_args()
    runs = {name: arguments for name, arguments in RUNS.items() if options.only in name}
    seconds: dict[str, list[dict[str, Floats]]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as directory:
        before = Path(directory) / "before"
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", before, options.before], check=True
        )
        try:
            for number in range(options.rounds):
                for name, arguments in runs.items():
                    seconds[name].append(time_both(arguments, before, Path(directory)))
                    print(f"round {number + 1}: {name:<38} {speed_ratio(seconds[name][-1:]):.3f}", flush=True)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    print(f"\nspeed of the working tree relative to {options.before}, from {options.rounds} rounds (each by itself)")
    for name, rounds in seconds.items():
        each = [speed_ratio([one]) for one in rounds]
        print(f"{name:<38} {speed_ratio(rounds):.3f}  ({min(each):.3f} to {max(each):.3f})")


def speed_ratio(rounds: list[dict[str, Floats]]) -> float:
    """Speed of the working tree divided by that of the commit, from the shortest time of each stretch of a run."""
    shortest = {name: np.min([seconds[name] for seconds in rounds], axis=0).sum() for name in ("before", "after")}
    return float(shortest["before"] / shortest["after"])


def time_both(arguments: str, before: Path, directory: Path) -> dict[str, Floats]:
    """The processor seconds between the rows of a run, from simultaneous runs of both versions."""
    trees = {"before": before, "after": ROOT}
    running = {name: start(arguments, tree, directory / f"run-{name}") for name, tree in trees.items()}
    for name, process in running.items():
        if process.wait() != 0:
            raise SystemExit(f"the run {name} failed with exit code {process.returncode}")
    return {name: read_seconds(directory / f"run-{name}") for name in trees}


def start(arguments: str, tree: Path, run: Path) -> subprocess.Popen[bytes]:
    """Train in a separate process, on the last core."""
    command = [sys.executable, "-c", TRAIN, "train", *f"{arguments} {SAME}".split(), "--out", str(run)]
    variables = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    core = max(os.sched_getaffinity(0))
    return subprocess.Popen(
        ["taskset", "--cpu-list", str(core), *command], env={**os.environ, **variables}, stdout=subprocess.DEVNULL
    )


def read_seconds(run: Path) -> Floats:
    """The seconds between the rows of the run's timing; deletes the run."""
    rows = [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return np.diff(rows)


if __name__ == "__main__":
    main()
