"""Checksums of the memory's slots in chunks: a checkpoint costs only what is new, and damage is located."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.ring import Ring
from lambda_replay.replay.storage import KNOWN_AT_NEWEST

NUM_KEPT = 2  # checkpoints
CHUNK = 1024  # slots per checksum of the memory
SLOTS_PER_STEP = 2  # at most: the step that ends an episode writes its closing slot and the next one's first
SLOTS_PER_RESUME = 1  # at most: an environment that does not repeat its game starts a new one
PIECE = 1 << 22  # bytes read at a time

ReadSlots = Callable[[str, int, int], Iterable[Any]]  # bytes of one of the memory's arrays, from a slot up to another


def spare_slots(interval: int, num_streams: int) -> int:
    """Spare slots per stream so that nothing a kept checkpoint relies on is overwritten.

    A checkpoint is removed when the second one after it is complete. Until then its stream has written at most
    2 × (slots of an interval + one for a resume) slots. It relies on its window, and on the rest of the chunk in
    which that starts. So nothing it needs is overwritten if window + 2 × (...) + chunk slots fit in the ring.
    """
    if interval == 0:
        return 0
    return NUM_KEPT * (SLOTS_PER_STEP * (interval // num_streams) + SLOTS_PER_RESUME) + CHUNK


class MemoryChecksums:
    """Checksums of the memory's slots in chunks; a chunk that is complete is read only once."""

    def __init__(self) -> None:
        self._complete: dict[str, str] = {}  # "stream.chunk" -> checksum

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Start from the checksums of a sound checkpoint."""
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


def relied_on(array: str, written: Sequence[int], window: int, ring: Ring) -> Iterator[tuple[int, int]]:
    """Ranges of the slots whose part in an array has a checksum: all chunks of a stream, stream after stream."""
    for stream, count in enumerate(written):
        first = max(0, count - window) // CHUNK * CHUNK
        yield from ring.spans(stream, first, count if array in KNOWN_AT_NEWEST else count - 1)


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
    ring: Ring

    def spans(self, array: str) -> Iterator[tuple[int, int]]:
        """One range of slots, or two around the ring's end; of the newest slot only what it already holds."""
        last = min((self.chunk + 1) * CHUNK, self.written)
        if last == self.written and array not in KNOWN_AT_NEWEST:
            last -= 1
        return self.ring.spans(self.stream, self.chunk * CHUNK, last)


def _chunk_checksum(read: ReadSlots, arrays: list[str], slots: _ChunkSlots) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        for first, last in slots.spans(array):
            for piece in read(array, first, last):
                digest.update(piece)
    return digest.hexdigest()


def are_all_chunks(names: Iterable[str], written: Sequence[int], window: int) -> bool:
    """Whether these are the names of all chunks; compared one by one, as a damaged count may be any number."""
    return all(name == wanted for name, wanted in zip_longest(names, (name for name, *_ in _chunks(written, window))))


def find_damaged_chunks(state: Mapping[str, Any], directory: Path, ring: int) -> Iterator[str]:
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
            slots = _ChunkSlots(stream, chunk, written[stream], Ring(ring))
            if _chunk_checksum(read, list(slot_bytes), slots) != wanted:
                numbers = f"{chunk * CHUNK:,} to {min((chunk + 1) * CHUNK, written[stream]) - 1:,}"
                yield f"the replay memory in {directory} is damaged (stream {stream}, slots {numbers})."
    finally:
        for descriptor in files.values():
            os.close(descriptor)
