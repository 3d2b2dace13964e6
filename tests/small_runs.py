"""Runs of a second or two with a checkpoint at every boundary, for the tests of resume; here and in processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lambda_replay.agents.run_settings import override, to_dict
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.rundir.files import load_tensors
from lambda_replay.training.events import OnEvent, RunEvent
from lambda_replay.training.presets import make_config
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import Run, finish_run, start_run

RESULTS = ("weights.safetensors", "metrics.jsonl", "episodes.csv")
INTERVAL = 60  # agent steps between boundaries, each with a checkpoint
STOPPED_AT = 350  # between the checkpoints at 300 and 360


def small_config(env: str = "CartPole-v1", agent: str = "dqn-lambda", envs: int = 1, **values: Any) -> RunConfig:
    """Boundaries at 120, 180, 240, ... of 420 steps; on Atari a small network. ``values`` replace any of it."""
    small: dict[str, Any] = {
        "envs": envs,
        "steps": 420,
        "checkpoint_every": 1,
        "device": "cpu",
        "memory": {"capacity": 240, "start": 120},
    }
    if agent.endswith("-lambda"):
        small["cache"] = {"size": 60, "block_length": 20, "refresh_every": INTERVAL, "updates": 4}
    elif agent == "pqn":
        small["rollout"], small["optimizer"] = {"size": INTERVAL, "epochs": 2}, {"batch_size": 10}
    elif agent in ("sac", "td3"):
        small["polyak"] = {"train_every": INTERVAL, "updates": 5}  # an odd number, unlike the delay of td3's policy
    else:
        small["target"] = {"copy_every": INTERVAL, "update_every": 4}
    if agent == "drqn-lambda":
        small["recurrence"] = {"sequence_length": 10}
    if agent in ("dqn-lambda", "dqn"):  # a falling rate depends on the steps, so a longer run would be another one
        small["optimizer"] = {"final_learning_rate": None}
    if agent_kind(agent).actions == "Box":
        small["network"], small["optimizer"] = {"hidden": (16,)}, {"batch_size": 32}
    if env.startswith("atari/"):
        small["network"] = {"kind": "mlp", "hidden": (16,)}
    return override(override(make_config(env, agent=agent), small), values)


def train_command(config: RunConfig, directory: Path, out: Path) -> list[str]:
    """The arguments of the command line that run a config."""
    path = directory / f"{out.name}.config.json"
    path.write_text(json.dumps(to_dict(config)))
    return ["train", "--config", str(path), "--out", str(out)]


class Stopped(Exception):
    """Raised in the middle of a run, for a crash that the test process survives."""


def stop_at(step: int) -> OnEvent:
    def on_event(event: RunEvent) -> None:
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


def snapshot(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def learnt_the_same(undisturbed: Path, run: Path, renewed: Mapping[str, int]) -> bool:
    """Whether a run is the undisturbed one but for logs that were begun anew, with the place where each goes on.

    Its weights vouch for the logs, so there only the tensors can be the same.
    """
    weights, others = (load_tensors(path / "weights.safetensors") for path in (undisturbed, run))
    if weights.keys() != others.keys() or not all(torch.equal(weights[name], others[name]) for name in weights):
        return False
    for name in ("metrics.jsonl", "episodes.csv"):
        wanted = (undisturbed / name).read_bytes()
        if name in renewed:
            header = wanted[: wanted.index(b"\n") + 1] if name == "episodes.csv" else b""
            rest = wanted[renewed[name] :]
            wanted = (b"" if rest.startswith(header) else header) + rest if rest else b""
        if (run / name).read_bytes() != wanted:
            return False
    return True


def differences(one: Path, other: Path) -> list[str]:
    """Which results of two runs are not the same, byte by byte."""
    return [name for name in RESULTS if (one / name).read_bytes() != (other / name).read_bytes()]


@contextmanager
def crash_at_call(at: int, error: BaseException, *functions: tuple[Any, str]) -> Iterator[None]:
    """Let the so-maniest call of these functions, each an owner and a name, fail."""
    calls = 0

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise error
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in functions:
            patch.setattr(owner, name, wrap(getattr(owner, name)))
        yield
