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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
VARIABLES = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
STUDY = """
name = "lost-node"
environments = ["CartPole-v1"]
seeds = 2
baseline = "peng"
[defaults]
steps = 15_000
checkpoint_every = 200
memory = {start = 200, capacity = 1_000}
cache = {size = 400, refresh_every = 200, updates = 50}
[arms.peng]
estimator = "peng:0.5"
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one CPU each."""
    temporary = tempfile.mkdtemp(prefix="ray-")  # short, because the sockets in it may not have long names
    for name, value in {**VARIABLES, "RAY_TMPDIR": temporary}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    node = {"num_cpus": 1, "node_ip_address": LOOPBACK, "object_store_memory": 80_000_000}
    checks = {"initial_delay_ms": 1000, "period_ms": 500, "timeout_ms": 1000, "failure_threshold": 2}
    config = {f"health_check_{name}": value for name, value in checks.items()}
    head = {**node, "include_dashboard": False, "temp_dir": f"{temporary}/ray", "_system_config": config}
    cluster = ray_cluster.Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def study_command(file: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "lambda_replay", "study", "run", str(file), "--out", str(out), *options]


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_a_lost_node_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "lost-node.toml"
    file.write_text(STUDY)
    study = read_study(file)
    layout = make_layout(tmp_path / "ray", study)
    doomed = cluster.worker_nodes.copy().pop()

    command = study_command(file, tmp_path / "ray", "--ray", cluster.address)
    interrupt_when_begun(command, study.runs, layout)
    with subprocess.Popen(command, text=True) as driver:
        try:
            victim = wait_for_run_on(study.runs, layout, doomed)
            cluster.remove_node(doomed, allow_graceful=False)
            assert driver.wait(timeout=120) == 0
        finally:
            driver.send_signal(signal.SIGTERM)
    assert {status.state for status in read_status(study, layout)} == {"finished"}
    starts = [line for line in layout.log(victim).read_text().splitlines() if line.startswith("---")]
    assert len(starts) == 3
    assert " resume " in starts[1]
    assert " resume " in starts[2]
    assert "going on from step 0" not in layout.log(victim).read_text()

    subprocess.run(study_command(file, tmp_path / "here", "--workers", "2"), check=True, timeout=180)
    here = make_layout(tmp_path / "here", study)
    for run in study.runs:
        for name in SAME_BYTES:
            assert (layout.run(run) / name).read_bytes() == (here.run(run) / name).read_bytes(), (run.label, name)


def interrupt_when_begun(command: list[str], runs: tuple[PlannedRun, ...], layout: Layout) -> None:
    """Ctrl-C: every run on the cluster stops, tidies up and can be resumed."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
        wait_for(lambda: all(any(layout.run(run).glob("checkpoints/*/state.json")) for run in runs))
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=120)
    assert driver.returncode == 130
    assert f"stopped with 0 of {len(runs)} runs done" in said
    assert not any(layout.mark(run).exists() for run in runs)


def wait_for_run_on(runs: tuple[PlannedRun, ...], layout: Layout, node: Any) -> PlannedRun:
    """The run that is under way on a node, once it has a checkpoint to go on from."""
    found: list[PlannedRun] = []

    def is_found() -> bool:
        begun = [run for run in runs if any(layout.run(run).glob("checkpoints/*/state.json"))]
        found.extend(run for run in begun if raylet_of(layout, run) == str(node.all_processes["raylet"][0].process.pid))
        return bool(found)

    wait_for(is_found)
    return found[0]


def raylet_of(layout: Layout, run: PlannedRun) -> str | None:
    """The process id of the Ray node on which a run is under way; None while it is on none."""
    try:
        pid = json.loads(layout.mark(run).read_text())["pid"]
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except FileNotFoundError:
        return None
    return dict(line.partition("=")[::2] for line in variables)["RAY_RAYLET_PID"]


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{unused.getsockname()[1]}"
        command = study_command(file, tmp_path, "--ray", address)
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert f"there is no Ray cluster to use at {address}" in finished.stderr


def test_a_node_that_does_not_share_the_directory_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    assert probe(str(tmp_path), "token")["complaint"] == ""
    assert probe(str(tmp_path), "another")["complaint"] == f"does not see {tmp_path}"
