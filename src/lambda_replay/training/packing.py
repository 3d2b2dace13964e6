"""Packs an unfinished run into one file, and unpacks it again, on this machine or another.

No environment is made and no module imported. The result is the run that was packed, to the byte, or an error.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.atomic import creating_directory
from lambda_replay.rundir.checkpoints import find_damage, find_log_damage, saved_steps
from lambda_replay.rundir.directory import (
    MEMORY,
    WEIGHTS,
    is_diverged,
    is_finished,
    looking_at,
    read_config,
    taken_error,
)
from lambda_replay.rundir.files import quoted
from lambda_replay.rundir.pack_reading import CONTRADICTION, PackFile
from lambda_replay.rundir.packs import write_pack
from lambda_replay.rundir.resources import check_disk
from lambda_replay.training.extending import AS_PLANNED, find_extension
from lambda_replay.training.resuming import Say, newest_usable


def pack_run(path: str | os.PathLike[str], out: str | os.PathLike[str], say: Say) -> int:
    """Write a run, at its newest sound checkpoint, into a new file; returns that step. The run stays as it is.

    ``say`` is called with everything that is not sound.
    """
    path, out = Path(path), Path(out)
    recorded = read_config(path)
    _refuse_unpackable(path, recorded)
    refusal = ConfigError(f"{out} already exists; give another --out.")
    if os.path.lexists(out):
        raise refusal
    if out.resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"{out} is inside the run; give an --out outside of {path}.")
    with looking_at(path):
        state = _newest_state(path, recorded, say)
        try:
            write_pack(out, path, state)
        except FileExistsError:  # another process was faster
            raise refusal from None
    return int(state["step"])


def _refuse_unpackable(path: Path, config: RunConfig) -> None:
    if is_finished(path) and not saved_steps(path):
        raise ConfigError(
            f"{path} is finished and kept no replay memory, so there is nothing to pack; copy its {WEIGHTS}."
        )
    if is_diverged(path):
        raise ConfigError(f"{path} diverged and cannot be resumed, so there is nothing to pack.")
    if config.checkpoint_every == 0:
        raise ConfigError(f"{path} was trained with checkpoint_every 0 and cannot be resumed, so it cannot be packed.")
    if find_extension(path, config, AS_PLANNED) is not None:
        raise ConfigError(
            f"{path} was being extended when it stopped; let lambda-replay resume {quoted(path)} complete that first."
        )


def _newest_state(path: Path, recorded: RunConfig, say: Say) -> dict[str, Any]:
    checkpoint, damaged_logs = newest_usable(path, recorded, say, ())
    if checkpoint is None:
        raise ConfigError(f"{path} has no checkpoint yet, so there is nothing to pack; train it for longer first.")
    if damaged_logs:
        raise DamageError(
            f"{' and '.join(damaged_logs)} of {path} cannot be packed as they are; let lambda-replay resume "
            f"{quoted(path)} start new ones first."
        )
    return checkpoint.state


def unpack_run(file: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Write the run in a file into a new directory; returns the step from which it resumes.

    The directory gets its name when every checksum has been found right; if anything fails, it is removed.
    """
    file, out = Path(file), Path(out)
    if os.path.lexists(out):
        raise taken_error(out)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {out.parent}; create it first.")
    with closing(PackFile(file)) as pack:
        check_disk(out, pack.nbytes, "the run")
        try:
            with creating_directory(out) as draft:
                pack.write_files(draft)
                if any(find_damage(draft, pack.state, draft / MEMORY)) or find_log_damage(draft, pack.state):
                    raise pack.damage(CONTRADICTION)
        except FileExistsError:  # another process was faster
            raise taken_error(out) from None
        except OSError as error:
            if error.filename != str(out):
                raise
            raise ConfigError(f"{out} cannot be created ({error.strerror}); give another --out.") from None
        return int(pack.state["step"])
