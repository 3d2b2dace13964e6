"""Is training as fast as it was? Small runs of every kind under two versions of the package, in turns.

    python benchmarks/same_speed.py --before COMMIT [--rounds 7]

Each round times every run under both versions, one directly after the other, and every other round reverses the order.
The time is the run's own, from the first row of its timing.jsonl to the last: imports and set-up are not counted. The
table gives the speed of the working tree over that of the commit: the median of the rounds, and their range.
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
        "atari/breakout --steps 2000 --memory.start 400 --memory.capacity 4000 "
        "--cache.size 1600 --cache.refresh-every 200 --cache.updates 50"
    ),
    "Atari, dqn": (
        "atari/breakout --steps 1600 --memory.start 400 --memory.capacity 4000 --agent dqn --target.copy-every 200"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of a commit with that of the working tree.")
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as directory:
        before = Path(directory) / "before"
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", before, options.before], check=True
        )
        try:
            for number in range(options.rounds):
                for name, arguments in RUNS.items():
                    ratios[name].append(speed_ratio(arguments, before, Path(directory) / "run", number % 2 == 1))
                    print(f"round {number + 1}: {name:<38} {ratios[name][-1]:.3f}", flush=True)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    print(f"\nspeed of the working tree over {options.before}: median of {options.rounds} rounds (lowest to highest)")
    for name, found in ratios.items():
        print(f"{name:<38} {statistics.median(found):.3f}  ({min(found):.3f} to {max(found):.3f})")


def speed_ratio(arguments: str, before: Path, run: Path, is_reversed: bool) -> float:
    """Speed of the working tree over that of the commit, each run once."""
    trees = [before, ROOT]
    seconds = {tree: measure(arguments, tree, run) for tree in (reversed(trees) if is_reversed else trees)}
    return seconds[before] / seconds[ROOT]


def measure(arguments: str, tree: Path, run: Path) -> float:
    """Seconds from the first row of the run's timing to the last; the run is removed."""
    command = [sys.executable, "-m", "lambda_replay", "train", *f"{arguments} {SAME}".split(), "--out", str(run)]
    variables = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, check=True)
    rows = [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return float(rows[-1] - rows[0])


if __name__ == "__main__":
    main()
