"""Compare training speed on this machine with the peers that are installed. Run from the repository root:

python -m benchmarks.speed [--quick] [--out DIRECTORY]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.speed.harness import Plan, run_plan
from benchmarks.speed.tables import make_tables
from benchmarks.speed.workloads import CONTENDERS, WORKLOADS
from lambda_replay.cli.options import check_directory, parse
from lambda_replay.errors import ConfigError

SET_BY_QUICK = ("envs", "threads", "cores", "repeats", "seconds", "memory_sizes")
QUICK_CONTENDERS = ("dqn-lambda", "dqn", "sb3")
PLAIN_WIDTH = 140  # characters per line if there is no terminal


@dataclass(frozen=True)
class BenchOptions:
    """Compare training speed at equal settings with the peers that are installed (the extra bench)."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)  # networks to measure
    contenders: tuple[str, ...] = tuple(CONTENDERS)  # who takes part; those not installed are skipped
    envs: tuple[int, ...] = (1, 8)  # numbers of environments (in lock-step)
    threads: tuple[int, ...] = (1, 2)  # arithmetic threads to try; each contender is reported with its best
    cores: int = 2  # cores to which every measurement is pinned
    repeats: int = 3  # interleaved rounds
    seconds: float = 2.5  # timed per measurement; twice as long on the Atari network
    memory_sizes: tuple[int, ...] = (100_000, 300_000, 1_000_000)  # slots, to measure the cost of a refresh; needs RAM
    quick: bool = False  # about a minute: one environment, one core, one short round; ours and Stable-Baselines3 only
    out: Path | None = None  # directory for bench.json and bench.png
    json: bool = False  # print one JSON object instead of tables


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit code."""
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments))
    except ConfigError as error:
        print(f"benchmarks.speed: {error}", file=sys.stderr)
        return 2


def run(arguments: list[str]) -> int:
    options = parse(BenchOptions, arguments, usage="python -m benchmarks.speed")
    if options.out is not None:
        check_directory(options.out)
    notes = Console(stderr=True, highlight=False, emoji=False)
    results = run_plan(make_plan(options), lambda sentence: notes.print(sentence, style="dim", markup=False))
    if options.out is not None:
        _write(results, options.out, notes)
    if options.json:
        print(json.dumps(results, allow_nan=False))
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    for table in make_tables(results):
        console.print(table)
    for sentence in results["skipped"].values():
        console.print(sentence, style="yellow", highlight=False, markup=False)
    return 0


def make_plan(options: BenchOptions) -> Plan:
    """The plan for the options, shortened if ``quick`` is set."""
    unknown = [name for name in options.workloads if name not in WORKLOADS]
    if unknown:
        raise ConfigError(f"there is no workload {unknown[0]!r}; choose one of {', '.join(WORKLOADS)}.")
    if not options.workloads or not options.contenders:
        raise ConfigError("--workloads or --contenders is empty; name at least one of each.")
    workloads = tuple(WORKLOADS[name] for name in options.workloads)
    if options.quick:
        changed = [name for name in SET_BY_QUICK if getattr(options, name) != getattr(BenchOptions(), name)]
        if changed:
            raise ConfigError(f"--quick sets --{changed[0].replace('_', '-')} itself; omit one of the two.")
        contenders = tuple(name for name in options.contenders if name in QUICK_CONTENDERS)
        if not contenders:
            raise ConfigError(
                f"--quick measures only {', '.join(QUICK_CONTENDERS)}; name one of them, or omit --quick."
            )
        return Plan(workloads, contenders, (1,), (1,), 1, 0.4, 1, memory_sizes=(20_000,))
    return Plan(
        workloads,
        options.contenders,
        options.envs,
        options.threads,
        options.repeats,
        options.seconds,
        options.cores,
        options.memory_sizes,
    )


def _write(results: dict[str, object], directory: Path, notes: Console) -> None:
    from benchmarks.speed.picture import draw_speed

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bench.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    draw_speed(results, directory / "bench.png")
    notes.print(f"wrote {directory / 'bench.json'} and {directory / 'bench.png'}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
