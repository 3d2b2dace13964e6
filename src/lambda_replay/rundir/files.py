"""Files with checksums that reveal damage, and the JSON and safetensors formats that we write."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lambda_replay.errors import DamageError
from lambda_replay.rundir.atomic import sync_directory, write_atomically

VOUCHER = "lambda-replay"  # the one key of our files' metadata: safetensors writes several in a random order
LARGEST_JSON_BYTES = 1 << 28  # far above anything we write; a larger file is not read at all


def quoted(path: Path) -> str:
    """A path quoted as one shell argument that is not an option, for messages that say what to type."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def name_aside(path: Path, word: str) -> Path:
    """An unused name for what is at ``path``: NAME.WORD, NAME.WORD-2, NAME.WORD-3, ..."""
    names = (f"{path.name}.{word}" if number == 1 else f"{path.name}.{word}-{number}" for number in count(1))
    return next(other for name in names if not os.path.lexists(other := path.with_name(name)))


def set_aside(path: Path, word: str) -> Path:
    """Rename whatever is at ``path``, so that the place is free and nothing is lost."""
    other = name_aside(path, word)
    path.rename(other)
    sync_directory(path.parent)
    return other


def checksum(*parts: bytes) -> str:
    """One checksum of all parts together; it detects damage, not tampering."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_checksum(path: Path, length: int | None = None) -> str:
    """Checksum of a file, or of its first ``length`` bytes, which it must have."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size if length is None else length
        digest.update(str(left).encode())
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The contents of a JSON file; anything wrong raises DamageError, but a missing file FileNotFoundError."""
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise DamageError(f"{path} is damaged (it is far too large).")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamageError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged ({first_line(error)}).") from None


def has_type(value: Any, kind: Any) -> bool:
    """Whether plain values match a type, such as a TypedDict, exactly; a float may be a whole number."""
    try:
        _adapter(kind).validate_python(value, strict=True, extra="forbid")
    except ValidationError:
        return False
    return True


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class TensorFile(NamedTuple):
    """The content of one of our safetensors files."""

    tensors: dict[str, Tensor]
    vouched: dict[str, str]  # checksums of other files, by name


def save_tensors(path: Path, tensors: Mapping[str, Tensor], vouched: Mapping[str, str] | None = None) -> None:
    """Write tensors with their checksum and any others, so that the file exists whole or not at all.

    safetensors could write the file itself, but reports a full disk as its own kind of error.
    """
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    own = _tensors_checksum(*_split(save(contiguous)))
    voucher = json.dumps({"tensors": own, "vouched": dict(vouched or {})}, sort_keys=True)
    write_atomically(path, save(contiguous, metadata={VOUCHER: voucher}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of one of our files."""
    return load_tensor_file(path).tensors


def load_tensor_file(path: Path) -> TensorFile:
    """One of our safetensors files, which cannot hold code; its checksum is checked before it is used."""
    try:
        return parse_tensors(path.read_bytes())
    except FileNotFoundError:
        raise DamageError(f"{path} is missing.") from None
    except OSError as error:
        raise DamageError(f"{path} cannot be read ({error.strerror}).") from None
    except DamageError as error:
        raise DamageError(f"{path} is damaged ({error}).") from None


def parse_tensors(content: bytes) -> TensorFile:
    """What ``save_tensors`` wrote; otherwise DamageError says briefly what is wrong."""
    try:
        header, data = _split(content)
        voucher = json.loads(header.pop("__metadata__")[VOUCHER])
        own, vouched = voucher["tensors"], {str(name): str(value) for name, value in voucher["vouched"].items()}
        is_sound = own == _tensors_checksum(header, data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamageError("it is not what was written") from None
    if not is_sound:
        raise DamageError("its checksum does not match")
    try:
        return TensorFile(load(content), vouched)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamageError(first_line(error)) from None


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file: eight bytes for the header's length, JSON, the data."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length:
        raise ValueError("shorter than its header")
    header = json.loads(content[8 : 8 + length])
    if not isinstance(header, dict):
        raise TypeError("the header is not a table")
    return header, content[8 + length :]


def _tensors_checksum(header: Mapping[str, Any], data: bytes) -> str:
    return checksum(json.dumps(header, sort_keys=True).encode(), data)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for use in brackets in a message."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
