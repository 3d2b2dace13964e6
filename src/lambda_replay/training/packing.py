"""Packs an unfinished run into one file, and unpacks it again, on this machine or another.

A game is (seed, actions), so a pack leaves out the observations of games that repeat, which are most of a run's bytes,
and unpacking replays them. The result is the run that was packed, to the byte, or an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from lambda_replay.config import OBJECT, RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.errors import ConfigError, DamageError, EnvironmentFault
from lambda_replay.replay.storage import flush
from lambda_replay.rundir.atomic import sync_directory
from lambda_replay.rundir.checkpoints import find_damage, find_log_damage, saved_steps
from lambda_replay.rundir.directory import (
    EPISODES,
    MEMORY,
    WEIGHTS,
    RunLock,
    is_diverged,
    is_finished,
    looking_at,
    read_config,
)
from lambda_replay.rundir.files import has_type, quoted
from lambda_replay.rundir.memory_files import OBSERVATIONS, PackedGame, slot_map
from lambda_replay.rundir.pack_reading import PackFile
from lambda_replay.rundir.packs import write_pack
from lambda_replay.rundir.resources import in_words
from lambda_replay.rundir.trust import MayImport, check_signature, check_trust, refuse
from lambda_replay.training.extending import AS_PLANNED, find_extension
from lambda_replay.training.playing import LARGEST_SEED, faults_told
from lambda_replay.training.replaying import Storage, find_games, is_deterministic, repeats, replay_slots
from lambda_replay.training.resuming import Say, newest_usable
from lambda_replay.training.saved_state import LoopState

OnProgress = Callable[[int, int], None]  # slots replayed so far, and of how many


class Packed(NamedTuple):
    """What a pack holds of the replay memory."""

    step: int
    games: int  # that unpacking replays
    replayed: int  # observations that it gives back
    stored: int  # observations in the file


def pack_run(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    say: Say,
    *,
    stores_observations: bool = False,
    on_progress: OnProgress = lambda done, total: None,
    may_import: MayImport = refuse,
) -> Packed:
    """Write a run, at its newest sound checkpoint, into a new file; the run itself stays as it is.

    Every game is replayed here first, and its observations are left out only if they come out the same.
    ``stores_observations``: leave none out and replay nothing. ``say`` is called with everything that is not sound.
    """
    path, out = Path(path), Path(out)
    recorded = read_config(path)
    _refuse_unpackable(path, recorded)
    if os.path.lexists(out):
        raise ConfigError(f"{out} already exists; give another --out.")
    replays = not (stores_observations or recorded.env.startswith(OBJECT))  # an object cannot be made again
    if replays:
        check_trust(path, recorded, may_import)
    with looking_at(path):
        state = _newest_state(path, recorded, say)
        slots = slot_map(state)
        storage = Storage(slots, slots.open(path / MEMORY), state["loop"]["games"], state["step"])
        games = []
        if replays:
            log = (path / EPISODES).read_bytes()[: state["logs"][EPISODES]]
            with _environment(recorded, storage, path) as environment:
                games = _rebuildable(environment, storage, find_games(storage, log.decode()), on_progress)
        write_pack(out, path, state, storage.arrays, games=games)
    stored = slots.rows(OBSERVATIONS, games)
    return Packed(state["step"], len(games), slots.rows(OBSERVATIONS) - stored, stored)


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
    if not _has_open_games(checkpoint.state):
        raise DamageError(f"the checkpoint {checkpoint.step} of {path} is damaged (its parts contradict each other).")
    return checkpoint.state


def _has_open_games(state: dict[str, Any]) -> bool:
    return has_type(state["loop"], LoopState) and len(state["loop"]["games"]) == len(state["memory"]["written"])


@contextmanager
def _environment(config: RunConfig, storage: Storage, path: Path) -> Iterator[Environment]:
    """The environment of a run, for replaying its games."""
    environment = make_environment(config)
    try:
        if not storage.fits(environment.spec):
            raise ConfigError(
                f"{config.env} has other observations or actions here than in {path}; install the version with which "
                "the run began (see its provenance.json)."
            )
        with faults_told(lambda: "while replaying the games of the replay memory"):
            yield environment
    finally:
        with suppress(EnvironmentFault):
            environment.close()


def _rebuildable(
    environment: Environment, storage: Storage, games: list[PackedGame], on_progress: OnProgress
) -> list[PackedGame]:
    """The games that repeat; none if one of the others does not even repeat itself, as the rest may be lucky."""
    repeating = []
    for game in _progressing(games, on_progress):
        if repeats(environment, storage, game):
            repeating.append(game)
        elif not is_deterministic(environment, storage, game):
            return []
    return repeating


def _progressing(games: list[PackedGame], on_progress: OnProgress) -> Iterator[PackedGame]:
    """The games one by one, with the slots of those before."""
    done, total = 0, sum(game.last - game.first for game in games)
    for game in games:
        on_progress(done, total)
        yield game
        done += game.last - game.first
    on_progress(total, total)


def unpack_run(
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    on_progress: OnProgress = lambda done, total: None,
    may_import: MayImport = refuse,
) -> int:
    """Write the run in a file into a new directory, and replay its games; returns the step from which it resumes.

    The directory is a run only when every checksum has been found right; if anything fails, it is removed.
    """
    file, out = Path(file), Path(out)
    with closing(PackFile(file)) as pack:
        if os.path.lexists(out):
            raise ConfigError(f"{out} already exists; give another --out.")
        if not _has_open_games(pack.state) or not all(0 <= game.seed < LARGEST_SEED for game in pack.games):
            raise pack.damage("its parts contradict each other")
        if pack.games:
            check_signature(file, pack.config, pack.signature, may_import)
        _check_disk(out, pack.nbytes)
        with _new_directory(out):
            _write_run(pack, out, on_progress)
        return int(pack.state["step"])


def _check_disk(out: Path, needed: int) -> None:
    place = next(place for place in out.absolute().parents if place.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ConfigError(
            f"the run needs {in_words(needed)} of disk, but only {in_words(free)} is free; "
            "give an --out with more room."
        )


@contextmanager
def _new_directory(path: Path) -> Iterator[None]:
    """A directory that nobody else works in, removed if what happens in it fails."""
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be created ({error.strerror}); give another --out.") from None
    lock = None
    try:
        lock = RunLock(path)
        yield
        sync_directory(path.parent)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            lock.release()


def _write_run(pack: PackFile, out: Path, on_progress: OnProgress) -> None:
    """Everything but the config, then the checks, then the config."""
    state = pack.state
    pack.write_files(out)
    arrays = pack.slots.create(out / MEMORY)
    pack.fill(arrays)
    storage = Storage(pack.slots, arrays, state["loop"]["games"], state["step"])
    if pack.games:
        with _environment(pack.config, storage, pack.path) as environment:
            for game in _progressing(pack.games, on_progress):
                for slot, observation in replay_slots(environment, storage, game):
                    arrays[OBSERVATIONS][slot] = observation
    for array in arrays.values():
        flush(array)
    sync_directory(out / MEMORY)
    if any(find_damage(out, state, out / MEMORY)) or find_log_damage(out, state):
        raise _unlike(pack)
    pack.write_config(out)


def _unlike(pack: PackFile) -> DamageError:
    """The pack's own checksum is right, so what differs are the games."""
    if not pack.games:
        return pack.damage("its parts contradict each other")
    return DamageError(
        f"the games of {pack.path} did not come out the same here (another version of {pack.config.env}, or another "
        "processor); unpack it where it was packed, or pack the run there with --observations."
    )
