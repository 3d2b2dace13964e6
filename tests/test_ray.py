"""A study on a real Ray cluster of two nodes, one of which is killed; nothing of it listens beyond this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gates import Gate
from processes import HUNG_SECONDS, wait_for

from lambda_replay.studies.attempt import is_free
from lambda_replay.studies.cluster import probe
from lambda_replay.studies.layout import Layout, make_layout
from lambda_replay.studies.plan import PlannedRun, read_study
from lambda_replay.studies.status import read_status

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, while its processes start and are killed
ray_cluster = pytest.importorskip("ray.cluster_utils")

LOOPBACK = "127.0.0.1"
SAME_BYTES = ("metrics.jsonl", "episodes.csv", "weights.safetensors", "config.json")
# Loopback is an address like any other to the driver, nothing is reported to anybody, and the user's own cluster, if
# there is one, is left alone.
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_port_wait_time_s": str(int(HUNG_SECONDS)),
}
# As ``python -m lambda_replay``, but with all the time that Ray takes on a busy machine, also to start and to stop.
PATIENT = f"""
import sys
from lambda_replay.cli import main
from lambda_replay.studies import cluster
cluster.SECONDS_TO_CONNECT = cluster.SECONDS_TO_PROBE = cluster.SECONDS_TO_CANCEL = {HUNG_SECONDS}
sys.exit(main())
"""
HELD_AT = 500  # steps of a process: beyond its first checkpoint, before its end
STUDY = """
name = "lost-node"
environments = ["gates:Gated-v0"]
seeds = 2
baseline = "peng"
[defaults]
steps = 1_200
checkpoint_every = 200
memory = {start = 200, capacity = 1_000}
cache = {size = 400, refresh_every = 200, updates = 40}
[arms.peng]
estimator = "peng:0.5"
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Holds every run of the cluster, and of this process."""
    gate = Gate(tmp_path / "gate", HELD_AT)
    for name, value in gate.variables.items():
        monkeypatch.setenv(name, value)
    return gate


@pytest.fixture
def cluster(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one CPU each, whose processes know the gate."""
    temporary = tempfile.mkdtemp(prefix="ray-")  # short, because the sockets in it may not have long names
    for name, value in {**VARIABLES, "RAY_TMPDIR": temporary}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    node = {"num_cpus": 1, "node_ip_address": LOOPBACK, "object_store_memory": 80_000_000, "wait": False}
    # A killed node refuses the connection and is noticed at once; a busy one may take long to answer.
    checks = {"initial_delay_ms": 1000, "period_ms": 500, "timeout_ms": 1000 * HUNG_SECONDS, "failure_threshold": 2}
    config = {f"health_check_{name}": int(value) for name, value in checks.items()}
    head = {**node, "include_dashboard": False, "temp_dir": f"{temporary}/ray", "_system_config": config}
    cluster = ray_cluster.Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes(HUNG_SECONDS)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def study_command(file: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-c", PATIENT, "study", "run", str(file), "--out", str(out), *options]


@contextmanager
def driving(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A study on the cluster; stopped at the latest when this is left."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
        try:
            yield driver
        finally:
            driver.terminate()


def test_a_lost_node_changes_nothing(cluster: Any, gate: Gate, tmp_path: Path) -> None:
    file = tmp_path / "lost-node.toml"
    file.write_text(STUDY)
    study = read_study(file)
    layout = make_layout(tmp_path / "ray", study)
    doomed = cluster.worker_nodes.copy().pop()

    command = study_command(file, tmp_path / "ray", "--ray", cluster.address)
    with driving(command) as driver:
        wait_until_all_are_held(driver, study.runs, layout, gate)
        interrupt(driver, study.runs, layout)
    with driving(command) as driver:
        wait_until_all_are_held(driver, study.runs, layout, gate)
        (victim,) = (run for run in study.runs if raylet_of(layout, run) == raylet_pid(doomed))
        cluster.remove_node(doomed, allow_graceful=False)
        wait_for(lambda: is_free(layout.run(victim)))
        gate.open()
        _, said = driver.communicate(timeout=HUNG_SECONDS)
        assert driver.returncode == 0, said
    assert {status.state for status in read_status(study, layout)} == {"finished"}
    starts = [line for line in layout.log(victim).read_text().splitlines() if line.startswith("---")]
    assert len(starts) == 3
    assert " resume " in starts[1]
    assert " resume " in starts[2]
    assert "resuming from step 0" not in layout.log(victim).read_text()

    subprocess.run(study_command(file, tmp_path / "here", "--workers", "2"), check=True, timeout=HUNG_SECONDS)
    here = make_layout(tmp_path / "here", study)
    for run in study.runs:
        for name in SAME_BYTES:
            assert (layout.run(run) / name).read_bytes() == (here.run(run) / name).read_bytes(), (run.label, name)


def interrupt(driver: subprocess.Popen[str], runs: tuple[PlannedRun, ...], layout: Layout) -> None:
    """Ctrl-C: every run on the cluster stops, tidies up and can be resumed."""
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=HUNG_SECONDS)
    assert driver.returncode == 130
    assert f"stopped with 0 of {len(runs)} runs done" in said
    assert not any(layout.mark(run).exists() for run in runs)


def wait_until_all_are_held(
    driver: subprocess.Popen[str], runs: tuple[PlannedRun, ...], layout: Layout, gate: Gate
) -> None:
    """Wait until every run is at the gate, each on a node of its own, with a checkpoint to go on from."""
    wait_for(lambda: {process_of(layout, run) for run in runs} <= set(gate.arrivals()), lambda: driver.poll() is None)
    assert all(any(layout.run(run).glob("checkpoints/*/state.json")) for run in runs)


def process_of(layout: Layout, run: PlannedRun) -> int | None:
    """The process in which a run is under way; None while it is in none."""
    try:
        return int(json.loads(layout.mark(run).read_text())["pid"])
    except FileNotFoundError:
        return None


def raylet_pid(node: Any) -> str:
    return str(node.all_processes["raylet"][0].process.pid)


def raylet_of(layout: Layout, run: PlannedRun) -> str:
    """The process id of the Ray node on which a run is under way."""
    variables = Path(f"/proc/{process_of(layout, run)}/environ").read_bytes().decode().split("\0")
    return dict(line.partition("=")[::2] for line in variables)["RAY_RAYLET_PID"]


def test_no_cluster_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{unused.getsockname()[1]}"
        command = study_command(file, tmp_path, "--ray", address)
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert f"there is no usable Ray cluster at {address}" in finished.stderr


def test_a_node_that_does_not_share_the_directory_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    assert probe(str(tmp_path), "token")["complaint"] == ""
    assert probe(str(tmp_path), "another")["complaint"] == f"cannot see {tmp_path}"
