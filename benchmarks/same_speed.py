"""Is training as fast as before? Times small runs of every kind with two versions of the package.

    python benchmarks/same_speed.py --before COMMIT [--rounds 8]

Each round times every run with both versions at the same time, each on its own core, so that other work on the machine
slows down both; every other round swaps the cores. A run that trains while acting does both on one core. The time runs
from the first row of the run's timing.jsonl to the last, so imports and setup are not counted. The table shows the
speed of the working tree divided by that of the commit: the geometric mean over rounds, and the range.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAME = "--device cpu --threads 1 --seed 3 --checkpoint-every 0 --memory.storage ram"
RUNS = {
    "CartPole, dqn-lambda": "CartPole-v1 --steps 20000",
    "CartPole, dqn": "CartPole-v1 --steps 12000 --agent dqn",
    "CartPole, 8 environments": "CartPole-v1 --steps 24000 --envs 8 --cache.refresh-every 104",
    "MinAtar, dqn-lambda": "minatar/breakout --steps 16000 --memory.start 2000",
    "MinAtar, dqn": "minatar/breakout --steps 12000 --memory.start 2000 --agent dqn",
    "MinAtar, 8 environments, concurrent": (
        "minatar/breakout --steps 16000 --memory.start 2000 --envs 8 --cache.schedule concurrent"
    ),
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
    ratios: dict[str, list[float]] = {name: [] for name in RUNS if options.only in name}
    with tempfile.TemporaryDirectory() as directory:
        before = Path(directory) / "before"
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", before, options.before], check=True
        )
        try:
            for number in range(options.rounds):
                for name, found in ratios.items():
                    found.append(speed_ratio(RUNS[name], before, Path(directory), number % 2 == 1))
                    print(f"round {number + 1}: {name:<38} {found[-1]:.3f}", flush=True)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    print(
        f"\nspeed of the working tree relative to {options.before}: mean of {options.rounds} rounds (lowest to highest)"
    )
    for name, found in ratios.items():
        print(f"{name:<38} {statistics.geometric_mean(found):.3f}  ({min(found):.3f} to {max(found):.3f})")


def speed_ratio(arguments: str, before: Path, directory: Path, is_swapped: bool) -> float:
    """Speed of the working tree divided by that of the commit, from simultaneous runs of both."""
    trees = {"before": before, "after": ROOT}
    cores = sorted(os.sched_getaffinity(0))[:2]
    running = {
        name: start(arguments, tree, directory / f"run-{name}", core)
        for (name, tree), core in zip(trees.items(), cores[:: -1 if is_swapped else 1], strict=True)
    }
    for name, process in running.items():
        if process.wait() != 0:
            raise SystemExit(f"the run {name} failed with exit code {process.returncode}")
    seconds = {name: read_seconds(directory / f"run-{name}") for name in trees}
    return seconds["before"] / seconds["after"]


def start(arguments: str, tree: Path, run: Path, core: int) -> subprocess.Popen[bytes]:
    """Train in a separate process, on one core."""
    command = [sys.executable, "-m", "lambda_replay", "train", *f"{arguments} {SAME}".split(), "--out", str(run)]
    variables = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        ["taskset", "--cpu-list", str(core), *command], env={**os.environ, **variables}, stdout=subprocess.DEVNULL
    )


def read_seconds(run: Path) -> float:
    """Seconds from the first row of the run's timing to the last; deletes the run."""
    rows = [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return float(rows[-1] - rows[0])


if __name__ == "__main__":
    main()
