"""Checkpoints: saving a run so that it survives any crash, and finding what is sound; no file read here holds code.

A checkpoint is ``checkpoints/STEP/`` with weights, optimizer and ``state.json``, plus the part of the memory's own
files that it relies on. Those are written in place and only once, so a checkpoint costs what is new. ``state.json``
appears last, by a rename, and holds a checksum of everything else: what is not vouched for is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor

from lambda_replay.config import MAX_THREADS, Device, RunConfig, from_dict
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.rundir.files import (
    checksum,
    file_checksum,
    parse_tensors,
    read_json,
    save_tensors,
    set_aside,
    sync_directory,
    write_atomically,
)

CHECKPOINTS = "checkpoints"
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
FORMAT = 1  # of state.json and of the memory's files
NUM_KEPT = 2
STRAY = "stray"  # added to the name of what is not ours but has the name of something that is
CHUNK = 1024  # slots per checksum of the memory
SLOTS_PER_STEP = 2  # at the most: the step that ends an episode writes its closing slot and the next one's first
SLOTS_PER_RESUME = 1  # at the most: an environment that does not repeat its game begins a new one
WITH_NEWEST = ("observations", "frames")  # what the newest slot holds already; the rest waits for its action

PIECE = 1 << 22  # bytes read at a time

ReadSlots = Callable[[str, int, int], Iterable[Any]]  # bytes of one of the memory's arrays, from a slot up to another


class Checkpoint(NamedTuple):
    """Everything a run needs to go on exactly as if it had never stopped, beside the memory's files."""

    step: int
    state: dict[str, Any]  # plain values; state.json says which
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def spare_slots(interval: int, num_streams: int) -> int:
    """Spare slots per stream so that nothing a kept checkpoint relies on is overwritten.

    A checkpoint is removed when the second one after it is complete. Until then its stream has written at most
    2 × (slots of an interval + one for a resume) slots. It relies on its window, and on the rest of the chunk in
    which that begins. So nothing it needs is overwritten if window + 2 × (...) + chunk slots fit in the ring.
    """
    if interval == 0:
        return 0
    return NUM_KEPT * (SLOTS_PER_STEP * (interval // num_streams) + SLOTS_PER_RESUME) + CHUNK


class MemoryChecksums:
    """Checksums of the memory's slots in chunks; a chunk that is complete is read only once."""

    def __init__(self) -> None:
        self._complete: dict[str, str] = {}  # "stream.chunk" -> checksum

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Start from the checksums of a checkpoint that was found sound."""
        written = state["memory"]["written"]
        for name, value in state["checksums"]["memory"].items():
            stream, chunk = _parse_chunk(name)
            if _is_complete(chunk, written[stream]):
                self._complete[name] = value

    def update(self, memory: ReplayMemory) -> dict[str, str]:
        """Checksums of all chunks that the window needs, by name."""
        arrays = memory.arrays
        checksums: dict[str, str] = {}
        for name, stream, chunk in _chunks(memory.written, memory.window):
            known = self._complete.get(name)
            checksums[name] = known or _chunk_checksum(
                lambda array, first, last: [arrays[array][first:last].data],
                list(arrays),
                slots=_ChunkSlots(stream, chunk, memory.written[stream], memory.ring),
            )
        self._complete = {
            name: checksums[name]
            for name, stream, chunk in _chunks(memory.written, memory.window)
            if _is_complete(chunk, memory.written[stream])
        }
        return checksums


def _chunks(written: Sequence[int], window: int) -> Iterator[tuple[str, int, int]]:
    """Name, stream and number of every chunk that a stream's window touches."""
    for stream, count in enumerate(written):
        for chunk in range(max(0, count - window) // CHUNK, -(-count // CHUNK)):
            yield f"{stream}.{chunk}", stream, chunk


def _parse_chunk(name: str) -> tuple[int, int]:
    stream, chunk = name.split(".")
    return int(stream), int(chunk)


def _is_complete(chunk: int, written: int) -> bool:
    """Whether nothing in the chunk will change: it is full, and its last slot has its action."""
    return (chunk + 1) * CHUNK < written


class _ChunkSlots(NamedTuple):
    """The written slots of one chunk, and where in the memory's arrays they are."""

    stream: int
    chunk: int
    written: int
    ring: int

    def spans(self, array: str) -> Iterator[tuple[int, int]]:
        """One or, over the ring's end, two ranges of slots; of the newest slot only what it holds already."""
        first, last = self.chunk * CHUNK, min((self.chunk + 1) * CHUNK, self.written)
        if last == self.written and array not in WITH_NEWEST:
            last -= 1
        while first < last:
            place = first % self.ring
            size = min(last - first, self.ring - place)
            yield self.stream * self.ring + place, self.stream * self.ring + place + size
            first += size


def _chunk_checksum(read: ReadSlots, arrays: list[str], slots: _ChunkSlots) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        for first, last in slots.spans(array):
            for piece in read(array, first, last):
                digest.update(piece)
    return digest.hexdigest()


def save_checkpoint(run: Path, checkpoint: Checkpoint, memory: ReplayMemory, checksums: MemoryChecksums) -> None:
    """Write a checkpoint; until its last moment the ones before it are what counts."""
    place = run / CHECKPOINTS / str(checkpoint.step)
    try:
        _make_way(place)
        place.mkdir(parents=True)
        memory.flush()
        save_tensors(place / WEIGHTS, checkpoint.weights)
        save_tensors(place / OPTIMIZER, checkpoint.optimizer)
        vouched = {
            "memory": checksums.update(memory),
            "files": {name: file_checksum(place / name) for name in (WEIGHTS, OPTIMIZER)},
            "logs": {name: file_checksum(run / name, length) for name, length in checkpoint.state["logs"].items()},
        }
        layout = {name: array[:1].nbytes for name, array in memory.arrays.items()}
        _write_state(place, {**checkpoint.state, "step": checkpoint.step, "slot_bytes": layout, "checksums": vouched})
        sync_directory(place.parent)
    except OSError:
        remove_checkpoint(run, checkpoint.step)  # what was written of it may be all the room there was
        raise
    keep_checkpoints(run, checkpoint.step)


def _write_state(place: Path, state: Mapping[str, Any]) -> None:
    payload = json.dumps(state, allow_nan=False)
    text = json.dumps({"format": FORMAT, "checksum": checksum(payload.encode()), "payload": payload})
    write_atomically(place / STATE, text.encode())


def forget_logs(run: Path, checkpoint: Checkpoint, names: Iterable[str]) -> Checkpoint:
    """Let a checkpoint rely on nothing of the logs of these names: on resume they begin with what comes after it."""
    state, vouched = checkpoint.state, checkpoint.state["checksums"]
    lengths = {**state["logs"], **dict.fromkeys(names, 0)}
    logs = {**vouched["logs"], **{name: file_checksum(run / name, 0) for name in names}}
    state = {**state, "logs": lengths, "checksums": {**vouched, "logs": logs}}
    _write_state(run / CHECKPOINTS / str(checkpoint.step), state)
    return checkpoint._replace(state=state)


def _make_way(place: Path) -> None:
    """Free a checkpoint's place: what a crash left half-written is removed, what is not ours is set aside."""
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
    """Steps of the checkpoints whose writing came to its end, newest first."""
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
    """Whether this is a directory and not a link to one, through which something else would be removed."""
    return path.is_dir() and not path.is_symlink()


def remove_checkpoint(run: Path, step: int) -> None:
    """Remove a checkpoint, its voucher first, so that what is left never looks whole."""
    place = run / CHECKPOINTS / str(step)
    if (place / STATE).is_file():
        (place / STATE).unlink()
    shutil.rmtree(place, ignore_errors=True)  # what is left of it is no checkpoint; the next removal tries again


def read_state(run: Path, step: int) -> dict[str, Any]:
    """A checkpoint's plain values, their checksum checked and their structure; the files they vouch for are not."""
    path = run / CHECKPOINTS / str(step) / STATE
    try:
        outer = read_json(path)
    except FileNotFoundError:
        raise DamageError(f"{path} is missing.") from None
    if not has_form(outer, {"format": int, "checksum": str, "payload": str}):
        raise DamageError(f"{path} is damaged (it is not what was written).")
    if outer["format"] != FORMAT:
        raise DamageError(f"{path} has format {outer['format']}, but this version of lambda-replay reads {FORMAT}.")
    try:
        payload = outer["payload"].encode()
        state: dict[str, Any] = json.loads(payload)
    except (ValueError, RecursionError):
        raise DamageError(f"{path} is damaged (it is not what was written).") from None
    if outer["checksum"] != checksum(payload):
        raise DamageError(f"{path} is damaged (its checksum does not fit).")
    if not _is_consistent(state, step):
        raise DamageError(f"{path} is damaged (its parts contradict each other).")
    return state


STATE_FORM: dict[str, Any] = {
    "step": int,
    "config": dict,
    "device": str,
    "threads": int,
    "seconds": float,
    "loop": dict,
    "agent": dict,
    "streams": dict,
    "memory": {"written": [int], "is_open": [int]},
    "logs": {str: int},
    "slot_bytes": {str: int},
    "checksums": {"memory": {str: str}, "files": {WEIGHTS: str, OPTIMIZER: str}, "logs": {str: str}},
}


def has_form(value: Any, form: Any) -> bool:
    """Whether plain values have the types and keys of ``form``: {"a": int}, {str: int} for any names, [int] for a list.

    A float may be a whole number; a bool is not a number.
    """
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(item, form[0]) for item in value)
    if not isinstance(form, dict):
        return type(value) is form or (form is float and type(value) is int)
    if not isinstance(value, dict):
        return False
    if set(form) == {str}:
        return all(has_form(item, form[str]) for item in value.values())
    return set(value) == set(form) and all(has_form(item, form[name]) for name, item in value.items())


def form_of(value: Any) -> Any:
    """The form of some plain values without lists of unknown length."""
    if isinstance(value, dict):
        return {name: form_of(item) for name, item in value.items()}
    return [form_of(value[0])] if isinstance(value, list) else type(value)


def _is_consistent(state: Any, step: int) -> bool:
    if not has_form(state, STATE_FORM) or state["step"] != step:
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
        and _are_all_chunks(state["checksums"]["memory"], written, _window(config))
    )


def _are_all_chunks(names: Iterable[str], written: Sequence[int], window: int) -> bool:
    """Whether these are the names of all chunks; compared one by one, for a damaged count may promise any number."""
    return all(name == wanted for name, wanted in zip_longest(names, (name for name, *_ in _chunks(written, window))))


def saved_config(state: Mapping[str, Any]) -> RunConfig:
    """The config a checkpoint was made with."""
    try:
        return from_dict(state["config"])
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        raise DamageError(f"the config of a checkpoint is damaged or of another version: {error}") from None


def _window(config: RunConfig) -> int:
    return config.memory.capacity // config.envs


def find_damage(run: Path, state: Mapping[str, Any], memory: Path) -> Iterator[str]:
    """One sentence for each part of a checkpoint that is needed to go on, and not sound.

    ``memory`` is the directory of the memory's files. Nothing is changed, and the memory is read as plain files: a file
    that is too short is then no crash.
    """
    place = run / CHECKPOINTS / str(state["step"])
    for name, wanted in state["checksums"]["files"].items():
        if sentence := _find_file_damage(place / name, None, wanted):
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
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            return f"{path} is not a file."
        return None if file_checksum(path, length) == wanted else f"{path} is damaged (its checksum does not fit)."
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})."


def _find_memory_damage(state: Mapping[str, Any], directory: Path) -> Iterator[str]:
    config = saved_config(state)
    ring = _window(config) + spare_slots(config.checkpoint_interval, config.envs)
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
        yield from _find_damaged_chunks(state, directory, ring)
    except OSError as error:
        yield f"the replay memory in {directory} cannot be read ({error.strerror})."


def _find_damaged_chunks(state: Mapping[str, Any], directory: Path, ring: int) -> Iterator[str]:
    written, slot_bytes = state["memory"]["written"], state["slot_bytes"]
    files = {name: os.open(directory / f"{name}.bin", os.O_RDONLY) for name in slot_bytes}

    def read(array: str, first: int, last: int) -> Iterator[bytes]:
        place, end = first * slot_bytes[array], last * slot_bytes[array]
        while place < end and (piece := os.pread(files[array], min(PIECE, end - place), place)):
            yield piece
            place += len(piece)

    try:
        for name, wanted in state["checksums"]["memory"].items():
            stream, chunk = _parse_chunk(name)
            slots = _ChunkSlots(stream, chunk, written[stream], ring)
            if _chunk_checksum(read, list(slot_bytes), slots) != wanted:
                numbers = f"{chunk * CHUNK:,} to {min((chunk + 1) * CHUNK, written[stream]) - 1:,}"
                yield f"the replay memory in {directory} is damaged (stream {stream}, slots {numbers})."
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def load_checkpoint(run: Path, state: dict[str, Any]) -> Checkpoint:
    """The tensors that belong to a state, their checksums checked once more in the very bytes that are used."""
    place = run / CHECKPOINTS / str(state["step"])
    tensors = {}
    for name, wanted in state["checksums"]["files"].items():
        try:
            content = (place / name).read_bytes()
            if checksum(str(len(content)).encode(), content) != wanted:
                raise DamageError("its checksum does not fit")
            tensors[name] = parse_tensors(content).tensors
        except OSError as error:
            raise DamageError(f"{place / name} cannot be read ({error.strerror}).") from None
        except DamageError as error:
            raise DamageError(f"{place / name} is damaged ({error}).") from None
    return Checkpoint(state["step"], state, tensors[WEIGHTS], tensors[OPTIMIZER])
