"""Finds the line of each key in a TOML text, which the standard parser does not report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli

KeyPath = tuple[str, ...]


def find_key_lines(text: str) -> dict[KeyPath, int]:
    """The line, counted from 1, on which each key and each table header first appears.

    Keys inside inline tables have no entry; ``line_of`` gives the line of the table.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("["):
            header = _parse_path(line)
            table = header or table
            path = header
        else:
            key = _parse_key(line)
            path = table + key if key else ()
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of the key, or of the nearest enclosing table; 1 if there is neither."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 1)


def _parse_key(line: str) -> KeyPath:
    """The key before the first ``=`` that ends one; a key may be dotted, or quoted with a ``=`` in it."""
    ends = (position for position, character in enumerate(line) if character == "=")
    return next((path for end in ends if (path := _parse_path(f"{line[:end]} = 0"))), ())


def _parse_path(line: str) -> KeyPath:
    try:
        values: Any = tomli.loads(line)
    except tomli.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(values, dict) and values:
        key, values = next(iter(values.items()))
        path.append(key)
    return tuple(path)
