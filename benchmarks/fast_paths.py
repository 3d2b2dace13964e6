"""Do the fast paths learn as well as the plain one? Compares the scores of several seeds of each on one MinAtar game.

The plain path is a network as anyone would write it, differentiated by autograd, acting in torch, with one environment.
The fast ones are this project's network (its own gradients, acting in NumPy), the concurrent schedule, and eight
environments. A different order of arithmetic gives different bits, so the paths are compared statistically.

    python -m benchmarks.fast_paths --out benchmarks/results
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from scipy import stats
from torch import Tensor, nn

from benchmarks.speed.plain_networks import plain_network
from lambda_replay.agents.run_settings import override
from lambda_replay.config import RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.training.presets import make_config
from lambda_replay.training.run import start_run

PATHS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fast": {},
    "fast, concurrent": {"cache": {"schedule": "concurrent"}},
    "fast, 8 environments": {"envs": 8},
    "fast, concurrent, 8 environments": {"cache": {"schedule": "concurrent"}, "envs": 8},
}


@dataclass
class Options:
    """What to compare."""

    env: str = "minatar/breakout"
    steps: int = 150_000
    seeds: int = 5
    workers: int = 2  # processes, one arithmetic thread each
    out: Path | None = None  # directory for fast_paths.json


class PlainNetwork(nn.Module):
    """The MinAtar network as a user of a peer would write it."""

    def __init__(self, channels: int, num_actions: int) -> None:
        super().__init__()
        self.layers = plain_network("minatar", (channels, 10, 10), num_actions)

    def forward(self, states: Tensor) -> Tensor:  # [n, 1, 10, 10, C] -> [n, A]
        q_values: Tensor = self.layers(states[:, 0].permute(0, 3, 1, 2))
        return q_values


def train(task: tuple[str, int, Options]) -> float:
    """The mean score of the last 100 games of one run."""
    path, seed, options = task
    settings = {"steps": options.steps, "seed": seed, "threads": 1, **PATHS[path]}
    config = override(make_config(options.env, "mini"), settings)
    with tempfile.TemporaryDirectory() as directory:
        run = start_run(Path(directory) / "run", config, make_plain(config) if path == "plain" else None)
        run.train(lambda event: None)
        score = run.loop.score
        run.close()
    assert score is not None
    print(f"{path}, seed {seed}: {score:.2f}", flush=True)
    return score


def make_plain(config: RunConfig) -> PlainNetwork:
    environment = make_environment(config)
    torch.manual_seed(config.seed)
    network = PlainNetwork(environment.spec.observation_shape[-1], environment.spec.num_actions)
    environment.close()
    return network


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    tasks = [(path, seed, options) for seed in range(options.seeds) for path in PATHS]
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=1) as pool:
        scores = np.array(pool.map(train, tasks, chunksize=1)).reshape(options.seeds, len(PATHS)).T  # [paths, seeds]
    results = []
    for path, found in zip(PATHS, scores, strict=True):
        test = stats.ttest_ind(found, scores[0], equal_var=False)  # Welch's
        results.append(
            {
                "path": path,
                "scores": found.tolist(),
                "mean": float(found.mean()),
                "standard_error": float(stats.sem(found)),
                "p_value_against_plain": None if path == "plain" else float(test.pvalue),
            }
        )
        print(f"{path:34s} {found.mean():6.2f} ± {stats.sem(found):.2f}   p = {test.pvalue:.2f}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        settings = {"env": options.env, "steps": options.steps, "seeds": options.seeds}
        text = json.dumps({"settings": settings, "paths": results}, indent=1) + "\n"
        (options.out / "fast_paths.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
