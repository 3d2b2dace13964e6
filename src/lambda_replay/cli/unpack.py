"""The command ``unpack``: writes a packed run into a new directory, from which it resumes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lambda_replay.cli.options import parse, split_path
from lambda_replay.cli.pack import ENDING
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.files import quoted
from lambda_replay.training.packing import unpack_run


@dataclass(frozen=True)
class UnpackOptions:
    """Write a packed run into a new directory, with its replay memory, and check that it is the run that was packed."""

    out: Path | None = None  # the run's new directory; by default the file's name without .zip


def run(arguments: list[str]) -> int:
    file, rest = split_path(arguments, "unpack", "FILE")
    options = parse(UnpackOptions, rest, usage="lambda-replay unpack FILE")
    assert file is not None
    out = _without_ending(file) if options.out is None else options.out
    step = unpack_run(file, out)
    print(f"{out}: unpacked at step {step:,}; every checksum matches")
    print(f"next: lambda-replay resume {quoted(out)}")
    return 0


def _without_ending(file: Path) -> Path:
    if file.suffix != ENDING:
        raise ConfigError(f"{file} does not end in {ENDING}; give --out, the run's new directory.")
    return file.with_suffix("")
