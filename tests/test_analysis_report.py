"""The report of a study: its words, its files, and the page in a real browser."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_replay.analysis.records import RunRecord, State, StudyData
from lambda_replay.analysis.report import write_report

ENVIRONMENTS = {  # lowest and highest score, steps of a short and of a long episode
    "minatar/breakout": (0.4, 11.0, 18.0, 260.0),
    "minatar/space_invaders": (2.8, 42.0, 60.0, 420.0),
    "minatar/asterix": (0.5, 9.0, 55.0, 180.0),
    "minatar/freeway": (0.0, 46.0, 2500.0, 2500.0),
}
ARMS = {  # agent, estimator, height and speed of learning, steps per second
    "dqn-3step": ("dqn", "nstep:3", 0.62, 0.9, 640.0),
    "cached-3step": ("dqn-lambda", "nstep:3", 0.64, 1.0, 800.0),
    "peng-0.25": ("dqn-lambda", "peng:0.25", 0.72, 1.3, 790.0),
    "peng-0.75": ("dqn-lambda", "peng:0.75", 0.90, 2.0, 780.0),
    "watkins-0.75": ("dqn-lambda", "watkins:0.75", 0.70, 1.1, 770.0),
}
STEPS = 200_000


def make_config(environment: str, arm: str, seed: int) -> dict[str, Any]:
    agent, estimator, *_ = ARMS.get(arm, ARMS["peng-0.75"])
    is_cached = agent == "dqn-lambda"
    return {
        "env": environment,
        "agent": agent,
        "estimator": estimator,
        "steps": STEPS,
        "seed": seed,
        "discount": 0.99,
        "memory": {"capacity": 100_000, "start": 5_000, "history": 1},
        "cache": {"size": 16_000, "block_length": 100, "refresh_every": 1_000} if is_cached else None,
        "target": None if is_cached else {"copy_every": 1_000, "update_every": 4},
        "network": {"kind": "auto", "hidden": [128, 128]},
    }


def write_run(path: Path, config: dict[str, Any], until: int) -> None:
    """A run directory that looks like a real one: random play, an S-shaped rise, skewed scores, longer games."""
    environment, arm, seed = config["env"], next(name for name in ARMS if name in path.parts), config["seed"]
    low, high, short, long = ENVIRONMENTS[environment]
    *_, height, speed, rate = ARMS[arm]
    rng = np.random.default_rng([list(ENVIRONMENTS).index(environment), list(ARMS).index(arm), seed])
    height *= math.exp(rng.normal(0, 0.08))
    middle, width = STEPS * 0.45 / speed * math.exp(rng.normal(0, 0.12)), STEPS * 0.1
    rows, step = ["episode,step,stream,score,length,seed,ended"], 0
    while True:
        skill = height * (1 / (1 + math.exp(-(step - middle) / width)) - 1 / (1 + math.exp(middle / width)))
        length = max(4, int(rng.gamma(6, (short + (long - short) * skill) / 6)) if long > short else int(long))
        step += length
        if step > until:
            break
        score = round(rng.gamma(3, max(1e-9, low + (high - low) * skill) / 3))
        rows.append(f"{len(rows) - 1},{step},0,{score},{length},{rng.integers(2**31)},terminated")
    refreshes = np.arange(1_000, until + 1, 1_000)
    seconds = np.cumsum(1_000 / rate * np.exp(rng.normal(0, 0.05, len(refreshes)))) + 2.0
    timing = [json.dumps({"step": int(s), "seconds": float(t)}) for s, t in zip(refreshes, seconds, strict=True)]
    provenance = {
        "lambda_replay": "0.1.0",
        "python": "3.11.7",
        "platform": "Linux x86_64",
        "versions": {"numpy": "2.4.6", "torch": "2.13.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "started": "2025-01-01T12:00:00Z",
        "command": f"lambda-replay train {environment} --estimator {config['estimator']} --seed {seed}",
    }
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "provenance.json").write_text(json.dumps(provenance))
    (path / "episodes.csv").write_text("\n".join(rows) + "\n")
    (path / "timing.jsonl").write_text("\n".join(timing) + "\n")


def make_study(root: Path, *, environments: int, seeds: int, states: dict[tuple[str, str, int], State]) -> StudyData:
    """A study on disk; runs are finished unless ``states`` says otherwise."""
    names = tuple(ENVIRONMENTS)[:environments]
    records = []
    for environment in names:
        for arm in ARMS:
            for seed in range(seeds):
                state = states.get((environment, arm, seed), "finished")
                path = root / "runs" / environment.replace("/", "-") / arm / f"seed-{seed}"
                if state != "waiting":
                    until = STEPS if state == "finished" else STEPS * (3 + seed) // 8
                    write_run(path, make_config(environment, arm, seed), until)
                reason = "the environment raised RuntimeError: out of memory" if state == "failed" else ""
                records.append(RunRecord(environment, arm, seed, path, state, reason))
    defaults = {environment: make_config(environment, "peng-0.75", 0) for environment in names}
    return StudyData(
        name="peng-mini",
        environments=names,
        arms=tuple(ARMS),
        baseline="dqn-3step",
        seeds=tuple(range(seeds)),
        steps=STEPS,
        runs=tuple(records),
        defaults=defaults,
    )
