"""Do two versions of the package give the same results, byte for byte? Compares small runs of every kind.

    python benchmarks/same_results.py --before COMMIT [--out FILE.json]

The given commit (in a temporary checkout) and the working tree run in turn on this machine with the same packages. The
script compares the tensors of the final weights, episodes.csv, and the columns of metrics.jsonl that the commit has. A
refactoring must not change any of them; the exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
SMALL = "--device cpu --threads 1 --seed 3 --checkpoint-every 0 --memory.storage ram"
CACHE = "--cache.size 800 --cache.block-length 40 --cache.refresh-every 400 --cache.updates 60"
TARGET = "--target.copy-every 400 --target.update-every 4"
MEMORY = "--memory.capacity 2400 --memory.start 800"
# Images are large and slow: fewer steps, and few updates of the full network.
PICTURES = "--steps 1200 --memory.capacity 1000 --memory.start 400"
PICTURE_CACHE = "--cache.size 200 --cache.block-length 20 --cache.refresh-every 200 --cache.updates 6"
CARTPOLE, MINATAR = f"CartPole-v1 --steps 4000 {MEMORY}", f"minatar/breakout --steps 3200 {MEMORY}"
RUNS = {
    "CartPole, dqn-lambda": f"{CARTPOLE} {CACHE}",
    "CartPole, dqn": f"{CARTPOLE} --agent dqn {TARGET}",
    "CartPole, 8 environments": f"{CARTPOLE} {CACHE} --envs 8",
    "CartPole, dqn, 8 environments": f"{CARTPOLE} --agent dqn {TARGET} --envs 8",
    "CartPole, concurrent": f"{CARTPOLE} {CACHE} --cache.schedule concurrent",
    "CartPole, median, priorities, tail": f"{CARTPOLE} {CACHE} --estimator median --cache.priority 0.3 --cache.tail 10",
    "CartPole, bounded, clipped gradient": f"{CARTPOLE} {CACHE} --estimator bounded:0.1 --optimizer.max-grad-norm 1",
    "CartPole, history 4, Watkins": f"{CARTPOLE} {CACHE} --memory.history 4 --estimator watkins:0.8",
    "MinAtar, Retrace": f"{MINATAR} {CACHE} --estimator retrace:0.9@0.05",
    "MinAtar, flicker, 8 environments, concurrent": (
        f"{MINATAR} {CACHE} --flicker 0.5 --envs 8 --cache.schedule concurrent --memory.history 2"
    ),
    "MinAtar, dqn, 5-step": f"minatar/seaquest --steps 3200 {MEMORY} --agent dqn {TARGET} --estimator nstep:5",
    "Atari, dqn-lambda": f"atari/pong --preset paper {PICTURES} {PICTURE_CACHE}",
    "Atari, dqn, sticky actions": (
        f"atari/qbert --preset paper {PICTURES} --agent dqn --target.copy-every 200 --atari.sticky 0.25"
    ),
    "Atari, 4 environments, Tree Backup": (
        f"atari/breakout --preset paper {PICTURES} {PICTURE_CACHE} --envs 4 --estimator tree:0.9@0.1"
    ),
}
OWN_NETWORK = "a user's network"
# The functions of the Python interface have moved between versions, so both places are tried.
OWN_NETWORK_CODE = """
import sys
from pathlib import Path
import torch
from torch import nn
try:
    from lambda_replay.agents.run_settings import override
    from lambda_replay.training.presets import make_config
    from lambda_replay.training.run import train_run
except ImportError:
    from lambda_replay.config import override
    from lambda_replay.presets import make_config
    from lambda_replay.runner import train_run
config = override(make_config("CartPole-v1"), {
    "steps": 3000, "seed": 3, "device": "cpu", "threads": 1, "checkpoint_every": 0,
    "memory": {"capacity": 2400, "start": 800, "storage": "ram"},
    "cache": {"size": 800, "block_length": 40, "refresh_every": 400, "updates": 60},
})
torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
train_run(Path(sys.argv[1]), config, network=network)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the results of a commit with those of the working tree.")
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--out", type=Path, help="write the table to this JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        before = Path(directory) / "before"
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", before, options.before], check=True
        )
        try:
            rows = [compare(name, before, Path(directory)) for name in (*RUNS, OWN_NETWORK)]
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    num_same = sum(bool(row["is_same"]) for row in rows)
    print(f"{num_same} of {len(rows)} runs give the same weights, episodes and metrics")
    return 0 if num_same == len(rows) else 1


def compare(name: str, before: Path, directory: Path) -> dict[str, object]:
    """One run with both versions."""
    places = [(directory / "runs" / version, tree) for version, tree in (("1", before), ("2", ROOT))]
    found = [results(name, tree, place) for place, tree in places]
    columns = known_columns(run_directory(name, places[0][0]))
    for (place, _), parts in zip(places, found, strict=True):
        parts["metrics"] = checksum_of_metrics(run_directory(name, place), columns)
    differing = [part for part in found[0] if found[0][part] != found[1][part]]
    verdict = "same" if not differing else f"DIFFERENT: {', '.join(differing)}"
    print(f"{name:<46} {found[1]['weights'][:12]}  {found[1]['episodes'][:12]}  {verdict}", flush=True)
    return {"run": name, "is_same": not differing, "differing": differing, **found[1]}


def results(name: str, tree: Path, directory: Path) -> dict[str, str]:
    """Checksums of the files that the run writes."""
    run = run_directory(name, directory)
    command = ["-c", OWN_NETWORK_CODE, str(run)]
    if name in RUNS:
        command = ["-m", "lambda_replay", "train", *f"{RUNS[name]} {SMALL}".split(), "--out", str(run)]
    variables = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], env={**os.environ, **variables}, stdout=subprocess.DEVNULL, check=True)
    digest = hashlib.sha256()
    for tensor_name, tensor in sorted(load_file(run / "weights.safetensors").items()):
        digest.update(f"{tensor_name} {tensor.shape} {tensor.dtype}".encode() + tensor.tobytes())
    episodes = hashlib.sha256((run / "episodes.csv").read_bytes()).hexdigest()
    return {"weights": digest.hexdigest(), "episodes": episodes}


def run_directory(name: str, directory: Path) -> Path:
    return directory / name.replace(" ", "-").replace(",", "")


def read_metrics(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def known_columns(run: Path) -> set[str]:
    return {name for row in read_metrics(run) for name in row}


def checksum_of_metrics(run: Path, columns: set[str]) -> str:
    rows = [{name: value for name, value in row.items() if name in columns} for row in read_metrics(run)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
