"""Files that are whole or absent, and tell of every damage: crashes at each step of writing, every bit flipped."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor
from typing_extensions import TypedDict

from lambda_replay.errors import DamageError
from lambda_replay.rundir.atomic import replacing, write_atomically
from lambda_replay.rundir.files import (
    VOUCHER,
    checksum,
    file_checksum,
    has_type,
    load_tensor_file,
    load_tensors,
    parse_tensors,
    read_json,
    save_tensors,
    set_aside,
)

TENSORS = {
    "layer.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "count": torch.tensor(3.0),
    "nothing": torch.zeros(0, 4),
    "whole": torch.tensor([-1, 2**40]),
}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def fail(*arguments: Any, **options: Any) -> None:
    raise OSError(28, "No space left on device")


def interrupt(*arguments: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def make_file(path: Path) -> None:
    path.write_bytes(b"mine")


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_bytes(b"mine")


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("make", [make_file, make_directory, make_link])
def test_what_is_set_aside_keeps_its_content_and_never_takes_the_place_of_another(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "log.csv"
    for wanted in ("log.csv.damaged-60", "log.csv.damaged-60-2", "log.csv.damaged-60-3"):
        make(path)
        assert set_aside(path, "damaged-60") == tmp_path / wanted
        assert not os.path.lexists(path)
    for other in tmp_path.iterdir():
        assert make is not make_file or other.read_bytes() == b"mine"
        assert make is not make_directory or (other / "thesis.tex").read_bytes() == b"mine"
        assert make is not make_link or other.readlink() == tmp_path / "nowhere"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("call", ["fsync", "replace", "write_bytes"])
@pytest.mark.parametrize("failure", [fail, interrupt])
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: Callable[..., None]
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    owner: Any = Path if call == "write_bytes" else os
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, failure)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_names_the_file_it_was_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(tmp_path / "file", b"new")
    assert caught.value.filename == str(tmp_path / "file")


def test_what_is_written_elsewhere_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^the caller's own$"), replacing(tmp_path / "file"):
        raise OSError("the caller's own")


def test_a_write_is_synced_before_it_is_renamed_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape: list[str] = []
    fsync, rename = os.fsync, os.replace

    def taped_fsync(descriptor: int) -> None:
        tape.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def taped_rename(source: Path, target: Path) -> None:
        tape.append(f"rename {Path(source).name} {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", taped_fsync)
    monkeypatch.setattr(os, "replace", taped_rename)
    write_atomically(tmp_path / "file", b"new")
    assert tape == ["fsync file.part", "rename file.part file", f"fsync {tmp_path.name}"]


def test_tensors_come_back_as_they_were_with_what_they_vouch_for(tmp_path: Path) -> None:
    path = tmp_path / "tensors"
    save_tensors(path, TENSORS, {"metrics.jsonl": "abc"})
    assert is_same(load_tensors(path), TENSORS)
    assert load_tensor_file(path).vouched == {"metrics.jsonl": "abc"}


def test_tensors_are_readable_for_others_and_equal_tensors_make_equal_files(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "other"]
    save_tensors(paths[0], TENSORS, {"a": "1", "b": "2"})
    save_tensors(paths[1], dict(reversed(TENSORS.items())), {"b": "2", "a": "1"})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with safe_open(paths[0], framework="pt") as file:
        assert set(file.keys()) == set(TENSORS)
        assert list(file.metadata()) == [VOUCHER]


def test_every_flipped_bit_and_every_missing_end_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "tensors"
    save_tensors(path, {"a": torch.arange(3.0)})
    content = path.read_bytes()
    for position in range(len(content)):
        with pytest.raises(DamageError):
            parse_tensors(content[:position])
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            try:  # the header is JSON: a space may become another blank, and a name in our voucher nobody asks for
                assert is_same(parse_tensors(bytes(damaged)).tensors, {"a": torch.arange(3.0)})
            except DamageError:
                continue


def test_damage_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tensors"
    with pytest.raises(DamageError, match=f"^{path} is missing.$"):
        load_tensors(path)
    path.write_bytes(b"")
    with pytest.raises(DamageError, match=rf"^{path} is damaged \(it is not what was written\).$"):
        load_tensors(path)
    with pytest.raises(DamageError, match=rf"^{tmp_path} cannot be read \(Is a directory\).$"):
        load_tensors(tmp_path)


def revouched(header: Any, data: bytes) -> bytes:
    """A file whose checksum fits, whatever it says."""
    if isinstance(header, dict):
        own = checksum(json.dumps(header, sort_keys=True).encode(), data)
        header = {**header, "__metadata__": {VOUCHER: json.dumps({"tensors": own, "vouched": {}})}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


sizes = st.integers(0, 6) | st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(
            ["F32", "F64", "F16", "BF16", "I64", "U8", "BOOL", "C64", "F8_E4M3", "F4", "F8_E8M0", "?"]
        ),
        "shape": st.lists(sizes, max_size=3),
        "data_offsets": st.tuples(sizes, sizes),
    }
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_subnormal=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(header=st.dictionaries(st.text(max_size=4), entries | plain, max_size=3) | plain, data=st.binary(max_size=40))
def test_a_file_that_lies_about_its_tensors_is_damage_and_nothing_else(header: Any, data: bytes) -> None:
    content, said = revouched(header, data), ""
    try:
        parse_tensors(content)
    except DamageError as error:
        said = str(error)
    assert "\n" not in said


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=60))
def test_any_bytes_are_damage_and_nothing_else(content: bytes) -> None:
    with pytest.raises(DamageError):
        parse_tensors(content)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5_000 + b"}", b'{"a": 1}\0'],
    ids=["empty", "cut", "no text", "deep", "long number", "more"],
)
def test_json_that_is_none_is_damage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(DamageError, match=rf"^{path} is damaged \("):
        read_json(path)


def test_a_checksum_of_a_beginning_needs_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    assert file_checksum(path, 6) == file_checksum(path) == checksum(b"6", b"abcdef")
    assert file_checksum(path, 3) == checksum(b"3", b"abc")
    path.write_bytes(b"ab")
    assert file_checksum(path, 3) != checksum(b"3", b"abc")


class Inner(TypedDict):
    b: float


class Outer(TypedDict):
    a: list[Inner]


@pytest.mark.parametrize(
    ("value", "kind", "fits"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        (1.0, int, False),
        (False, float, False),
        ([1, 2], list[int], True),
        ([], list[int], True),
        ([1, "2"], list[int], False),
        ({"b": 1}, Inner, True),
        ({"b": 1, "c": 2}, Inner, False),
        ({}, Inner, False),
        ({"x": 1, "y": 2}, dict[str, int], True),
        ({"x": "1"}, dict[str, int], False),
        (None, Inner, False),
        ({"a": [{"b": 1.5}]}, Outer, True),
        ({"a": [{"b": "1.5"}]}, Outer, False),
    ],
)
def test_plain_values_have_a_type_to_the_letter(value: Any, kind: Any, fits: bool) -> None:
    assert has_type(value, kind) == fits
