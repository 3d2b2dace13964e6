"""Same seed, same bytes; another seed, other bytes: in one process, and between processes with other hash seeds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from environments import tiny_config

from lambda_replay.config import RunConfig
from lambda_replay.training.run import train_run

TESTS = Path(__file__).parent
RESULTS = ("metrics.jsonl", "episodes.csv", "weights.safetensors")
KINDS: dict[str, dict[str, Any]] = {
    "CartPole-v1 dqn-lambda": {},
    "CartPole-v1 dqn": {"agent": "dqn"},
    "CartPole-v1 concurrent": {"cache": {"schedule": "concurrent"}, "envs": 2},
    "minatar/breakout dqn-lambda": {"estimator": "median", "cache": {"priority": 0.1}, "checkpoint_every": 100},
    "minatar/breakout dqn": {"agent": "dqn", "envs": 2},
}

# Trains every kind with two seeds and says what is in each file, on one line of JSON.
CODE = """
import hashlib, json, sys
from pathlib import Path
import test_determinism as tests
found = {}
for kind in tests.KINDS:
    for seed in (0, 1):
        path = Path(sys.argv[1]) / f"{kind.replace('/', ' ')} {seed}"
        tests.train_run(path, tests.config_of(kind, seed))
        found[f"{kind} {seed}"] = {
            name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in tests.RESULTS
        }
print(json.dumps(found))
"""


def config_of(kind: str, seed: int) -> RunConfig:
    changes = {"seed": seed, "steps": 300, **KINDS[kind]}
    if "checkpoint_every" in changes:
        changes["memory"] = {"storage": "disk"}
    return tiny_config(kind.partition(" ")[0], **changes)


def test_processes_write_the_same_bytes_for_a_seed_and_others_for_another(tmp_path: Path) -> None:
    """Two processes, each with another order of its sets of strings: the determinism snapshot of this machine."""
    processes = []
    for hash_seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        command = [sys.executable, "-c", CODE, str(tmp_path / hash_seed)]
        processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    one, other = (json.loads(answer) for answer in answers)
    assert one.keys() == {f"{kind} {seed}" for kind in KINDS for seed in (0, 1)}
    for name, files in one.items():
        assert files == other[name], name
    for kind in KINDS:
        for file in RESULTS:
            assert one[f"{kind} 0"][file] != one[f"{kind} 1"][file], (kind, file)


@pytest.mark.parametrize("kind", KINDS)
def test_what_ran_before_in_the_process_does_not_matter(tmp_path: Path, kind: str) -> None:
    """Neither an earlier run, nor the global random states, which are not touched either."""
    train_run(tmp_path / "one", config_of(kind, 0))
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
    train_run(tmp_path / "other", config_of(kind, 0))
    after = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
    assert before == after
    for name in RESULTS:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name


def test_settings_that_only_concern_the_disk_change_nothing(tmp_path: Path) -> None:
    """Memory in RAM or mapped from files, with checkpoints or without."""
    changes: dict[str, Any] = {"memory": {"storage": "disk"}, "checkpoint_every": 100}
    train_run(tmp_path / "ram", tiny_config())
    train_run(tmp_path / "disk", tiny_config(**changes))
    for name in RESULTS:
        assert (tmp_path / "ram" / name).read_bytes() == (tmp_path / "disk" / name).read_bytes(), name
