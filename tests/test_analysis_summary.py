"""The numbers of a study, from runs that look like real ones; the other tests of the report use the same runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_replay.analysis.pairs import every_pair
from lambda_replay.analysis.records import RunRecord, StudyData
from lambda_replay.analysis.summary import StudySummary, summarise
from lambda_replay.rundir.states import State

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
        "command": ["lambda-replay", "train", environment, "--estimator", config["estimator"], "--seed", str(seed)],
        "notes": [],
        "config": config,
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


UNFINISHED: dict[tuple[str, str, int], State] = {
    **{("minatar/breakout", "watkins-0.75", seed): "waiting" for seed in range(3)},
    **{("minatar/space_invaders", "watkins-0.75", seed): "waiting" for seed in range(3)},
    ("minatar/breakout", "peng-0.75", 2): "running",
    ("minatar/space_invaders", "cached-3step", 0): "failed",
}


def directory_of(study: StudyData) -> Path:
    return study.runs[0].path.parents[3]


def empty_study(root: Path, arms: tuple[str, ...] = ("dqn", "peng")) -> StudyData:
    runs = tuple(RunRecord("CartPole-v1", arm, 0, root / "runs" / arm, "waiting") for arm in arms)
    return StudyData("empty", ("CartPole-v1",), arms, arms[0], (0,), 1_000, runs)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyData:
    root = tmp_path_factory.mktemp("study")
    return make_study(root, environments=2, seeds=3, states=UNFINISHED)


@pytest.fixture(scope="module")
def summary(study: StudyData) -> StudySummary:
    return summarise(study)


def test_the_summary_holds_the_scores_of_the_runs(study: StudyData, summary: StudySummary) -> None:
    finals = []
    for seed in range(3):
        path = directory_of(study) / "runs" / "minatar-breakout" / "peng-0.25" / f"seed-{seed}"
        rows = (path / "episodes.csv").read_text().splitlines()[-100:]
        finals.append(sum(float(row.split(",")[3]) for row in rows) / 100)
    arm = summary.environments[0].arm("peng-0.25")
    np.testing.assert_allclose(arm.final_scores, finals)
    assert arm.final.value == pytest.approx(np.mean(finals))
    assert arm.final.standard_error == pytest.approx(np.std(finals, ddof=1) / math.sqrt(3))
    assert arm.curves["steps"].mean[-1] == pytest.approx(arm.final.value)
    assert arm.comparison is not None
    baseline = summary.environments[0].arm("dqn-3step")
    assert arm.comparison.difference.value == pytest.approx(arm.final.value - baseline.final.value)
    assert summary.environments[0].threshold == pytest.approx(baseline.final.value)


def test_an_unfinished_run_is_in_the_curve_but_not_in_the_final_score(summary: StudySummary) -> None:
    arm = summary.environments[0].arm("peng-0.75")
    counts = arm.curves["steps"].count
    assert len(arm.final_scores) == 2
    assert (counts[50], counts[-1]) == (3, 2)  # seed 2 stands at 5/8 of its steps
    assert arm.to_threshold["steps"].total == 3


def test_only_arms_with_runs_everywhere_are_aggregated(summary: StudySummary) -> None:
    arms = [result.arm for result in summary.aggregates]
    assert sorted(arms) == ["cached-3step", "dqn-3step", "peng-0.25", "peng-0.75"]
    assert arms[0] == "peng-0.75"
    values = [result.interquartile_mean.value for result in summary.aggregates]
    assert values == sorted(values, reverse=True)


def test_every_pair_agrees_with_the_comparison_with_the_baseline(summary: StudySummary) -> None:
    pairs = every_pair(summary)
    ranked = [result.arm for result in summary.aggregates]
    assert [(pair.arm, pair.other) for pair in pairs] == list(combinations(ranked, 2))
    assert ranked[-1] == "dqn-3step"  # so that it is the other of every pair that it is in
    for pair in (pair for pair in pairs if pair.other == "dqn-3step"):
        result = next(result for result in summary.aggregates if result.arm == pair.arm)
        assert pair.probability == result.probability
        assert pair.comparisons == tuple(environment.arm(pair.arm).comparison for environment in summary.environments)


def test_a_pair_is_compared_by_its_own_runs(summary: StudySummary) -> None:
    pair = next(pair for pair in every_pair(summary) if (pair.arm, pair.other) == ("peng-0.75", "peng-0.25"))
    wins = []
    for environment, comparison in zip(summary.environments, pair.comparisons, strict=True):
        ours, theirs = (environment.arm(arm).final_scores for arm in (pair.arm, pair.other))
        assert comparison.difference.value == pytest.approx(ours.mean() - theirs.mean())
        wins.append(np.mean([our > their for our in ours for their in theirs]))
    assert pair.probability.value == pytest.approx(np.mean(wins))
    opposite = pair.probability.complement
    assert opposite.value == pytest.approx(1 - pair.probability.value)
    assert opposite.low <= opposite.value <= opposite.high


def test_a_named_threshold_is_used(study: StudyData) -> None:
    summary = summarise(
        replace(study, environments=study.environments[:1], runs=study.runs[:15], thresholds={"minatar/breakout": 1e9})
    )
    time = summary.environments[0].arm("peng-0.25").to_threshold["steps"]
    assert (time.median, time.reached, time.total) == (math.inf, 0, 3)


def test_a_run_without_its_first_episodes_is_left_out_of_what_needs_them(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=1, seeds=3, states={})
    before = summarise(study).environments[0].arm("peng-0.75")
    path = before.runs[0].record.path / "episodes.csv"
    header, *rows = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(rows[len(rows) // 2 :]))
    environment = summarise(study).environments[0]
    after = environment.arm("peng-0.75")
    assert len(environment.random_scores) == 3 * len(ARMS) - 1
    assert math.isnan(after.runs[0].area)
    assert after.area.value == pytest.approx(np.mean([run.area for run in before.runs[1:]]))
    assert after.to_threshold["steps"].total == before.to_threshold["steps"].total - 1
    assert len(after.final_scores) == 3


def test_an_environment_of_which_no_run_has_its_first_episodes_is_not_called_learnt(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=1, seeds=1, states={})
    for run in study.runs:
        path = run.path / "episodes.csv"
        header, _, *rows = path.read_text().splitlines(keepends=True)
        path.write_text(header + "".join(rows))
    summary = summarise(study)
    assert summary.learnt == ()
    assert all(len(arm.final_scores) for arm in summary.environments[0].arms)
