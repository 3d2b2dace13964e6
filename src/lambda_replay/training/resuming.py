"""Resumes a run that was stopped or killed, from its newest usable checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from lambda_replay.agents.run_settings import differing_fields
from lambda_replay.config import Device, RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.checkpoints import (
    CHECKPOINTS,
    STATE,
    STRAY,
    Checkpoint,
    all_steps,
    find_damage,
    find_log_damage,
    forget_logs,
    keep_checkpoints,
    load_checkpoint,
    read_state,
    saved_config,
    saved_steps,
    strays,
)
from lambda_replay.rundir.directory import (
    CONFIG,
    MEMORY,
    RunLock,
    amend_provenance,
    changes_of_machinery,
    had_checkpoint,
    is_diverged,
    is_finished,
    log_names,
    read_config,
    read_provenance,
    renew_log,
)
from lambda_replay.rundir.files import set_aside
from lambda_replay.rundir.trust import MayImport, check_trust, refuse
from lambda_replay.training.assembly import make_environments
from lambda_replay.training.beside import make_beside
from lambda_replay.training.extending import AS_PLANNED, LENGTH_SETTINGS, Extension, extend_run, find_extension
from lambda_replay.training.policy import STOPPED_WEIGHTS
from lambda_replay.training.run import Run, clear_run

Say = Callable[[str], None]


def resume_run(
    path: str | os.PathLike[str],
    say: Say,
    network: nn.Module | None = None,
    *,
    env: Any = None,
    device: Device | None = None,
    threads: int | None = None,
    keep_memory: bool = False,
    extension: Extension = AS_PLANNED,
    may_import: MayImport = refuse,
) -> Run:
    """The run in a directory, restored from its newest sound checkpoint, or from its beginning if it has none yet.

    If only logs are damaged, they are set aside and restarted. ``say`` is called with everything that is not sound.
    ``network`` and ``env`` are the user's own, as at the start. ``device`` and ``threads`` replace the run's own.
    ``extension``: the run, finished or not, lasts longer than planned.
    ``may_import`` is called before importing an environment's module for a run that this user did not create.
    """
    path = Path(path)
    recorded = read_config(path)
    check_trust(path, recorded, may_import)
    with ExitStack() as on_failure:
        lock = RunLock(path)
        on_failure.callback(lock.release)
        extended = find_extension(path, recorded, extension)
        _refuse_unresumable(path, recorded, is_extended=extended is not None)
        allowed = () if extended is None else LENGTH_SETTINGS
        checkpoint, damaged_logs = newest_usable(path, recorded, say, allowed)
        config = _effective_config(extended or recorded, checkpoint, device, threads)
        environments = make_environments(config, env)
        beside = make_beside(config, network, env)
        if checkpoint is None:
            _make_way(path, config, say)
            on_failure.callback(clear_run, path)  # frees the space that was claimed on a disk too small
        run = Run(
            path,
            config,
            environments=environments,
            network=network,
            beside=beside,
            lock=lock,
            recorded=extended or recorded,
            reopen_memory=checkpoint is not None,
        )
        on_failure.callback(run.close)
        if keep_memory:
            amend_provenance(path, recorded, keep_memory=True)
        if checkpoint is not None:
            checkpoint = _settle_on(run, checkpoint, damaged_logs, say)
        if extended is not None:
            extend_run(path, recorded, extended, at=0 if checkpoint is None else checkpoint.step)
        if checkpoint is not None:
            _restore(run, checkpoint, say)
        (path / STOPPED_WEIGHTS).unlink(missing_ok=True)  # the run continues, and its checkpoints will be newer
        on_failure.pop_all()
        return run


def _refuse_unresumable(path: Path, config: RunConfig, *, is_extended: bool) -> None:
    if is_finished(path) and not is_extended:
        raise ConfigError(f"{path} is finished; there is nothing to resume.")
    if is_finished(path) and not saved_steps(path):
        raise ConfigError(
            f"{path} is finished and kept no replay memory to go on with; train with --keep-memory to be able to, or "
            "start a new run with more --steps."
        )
    if is_diverged(path):
        raise ConfigError(
            f"{path} diverged and would diverge again, because a run is deterministic; "
            "start a new run with a lower learning rate."
        )
    if config.checkpoint_every == 0:
        raise ConfigError(f"{path} was trained with checkpoint_every 0 and cannot be resumed; start it again.")


def newest_usable(
    path: Path, recorded: RunConfig, say: Say, allowed: Collection[str]
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is entirely sound; else the newest with only damaged logs, and their names.

    None if no checkpoint was ever complete. ``allowed``: settings in which its config may differ from the recorded one.
    """
    for stray in strays(path):
        say(f"{stray} is not a checkpoint; it is ignored.")
    saved, without_logs = saved_steps(path), None
    for step in all_steps(path):
        if step not in saved:
            say(f"checkpoint {step} has no {STATE}: writing it was interrupted, or the file was removed.")
            continue
        try:
            state = read_state(path, step)
            _refuse_changes(path, recorded, saved_config(state), allowed)
            damage, log_damage = list(find_damage(path, state, path / MEMORY)), find_log_damage(path, state)
            for sentence in (*damage, *log_damage.values()):
                say(f"checkpoint {step}: {sentence}")
            if not damage and not log_damage:
                return load_checkpoint(path, state), []
            if not damage and without_logs is None:
                without_logs = load_checkpoint(path, state), list(log_damage)
        except DamageError as error:
            say(f"checkpoint {step}: {error}")
    if without_logs is not None:
        return without_logs
    if saved or had_checkpoint(path, recorded):
        raise DamageError(
            f"no checkpoint of {path} is sound, so the run cannot be resumed; start it again in a new directory."
        )
    _refuse_changes_since_birth(path, recorded, allowed)
    return None, []


def _settle_on(run: Run, checkpoint: Checkpoint, damaged_logs: list[str], say: Say) -> Checkpoint:
    """Make a checkpoint that fits the run its newest, with logs that are sound."""
    run.check(checkpoint)
    keep_checkpoints(run.path, checkpoint.step)
    return _renew_logs(run, checkpoint, damaged_logs, say) if damaged_logs else checkpoint


def _renew_logs(run: Run, checkpoint: Checkpoint, names: list[str], say: Say) -> Checkpoint:
    """Restart damaged logs at a checkpoint, which then no longer relies on them.

    The checkpoint is changed last: if this is interrupted, the next resume does the rest.
    """
    for log in (run.path / name for name in names):
        if log.exists() and not os.access(log, os.R_OK):  # it may well be sound
            raise ConfigError(f"{log} cannot be read; make it readable, then resume again.")
    for name in names:
        say(renew_log(run.path, run.recorded, name, checkpoint.step))
    return forget_logs(run.path, checkpoint, names)


def _refuse_changes(path: Path, recorded: RunConfig, saved: RunConfig, allowed: Collection[str]) -> None:
    names = [name for name in differing_fields(saved, recorded) if name not in allowed]
    if names:
        raise ConfigError(
            f"{path / CONFIG} has changed since this run began ({', '.join(names)}); "
            "undo that, or start a new run with the changed config."
        )


def _refuse_changes_since_birth(path: Path, recorded: RunConfig, allowed: Collection[str]) -> None:
    """Without a checkpoint, compare with the copy of the config in the provenance."""
    try:
        born = saved_config(read_provenance(path))
    except (DamageError, KeyError):
        return  # nothing to compare with
    _refuse_changes(path, recorded, born, allowed)


def _effective_config(
    recorded: RunConfig, checkpoint: Checkpoint | None, device: Device | None, threads: int | None
) -> RunConfig:
    """The config to continue with: device and threads are the checkpoint's unless others are given."""
    if checkpoint is not None:
        device = checkpoint.state["device"] if device is None else device
        threads = checkpoint.state["threads"] if threads is None else threads
    return replace(recorded, device=device or recorded.device, threads=threads or recorded.threads)


def _make_way(path: Path, config: RunConfig, say: Say) -> None:
    """Clear a run that starts over, and set aside what blocks it: a file where it needs a directory, or the reverse."""
    logs = log_names(config)
    for name in (*logs, CHECKPOINTS, MEMORY):
        place = path / name
        if os.path.lexists(place) and not (place.is_file() if name in logs else place.is_dir()):
            say(f"{place} is in the way of this run; it is kept as {set_aside(place, STRAY).name}.")
    clear_run(path)


def _restore(run: Run, checkpoint: Checkpoint, say: Say) -> None:
    path, step, config = run.path, checkpoint.step, run.config
    notes = [f"from step {step} on, {change}" for change in changes_of_machinery(path, config)]
    for name, before, now in (
        ("the device", checkpoint.state["device"], run.device),
        ("threads", checkpoint.state["threads"], config.threads),
    ):
        if before != now:
            notes.append(f"from step {step} on, {name} {now} instead of {before}")
    restarted = run.restore(checkpoint)
    if restarted:
        which = ", ".join(str(stream) for stream in restarted)
        notes.append(f"at step {step} the environment did not repeat its game and began a new one (stream {which})")
        say(
            f"{config.env} is not deterministic: at step {step} it did not repeat its game and began a new one "
            f"(stream {which}); this run is not an exact continuation."
        )
    if notes:
        amend_provenance(path, run.recorded, notes)
