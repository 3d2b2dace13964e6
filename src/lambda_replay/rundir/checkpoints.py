"""Checkpoints: saves a run so that it survives any crash, and finds what is sound; no file read here can run code.

A checkpoint is ``checkpoints/STEP/`` with weights, optimizer and ``state.json``, plus the part of the memory's own
files that it relies on. Those are written in place and only once, so a checkpoint costs only what is new.
``state.json`` appears last, by a rename, and holds a checksum of everything else: a file without one is not used.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor
from typing_extensions import TypedDict  # pydantic reads this one before Python 3.12

from lambda_replay.agents.run_settings import from_dict, to_dict
from lambda_replay.config import MAX_THREADS, Device, RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.ring import Ring
from lambda_replay.rundir.atomic import sync_directory, write_atomically
from lambda_replay.rundir.files import (
    checksum,
    file_checksum,
    has_type,
    parse_tensors,
    read_json,
    save_tensors,
    set_aside,
)
from lambda_replay.rundir.memory_checksums import (
    NUM_KEPT,
    MemoryChecksums,
    are_all_chunks,
    find_damaged_chunks,
    spare_slots,
)

CHECKPOINTS = "checkpoints"
STATE = "state.json"
BEST = "best"  # the tensors with the weights of the best evaluation, if there was one
FORMAT = 3  # of state.json and of the memory's files
STRAY = "stray"  # added to the name of a file that is not ours but is in the place of one that is


class Envelope(TypedDict):
    """What state.json holds: the plain values as text, and their checksum."""

    format: int
    checksum: str
    payload: str


class MemoryState(TypedDict):
    """Where the memory's rings stand."""

    written: list[int]
    is_open: list[int]


class Vouched(TypedDict):
    """Checksums of everything that a checkpoint relies on."""

    memory: dict[str, str]  # by stream and chunk
    files: dict[str, str]  # the tensors, by name
    logs: dict[str, str]


class BestState(TypedDict):
    """The best evaluation so far; its weights are tensors."""

    step: int
    score: float


class SavedState(TypedDict):
    """The plain values of a checkpoint; loop, agent and streams are checked by the code that owns them."""

    step: int
    config: dict[str, Any]
    device: str
    threads: int
    seconds: float
    loop: dict[str, Any]
    agent: dict[str, Any]
    streams: dict[str, Any]
    memory: MemoryState
    best: BestState | None
    logs: dict[str, int]
    slot_bytes: dict[str, int]
    checksums: Vouched


class Checkpoint(NamedTuple):
    """Everything a run needs to continue exactly as if it had never stopped, apart from the memory's files."""

    step: int
    state: dict[str, Any]  # plain values; state.json says which
    tensors: dict[str, dict[str, Tensor]]  # by the name of their file


def save_checkpoint(run: Path, checkpoint: Checkpoint, memory: ReplayMemory, checksums: MemoryChecksums) -> None:
    """Write a checkpoint; the previous ones count until it is complete."""
    place = run / CHECKPOINTS / str(checkpoint.step)
    try:
        _make_way(place)
        place.mkdir(parents=True)
        memory.flush()
        for name, tensors in checkpoint.tensors.items():
            save_tensors(tensor_file(place, name), tensors)
        vouched = {
            "memory": checksums.update(memory),
            "files": {name: file_checksum(tensor_file(place, name)) for name in checkpoint.tensors},
            "logs": {name: file_checksum(run / name, length) for name, length in checkpoint.state["logs"].items()},
        }
        layout = {name: array[:1].nbytes for name, array in memory.arrays.items()}
        _write_state(place, {**checkpoint.state, "step": checkpoint.step, "slot_bytes": layout, "checksums": vouched})
        sync_directory(place.parent)
    except OSError:
        remove_checkpoint(run, checkpoint.step)  # what was written so far may have filled the disk
        raise
    keep_checkpoints(run, checkpoint.step)


def _write_state(place: Path, state: Mapping[str, Any]) -> None:
    payload = json.dumps(state, allow_nan=False)
    text = json.dumps({"format": FORMAT, "checksum": checksum(payload.encode()), "payload": payload})
    write_atomically(place / STATE, text.encode())


def forget_logs(run: Path, checkpoint: Checkpoint, names: Iterable[str]) -> Checkpoint:
    """Stop a checkpoint from relying on the logs with these names: on resume they start after it."""
    state, vouched = checkpoint.state, checkpoint.state["checksums"]
    lengths = {**state["logs"], **dict.fromkeys(names, 0)}
    logs = {**vouched["logs"], **{name: file_checksum(run / name, 0) for name in names}}
    state = {**state, "logs": lengths, "checksums": {**vouched, "logs": logs}}
    _write_state(run / CHECKPOINTS / str(checkpoint.step), state)
    return checkpoint._replace(state=state)


def change_config(run: Path, state: Mapping[str, Any], config: RunConfig) -> None:
    """Let a checkpoint belong to a config that differs from its own in how long the run lasts."""
    _write_state(run / CHECKPOINTS / str(state["step"]), {**state, "config": to_dict(config)})


def _make_way(place: Path) -> None:
    """Clear a checkpoint's place: remove what a crash left half-written, set aside what is not ours."""
    if os.path.lexists(place.parent) and not place.parent.is_dir():
        set_aside(place.parent, STRAY)
    if _is_own_directory(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        set_aside(place, STRAY)


def keep_checkpoints(run: Path, newest: int) -> None:
    """Remove all checkpoints but the given one and those just before it."""
    kept = [step for step in saved_steps(run) if step <= newest][:NUM_KEPT]
    for step in all_steps(run):
        if step not in kept:
            remove_checkpoint(run, step)


def saved_steps(run: Path) -> list[int]:
    """Steps of the checkpoints that are completely written, newest first."""
    return [step for step in all_steps(run) if (run / CHECKPOINTS / str(step) / STATE).is_file()]


def all_steps(run: Path) -> list[int]:
    """Steps of all checkpoints, unfinished ones too, newest first."""
    return sorted((int(entry.name) for entry in _named_like_steps(run) if _is_own_directory(entry)), reverse=True)


def strays(run: Path) -> list[Path]:
    """What is named like a checkpoint but cannot be one: a file, a link."""
    return sorted(entry for entry in _named_like_steps(run) if not _is_own_directory(entry))


def _named_like_steps(run: Path) -> list[Path]:
    place = run / CHECKPOINTS
    entries = place.iterdir() if place.is_dir() else ()
    return [entry for entry in entries if re.fullmatch(r"[1-9][0-9]{0,17}", entry.name)]


def _is_own_directory(path: Path) -> bool:
    """Whether this is a directory and not a link to one: removing through a link would remove something else."""
    return path.is_dir() and not path.is_symlink()


def remove_checkpoint(run: Path, step: int) -> None:
    """Remove a checkpoint, its state first, so that what is left never looks complete."""
    place = run / CHECKPOINTS / str(step)
    if (place / STATE).is_file():
        (place / STATE).unlink()
    shutil.rmtree(place, ignore_errors=True)  # what is left is not a checkpoint; the next removal tries again


def read_state(run: Path, step: int) -> dict[str, Any]:
    """A checkpoint's plain values, with their checksum and structure checked, but not the files they vouch for."""
    path = run / CHECKPOINTS / str(step) / STATE
    try:
        return check_state(path, read_json(path), step)
    except FileNotFoundError:
        raise DamageError(f"{path} is missing.") from None


def check_state(path: Path, outer: Any, step: int) -> dict[str, Any]:
    """The plain values in the content of a state.json, which errors call ``path``."""
    if not has_type(outer, Envelope):
        raise DamageError(f"{path} is damaged (it is not what was written).")
    if outer["format"] != FORMAT:
        raise DamageError(f"{path} has format {outer['format']}, but this version of lambda-replay reads {FORMAT}.")
    try:
        payload = outer["payload"].encode()
        state: dict[str, Any] = json.loads(payload)
    except (ValueError, RecursionError):
        raise DamageError(f"{path} is damaged (it is not what was written).") from None
    if outer["checksum"] != checksum(payload):
        raise DamageError(f"{path} is damaged (its checksum does not match).")
    if not _is_consistent(state, step):
        raise DamageError(f"{path} is damaged (its parts contradict each other).")
    return state


def _is_consistent(state: Any, step: int) -> bool:
    if not has_type(state, SavedState) or state["step"] != step:
        return False
    try:
        config = saved_config(state)
    except DamageError:
        return False
    written, is_open = state["memory"]["written"], state["memory"]["is_open"]
    return (
        state["device"] in get_args(Device)
        and 0 < state["threads"] <= MAX_THREADS
        and state["seconds"] >= 0
        and len(written) == len(is_open) == config.envs
        and all(count > 0 for count in written)  # at a boundary every stream is in the middle of a game
        and all(flag == 1 for flag in is_open)
        and set(state["logs"]) == set(state["checksums"]["logs"])
        and all(length >= 0 for length in state["logs"].values())
        and all(name.isidentifier() and size > 0 for name, size in state["slot_bytes"].items())
        and all(name.isidentifier() for name in state["checksums"]["files"])
        and (state["best"] is not None) == (BEST in state["checksums"]["files"])
        and math.isfinite(0.0 if state["best"] is None else state["best"]["score"])
        and are_all_chunks(state["checksums"]["memory"], written, window_of(config))
    )


def saved_config(state: Mapping[str, Any]) -> RunConfig:
    """The config a checkpoint was made with."""
    try:
        return from_dict(state["config"])
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        raise DamageError(f"the config of a checkpoint is damaged or from another version: {error}") from None


def window_of(config: RunConfig) -> int:
    """Slots of each stream of the memory that can be sampled."""
    return config.memory.capacity // config.envs


def ring_of(config: RunConfig) -> Ring:
    """The ring of each stream of the memory, with its spare slots."""
    return Ring(window_of(config) + spare_slots(config.checkpoint_interval, config.envs))


def find_damage(run: Path, state: Mapping[str, Any], memory: Path) -> Iterator[str]:
    """One sentence for each part of a checkpoint that a resume needs and that is not sound.

    ``memory`` is the directory of the memory's files. Nothing is changed, and the memory is read as plain files, so
    that a file that is too short causes no crash.
    """
    place = run / CHECKPOINTS / str(state["step"])
    for name, wanted in state["checksums"]["files"].items():
        if sentence := _find_file_damage(tensor_file(place, name), None, wanted):
            yield sentence
    yield from _find_memory_damage(state, memory)


def find_log_damage(run: Path, state: Mapping[str, Any]) -> dict[str, str]:
    """By name, one sentence for each log that is not what it was up to the checkpoint; training never reads them."""
    damage = {
        name: _find_file_damage(run / name, state["logs"][name], wanted)
        for name, wanted in state["checksums"]["logs"].items()
    }
    return {name: sentence for name, sentence in damage.items() if sentence}


def _find_file_damage(path: Path, length: int | None, wanted: str) -> str | None:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait forever
            return f"{path} is not a file."
        return None if file_checksum(path, length) == wanted else f"{path} is damaged (its checksum does not match)."
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})."


def _find_memory_damage(state: Mapping[str, Any], directory: Path) -> Iterator[str]:
    config = saved_config(state)
    ring = ring_of(config).size
    slot_bytes = state["slot_bytes"]
    readable = []
    for name, size in slot_bytes.items():
        path, wanted = directory / f"{name}.bin", config.envs * ring * size
        try:
            found = path.stat().st_size
        except OSError as error:
            yield f"{path} cannot be read ({error.strerror})."
            continue
        if found != wanted or not path.is_file():
            yield f"{path} has {found:,} bytes instead of {wanted:,}."
        else:
            readable.append(name)
    if len(readable) < len(slot_bytes):
        return  # the checksums are of all files together
    try:
        yield from find_damaged_chunks(state, directory, ring)
    except OSError as error:
        yield f"the replay memory in {directory} cannot be read ({error.strerror})."


def load_checkpoint(run: Path, state: dict[str, Any]) -> Checkpoint:
    """The tensors that belong to a state, their checksums checked again on the very bytes that are used."""
    place = run / CHECKPOINTS / str(state["step"])
    tensors = {}
    for name, wanted in state["checksums"]["files"].items():
        path = tensor_file(place, name)
        try:
            content = path.read_bytes()
            if checksum(str(len(content)).encode(), content) != wanted:
                raise DamageError("its checksum does not match")
            tensors[name] = parse_tensors(content).tensors
        except OSError as error:
            raise DamageError(f"{path} cannot be read ({error.strerror}).") from None
        except DamageError as error:
            raise DamageError(f"{path} is damaged ({error}).") from None
    return Checkpoint(state["step"], state, tensors)


def tensor_file(place: Path, name: str) -> Path:
    """The file of a checkpoint that holds tensors of this name."""
    return place / f"{name}.safetensors"
