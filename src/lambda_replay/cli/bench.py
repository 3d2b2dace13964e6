"""The ``bench`` command: how fast training is on this machine, and how long runs of the usual presets would take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product

from rich.console import Console
from rich.table import Table

from lambda_replay.cli.formatting import duration
from lambda_replay.cli.options import parse
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.training.presets import PRESETS, make_config
from lambda_replay.training.speed import make_stopwatch, shorten, time_run

ENVIRONMENTS = (  # one for each network and kind of agent
    ("atari", "atari/breakout"),
    ("minatar", "minatar/breakout"),
    ("classic", "CartPole-v1"),
    ("continuous", "Pendulum-v1"),
)
LARGEST_COUNT = 1_000  # of environments or threads
MOST_SECONDS = 3_600.0


@dataclass(frozen=True)
class BenchOptions:
    """Measure how fast training is on this machine and estimate how long runs of the usual presets would take."""

    envs: tuple[int, ...] = ()  # numbers of environments (in lock-step) to try; none: the preset's own
    threads: tuple[int, ...] = (1, 2)  # numbers of arithmetic threads to try
    seconds: float = 3.0  # minimum timed per row, in whole cycles of acting and learning
    json: bool = False  # print one JSON object instead of a table


@dataclass(frozen=True)
class Speed:
    """One row of the table."""

    env: str
    preset: str
    agent: str
    envs: int
    threads: int
    steps_per_second: float
    run_steps: int  # of the preset
    run_seconds: float


def run(arguments: list[str]) -> int:
    options = parse(BenchOptions, arguments, usage="lambda-replay bench")
    _check(options)
    notes = Console(stderr=True, highlight=False, emoji=False)
    speeds: list[Speed] = []
    left_out: list[str] = []
    for preset, config, envs, threads in _rows(options):
        what = f"{config.env}, {config.agent}, --envs {envs}, --threads {threads}"
        notes.print(f"measuring {what}", style="dim", markup=False)
        try:
            speeds.append(measure(preset, replace(config, envs=envs, threads=threads), options.seconds))
        except ConfigError as error:  # a game is not installed, or the preset does not work with this many environments
            left_out.append(f"skipped {what}: {error}")
    if not speeds:
        raise ConfigError(left_out[0])
    if options.json:
        rows = [asdict(speed) for speed in speeds]
        print(json.dumps({"speed": rows, "left_out": left_out}, allow_nan=False))
        return 0
    Console().print(_table(speeds))
    for sentence in left_out:
        notes.print(sentence, style="yellow", markup=False)
    return 0


def _check(options: BenchOptions) -> None:
    counts = {"envs": options.envs, "threads": options.threads} if options.envs else {"threads": options.threads}
    for name, values in counts.items():
        if not values or not all(1 <= value <= LARGEST_COUNT for value in values):
            given = " ".join(map(str, values)) or "empty"
            raise ConfigError(f"--{name} is {given}; give whole numbers from 1 to {LARGEST_COUNT}.")
    if not 0 < options.seconds <= MOST_SECONDS:
        raise ConfigError(f"--seconds is {options.seconds}; give a number above 0, up to {MOST_SECONDS:.0f}.")


def _rows(options: BenchOptions) -> Iterator[tuple[str, RunConfig, int, int]]:
    """Every agent of every preset in one of the preset's environments, with each number of environments and threads."""
    for preset, env in ENVIRONMENTS:
        for agent in PRESETS[preset].agents:
            config = make_config(env, preset, agent)
            for envs, threads in product(options.envs or (config.envs,), options.threads):
                yield preset, config, envs, threads


def measure(preset: str, config: RunConfig, seconds: float) -> Speed:
    """Time a run of this config, learning from the first timed step, and estimate the time for all its steps."""
    small, has_cycles = shorten(config)
    stopwatch = make_stopwatch(small, seconds, has_cycles=has_cycles)
    time_run(small, stopwatch, has_cycles=has_cycles)
    assert config.threads is not None
    return Speed(
        env=config.env,
        preset=preset,
        agent=config.agent,
        envs=config.envs,
        threads=config.threads,
        steps_per_second=stopwatch.steps_per_second,
        run_steps=config.steps,
        run_seconds=config.steps / stopwatch.steps_per_second,
    )


def _table(speeds: list[Speed]) -> Table:
    table = Table(title="Training speed on this machine")
    for name in ("a run of", "--envs", "--threads", "steps/s", "takes about"):
        table.add_column(name, justify="left" if name == "a run of" else "right")
    for _, rows in groupby(speeds, key=lambda speed: speed.env):
        table.add_section()
        for number, row in enumerate(rows):
            if number == 0:
                table.add_row(f"[bold]preset {row.preset}, {row.run_steps:,} steps[/]\n({row.env})")
            speed, time = f"{row.steps_per_second:,.0f}", duration(row.run_seconds)
            table.add_row(f"  {row.agent}", str(row.envs), str(row.threads), speed, time)
    return table
