"""The command ``compare``: several runs in one table and one picture."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lambda_replay.analysis import numbers
from lambda_replay.analysis.comparison import ComparedRun, compare_runs, differing_settings, draw_comparison
from lambda_replay.analysis.records import Run, RunRecord, read_object, read_run
from lambda_replay.cli.options import check_file, parse
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.directory import CONFIG, is_diverged, is_finished
from lambda_replay.rundir.states import State

WIDEST_NAME = 32  # characters of a run's name that are not wrapped
USAGE = "lambda-replay compare RUN RUN"


@dataclass(frozen=True)
class CompareOptions:
    """Compare runs: their scores, the settings in which they differ, and their learning curves in one picture."""

    out: Path = Path("compare.png")  # the picture: a file ending in .png
    json: bool = False  # one JSON object on standard output


def run(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in itertools.takewhile(lambda word: not word.startswith("-"), arguments)]
    options = parse(CompareOptions, arguments[len(paths) :], usage=f"{USAGE} …")
    if len(paths) < 2:
        raise ConfigError(f"give two runs or more, then the options: {USAGE} …")
    runs = [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    check_file(options.out, ".png")
    compared, differences = compare_runs(runs), differing_settings([run.config for run in runs])
    draw_comparison(runs, options.out)
    if options.json:
        print(json.dumps(_values(compared, differences), allow_nan=False))
    else:
        _show(compared, differences)
        print(f"{options.out}: the learning curves of {len(runs)} runs")
    return 0


def _names(paths: Sequence[Path]) -> list[str]:
    """The end of each path, as short as tells them apart: peng/seed-0 and nstep/seed-0."""
    whole = [path.resolve().parts for path in paths]
    if len(set(whole)) < len(whole):
        twice = next(path for path, parts in zip(paths, whole, strict=True) if whole.count(parts) > 1)
        raise ConfigError(f"{twice} is named twice; name every run once.")
    length = next(length for length in itertools.count(1) if len({parts[-length:] for parts in whole}) == len(whole))
    return ["/".join(parts[-length:]) for parts in whole]


def _read(path: Path, name: str) -> Run:
    config = read_object(path / CONFIG)
    if not {"env", "seed"} <= config.keys():
        raise ConfigError(f"there is no run {path}; give the directory of a run, such as runs/NAME.")
    state: State = "diverged" if is_diverged(path) else "finished" if is_finished(path) else "waiting"
    seed = config["seed"]
    return read_run(RunRecord(str(config["env"]), name, seed if type(seed) is int else 0, path, state))


def _values(compared: Sequence[ComparedRun], differences: dict[str, list[Any]]) -> dict[str, Any]:
    """For JSON, which knows no NaN."""
    rows = [asdict(row) | {"state": _state(row.state)} for row in compared]
    return {
        "runs": [{name: None if _is_nan(value) else value for name, value in row.items()} for row in rows],
        "differences": {
            setting: {row.name: value for row, value in zip(compared, values, strict=True)}
            for setting, values in differences.items()
        },
    }


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _state(state: str) -> str:
    return "not finished" if state == "waiting" else state


def _show(compared: Sequence[ComparedRun], differences: dict[str, list[Any]]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)  # the names of runs may hold brackets
    environments = {row.environment for row in compared}
    is_alone = len(environments) == 1
    table = Table(title=f"scores on {environments.pop()}" if is_alone else "scores", box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold", min_width=min(WIDEST_NAME, max(len(row.name) for row in compared)))
    for column in (*(() if is_alone else ("environment",)), "state"):
        table.add_column(column, overflow="fold", no_wrap=column == "state")
    for column in ("seed", "last 100 games", "all training", "steps", "time"):
        table.add_column(column, justify="right")
    known = [abs(row.final_score) for row in compared if not math.isnan(row.final_score)]
    decimals = numbers.decimals_for(max(known, default=1.0))
    for row in compared:
        where = () if is_alone else (row.environment,)
        scores = (numbers.fixed(row.final_score, decimals), numbers.fixed(row.mean_score, decimals))
        times = (f"{row.steps:,}", numbers.hours(row.hours))
        table.add_row(row.name, *where, _state(row.state), str(row.seed), *scores, *times)
    console.print(table)
    for setting, values in differences.items():
        print(f"{setting}: {_by_value([row.name for row in compared], values)}")


def _by_value(names: Sequence[str], values: Sequence[Any]) -> str:
    """0.001 (run-a, run-b) · 0.01 (run-c)."""
    groups: dict[str, list[str]] = {}
    for name, value in zip(names, values, strict=True):
        groups.setdefault(_text(value), []).append(name)
    return " · ".join(f"{value} ({', '.join(owners)})" for value, owners in groups.items())


def _text(value: Any) -> str:
    return numbers.UNKNOWN if value is None else value if isinstance(value, str) else json.dumps(value)
