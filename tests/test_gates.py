"""The gate itself: a gated run waits where it is told to, is killed there, and ends with the bytes of a free one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import GATE, STEP_SECONDS, Gate
from processes import Server, command_line, wait_for
from small_runs import differences, small_config, train_command, train_to_end

from lambda_replay.rundir.checkpoints import saved_steps

GATED = "gates:Gated-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line() as server:
        yield server


@pytest.mark.parametrize("envs", [1, 2])
def test_killed_at_the_gate_and_resumed_it_gives_the_same_bytes(server: Server, tmp_path: Path, envs: int) -> None:
    config, run = small_config(GATED, envs=envs), tmp_path / "run"
    gate = Gate(tmp_path / "gate", 250 // envs)
    child = server.start(*train_command(config, tmp_path, run), variables=gate.variables)
    wait_for(lambda: gate.arrivals() == [child.pid], child.is_alive)
    assert saved_steps(run) == [240, 180]
    child.kill()
    assert child.wait().code == -signal.SIGKILL

    gate.move(100 // envs)  # beyond what is replayed, and before the end
    child = server.start("resume", run, variables=gate.variables)
    wait_for(lambda: child.pid in gate.arrivals(), child.is_alive)
    assert not (run / "weights.safetensors").exists()
    gate.open()
    assert child.wait().code == 0
    assert not differences(train_to_end(tmp_path / "free", config), run)


def test_a_pass_is_for_one(server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate", 100)
    gate.admit_one()
    command = train_command(small_config(GATED, steps=130), tmp_path, tmp_path / "first")
    assert server.run(*command, variables=gate.variables).code == 0
    child = server.start(*command[:-1], tmp_path / "second", variables=gate.variables)
    wait_for(lambda: child.pid in gate.arrivals(), child.is_alive)
    gate.admit_one()
    assert child.wait().code == 0


def test_an_open_gate_and_slow_steps_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(GATED, steps=200)
    monkeypatch.delenv(STEP_SECONDS, raising=False)
    free = train_to_end(tmp_path / "free", config)
    gate = Gate(tmp_path / "gate", 100)
    gate.open()
    monkeypatch.setenv(GATE, gate.variables[GATE])
    monkeypatch.setenv(STEP_SECONDS, "0.0001")
    slow = train_to_end(tmp_path / "slow", config)
    assert not differences(free, slow)
    assert gate.arrivals() == []
