"""The file of a packed run, and writing it: a .zip with all that resume needs but observations that games give back.

Its entries are JSON, logs, safetensors and .npy without objects, under the names they have in a run directory, so
reading them can execute no code. The archive's comment is a checksum of every byte before it. ``pack_reading.py`` reads
it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from typing_extensions import TypedDict  # pydantic reads this one before Python 3.12

from lambda_replay.rundir.atomic import replacing
from lambda_replay.rundir.checkpoints import CHECKPOINTS, STATE, tensor_file
from lambda_replay.rundir.directory import CONFIG, FILMS, MEMORY, PROVENANCE
from lambda_replay.rundir.files import file_checksum
from lambda_replay.rundir.memory_checksums import PIECE
from lambda_replay.rundir.memory_files import Arrays, PackedGame, Span, slot_map

FORMAT = 1
HEAD, GAMES = "pack.json", "games.npy"  # the entries that are not from the run directory
BEGINNING = b"PK\x03\x04"  # of every .zip
NAME_AT = 30  # where it has the name of its first entry, which is HEAD
CHECKSUM_BYTES = 32
HEADER_BYTES = 128  # of a .npy entry
GAME_TYPE, SLOT_TYPE = "<i8", "|u1"  # of the numbers in them


class Head(TypedDict):
    """What HEAD holds."""

    format: int
    step: int  # of the checkpoint
    films: list[int]  # steps at which they were made


def write_pack(
    out: Path,
    run: Path,
    state: Mapping[str, Any],
    arrays: Arrays,
    *,
    games: Sequence[PackedGame],
) -> None:
    """Pack a run at its sound checkpoint with these plain values; ``games`` give back their observations."""
    slots, films = slot_map(state), films_up_to(run, state["step"])
    head = Head(format=FORMAT, step=state["step"], films=films)
    with replacing(out) as draft:
        with ZipFile(draft, "w") as archive:
            _write(archive, HEAD, [json.dumps(head).encode()], method=ZIP_STORED)
            for name in file_names(state, films):
                if name != PROVENANCE or (run / name).is_file():  # which a run may have lost
                    _write(archive, name, _read_file(run / name, state["logs"].get(name)))
            numbers = np.array(games, dtype=GAME_TYPE).reshape(-1, len(PackedGame._fields))
            _write(archive, GAMES, [npy_header(GAME_TYPE, *numbers.shape), numbers.tobytes()])
            for name, array in arrays.items():
                header = npy_header(SLOT_TYPE, slots.rows(name, games), slots.slot_bytes[name])
                spans = in_pieces(slots.spans(name, games), slots.slot_bytes[name])
                _write(archive, array_name(name), chain([header], (array[first:last].data for first, last in spans)))
            archive.comment = b"0" * CHECKSUM_BYTES
        _seal(draft)


def file_names(state: Mapping[str, Any], films: Iterable[int]) -> list[str]:
    """The entries that are files of the run directory, by their names there."""
    place = Path(CHECKPOINTS, str(state["step"]))
    tensors = [tensor_file(place, name) for name in state["checksums"]["files"]]
    pictures = [Path(FILMS, f"{step}.gif") for step in films]
    return [CONFIG, PROVENANCE, *state["logs"], *(path.as_posix() for path in (place / STATE, *tensors, *pictures))]


def array_name(name: str) -> str:
    """The entry with an array of the memory."""
    return f"{MEMORY}/{name}.npy"


def films_up_to(run: Path, step: int) -> list[int]:
    """The steps of the films that were made up to a step; later ones will be made again."""
    stems = [path.stem for path in (run / FILMS).glob("*.gif") if path.is_file()]
    made = (int(stem) for stem in stems if stem.isdecimal() and stem.isascii())
    return sorted(at for at in made if 0 < at <= step and f"{at}" in stems)


def npy_header(kind: str, rows: int, width: int) -> bytes:
    """The first bytes of a .npy file with an array of this shape, format 1.0."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    length = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def in_pieces(spans: Iterable[Span], row_bytes: int) -> Iterator[Span]:
    """The same rows in ranges of a few megabytes."""
    size = max(1, PIECE // row_bytes)
    for first, last in spans:
        for start in range(first, last, size):
            yield start, min(start + size, last)


def _read_file(path: Path, length: int | None) -> Iterator[bytes]:
    """A file, or its first ``length`` bytes."""
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size if length is None else length
        while left > 0 and (piece := file.read(min(left, PIECE))):
            yield piece
            left -= len(piece)


def _write(archive: ZipFile, name: str, pieces: Iterable[Any], method: int = ZIP_DEFLATED) -> None:
    """Write one entry; equal runs give equal files, so it has no date."""
    entry = ZipInfo(name)
    entry.compress_type = method
    with archive.open(entry, "w", force_zip64=True) as file:
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
