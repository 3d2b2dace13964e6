"""Checkpoints: saving a run so that it survives any crash, and finding the newest one that is sound; nothing loaded here can execute.

A checkpoint is ``checkpoints/STEP/`` with weights, optimizer and ``state.json``, plus the part of the memory's own
files that it relies on. Those are written in place and only once, so a checkpoint costs what is new. ``state.json``
appears last, by a rename, and holds a checksum of everything else: what is not vouched for is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lambda_replay.errors import DamageError
from lambda_replay.files import load_tensors, save_tensors, sync_directory, write_atomically
from lambda_replay.memory import ReplayMemory

CHECKPOINTS = "checkpoints"
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
NUM_KEPT = 2
CHUNK = 1024  # slots per checksum of the memory
SLOTS_PER_STEP = 2  # at the most: an episode of one step takes its observation and its closing slot


class Checkpoint(NamedTuple):
    """Everything a run needs to go on exactly as if it had never stopped, beside the memory's files."""

    step: int
    state: dict[str, Any]  # plain values: loop, agent, streams, memory, log positions
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def spare_slots(interval: int, num_streams: int) -> int:
    """Spare slots per stream so that nothing a kept checkpoint relies on is overwritten.

    Since the older of two kept checkpoints at most two intervals have passed; one chunk more keeps the oldest
    checksum of its window whole.
    """
    return NUM_KEPT * SLOTS_PER_STEP * (interval // num_streams) + CHUNK if interval > 0 else 0


class MemoryChecksums:
    """Checksums of the memory's slots in chunks; a chunk that is complete is read only once."""

    def __init__(self) -> None:
        self._complete: dict[tuple[int, int], str] = {}  # (stream, chunk number) -> checksum

    def update(self, memory: ReplayMemory) -> dict[str, str]:
        """Checksums of all chunks that the window needs, by name."""
        checksums: dict[str, str] = {}
        for stream, written in enumerate(memory.written):
            for chunk in _chunks_of_window(memory, written):
                key, end = (stream, chunk), (chunk + 1) * CHUNK
                if end >= written:  # still being written; the newest slot has no action yet
                    checksums[f"{stream}.{chunk}"] = chunk_checksum(memory, stream, chunk, written)
                    continue
                if key not in self._complete:
                    self._complete[key] = chunk_checksum(memory, stream, chunk, written)
                checksums[f"{stream}.{chunk}"] = self._complete[key]
        self._complete = {key: value for key, value in self._complete.items() if f"{key[0]}.{key[1]}" in checksums}
        return checksums


def _chunks_of_window(memory: ReplayMemory, written: int) -> range:
    oldest = max(0, written - memory.window)
    return range(oldest // CHUNK, -(-written // CHUNK))


def chunk_checksum(memory: ReplayMemory, stream: int, chunk: int, written: int) -> str:
    """Checksum of the written slots of a chunk; of the newest slot, which has no action yet, the observation alone."""
    numbers = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, written))
    slots = stream * memory.ring + numbers % memory.ring
    settled = slots[:-1] if numbers[-1] == written - 1 else slots
    digest = hashlib.blake2b(digest_size=16)
    for name, array in memory.arrays.items():
        has_newest = name in ("observations", "frames")
        digest.update(np.ascontiguousarray(array[slots if has_newest else settled]).data)
    return digest.hexdigest()


def save_checkpoint(run: Path, checkpoint: Checkpoint, memory: ReplayMemory, checksums: MemoryChecksums) -> None:
    """Write a checkpoint; until its last moment the ones before it are what counts."""
    place = run / CHECKPOINTS / str(checkpoint.step)
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        memory.flush()
        save_tensors(place / WEIGHTS, checkpoint.weights)
        save_tensors(place / OPTIMIZER, checkpoint.optimizer)
        vouched = {
            "memory": checksums.update(memory),
            "files": {name: file_checksum(place / name) for name in (WEIGHTS, OPTIMIZER)},
            "logs": {name: file_checksum(run / name, length) for name, length in checkpoint.state["logs"].items()},
        }
        payload = json.dumps({**checkpoint.state, "step": checkpoint.step, "checksums": vouched})
        text = json.dumps({"checksum": _text_checksum(payload), "payload": payload})
        write_atomically(place / STATE, text.encode())
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        raise
    sync_directory(place.parent)
    for old in saved_steps(run)[NUM_KEPT:]:
        remove_checkpoint(run, old)


def saved_steps(run: Path) -> list[int]:
    """Steps of the checkpoints whose writing came to its end, newest first."""
    place = run / CHECKPOINTS
    names = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    return sorted((int(name) for name in names if name.isdecimal() and (place / name / STATE).exists()), reverse=True)


def all_steps(run: Path) -> list[int]:
    """Steps of all checkpoints, unfinished ones too, newest first."""
    place = run / CHECKPOINTS
    names = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def remove_checkpoint(run: Path, step: int) -> None:
    """Remove a checkpoint, its voucher first, so that what is left never looks whole."""
    place = run / CHECKPOINTS / str(step)
    (place / STATE).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def read_state(run: Path, step: int) -> dict[str, Any]:
    """A checkpoint's plain values, their checksum checked; the files they vouch for are not."""
    path = run / CHECKPOINTS / str(step) / STATE
    try:
        outer = json.loads(path.read_bytes())
        payload = outer["payload"]
        if set(outer) != {"checksum", "payload"} or outer["checksum"] != _text_checksum(payload):
            raise DamageError(f"{path} is damaged (its checksum does not fit).")
        state: dict[str, Any] = json.loads(payload)
        return state
    except OSError as error:
        raise DamageError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamageError(f"{path} is damaged (it is not what was written).") from None


def check_checkpoint(run: Path, step: int, memory: ReplayMemory) -> Iterator[str]:
    """One sentence for each part of a checkpoint that is not sound; ``memory`` is set to the checkpoint's state."""
    try:
        state = read_state(run, step)
    except DamageError as error:
        yield str(error)
        return
    place = run / CHECKPOINTS / str(step)
    files = [(place / name, None, checksum) for name, checksum in state["checksums"]["files"].items()]
    logs = [(run / name, state["logs"][name], checksum) for name, checksum in state["checksums"]["logs"].items()]
    for path, length, checksum in files + logs:
        try:
            if file_checksum(path, length) != checksum:
                yield f"{path} is damaged (its checksum does not fit)."
        except OSError as error:
            yield f"{path} cannot be read ({error.strerror})."
    memory.set_state(state["memory"])
    for name, checksum in state["checksums"]["memory"].items():
        stream, chunk = (int(part) for part in name.split("."))
        if chunk_checksum(memory, stream, chunk, memory.written[stream]) != checksum:
            yield f"the replay memory of {run} is damaged (stream {stream}, slots from {chunk * CHUNK})."


def load_checkpoint(run: Path, step: int) -> Checkpoint:
    """A checkpoint that ``check_checkpoint`` found sound."""
    place = run / CHECKPOINTS / str(step)
    return Checkpoint(step, read_state(run, step), load_tensors(place / WEIGHTS), load_tensors(place / OPTIMIZER))


def file_checksum(path: Path, length: int | None = None) -> str:
    """Checksum of a file, or of its first ``length`` bytes and whether it has as many."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size if length is None else length
        digest.update(str(left).encode())
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _text_checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
