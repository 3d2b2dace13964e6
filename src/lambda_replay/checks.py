"""Checks that settings share; a value out of range is refused in one sentence that names the setting."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from lambda_replay.errors import ConfigError

LARGEST_WIDTH = 10**6  # units per hidden layer; torch can still hold the product of two widths
LARGEST_NUMBER = 10**15  # for any count or size; floating point represents all of these exactly
LARGEST_RUN_SEED = 2**128 - 1  # 128 bits, as NumPy recommends


def require(condition: bool, sentence: str, *settings: str) -> None:
    if not condition:
        raise ConfigError(sentence, *settings)


def require_reasonable(prefix: str, owner: object) -> None:
    """Reject integers too large for arrays, files or messages."""
    for name, value in vars(owner).items():
        largest = LARGEST_RUN_SEED if name == "seed" else LARGEST_NUMBER
        if isinstance(value, int) and abs(value) > largest:
            raise ConfigError(f"{prefix}{name} is {shown(value)}; give a number up to {largest}.", f"{prefix}{name}")


def shown(value: Any) -> str:
    """The value for a message; Python refuses to print integers with thousands of digits."""
    is_long = isinstance(value, int) and abs(value) > LARGEST_RUN_SEED
    return f"{'-' if value < 0 else ''}10^{math.log10(abs(value)):.0f}" if is_long else repr(value)


def require_positive(prefix: str, owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        require(0 < value < math.inf, f"{prefix}{name} is {value}; give a number above 0.", f"{prefix}{name}")


def require_fraction(prefix: str, owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        require(0 <= value <= 1, f"{prefix}{name} is {value}; give a number from 0 to 1.", f"{prefix}{name}")


def require_widths(hidden: Sequence[int]) -> None:
    """Reject the units of the hidden layers in ``network.hidden`` that no network can have."""
    if not all(0 < width <= LARGEST_WIDTH for width in hidden):
        widths = ", ".join(map(shown, hidden))
        raise ConfigError(f"network.hidden is ({widths}); give widths from 1 to {LARGEST_WIDTH}.", "network.hidden")


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number, Python's or NumPy's, and large enough."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False


def require_whole(**numbers: tuple[Any, int]) -> None:
    """Reject counts that are not whole numbers, or below their least value; given as ``name=(value, least)``."""
    for name, (value, least) in numbers.items():
        require(is_whole(value, least), f"{name} is {value!r}; give a whole number, {least} or more.", name)
