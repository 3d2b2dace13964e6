"""The file of a packed run, and writing it: a .zip with everything that resume needs from one checkpoint.

Its entries are files of the run directory under their names there: JSON, logs, safetensors, films, and of the replay
memory's files the bytes that the checkpoint relies on. So reading them can execute no code. The archive's comment is a
checksum of every byte before it. ``pack_reading.py`` reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

from typing_extensions import TypedDict  # pydantic reads this one before Python 3.12

from lambda_replay.rundir.atomic import creating
from lambda_replay.rundir.checkpoints import CHECKPOINTS, STATE, ring_of, saved_config, tensor_file, window_of
from lambda_replay.rundir.directory import CONFIG, FILMS, MEMORY, PROVENANCE
from lambda_replay.rundir.files import file_checksum
from lambda_replay.rundir.memory_checksums import PIECE, relied_on

FORMAT = 1
HEAD = "pack.json"  # the first entry, and the only one that is not from the run directory
CHECKSUM_BYTES = 32
FILM = re.compile(rf"{FILMS}/([1-9][0-9]*)\.gif")  # with its step

Span = tuple[int, int]  # bytes of a file, from one up to another


class Head(TypedDict):
    """What HEAD holds."""

    format: int
    step: int  # of the checkpoint


class MemoryFile(NamedTuple):
    """A file of the replay memory."""

    size: int  # bytes in the run directory
    spans: list[Span]  # the bytes that the checkpoint relies on, which are those in a pack

    @property
    def packed_size(self) -> int:
        return sum(last - first for first, last in self.spans)


def write_pack(out: Path, run: Path, state: Mapping[str, Any]) -> None:
    """Pack a run at its sound checkpoint with these plain values; FileExistsError if ``out`` exists when it is done."""
    head = Head(format=FORMAT, step=state["step"])
    with creating(out) as draft:
        # The default level: lower ones are up to three times as fast, but need 1.3 to 1.9 times the space for Pong.
        with ZipFile(draft, "w", ZIP_DEFLATED) as archive:
            _write(archive, HEAD, [json.dumps(head).encode()])
            for name, spans in _contents(run, state):
                _write(archive, name, _read(run / name, spans))
            archive.comment = b"0" * CHECKSUM_BYTES
        _seal(draft)


def _contents(run: Path, state: Mapping[str, Any]) -> Iterator[tuple[str, list[Span]]]:
    """The files to pack, and which bytes of them."""
    films = sorted(path.relative_to(run).as_posix() for path in (run / FILMS).glob("*.gif"))
    optional = [name for name in (PROVENANCE, *films) if is_optional(name, state["step"]) and (run / name).is_file()]
    for name in (*file_names(state), *optional):
        yield name, [(0, state["logs"].get(name, (run / name).stat().st_size))]
    for name, file in memory_files(state).items():
        yield name, file.spans


def file_names(state: Mapping[str, Any]) -> list[str]:
    """The files that every run has at a checkpoint with these plain values, apart from its memory."""
    place = Path(CHECKPOINTS, str(state["step"]))
    tensors = (tensor_file(place, name) for name in state["checksums"]["files"])
    return [CONFIG, *state["logs"], *(path.as_posix() for path in (place / STATE, *tensors))]


def is_optional(name: str, step: int) -> bool:
    """Whether a run may have this file at a checkpoint: its provenance, or a film made up to that step."""
    film = FILM.fullmatch(name)
    return name == PROVENANCE if film is None else int(film[1]) <= step


def memory_files(state: Mapping[str, Any]) -> dict[str, MemoryFile]:
    """The files of the memory, by name."""
    config, written = saved_config(state), state["memory"]["written"]
    ring, window = ring_of(config), window_of(config)
    return {
        f"{MEMORY}/{array}.bin": MemoryFile(
            len(written) * ring.size * size,
            [(first * size, last * size) for first, last in relied_on(array, written, window, ring)],
        )
        for array, size in state["slot_bytes"].items()
    }


def in_pieces(spans: Iterable[Span]) -> Iterator[Span]:
    """The same bytes in spans of a few megabytes."""
    for first, last in spans:
        for start in range(first, last, PIECE):
            yield start, min(start + PIECE, last)


def _read(path: Path, spans: Iterable[Span]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for first, last in in_pieces(spans):
            file.seek(first)
            yield file.read(last - first)


def _write(archive: ZipFile, name: str, pieces: Iterable[bytes]) -> None:
    """Write one entry; opened by its name it has no date, so that equal runs give equal files."""
    with archive.open(name, "w", force_zip64=True) as file:
        for piece in pieces:
            file.write(piece)


def _seal(path: Path) -> None:
    """Replace the last bytes, which are the comment, by a checksum of all others."""
    length = path.stat().st_size - CHECKSUM_BYTES
    seal = file_checksum(path, length).encode()
    with path.open("r+b") as file:
        file.seek(length)
        file.write(seal)


def is_sealed(path: Path) -> bool:
    """Whether a file ends with a checksum of everything before it."""
    length = path.stat().st_size - CHECKSUM_BYTES
    if length < 0:
        return False
    with path.open("rb") as file:
        file.seek(length)
        return file.read() == file_checksum(path, length).encode()
