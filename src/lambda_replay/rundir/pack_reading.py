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
from lambda_replay.replay.storage import Layout, allocate
from lambda_replay.rundir.atomic import replacing, sync_directory
from lambda_replay.rundir.checkpoints import BEST, CHECKPOINTS, STATE, check_state, saved_config, tensor_file
from lambda_replay.rundir.directory import BEST_WEIGHTS, CONFIG, MEMORY, log_names
from lambda_replay.rundir.files import LARGEST_JSON_BYTES, has_type
from lambda_replay.rundir.packs import (
    FORMAT,
    HEAD,
    Head,
    file_names,
    in_pieces,
    is_optional,
    is_sealed,
    memory_files,
)

CHANGED, CONTRADICTION = "it is not what was written", "its parts contradict each other"
BEGINNING, NAME_AT = b"PK\x03\x04", 30  # of every .zip, and where it has the name of its first entry
LONGEST_NAME = 200  # bytes; those of files that we write are far below, and file systems take up to 255
DEFLATE_RATIO = 1_032  # at most: 2 bits stand for up to 258 bytes
# What reading raises where bytes are not what they say: RuntimeError also if nested too deeply or not implemented.
BROKEN = (BadZipFile, zlib.error, EOFError, KeyError, ValueError, TypeError, RuntimeError)


@final
class PackFile:
    """A packed run, open for reading, with its checkpoint's plain values."""

    def __init__(self, path: Path) -> None:
        """Reject a file that is not a pack, or not a sound one; nothing is written."""
        self.path = path
        _check_file(path)
        with self._reading():
            self._archive = ZipFile(path)
        try:
            self._entries = self._find_entries()
            self.state = self._read_state(self._read_step(), self._read_config())
            self._memory = memory_files(self.state)
            self._check_entries()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._archive.close()

    @property
    def nbytes(self) -> int:
        """What the run directory will take on disk."""
        files = sum(entry.file_size for name, entry in self._entries.items() if name not in self._memory)
        return files + sum(file.size for file in self._memory.values())

    def write_files(self, run: Path) -> None:
        """Write all files of a run directory, and make them durable."""
        for name in (name for name in self._entries if name not in (HEAD, *self._memory)):
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            with self._open(name) as entry, replacing(run / name) as draft, draft.open("wb") as file:
                shutil.copyfileobj(entry, file)
        if self.state["best"] is not None:
            with replacing(run / BEST_WEIGHTS) as draft:
                shutil.copyfile(tensor_file(run / CHECKPOINTS / str(self.state["step"]), BEST), draft)
        self._write_memory(run)
        for directory in (run / MEMORY, run / CHECKPOINTS, run):  # each file's own is synced with it
            sync_directory(directory)

    def _write_memory(self, run: Path) -> None:
        """The memory's files as a run makes them, of zeros, with the packed bytes in their places."""
        layout: Layout = {Path(name).stem: ((file.size,), np.uint8) for name, file in self._memory.items()}
        allocate(run / MEMORY, layout, reopen=False)
        for name, memory in self._memory.items():
            with self._open(name) as entry, (run / name).open("r+b") as file:
                for first, last in in_pieces(memory.spans):
                    file.seek(first)
                    file.write(entry.read(last - first))
                file.flush()
                os.fsync(file.fileno())

    def damage(self, what: str) -> DamageError:
        return _damage(self.path, what)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except DamageError:
            raise
        except BROKEN:
            raise self.damage(CHANGED) from None

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        with self._reading(), self._archive.open(self._entries[name]) as entry:
            yield entry

    def _read(self, name: str) -> bytes:
        """An entry that fits in memory."""
        with self._open(name) as entry:
            if self._entries[name].file_size > LARGEST_JSON_BYTES:
                raise self.damage(f"{name} is far too large")
            return entry.read()

    def _read_json(self, name: str) -> Any:
        with self._reading():
            return json.loads(self._read(name))

    def _find_entries(self) -> dict[str, ZipInfo]:
        """The entries, if the file is large enough for what they say of themselves."""
        infos, length = self._archive.infolist(), self.path.stat().st_size
        entries = {info.filename: info for info in infos}
        are_possible = (
            all(len(name.encode()) <= LONGEST_NAME for name in entries)
            and {info.compress_type for info in infos} <= {ZIP_STORED, ZIP_DEFLATED}
            and all(0 <= info.header_offset < length for info in infos)
            and all(info.file_size <= DEFLATE_RATIO * info.compress_size for info in infos)
            and sum(info.compress_size for info in infos) < length
        )
        if not are_possible:
            raise self.damage(CHANGED)
        return entries

    def _read_step(self) -> int:
        head = self._read_json(HEAD)
        if not (isinstance(head, dict) and isinstance(head.get("format"), int)):
            raise self.damage(CHANGED)
        if head["format"] != FORMAT:
            raise ConfigError(
                f"{self.path} has format {head['format']}, but this version of lambda-replay reads {FORMAT}; unpack it "
                "with the version that packed it."
            )
        if not has_type(head, Head) or head["step"] < 1:
            raise self.damage(CHANGED)
        return int(head["step"])

    def _read_config(self) -> RunConfig:
        content = self._read_json(CONFIG)
        try:
            return from_dict(content)
        except (ConfigError, TypeError, AttributeError, OverflowError) as error:
            raise DamageError(f"the config in {self.path} is damaged or from another version: {error}") from None

    def _read_state(self, step: int, config: RunConfig) -> dict[str, Any]:
        name = f"{CHECKPOINTS}/{step}/{STATE}"
        state = check_state(self.path / name, self._read_json(name), step)
        if differing_fields(saved_config(state), config) or set(state["logs"]) != set(log_names(config)):
            raise self.damage(CONTRADICTION)
        return state

    def _check_entries(self) -> None:
        """Only entries with names that we choose are ever written to disk, and their sizes are known beforehand."""
        found, required = self._entries.keys(), {HEAD, *file_names(self.state), *self._memory}
        are_ours = all(is_optional(name, self.state["step"]) for name in found - required)
        packed_sizes = {name: file.packed_size for name, file in self._memory.items()}
        sizes = {**self.state["logs"], **packed_sizes}
        are_known = required <= found and all(self._entries[name].file_size == size for name, size in sizes.items())
        if not (are_ours and are_known and all(packed_sizes.values())):  # the slots of an empty one could have any size
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
