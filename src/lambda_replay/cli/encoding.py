"""Makes output work in every terminal and locale: characters that the encoding lacks are spelled in ASCII."""

from __future__ import annotations

import codecs
import io
import os
import sys

ASCII = {
    "λ": "lambda",
    "α": "alpha",
    "ε": "epsilon",
    "γ": "gamma",
    "δ": "delta",
    "π": "pi",
    "μ": "mu",
    "θ": "theta",
    "Σ": "sum ",
    "µ": "u",
    "§": "section ",
    "—": "-",
    "…": "...",
    "–": "-",
    "−": "-",
    "·": "*",
    "×": "x",
    "±": "+/-",
    "≤": "<=",
    "≥": ">=",
    "≡": "=",
    "ⁿ": "^n",
    "²": "^2",
    "→": "->",
    "←": "<-",
    **dict.fromkeys("─━╴╸╶╺", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼", "+"),
    **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)),
    "●": "o",
    "◐": "+",
    "○": ".",
    "✗": "x",
}
HANDLER = "lambda-replay"


def spell_what_cannot_be_shown() -> None:
    """Make standard output and standard error spell out characters that their encoding lacks, instead of failing.

    Output to a stream that was closed before this process started is discarded.
    """
    codecs.register_error(HANDLER, _spell)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 — for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """The error handler: one character in ASCII, or the raw byte of a file name that could not be decoded."""
    assert isinstance(error, UnicodeEncodeError)
    character = error.object[error.start]
    is_byte = "\udc80" <= character <= "\udcff"  # as Python decodes file names
    return bytes([ord(character) - 0xDC00]) if is_byte else ASCII.get(character, "?"), error.start + 1
