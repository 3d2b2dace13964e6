"""The command ``pack``: writes an unfinished run into one small file."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lambda_replay.cli.options import check_file, parse, split_path
from lambda_replay.rundir.directory import read_config
from lambda_replay.rundir.files import quoted
from lambda_replay.rundir.resources import in_words
from lambda_replay.training.packing import pack_run

ENDING = ".zip"


@dataclass(frozen=True)
class PackOptions:
    """Write an unfinished run into one small file, to keep it or to move it; the run itself stays as it is."""

    out: Path | None = None  # file ending in .zip; by default RUN.zip beside the run's directory


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "pack")
    options = parse(PackOptions, rest, usage="lambda-replay pack RUN")
    assert path is not None
    read_config(path)  # so that a missing run is reported first
    out = _beside(path) if options.out is None else options.out
    check_file(out, ENDING)
    step = pack_run(path, out, _say)
    size = sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
    print(f"{out}: {in_words(out.stat().st_size)} instead of {in_words(size)}, at step {step:,}")
    print(f"next: lambda-replay unpack {quoted(out)}")
    return 0


def _beside(path: Path) -> Path:
    """RUN.zip, also for a run given as . or .. ."""
    named = path if path.name not in ("", "..") else Path(os.path.normpath(path.absolute()))
    return named.with_name(named.name + ENDING)


def _say(sentence: str) -> None:
    print(f"lambda-replay: {sentence}", file=sys.stderr)
