"""What is sound in a run directory and what is not, found without running or changing anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lambda_replay.checkpoints import find_damage, read_state, saved_config, saved_steps
from lambda_replay.config import RunConfig, differing_fields
from lambda_replay.errors import DamageError
from lambda_replay.files import file_checksum, load_tensor_file
from lambda_replay.runs import (
    CONFIG,
    EPISODES,
    MEMORY,
    METRICS,
    PROVENANCE,
    WEIGHTS,
    is_finished,
    looking_at,
    read_config,
    read_provenance,
)


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    is_sound: bool
    sentence: str


def verify_run(path: Path) -> list[Finding]:
    """Everything that can be checked of a run directory; nothing may be running in it."""
    config = read_config(path)
    with looking_at(path):
        return [
            Finding(CONFIG, True, "readable, every setting valid"),
            _verify_provenance(path, config),
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
        return Finding(PROVENANCE, False, f"{CONFIG} was changed since this run began ({', '.join(names)}).")
    return Finding(PROVENANCE, True, f"readable, its config is that of {CONFIG}")


def _verify_results(path: Path) -> Iterator[Finding]:
    try:
        vouched = load_tensor_file(path / WEIGHTS).vouched
    except DamageError as error:
        yield Finding(WEIGHTS, False, str(error))
        return
    yield Finding(WEIGHTS, True, "the checksum fits; the run is finished")
    for name in (METRICS, EPISODES):
        try:
            is_sound = file_checksum(path / name) == vouched.get(name)
            yield Finding(name, is_sound, "the checksum fits" if is_sound else "damaged (its checksum does not fit).")
        except OSError as error:
            yield Finding(name, False, f"cannot be read ({error.strerror}).")


def _verify_checkpoints(path: Path, config: RunConfig) -> Iterator[Finding]:
    steps = saved_steps(path)
    if not steps:
        state = "the run is finished" if is_finished(path) else "the run is not finished, and resume starts it afresh"
        yield Finding("checkpoints", True, f"none; {state}")
    for step in steps:
        damage = list(_find_all_damage(path, step, config))
        for sentence in damage:
            yield Finding(f"checkpoint {step}", False, sentence)
        if not damage:
            yield Finding(f"checkpoint {step}", True, "every checksum fits, the replay memory's too")


def _find_all_damage(path: Path, step: int, config: RunConfig) -> Iterator[str]:
    try:
        state = read_state(path, step)
    except DamageError as error:
        yield str(error)
        return
    names = differing_fields(saved_config(state), config)
    if names:
        yield f"{path / CONFIG} was changed since it was made ({', '.join(names)})."
    yield from find_damage(path, state, path / MEMORY)
