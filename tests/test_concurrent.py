"""Acting while training: the result does not depend on which of the two is faster, and the run resumes as any other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import HUNG_SECONDS
from small_runs import finish

from lambda_replay.agents.dqn_lambda import DQNLambda
from lambda_replay.agents.protocol import KeepsGoing, Work
from lambda_replay.agents.run_settings import override
from lambda_replay.config import RunConfig
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.errors import ConfigError
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.training.events import Learned, RunEvent
from lambda_replay.training.presets import make_config
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import start_run, train_run
from lambda_replay.training.worker import Worker

RESULTS = ("metrics.jsonl", "episodes.csv", "weights.safetensors")


def small(**changes: Any) -> RunConfig:
    """CartPole with windows of 120 steps; the ring wraps several times."""
    return override(
        make_config("CartPole-v1"),
        {
            "steps": 1200,
            "envs": 2,
            "memory": {"capacity": 700, "start": 240},
            "cache": {"size": 200, "block_length": 20, "refresh_every": 120, "updates": 20, "schedule": "concurrent"},
            "exploration": {"steps": 600},
            "checkpoint_every": 240,
            **changes,
        },
    )


def results(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in RESULTS}


def training_first(patch: pytest.MonkeyPatch, holder: Any, name: str) -> None:
    """Let acting, of which ``holder.name`` is a part, wait in every window until the training is over."""
    act = getattr(holder, name)

    def act_later(*arguments: Any) -> Any:
        for thread in threading.enumerate():
            if thread.name == "training" and thread is not threading.current_thread():
                thread.join()
        return act(*arguments)

    patch.setattr(holder, name, act_later)


def acting_first(patch: pytest.MonkeyPatch) -> None:
    """Let the training wait in every window until its last step is taken."""
    learn, await_training, is_acted = DQNLambda.learn, Worker.finish, threading.Event()

    def learn_later(agent: DQNLambda, step: int) -> Work | None:
        work = learn(agent, step)
        if work is None:
            return None

        def train_later(keeps_going: KeepsGoing) -> Metrics | None:
            assert is_acted.wait(HUNG_SECONDS)
            return work.train(keeps_going)

        return work._replace(train=train_later)

    def finish_and_note(worker: Worker) -> Metrics | None:
        is_acted.set()
        metrics = await_training(worker)
        is_acted.clear()
        return metrics

    patch.setattr(DQNLambda, "learn", learn_later)
    patch.setattr(Worker, "finish", finish_and_note)


def test_the_result_does_not_depend_on_timing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_run(tmp_path / "plain", small())
    with monkeypatch.context() as patch:
        training_first(patch, GymnasiumEnvironment, "step")
        train_run(tmp_path / "training-first", small())
    with monkeypatch.context() as patch:
        acting_first(patch)
        train_run(tmp_path / "acting-first", small())
    assert results(tmp_path / "training-first") == results(tmp_path / "plain")
    assert results(tmp_path / "acting-first") == results(tmp_path / "plain")


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    train_run(tmp_path / "whole", small())

    class Stop(Exception):
        pass

    def stop_late(event: RunEvent) -> None:
        if isinstance(event, Learned) and event.step >= 720:
            raise Stop

    run = start_run(tmp_path / "stopped", small())
    with pytest.raises(Stop):
        run.train(stop_late)
    run.close()
    finish(resume_run(tmp_path / "stopped", pytest.fail))
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")


def test_acting_uses_the_network_of_before_the_training(tmp_path: Path) -> None:
    """One window of 120 steps: the games after the first boundary are those of the untrained network."""
    concurrent = small(steps=360, exploration={"start": 0.0, "end": 0.0, "steps": 1})
    frozen = override(concurrent, {"cache": {"schedule": "burst"}, "optimizer": {"learning_rate": 1e-12}})
    train_run(tmp_path / "concurrent", concurrent)
    train_run(tmp_path / "frozen", frozen)
    assert (tmp_path / "concurrent" / "episodes.csv").read_bytes() == (
        tmp_path / "frozen" / "episodes.csv"
    ).read_bytes()


def test_metrics_come_at_the_end_of_the_window_they_describe(tmp_path: Path) -> None:
    steps: list[int] = []

    def note(event: RunEvent) -> None:
        if isinstance(event, Learned) and "loss" in event.metrics:
            steps.append(event.step)

    train_run(tmp_path / "run", small(steps=720), on_event=note)
    np.testing.assert_array_equal(steps, [360, 480, 600, 720])


def test_a_memory_that_acting_would_overwrite_meanwhile_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory\.capacity.*smaller than a block"):
        small(memory={"capacity": 250, "start": 240})
