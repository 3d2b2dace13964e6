"""The benchmark at tiny sizes: what is counted, what comes out, and that an absent peer costs one line, not the run."""

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

from lambda_replay.benchmarks import harness
from lambda_replay.benchmarks.adapter import make_adapters
from lambda_replay.benchmarks.arithmetic import count_flops
from lambda_replay.benchmarks.harness import Plan, run_plan
from lambda_replay.benchmarks.plain_networks import count_parameters, plain_network
from lambda_replay.benchmarks.stopwatch import Stopwatch, allowed_cores
from lambda_replay.benchmarks.tables import LABELS, make_tables
from lambda_replay.benchmarks.workloads import (
    CONTENDERS,
    WORKLOADS,
    Contender,
    Job,
    is_available,
    job_from_dict,
    job_to_dict,
    run_config,
)
from lambda_replay.cli import main
from lambda_replay.config import NetworkConfig
from lambda_replay.errors import ConfigError
from lambda_replay.learning.networks import make_network

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
            cache = run_config(Job(workload, "dqn-lambda", envs, 1, 1.0)).cache
            assert cache is not None
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
    assert (watch.steps, watch.seconds) == (100, 2.5)


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
    from lambda_replay.benchmarks.picture import draw_speed

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
    assert sum("lambda-replay[bench]" in line for line in said) == 1


def test_a_peer_that_fails_costs_one_line_and_its_row() -> None:
    broken = replace(TINY, env="NoSuchEnvironment-v0")
    found = run_plan(
        replace(TINY_PLAN, workloads=(broken,), contenders=("dqn",), envs=(1,), memory_sizes=()), lambda line: None
    )
    assert found["speed"] == []
    assert "NoSuchEnvironment" in found["skipped"]["dqn on cartpole, 1 environment(s)"]


@pytest.mark.parametrize("name", [name for name, contender in CONTENDERS.items() if not contender.is_ours])
def test_a_peer_runs_at_equal_settings(name: str) -> None:
    package = CONTENDERS[name].package
    assert package is not None
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    values = harness.run_task("speed", job_to_dict(Job(TINY, name, 2, 1, 0.01)), 1, allowed_cores()[:1])
    assert values["parameters"] == 17_410
    assert values["steps"] % 8 == 0  # whole cycles: four steps of each environment, two updates
    assert values["steps_per_second"] > 0


def test_an_unknown_name_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--workloads", "chess"]) == 2
    assert "chess" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no contender"):
        Plan(contenders=("acme",))
    with pytest.raises(ConfigError, match="lower --threads"):
        Plan(threads=(1, 3), cores=2)


def test_the_command_does_not_import_the_peers() -> None:
    code = "import sys, lambda_replay.cli.bench; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"stable_baselines3", "tianshou", "torchrl", "matplotlib"} & set(loaded)
