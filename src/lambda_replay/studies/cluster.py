"""Executes the runs of a study on an existing Ray cluster, each with the same command as on one machine.

All nodes share the output directory: runs, logs and failures are stored as in a local study, and a run that loses its
node resumes on another one from its last checkpoint. Ray is imported only here.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from lambda_replay import __version__
from lambda_replay.agents.run_settings import from_dict, to_dict
from lambda_replay.errors import ConfigError
from lambda_replay.extras import needed_for
from lambda_replay.studies.attempt import ATTEMPTS, BUSY, Attempt, record_failure, stop_all, wait_until_free
from lambda_replay.studies.execute import unfinished
from lambda_replay.studies.layout import Layout
from lambda_replay.studies.plan import PlannedRun, Study

POLL_SECONDS = 0.5
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_PROBE = 60.0
SECONDS_TO_CANCEL = 15.0
NODE_LOSSES = 20  # how often a run may lose its node before it counts as failed; each time it resumes on another


def run_on_ray(
    study: Study, layout: Layout, *, address: str, cpus_per_run: float, gpus_per_run: float
) -> Generator[None, None, None]:
    """Execute all unfinished runs on the cluster; yields now and then, and stops them when closed early."""
    layout = Layout(layout.directory.absolute())
    ray = _connect(address)
    pending: dict[Any, PlannedRun] = {}
    try:
        _check_nodes(ray, layout, cpus_per_run, gpus_per_run)
        task = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=NODE_LOSSES)(conduct)
        for run in unfinished(study, layout):
            order = {"environment": run.environment, "arm": run.arm, "seed": run.seed, "config": to_dict(run.config)}
            pending[task.remote(order, str(layout.directory), gpus_per_run > 0)] = run
        while pending:
            for reference in ray.wait(list(pending), num_returns=1, timeout=POLL_SECONDS)[0]:
                _settle(ray, reference, pending.pop(reference), layout)
            yield
    finally:
        for reference in pending:
            ray.cancel(reference)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=SECONDS_TO_CANCEL)
        ray.shutdown()


def conduct(order: dict[str, Any], directory: str, has_gpu: bool) -> None:
    """The task, on a node of the cluster: bring one run to its end, from wherever it is, and retry once if it fails."""
    config = from_dict(order["config"])
    run = PlannedRun(order["environment"], order["arm"], order["seed"], config)
    layout = Layout(Path(directory))
    variables = {} if has_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    for attempts in range(1, ATTEMPTS + 1):
        if not wait_until_free(layout.run(run)):
            record_failure(run, layout, BUSY, attempts - 1)
            return
        attempt = Attempt(run, layout, variables)
        try:
            while attempt.is_running():  # in short sleeps, which Ray's exception can interrupt
                time.sleep(POLL_SECONDS)
        except BaseException:  # Ray cancels a task with its own exception
            stop_all([attempt])
            raise
        reason = attempt.close()
        if reason is None:
            return
        if attempts == ATTEMPTS:
            record_failure(run, layout, reason, attempts)


def probe(directory: str, token: str) -> dict[str, str]:
    """What a node reports: our version there, and a complaint if it cannot use the study's directory."""
    path = Path(directory)
    if not (path / token).exists():
        return {"version": __version__, "complaint": f"cannot see {path}"}
    if not os.access(path, os.W_OK):
        return {"version": __version__, "complaint": f"cannot write to {path}"}
    return {"version": __version__, "complaint": ""}


def _connect(address: str) -> Any:
    """Ray, connected to the cluster."""
    with needed_for("--ray"):
        ray: Any = importlib.import_module("ray")
    _check_reachable(address)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, str(error).strip().split("\n")[0]) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it with its own
    return ray


def _check_reachable(address: str) -> None:
    """Try to connect first: Ray itself retries for minutes."""
    match = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, said: str) -> ConfigError:
    return ConfigError(
        f"there is no usable Ray cluster at {address} ({said}); start one with: ray start --head, "
        "or give the host:port of one, or auto on one of its nodes."
    )


def _check_nodes(ray: Any, layout: Layout, cpus_per_run: float, gpus_per_run: float) -> None:
    """Refuse a cluster where no run fits, or whose nodes do not all share the directory and our version."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = [
        node
        for node in nodes
        if node["Resources"].get("CPU", 0) >= cpus_per_run and node["Resources"].get("GPU", 0) >= gpus_per_run
    ]
    if not fitting:
        raise ConfigError(
            f"no node of the cluster has {cpus_per_run:g} CPUs and {gpus_per_run:g} GPUs for a run; "
            "lower --cpus-per-run or --gpus-per-run."
        )
    token = layout.directory / f".probe-{secrets.token_hex(8)}"
    token.touch()
    try:
        for node in fitting:
            _check_node(ray, node, layout, token.name)
    finally:
        token.unlink()


def _check_node(ray: Any, node: dict[str, Any], layout: Layout, token: str) -> None:
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(probe)
    name = f"node {node['NodeManagerAddress']} of the cluster"
    try:
        found = ray.get(task.remote(str(layout.directory), token), timeout=SECONDS_TO_PROBE)
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"{name} cannot run lambda-replay ({said}); install the same version, {__version__}, on every node."
        ) from None
    if found["complaint"]:
        raise ConfigError(f"{name} {found['complaint']}; give an --out that all nodes share.")
    if found["version"] != __version__:
        raise ConfigError(f"{name} has lambda-replay {found['version']}, but this is {__version__}; install the same.")


def _settle(ray: Any, reference: Any, run: PlannedRun, layout: Layout) -> None:
    """Record the end of a task; one that Ray gave up on is a failure too."""
    try:
        ray.get(reference)
    except ray.exceptions.RayError as error:
        layout.mark(run).unlink(missing_ok=True)
        record_failure(run, layout, f"Ray gave up on it: {str(error).strip().splitlines()[-1]}", attempts=1)
