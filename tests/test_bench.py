"""Speed at tiny sizes: the command ``bench``, and the comparison with the peers, of whom an absent one costs a line."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.speed import harness
from benchmarks.speed.__main__ import main as compare
from benchmarks.speed.adapter import make_adapters
from benchmarks.speed.arithmetic import count_flops
from benchmarks.speed.harness import Plan, run_plan
from benchmarks.speed.measurement import allowed_cores
from benchmarks.speed.plain_networks import count_parameters, plain_network
from benchmarks.speed.tables import LABELS, make_tables
from benchmarks.speed.workloads import (
    CONTENDERS,
    WORKLOADS,
    Contender,
    Job,
    is_available,
    job_from_dict,
    job_to_dict,
    run_config,
)
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.cli import bench, main
from lambda_replay.config import NetworkConfig
from lambda_replay.errors import ConfigError
from lambda_replay.learning.networks import make_network
from lambda_replay.training.presets import make_config
from lambda_replay.training.speed import Stopwatch, shorten, time_run

TINY = replace(WORKLOADS["cartpole"], capacity=2_000, start=256, refresh_every=96)
TINY_PLAN = Plan((TINY,), ("dqn-lambda", "dqn"), (2,), (1,), 2, 0.01, 1, memory_sizes=(2_000,), paper_blocks=20)


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def test_a_forward_pass_of_the_atari_network_costs_what_its_layers_say() -> None:
    # Two operations per multiplication: conv 32·20²·(4·8²), 64·9²·(32·4²), 64·7²·(64·3²); dense 3136·512 and 512·4.
    first = 2 * 32 * 20**2 * 4 * 8**2
    others = 2 * (64 * 9**2 * 32 * 4**2 + 64 * 7**2 * 64 * 3**2 + 3136 * 512 + 512 * 4)
    forward, training = count_flops(plain_network("atari", (4, 84, 84), 4), torch.zeros(2, 4, 84, 84))
    assert forward == first + others
    assert training == 2 * first + 3 * others  # the first layer needs no gradient of its input


@pytest.mark.parametrize(
    ("kind", "plain_shape", "our_shape"),
    [("atari", (4, 84, 84), (4, 84, 84)), ("minatar", (4, 10, 10), (1, 10, 10, 4)), ("mlp", (4,), (1, 4))],
)
def test_peers_get_a_network_of_the_same_size(kind: Any, plain_shape: Any, our_shape: Any) -> None:
    ours = make_network(NetworkConfig(kind=kind, hidden=(128, 128)), our_shape, 3, seed=0)
    assert count_parameters(plain_network(kind, plain_shape, 3)) == count_parameters(ours)


def test_the_cache_has_the_papers_proportions_in_every_workload() -> None:
    for workload in WORKLOADS.values():
        for envs in (1, 8):
            algorithm = run_config(Job(workload, "dqn-lambda", envs, 1, 1.0)).algorithm
            assert isinstance(algorithm, DQNLambdaConfig)
            cache = algorithm.cache
            assert cache.size == 8 * cache.refresh_every
            assert cache.updates_per_refresh * 4 == cache.refresh_every
            assert cache.block_length == 100


def test_a_job_survives_json() -> None:
    job = Job(TINY, "sb3", 8, 2, 1.5)
    assert job_from_dict(json.loads(json.dumps(job_to_dict(job)))) == job


def test_a_stopwatch_counts_whole_cycles_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, 11.0, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch = Stopwatch(first_step=100, seconds=2.0)
    assert [watch.is_over(step) for step in (50, 100, 150, 200)] == [False, False, False, True]
    assert (watch.steps, watch.seconds, watch.steps_per_second) == (100, 2.5, 40.0)


@pytest.mark.parametrize("has_cycles", [True, False])
def test_a_timed_run_ends_at_a_boundary_or_where_it_has_no_cycles_at_a_game(has_cycles: bool) -> None:
    config = run_config(Job(TINY, "dqn-lambda", 1, 1, 1.0))
    watch = Stopwatch(TINY.start + 1, seconds=1e-9)
    run = time_run(config, watch, has_cycles=has_cycles)
    assert not run.path.exists()
    assert run.loop.step < TINY.start + 96 * (4 if has_cycles else 8)
    assert (watch.steps == 96) is has_cycles  # a game of CartPole that is played at random is shorter


@needs("ale_py")
def test_a_lost_life_ends_the_episode_but_not_the_game() -> None:
    (adapter,) = make_adapters(run_config(Job(WORKLOADS["atari"], "sb3", 1, 1, 1.0)))
    state, _ = adapter.reset(seed=0)
    assert state.shape == (4, 84, 84)
    assert not state[:3].any()
    terminated, before = False, state
    while not terminated:
        before = state
        state, _, terminated, _, _ = adapter.step(1)  # FIRE: the ball is soon lost
    np.testing.assert_array_equal(state[:3], before[1:])
    after, _ = adapter.reset()
    np.testing.assert_array_equal(after[3], state[3])
    assert not after[:3].any()
    adapter.close()


@needs("minatar")
def test_planes_come_to_peers_as_bytes_with_channels_first() -> None:
    (adapter,) = make_adapters(run_config(Job(WORKLOADS["minatar"], "sb3", 1, 1, 1.0)))
    state, _ = adapter.reset(seed=0)
    assert state.shape == (4, 10, 10)
    assert state.dtype == np.uint8
    assert adapter.observation_space.contains(state)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    said: list[str] = []
    found = run_plan(TINY_PLAN, said.append)
    assert said
    return json.loads(json.dumps(found))


def test_every_contender_has_a_row_with_median_spread_and_bound(results: dict[str, Any]) -> None:
    rows = results["speed"]
    assert [(row["contender"], row["envs"]) for row in rows] == [("dqn-lambda", 2), ("dqn", 2)]
    for row in rows:
        assert len(row["samples"]) == 2
        assert 0 < row["low"] <= row["steps_per_second"] <= row["high"]
        # Measured at different times, so that on a busy machine a share may be above 1.
        speed, flops = row["steps_per_second"], row["flops_per_step"]
        assert row["share_of_bound"] == pytest.approx(speed * flops / results["peak_flops_per_second"]["1"])
        assert row["share_of_bound_then"] > 0
        assert len(row["sgemm_flops_per_second"]) == 2
        assert row["parameters"] == 17_410
        assert row["peak_bytes"] > 50e6
        assert row["ratio"] is None  # the baseline did not take part
    assert results["peak_flops_per_second"]["1"] > 1e8


def test_the_parts_of_a_step_are_named_and_positive(results: dict[str, Any]) -> None:
    assert len(results["parts"]) == 1
    for found in results["parts"]:
        assert {"acting", "environment", "refresh: forward", "training: step"} <= found["seconds_per_step"].keys()
        assert all(seconds > 0 for seconds in found["seconds_per_step"].values())
        assert found["share_of_sgemm"].keys() == {"acting", "refresh: forward", "training: step"}
        assert all(share > 0 for share in found["share_of_sgemm"].values())
    assert results["estimators"]["blocks"] == 20
    assert [size["slots"] for size in results["memory_sizes"]] == [2_000]
    assert results["skipped"] == {}


def test_tables_and_picture_show_every_contender(results: dict[str, Any], tmp_path: Path) -> None:
    console = Console(width=160, file=io.StringIO())
    for table in make_tables(results):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert LABELS["dqn-lambda"] in text
    assert "refresh: forward" in text
    pytest.importorskip("matplotlib")
    from benchmarks.speed.picture import draw_speed

    draw_speed(results, tmp_path / "new" / "bench.png")
    assert (tmp_path / "new" / "bench.png").stat().st_size > 10_000


def test_an_absent_peer_is_left_out_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Contender("sb3", "a_package_that_is_nowhere")
    assert not is_available(absent)
    monkeypatch.setitem(CONTENDERS, "sb3", absent)
    monkeypatch.setattr(harness, "run_task", lambda task, *rest: {"flops_per_second": 1.0})
    said: list[str] = []
    found = run_plan(replace(TINY_PLAN, contenders=("sb3",), memory_sizes=(), repeats=1), said.append)
    assert found["speed"] == []
    assert sum("pip install -e '.[bench]'" in line for line in said) == 1


def test_a_peer_that_fails_costs_one_line_and_its_row() -> None:
    broken = replace(TINY, env="NoSuchEnvironment-v0")
    found = run_plan(
        replace(TINY_PLAN, workloads=(broken,), contenders=("dqn",), envs=(1,), memory_sizes=()), lambda line: None
    )
    assert found["speed"] == []
    assert "NoSuchEnvironment" in found["skipped"]["dqn on cartpole, 1 environment(s)"]


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name, contender in CONTENDERS.items() if not contender.is_ours])
def test_a_peer_runs_at_equal_settings(name: str) -> None:
    values = harness.run_task("speed", job_to_dict(Job(TINY, name, 2, 1, 0.01)), 1, allowed_cores()[:1])
    assert values["parameters"] == 17_410
    assert values["steps"] % 8 == 0  # whole cycles: four steps of each environment, two updates
    assert values["steps_per_second"] > 0


MISTAKES = [
    ("--workloads chess", ["chess", "choose one of"]),
    ("--workloads", ["--workloads", "empty"]),
    ("--contenders acme", ["no contender 'acme'"]),
    ("--seconds nan", ["--seconds is nan"]),
    ("--seconds inf", ["--seconds is inf"]),
    ("--seconds 0", ["--seconds is 0"]),
    ("--seconds -1", ["--seconds is -1"]),
    ("--repeats 0", ["--repeats is 0"]),
    ("--cores 0", ["--cores is 0"]),
    ("--threads 0", ["--threads is 0"]),
    ("--threads 1 -1", ["--threads is 1 -1"]),
    ("--envs 0", ["--envs is 0"]),
    ("--threads", ["--threads is empty"]),
    ("--memory-sizes 0", ["--memory-sizes"]),
    ("--memory-sizes -5", ["--memory-sizes"]),
    ("--quick --seconds 9", ["--quick", "--seconds"]),
    ("--out FILE", ["FILE is not a directory"]),
    ("--out FILE/more", ["FILE is not a directory"]),
    ("--fly", ["no option --fly"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[arguments for arguments, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: str,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    assert compare(arguments.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("benchmarks.speed: ")
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_a_plan_for_more_cores_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower --threads"):
        Plan(threads=(1, 3), cores=2)


def test_the_comparison_and_the_command_do_not_import_the_peers() -> None:
    code = "import sys, benchmarks.speed.__main__, lambda_replay.cli.bench; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=harness.ROOT
    ).stdout.split()
    assert not {"stable_baselines3", "tianshou", "torchrl", "matplotlib"} & set(loaded)


# --- lambda-replay bench ----------------------------------------------------------------------------------------------


def test_the_command_times_every_agent_of_a_preset_and_says_how_long_its_run_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "ENVIRONMENTS", (("classic", "CartPole-v1"),))
    assert main(["bench", "--seconds", "0.01", "--threads", "1", "--envs", "1", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [(row["agent"], row["envs"], row["threads"]) for row in found["speed"]]
    assert rows == [(agent, envs, 1) for agent in ("dqn-lambda", "dqn", "pqn", "drqn-lambda") for envs in (1, 4)]
    for row in found["speed"]:
        steps = {"pqn": 200_704, "drqn-lambda": 100_000}.get(row["agent"], 200_000)
        assert (row["env"], row["preset"], row["run_steps"]) == ("CartPole-v1", "classic", steps)
        assert row["steps_per_second"] > 10
        assert row["run_seconds"] == pytest.approx(steps / row["steps_per_second"])
    assert found["left_out"] == []
    assert not list(tmp_path.iterdir())


def test_by_default_a_preset_is_timed_with_its_own_number_of_environments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ENVIRONMENTS", (("minatar", "minatar/breakout"),))
    assert main(["bench", "--seconds", "0.01", "--threads", "1", "--json"]) == 0
    rows = [(row["preset"], row["agent"], row["envs"]) for row in json.loads(capsys.readouterr().out)["speed"]]
    envs = {"dqn-lambda": 100, "dqn": 100, "pqn": 128, "drqn-lambda": 100}
    assert rows == [("minatar", agent, number) for agent, number in envs.items()]


def test_the_clock_does_not_stop_before_a_step_has_been_made() -> None:
    """Without cycles the end of a game is a mark, and several games can end at one step."""
    stopwatch = Stopwatch(100, seconds=0.0)
    assert [stopwatch.is_over(step) for step in (90, 100, 100, 100, 140)] == [False, False, False, False, True]
    assert (stopwatch.steps, stopwatch.steps_per_second > 0) == (40, True)


def test_what_cannot_be_measured_is_left_out_with_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ENVIRONMENTS", (("classic", "NoSuchEnvironment-v0"), ("classic", "CartPole-v1")))
    # 8 environments do not fit a refresh every 100 steps.
    assert main(["bench", "--seconds", "0.01", "--threads", "1", "--envs", "1", "8"]) == 0
    said = capsys.readouterr()
    assert "preset classic, 200,000 steps" in said.out
    assert "NoSuchEnvironment" not in said.out
    sentences = " ".join(said.err.split())
    assert "skipped NoSuchEnvironment-v0, dqn-lambda, --envs 1, --threads 1: " in sentences
    assert "skipped CartPole-v1, dqn-lambda, --envs 8, --threads 1: cache.refresh_every (100)" in sentences
    monkeypatch.setattr(bench, "ENVIRONMENTS", (("classic", "NoSuchEnvironment-v0"),))
    assert main(["bench", "--seconds", "0.01", "--threads", "1"]) == 2
    assert "NoSuchEnvironment-v0" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("env", "preset", "envs", "expected"),
    [
        # The paper refreshes 80,000 rows every 10,000 steps and takes 2,500 updates: a fiftieth of all three.
        ("atari/breakout", "paper", 1, (200, 1_600, 50)),
        ("atari/breakout", "paper", 8, (200, 1_600, 50)),
        ("atari/breakout", "paper", 125, (250, 2_000, 62)),  # a fortieth: 200 is no multiple of 125
        ("atari/breakout", "atari", 8, (200, 800, 25)),
        ("minatar/breakout", "mini", 8, (200, 3_200, 50)),
        ("CartPole-v1", "classic", 1, (100, 4_000, 25)),  # as it is
    ],
)
def test_short_cycles_keep_the_proportions_of_the_preset(
    env: str, preset: str, envs: int, expected: tuple[int, int, int]
) -> None:
    small, has_cycles = shorten(replace(make_config(env, preset), envs=envs, threads=1))
    assert has_cycles
    assert isinstance(small.algorithm, DQNLambdaConfig)
    cache = small.algorithm.cache
    assert (cache.refresh_every, cache.size, cache.updates_per_refresh) == expected  # F, S, updates
    assert (small.memory.storage, small.checkpoint_every) == ("ram", 0)
    baseline, has_cycles = shorten(replace(make_config(env, preset, "dqn"), threads=1))
    assert not has_cycles  # it learns at every few steps
    assert baseline.memory.start == 2_000
