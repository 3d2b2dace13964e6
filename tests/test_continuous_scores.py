"""The comparison of continuous agents: jobs with missing files run, settings fit, and tables show what was measured."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from PIL import Image

from benchmarks.continuous_scores.__main__ import run_one
from benchmarks.continuous_scores.report import compare_lambdas, draw, tables
from benchmarks.continuous_scores.tasks import ARMS, LAMBDAS, TASKS, THEIRS
from benchmarks.jobs import Job, make_missing
from lambda_replay.agents.run_settings import override
from lambda_replay.agents.sac_lambda import SACLambdaConfig
from lambda_replay.training.library import nested
from lambda_replay.training.presets import make_config


def writing(out: Path, text: str) -> Job:
    return Job(out.stem, out, [sys.executable, "-c", f"open({str(out)!r}, 'w').write({text!r})"])


def test_only_missing_runs_are_made(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    make_missing([writing(tmp_path / "old", "new"), writing(tmp_path / "missing", "new")], cores=[0])
    assert (tmp_path / "old").read_text() == "old"
    assert (tmp_path / "missing").read_text() == "new"


def test_a_failed_run_stops_the_others(tmp_path: Path) -> None:
    failing = Job("failing", tmp_path / "never", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(SystemExit, match="a run failed"):
        make_missing([failing, writing(tmp_path / "later", "")], cores=[0])
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize("name", TASKS)
def test_every_arm_has_settings_that_fit(name: str) -> None:
    task = TASKS[name]
    for arm in set(task.arms) - {THEIRS}:
        config = make_config(task.env, agent=ARMS[arm].agent)
        override(config, nested({"steps": task.steps, **ARMS[arm].settings}))


def test_their_sac_has_our_settings() -> None:
    """Its defaults are what we compare with: networks, minibatches, rates and the entropy's target are equal."""
    from stable_baselines3 import SAC

    theirs: Any = SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), device="cpu")
    config = make_config("Pendulum-v1", agent="sac-lambda")
    ours = config.algorithm
    assert isinstance(ours, SACLambdaConfig)
    assert (theirs.batch_size, theirs.learning_rate) == (ours.optimizer.batch_size, ours.optimizer.learning_rate)
    assert theirs.policy.net_arch == list(ours.network.hidden)
    assert theirs.gamma == config.discount
    assert theirs.buffer_size == config.memory.capacity
    assert theirs.target_entropy == -1  # as ours: minus the numbers in an action
    assert (theirs.train_freq.frequency, theirs.gradient_steps) == (1, 1)
    assert ours.cache.updates_per_refresh == ours.cache.refresh_every


def result(arm: str, seed: int, score: float) -> dict[str, Any]:
    evaluations = [{"step": step, "score_mean": score - 20_000 + step} for step in (10_000, 20_000)]
    return {"task": "pendulum", "arm": arm, "seed": seed, "evaluations": evaluations}


def test_the_table_has_the_last_evaluation_of_every_run() -> None:
    text = tables([result("sac-lambda", 10, -150.4), result("sac-lambda", 12, -100), result("td3", 12, -170)])
    assert text.splitlines() == [
        "| Pendulum-v1, 20,000 steps | seed 10 | seed 12 | mean | on the way |",
        "|---|---|---|---|---|",
        "| `sac-lambda`, λ = 0.7 | -150 | -100 | -125 ± 25 | -5125 ± 25 |",  # 10,000 lower halfway
        "| `td3`: target networks, one-step returns | – | -170 | -170 | -5170 |",
    ]


def test_every_lambda_is_compared_with_the_best_over_seeds_that_all_have() -> None:
    def run(task: str, arm: str, seed: int, score: float) -> dict[str, Any]:
        return {**result(arm, seed, score), "task": task}

    results = [run("hopper", arm, 0, score) for arm, score in zip(LAMBDAS, (500, 1000, 750, 250), strict=True)]
    results += [run("half-cheetah", arm, 1, score) for arm, score in zip(LAMBDAS, (90, 60, 30, 0), strict=True)]
    results += [run("half-cheetah", LAMBDAS[3], 2, 4000), run("hopper", "sac", 0, 4000)]  # neither counts
    assert compare_lambdas(results).splitlines() == [
        "| share of the best λ's mean score | HalfCheetah-v5, 1 seed | Hopper-v5, 1 seed | mean |",
        "|---|---|---|---|",
        "| `sac-lambda`, λ = 0 | 1.00 | 0.50 | 0.75 |",
        "| `sac-lambda`, λ = 0.5 | 0.67 | 1.00 | 0.83 |",
        "| `sac-lambda`, λ = 0.7 | 0.33 | 0.75 | 0.54 |",
        "| `sac-lambda`, λ = 0.9 | 0.00 | 0.25 | 0.12 |",
    ]
    assert compare_lambdas(results[1:]).count("Hopper") == 0  # λ = 0 has no run there


def test_the_picture_has_a_panel_for_every_task_with_runs() -> None:
    one = draw([result("sac-lambda", 10, -150.0), result("td3", 12, -170)])
    two = draw([result("sac-lambda", 10, -150.0), {**result("sac", 0, 900.0), "task": "hopper"}])
    sizes = [Image.open(io.BytesIO(picture)).size for picture in (one, two)]
    assert sizes[0] == sizes[1]  # side by side
    assert one != two


@pytest.mark.parametrize("arm", ["td3-lambda", THEIRS])
def test_a_run_is_evaluated_on_its_way(arm: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(TASKS, "pendulum", TASKS["pendulum"]._replace(steps=2_200))
    monkeypatch.setattr("benchmarks.continuous_scores.__main__.GAMES", 2)
    monkeypatch.setattr("benchmarks.continuous_scores.__main__.EVALUATIONS", 2)
    found = run_one("pendulum", arm, 0, tmp_path / "run")
    assert [row["step"] for row in found["evaluations"]][-1] == 2_200
    assert all(-2_000 < row["score_mean"] < 0 for row in found["evaluations"])
    assert found["versions"]["torch"]
