"""The command ``study``: executes many runs from one file, shows their progress and writes their report."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lambda_replay.agents.run_settings import to_dict
from lambda_replay.analysis.records import RunRecord, StudyData
from lambda_replay.cli.display import RunConsole
from lambda_replay.cli.options import check_directory, parse, split_path
from lambda_replay.cli.study_display import StudyDisplay, count_states, render_study
from lambda_replay.errors import ConfigError
from lambda_replay.studies.cluster import run_on_ray
from lambda_replay.studies.execute import (
    check_room,
    check_runs,
    default_workers,
    lock_study,
    most_threads,
    run_locally,
    tidy_finished,
)
from lambda_replay.studies.layout import Layout, check_configs, make_layout
from lambda_replay.studies.plan import Study, read_study
from lambda_replay.studies.status import RunStatus, read_status, seconds_left

OUT = Path("runs")
DONE, SOME_FAILED = 0, 1
USAGE = """usage: lambda-replay study run FILE     execute every run of a study file that is not finished yet
       lambda-replay study status FILE  show its progress, even while it runs
       lambda-replay study report FILE  write its report.html and figures, even while it runs

FILE is a .toml file: environments × arms × seeds. The studies/ directory has one for each figure of the paper.
Each of the three commands has --help."""


@dataclass(frozen=True)
class RunOptions:
    """Execute every unfinished run of a study; Ctrl-C stops it, and the same command continues it."""

    out: Path = OUT  # the study is stored in studies/NAME below it; with --ray, a directory that all nodes share
    workers: int | None = None  # parallel runs on this machine; by default its cores / the config's threads
    ray: str | None = None  # address of an existing Ray cluster, host:port or auto; by default this machine alone
    cpus_per_run: float | None = None  # with --ray: CPUs that each run takes; by default the config's threads
    gpus_per_run: float | None = None  # with --ray: GPUs that each run takes; by default none


@dataclass(frozen=True)
class StatusOptions:
    """Show the progress of a study."""

    out: Path = OUT  # the study is stored in studies/NAME below it
    json: bool = False  # one JSON object on standard output


@dataclass(frozen=True)
class ReportOptions:
    """Write a study's report from the results so far."""

    out: Path = OUT  # the study is stored in studies/NAME below it


def run(arguments: list[str]) -> int:
    commands = {"run": _run, "status": _status, "report": _report}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return DONE
    if arguments[0] not in commands:
        raise ConfigError(f"study has no command {arguments[0]!r}; give lambda-replay study run|status|report FILE.")
    return commands[arguments[0]](arguments[1:])


def _run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "study run", "FILE")
    options = parse(RunOptions, rest, usage="lambda-replay study run FILE")
    _check_options(options)
    check_directory(options.out)
    study, layout = _read(path, options.out)
    needs = check_runs(study)
    lock = lock_study(layout)
    try:
        tidy_finished(study, layout)
        workers = default_workers(study) if options.workers is None else options.workers
        if options.ray is None:
            check_room(study, layout, needs, workers)
        _conduct(study, layout, options, workers)
        statuses = read_status(study, layout)
        _write_report_if_possible(study, layout, statuses)
    except (KeyboardInterrupt, BrokenPipeError):
        raise KeyboardInterrupt(_how_to_go_on(study, layout, arguments)) from None
    finally:
        lock.release()
    return _close(layout, statuses)


def _check_options(options: RunOptions) -> None:
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers is {options.workers}; give 1 or more.")
    if options.ray is not None and options.workers is not None:
        raise ConfigError("--workers is for this machine; with --ray, use --cpus-per-run instead.")
    cpus, gpus = options.cpus_per_run, options.gpus_per_run
    if options.ray is None and (cpus is not None or gpus is not None):
        raise ConfigError("--cpus-per-run and --gpus-per-run belong to --ray; use --workers on this machine.")
    if (cpus is not None and not 0 < cpus < math.inf) or (gpus is not None and not 0 <= gpus < math.inf):
        raise ConfigError("--cpus-per-run takes a number above 0, and --gpus-per-run takes 0 or more.")


def _read(path: Path | None, out: Path) -> tuple[Study, Layout]:
    assert path is not None
    study = read_study(path)
    layout = make_layout(out, study)
    check_configs(study, layout)
    return study, layout


def _conduct(study: Study, layout: Layout, options: RunOptions, workers: int) -> None:
    if options.ray is None:
        running: Generator[None, None, None] = run_locally(study, layout, workers=workers)
    else:
        running = run_on_ray(
            study,
            layout,
            address=options.ray,
            cpus_per_run=most_threads(study) if options.cpus_per_run is None else options.cpus_per_run,
            gpus_per_run=options.gpus_per_run or 0.0,
        )
    display = StudyDisplay(study, workers if options.ray is None else None, RunConsole())
    with contextlib.closing(running), display:
        for _ in running:
            if display.is_due():
                display.update(read_status(study, layout))
        display.update(read_status(study, layout))


def _how_to_go_on(study: Study, layout: Layout, arguments: list[str]) -> str:
    return (
        f"stopped with {_tally(read_status(study, layout), 'runs done')}, the others can be resumed; "
        f"continue with: lambda-replay study run {shlex.join(arguments)}"
    )


def _write_report_if_possible(study: Study, layout: Layout, statuses: Sequence[RunStatus]) -> None:
    try:
        write_study_report(study, layout, statuses)
    except ConfigError as error:
        print(f"lambda-replay: no report was written: {error}", file=sys.stderr)


def _close(layout: Layout, statuses: Sequence[RunStatus]) -> int:
    failed = [status for status in statuses if status.state == "failed"]
    print(f"{_tally(statuses, 'runs done')}; everything is in {layout.directory}")
    for status in statuses:
        if status.state == "diverged":
            print(f"{status.run.label} diverged: {status.reason}")
    if layout.report.exists():
        print(f"report: {layout.report}")
    for status in failed:
        print(f"lambda-replay: {status.run.label} failed: {status.reason}", file=sys.stderr)
    if failed:
        print(
            "lambda-replay: the same command tries the failed runs again; remove a run's directory to start it over; "
            f"their logs are in {layout.directory / 'logs'}",
            file=sys.stderr,
        )
    return SOME_FAILED if failed else DONE


def _tally(statuses: Sequence[RunStatus], words: str) -> str:
    counts = count_states(statuses)
    diverged = f" and {counts['diverged']} diverged" if counts["diverged"] else ""
    return f"{counts['finished']} of {len(statuses)} {words}{diverged}"


def _status(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "study status", "FILE")
    as_json = "--json" in rest
    options = parse(
        StatusOptions, [argument for argument in rest if argument != "--json"], usage="lambda-replay study status FILE"
    )
    study, layout = _read(path, options.out)
    statuses = read_status(study, layout)
    running = count_states(statuses)["running"]
    left = seconds_left(statuses, running) if running else None
    if as_json or options.json:
        print(json.dumps(_as_json(study, layout, statuses, left), allow_nan=False))
    else:
        Console().print(render_study(study, statuses, left))
    return DONE


def _as_json(study: Study, layout: Layout, statuses: Sequence[RunStatus], left: float | None) -> dict[str, Any]:
    return {
        "name": study.name,
        "directory": str(layout.directory),
        "counts": count_states(statuses),
        "seconds_left": left,
        "runs": [
            {
                **{name: getattr(status.run, name) for name in ("environment", "arm", "seed")},
                **{name: value for name, value in asdict(status).items() if name not in ("run", "path", "timed_step")},
                "path": str(status.path),
                "steps": status.run.config.steps,
            }
            for status in statuses
        ],
    }


def _report(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "study report", "FILE")
    options = parse(ReportOptions, rest, usage="lambda-replay study report FILE")
    study, layout = _read(path, options.out)
    statuses = read_status(study, layout)
    if not layout.directory.exists():
        raise ConfigError(
            f"there is nothing to report in {layout.directory}; "
            f"start with: lambda-replay study run {shlex.join(arguments)}"
        )
    write_study_report(study, layout, statuses)
    print(f"{layout.report}: {_tally(statuses, 'runs are done')}")
    return DONE


def write_study_report(study: Study, layout: Layout, statuses: Sequence[RunStatus]) -> None:
    """Write report.html and its figures into the study's directory."""
    from lambda_replay.analysis.report import write_report

    write_report(as_study_data(study, statuses), layout.report)


def as_study_data(study: Study, statuses: Sequence[RunStatus]) -> StudyData:
    """The study as plain data for the analysis."""
    return StudyData(
        name=study.name,
        environments=study.environments,
        arms=study.arms,
        baseline=study.baseline,
        seeds=study.seeds,
        steps=study.steps,
        runs=tuple(
            RunRecord(
                environment=status.run.environment,
                arm=status.run.arm,
                seed=status.run.seed,
                path=status.path,
                state=status.state,
                reason=status.reason,
            )
            for status in statuses
        ),
        defaults={environment: to_dict(config) for environment, config in study.defaults.items()},
        thresholds=study.thresholds,
        has_one_length=len({run.config.steps for run in study.runs}) == 1,
    )
