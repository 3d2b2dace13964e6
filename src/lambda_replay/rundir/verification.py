"""Checks what is sound in a run directory, without running or changing anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lambda_replay.agents.run_settings import differing_fields
from lambda_replay.config import RunConfig
from lambda_replay.errors import DamageError
from lambda_replay.rundir.checkpoints import (
    CHECKPOINTS,
    find_damage,
    find_log_damage,
    read_state,
    saved_config,
    saved_steps,
)
from lambda_replay.rundir.directory import (
    BEST_WEIGHTS,
    CONFIG,
    DIVERGED,
    EPISODES,
    EVALUATIONS,
    MEMORY,
    METRICS,
    PROVENANCE,
    WEIGHTS,
    had_checkpoint,
    is_diverged,
    is_finished,
    looking_at,
    read_config,
    read_divergence,
    read_provenance,
)
from lambda_replay.rundir.files import file_checksum, load_tensor_file


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    is_sound: bool
    sentence: str
    is_diverged: bool = False  # not sound because training diverged: no file is damaged


def verify_run(path: Path) -> list[Finding]:
    """Check everything in a run directory; nothing may be running in it."""
    config = read_config(path)
    with looking_at(path):
        return [
            Finding(CONFIG, True, "readable, every setting valid"),
            _verify_provenance(path, config),
            *_verify_divergence(path),
            *(_verify_results(path) if is_finished(path) else ()),
            *_verify_checkpoints(path, config),
        ]


def _verify_provenance(path: Path, config: RunConfig) -> Finding:
    try:
        values = read_provenance(path)
        names = differing_fields(saved_config(values), config)
    except (DamageError, KeyError) as error:
        return Finding(PROVENANCE, False, str(error) if isinstance(error, DamageError) else "it has no config.")
    if names:
        return Finding(PROVENANCE, False, f"{CONFIG} has changed since this run began ({', '.join(names)}).")
    return Finding(PROVENANCE, True, f"readable, its config matches {CONFIG}")


def _verify_divergence(path: Path) -> Iterator[Finding]:
    if is_diverged(path):
        yield Finding(DIVERGED, False, read_divergence(path), is_diverged=True)


def _verify_results(path: Path) -> Iterator[Finding]:
    try:
        weights, vouched = load_tensor_file(path / WEIGHTS)
    except DamageError as error:
        yield Finding(WEIGHTS, False, str(error))
        return
    broken = sorted(name for name, tensor in weights.items() if not tensor.isfinite().all())
    if broken:
        sentence = f"the checksum matches, but values of {', '.join(broken)} are not finite: training diverged"
        yield Finding(WEIGHTS, False, sentence, is_diverged=True)
    else:
        yield Finding(WEIGHTS, True, "the checksum matches; the run is finished")
    yield from _verify_best(path)
    for name in (METRICS, EPISODES, *([EVALUATIONS] if EVALUATIONS in vouched else [])):
        try:
            is_sound = file_checksum(path / name) == vouched.get(name)
            yield Finding(
                name, is_sound, "the checksum matches" if is_sound else "damaged (its checksum does not match)."
            )
        except OSError as error:
            yield Finding(name, False, f"cannot be read ({error.strerror}).")


def _verify_best(path: Path) -> Iterator[Finding]:
    if (path / BEST_WEIGHTS).exists():
        try:
            load_tensor_file(path / BEST_WEIGHTS)
            yield Finding(BEST_WEIGHTS, True, "the checksum matches")
        except DamageError as error:
            yield Finding(BEST_WEIGHTS, False, str(error))


def _verify_checkpoints(path: Path, config: RunConfig) -> Iterator[Finding]:
    steps = saved_steps(path)
    if not steps:
        yield _verify_absence(path, config)
    is_any_sound, usable = False, None
    for step in steps:
        damage, log_damage = _find_all_damage(path, step, config)
        for sentence in (*damage, *log_damage.values()):
            yield Finding(f"checkpoint {step}", False, sentence)
        if not damage and not log_damage:
            yield Finding(f"checkpoint {step}", True, "every checksum matches, including the replay memory's")
            is_any_sound = True
        elif not damage and usable is None:
            usable = step, list(log_damage)
    if usable is not None and not is_any_sound and not is_finished(path):
        step, names = usable
        for name in names:
            yield Finding(name, False, f"training does not read it; resume continues from step {step} without it.")


def _verify_absence(path: Path, config: RunConfig) -> Finding:
    """What the lack of checkpoints means."""
    if is_finished(path):
        return Finding(CHECKPOINTS, True, "none; the run is finished")
    if is_diverged(path):
        return Finding(CHECKPOINTS, True, "none; the run diverged")
    if had_checkpoint(path, config):
        return Finding(CHECKPOINTS, False, "none, but the run had some; it cannot be resumed.")
    return Finding(CHECKPOINTS, True, "none; the run is not finished, and resume starts it over")


def _find_all_damage(path: Path, step: int, config: RunConfig) -> tuple[list[str], dict[str, str]]:
    """What is not sound in a checkpoint: one sentence for each part that a resume needs, and for each log."""
    try:
        state = read_state(path, step)
    except DamageError as error:
        return [str(error)], {}
    damage = list(find_damage(path, state, path / MEMORY))
    names = differing_fields(saved_config(state), config)
    if names:
        damage.insert(0, f"{path / CONFIG} has changed since it was made ({', '.join(names)}).")
    return damage, find_log_damage(path, state)
