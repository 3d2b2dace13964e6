"""Reads the file of a packed run: everything is checked before it is used, and sizes before anything is allocated."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from lambda_replay.agents.run_settings import differing_fields, from_dict
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.atomic import replacing, write_atomically
from lambda_replay.rundir.checkpoints import BEST, CHECKPOINTS, STATE, check_state, saved_config, tensor_file
from lambda_replay.rundir.directory import BEST_WEIGHTS, CONFIG, PROVENANCE, log_names
from lambda_replay.rundir.files import LARGEST_JSON_BYTES, has_type
from lambda_replay.rundir.memory_files import Arrays, PackedGame, SlotMap, are_apart, slot_map
from lambda_replay.rundir.packs import (
    BEGINNING,
    FORMAT,
    GAME_TYPE,
    GAMES,
    HEAD,
    HEADER_BYTES,
    NAME_AT,
    SLOT_TYPE,
    Head,
    array_name,
    file_names,
    in_pieces,
    is_sealed,
    npy_header,
)

CONTRADICTION = "its parts contradict each other"
# What reading raises where bytes are not what they say; NotImplementedError is a RuntimeError.
BROKEN = (BadZipFile, zlib.error, EOFError, KeyError, ValueError, TypeError, RuntimeError, RecursionError)


@final
class PackFile:
    """A packed run, open for reading: its config, its checkpoint's plain values, and the games to replay."""

    def __init__(self, path: Path) -> None:
        """Reject a file that is not a pack, or not a sound one; nothing is written."""
        self.path = path
        _check_file(path)
        with self._reading():
            self._archive = ZipFile(path)
        try:
            self._entries = self._find_entries()
            head = self._read_head()
            self.config = self._read_config()
            self.state = self._read_state(head["step"])
            self.slots: SlotMap = slot_map(self.state)
            self._check_names(head)
            self.games = self._read_games()
            self._check_sizes()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._archive.close()

    @property
    def nbytes(self) -> int:
        """What a run directory will take on disk."""
        return self.slots.nbytes + sum(self._entries[name].file_size for name in self._names)

    @property
    def signature(self) -> Any:
        """Who created the run: see trust.py."""
        if PROVENANCE not in self._entries:
            return None
        try:
            provenance = json.loads(self._read(PROVENANCE))
        except DamageError:
            raise
        except (ValueError, RecursionError):  # it may have been damaged before it was packed
            return None
        return provenance.get("signature") if isinstance(provenance, dict) else None

    def write_files(self, run: Path) -> None:
        """Write the files of a run directory, all but its memory and the config that makes it a run."""
        for name in self._names:
            if name == CONFIG:
                continue
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            with self._open(name) as entry, replacing(run / name) as draft, draft.open("wb") as file:
                shutil.copyfileobj(entry, file)
        if self.state["best"] is not None:
            best = tensor_file(run / CHECKPOINTS / str(self.state["step"]), BEST)
            with replacing(run / BEST_WEIGHTS) as draft:
                shutil.copyfile(best, draft)

    def write_config(self, run: Path) -> None:
        """Make a directory a run."""
        write_atomically(run / CONFIG, self._read(CONFIG))

    def fill(self, arrays: Arrays) -> None:
        """Write all slots into the memory's arrays but the observations that the games give back."""
        for name, array in arrays.items():
            width = self.slots.slot_bytes[name]
            with self._open(array_name(name)) as entry:
                self._skip_header(entry, npy_header(SLOT_TYPE, self.slots.rows(name, self.games), width))
                for first, last in in_pieces(self.slots.spans(name, self.games), width):
                    content = entry.read((last - first) * width)
                    array[first:last] = np.frombuffer(content, dtype=np.uint8).reshape(last - first, width)

    def damage(self, what: str) -> DamageError:
        return _damage(self.path, what)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DamageError):
            raise
        except BROKEN:
            raise self.damage("it is not what was written") from None

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        with self._reading(), self._archive.open(self._entries[name]) as entry:
            yield entry

    def _read(self, name: str) -> bytes:
        """An entry that fits in memory."""
        if self._entries[name].file_size > LARGEST_JSON_BYTES:
            raise self.damage(f"{name} is far too large")
        with self._open(name) as entry:
            return entry.read()

    def _skip_header(self, entry: IO[bytes], wanted: bytes) -> None:
        if entry.read(HEADER_BYTES) != wanted:
            raise self.damage(CONTRADICTION)

    def _find_entries(self) -> dict[str, ZipInfo]:
        infos = self._archive.infolist()
        entries = {info.filename: info for info in infos}
        methods = {info.compress_type for info in infos}
        if len(entries) < len(infos) or not methods <= {ZIP_STORED, ZIP_DEFLATED} or HEAD not in entries:
            raise self.damage("it is not what was written")
        return entries

    def _read_head(self) -> Head:
        with self._reading():
            values = json.loads(self._read(HEAD))
            found = values["format"]
        if found != FORMAT:
            raise ConfigError(
                f"{self.path} has format {found}, but this version of lambda-replay reads {FORMAT}; unpack it with the "
                "version that packed it."
            )
        if not has_type(values, Head) or values["step"] < 1 or min(values["films"], default=1) < 1:
            raise self.damage("it is not what was written")
        head: Head = values
        return head

    def _read_config(self) -> RunConfig:
        with self._reading():
            content = json.loads(self._read(CONFIG))
        try:
            return from_dict(content)
        except (ConfigError, TypeError, AttributeError, OverflowError) as error:
            raise DamageError(f"the config in {self.path} is damaged or from another version: {error}") from None

    def _read_state(self, step: int) -> dict[str, Any]:
        name = f"{CHECKPOINTS}/{step}/{STATE}"
        with self._reading():
            content = json.loads(self._read(name))
        state = check_state(self.path / name, content, step)
        if differing_fields(saved_config(state), self.config) or set(state["logs"]) != set(log_names(self.config)):
            raise self.damage(CONTRADICTION)
        return state

    def _check_names(self, head: Head) -> None:
        """Only entries with names that we choose are ever written to disk."""
        wanted = file_names(self.state, sorted(set(head["films"])))
        self._names = [name for name in wanted if name != PROVENANCE or name in self._entries]
        arrays = [array_name(name) for name in self.slots.slot_bytes]
        if set(self._entries) != {HEAD, GAMES, *self._names, *arrays}:
            raise self.damage(CONTRADICTION)

    def _read_games(self) -> list[PackedGame]:
        width = len(PackedGame._fields)
        rows, rest = divmod(self._entries[GAMES].file_size - HEADER_BYTES, 8 * width)
        if rest or not 0 <= rows <= sum(self.slots.written):
            raise self.damage(CONTRADICTION)
        with self._open(GAMES) as entry:
            self._skip_header(entry, npy_header(GAME_TYPE, rows, width))
            numbers = np.frombuffer(entry.read(), dtype=GAME_TYPE).reshape(rows, width)
        games = [PackedGame(*row) for row in numbers.tolist()]
        if not (all(self.slots.holds(game) for game in games) and are_apart(games)):
            raise self.damage(CONTRADICTION)
        return games

    def _check_sizes(self) -> None:
        wanted = dict(self.state["logs"])
        for name, width in self.slots.slot_bytes.items():
            wanted[array_name(name)] = HEADER_BYTES + width * self.slots.rows(name, self.games)
        if any(self._entries[name].file_size != size for name, size in wanted.items()):
            raise self.damage(CONTRADICTION)


def _check_file(path: Path) -> None:
    """Reject what is not a pack, and a pack of which any byte has changed."""
    try:
        if not path.is_file():
            what = "is not a file" if os.path.lexists(path) else "does not exist"
            raise ConfigError(f"{path} {what}; give the file that lambda-replay pack wrote.")
        with path.open("rb") as file:
            beginning = file.read(NAME_AT + len(HEAD))
        if not (beginning.startswith(BEGINNING) and beginning.endswith(HEAD.encode())):
            raise ConfigError(f"{path} is not a packed run; give the file that lambda-replay pack wrote.")
        is_sound = is_sealed(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a file that can.") from None
    if not is_sound:
        raise _damage(path, "its checksum does not match")


def _damage(path: Path, what: str) -> DamageError:
    return DamageError(f"{path} is damaged ({what}); copy it again from where it was packed.")
