"""The process that makes one measurement: ``python -m benchmarks.speed.worker TASK``.

Reads one JSON object ``{"cores": [...], "threads": n, "result": FILE, "arguments": {...}}`` from standard input and
writes a JSON object to FILE, not to standard output, because some peers print there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.speed.measurement import allowed_cores, pin
from benchmarks.speed.workloads import CONTENDERS, job_from_dict


def _speed(arguments: dict[str, Any]) -> dict[str, Any]:
    job = job_from_dict(arguments)
    from benchmarks.speed.arithmetic import sgemm_beside

    room = "ours" if CONTENDERS[job.contender].is_ours else "peers"
    measure = import_module(f"benchmarks.speed.{room}").measure
    measurement, sgemm = sgemm_beside(lambda: measure(job), threads=len(allowed_cores()))
    return {**measurement._asdict(), "sgemm_flops_per_second": sgemm}


def _peak(arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.speed.arithmetic import sgemm_peak

    return {"flops_per_second": sgemm_peak(**arguments)}


def _flops(arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.speed.arithmetic import flops_per_step

    return flops_per_step(job_from_dict(arguments))


def _parts(arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.speed.arithmetic import sgemm_beside
    from benchmarks.speed.parts import measure_parts

    job = job_from_dict(arguments)
    parts, sgemm = sgemm_beside(lambda: measure_parts(job), threads=job.threads)
    return {**parts, "sgemm_flops_per_second": sgemm}


def _estimators(arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.speed.refreshes import measure_estimators

    return measure_estimators(**arguments)


def _memory_size(arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.speed.refreshes import measure_memory_size

    return measure_memory_size(**arguments)


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "speed": _speed,
    "peak": _peak,
    "flops": _flops,
    "parts": _parts,
    "estimators": _estimators,
    "memory-size": _memory_size,
}


def main() -> None:
    order = json.load(sys.stdin)
    pin(order["cores"])
    import torch

    torch.set_num_threads(order["threads"])
    Path(order["result"]).write_text(json.dumps(TASKS[sys.argv[1]](order["arguments"])))


if __name__ == "__main__":
    main()
