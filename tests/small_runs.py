"""Runs of a second or two with a checkpoint at every boundary, for the tests of resume; here and in processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lambda_replay.config import RunConfig, override
from lambda_replay.loop import Event
from lambda_replay.presets import make_config
from lambda_replay.runner import Run, finish_run, resume_run, start_run

RESULTS = ("weights.safetensors", "metrics.jsonl", "episodes.csv")
INTERVAL = 60  # agent steps between boundaries, each with a checkpoint


def small_config(env: str = "CartPole-v1", agent: str = "dqn-lambda", envs: int = 1, **values: Any) -> RunConfig:
    """Boundaries at 120, 180, 240, ... of 420 steps; on Atari a small network."""
    kind = {"network": {"kind": "mlp", "hidden": (16,)}} if env.startswith("atari/") else {}
    config = make_config(env, agent=agent)  # type: ignore[arg-type]
    part = (
        {"cache": {"size": 60, "block_length": 20, "refresh_every": INTERVAL, "updates": 4}}
        if agent == "dqn-lambda"
        else {"target": {"copy_every": INTERVAL, "update_every": 4}}
    )
    memory = {"memory": {"capacity": 240, "start": 120}}
    common = {"envs": envs, "steps": 420, "checkpoint_every": 1, "device": "cpu"}
    return override(config, _merged(_merged({**common, **memory, **part, **kind}, values), {}))


def _merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in more.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if both_tables else value
    return merged


def arguments_of(config: RunConfig, directory: Path) -> list[str]:
    """What follows ``train`` on the command line to run a config."""
    import json

    from lambda_replay.config import to_dict

    path = directory / f"{abs(hash(str(config)))}.json"
    path.write_text(json.dumps(to_dict(config)))
    return ["--config", str(path)]


class Stopped(Exception):
    """Raised in the middle of a run, for a crash that the test process survives."""


def stop_at(step: int) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if event.step >= step:
            raise Stopped

    return on_event


def train_until(path: Path, config: RunConfig, step: int) -> None:
    """A run that breaks off at the first event at or after a step."""
    run = start_run(path, config)
    try:
        run.train(stop_at(step))
    except Stopped:
        return
    finally:
        run.close()
    raise AssertionError(f"the run came to its end before step {step}")


def train_to_end(path: Path, config: RunConfig) -> Path:
    finish(start_run(path, config))
    return path


def finish(run: Run) -> None:
    try:
        run.train(lambda event: None)
        finish_run(run.path)
    finally:
        run.close()


def resume_to_end(path: Path) -> list[str]:
    """Resume and train to the end; what was said about damage."""
    said: list[str] = []
    finish(resume_run(path, said.append))
    return said


def copy_run(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def differences(one: Path, other: Path) -> list[str]:
    """Which results of two runs are not the same, byte by byte."""
    return [name for name in RESULTS if (one / name).read_bytes() != (other / name).read_bytes()]
