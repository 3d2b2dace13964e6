"""Checks values before storing them: converts to the memory's dtypes if nothing is lost, and rejects the rest."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.checks import require_whole
from lambda_replay.errors import ConfigError

MAX_ACTION, MAX_REWARD = int(np.iinfo(np.int32).max), float(np.finfo(np.float32).max)  # what a slot can hold
MAX_HISTORY = 255  # the number of frames since the episode began is stored in one byte
MIN_PROB = float(np.finfo(np.float32).tiny)


def storable_array(name: str, value: Any, shape: tuple[int, ...], stored: np.dtype[Any]) -> NDArray[Any]:
    """The value in the memory's dtype, or ConfigError if anything would be lost; ``name`` as in "an observation"."""
    is_float = stored.kind == "f"
    try:
        given = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise ConfigError(f"{name} is not an array; give {stored} of shape {shape}.") from None
    if given.shape != shape or given.dtype.kind not in ("fiub" if is_float else "iub"):
        raise ConfigError(
            f"{name} is {given.dtype} of shape {given.shape}, but the memory takes {stored} of shape {shape}; "
            "convert it, or create a memory that fits it."
        )
    # Without a conversion there is nothing to lose, so images are not scanned.
    converted = given if given.dtype == stored else _converted(name, given, stored)
    if is_float and np.count_nonzero(np.isfinite(converted)) != converted.size:
        raise ConfigError(f"{name} holds a value that is not finite as {stored}; fix or clip it before storing it.")
    return converted


def _converted(name: str, given: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in another dtype: floats are rounded, integers and booleans must keep their values."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinite floats and integers that wrap are rejected by value
        converted = given.astype(dtype)
        is_exact = (
            given.dtype.kind == "f"
            or np.can_cast(given.dtype, dtype)
            # The comparison alone misses what float64 rounds; the round trip alone misses a change of sign.
            or (np.array_equal(converted, given) and np.array_equal(converted.astype(given.dtype), given))
        )
    if not is_exact:
        raise ConfigError(
            f"{name} is {given.dtype} with values from {given.min()} to {given.max()}, which {dtype} cannot hold "
            "exactly; convert it, or create a memory that fits it."
        )
    return converted


def storable_step(
    action: Any, reward: Any, behaviour_prob: Any, terminated: Any, truncated: Any, *, is_vector: bool
) -> tuple[Any, float, float, bool, bool]:
    """The numbers of one step as stored; for a vector action, whose array is checked separately, log μ(a|s)."""
    is_text = any(isinstance(value, str | bytes) for value in (reward, behaviour_prob, terminated, truncated))
    try:
        number = action if is_vector else int(action) if isinstance(action, np.bool_) else operator.index(action)
        amount, prob = float(reward), float(behaviour_prob)
        is_terminated, is_truncated = bool(terminated), bool(truncated)
        is_sound = (
            not is_text
            and abs(amount) <= MAX_REWARD
            and (abs(prob) <= MAX_REWARD if is_vector else 0 <= number <= MAX_ACTION and MIN_PROB <= prob <= 1)
        )
    except (TypeError, ValueError, OverflowError):
        is_sound = False
    if not is_sound:
        wanted = (
            "a finite logarithm of the density"
            if is_vector
            else f"an integer action up to {MAX_ACTION}, a probability from {MIN_PROB:.0e} to 1"
        )
        raise ConfigError(
            f"append got action {shown(action)}, reward {shown(reward)}, behaviour_prob {shown(behaviour_prob)}, "
            f"terminated {shown(terminated)}, truncated {shown(truncated)}; give {wanted}, a finite 32-bit reward, "
            "and True or False for the last two."
        )
    return number, amount, prob, is_terminated, is_truncated


def shown(value: object) -> str:
    """A value for a message: itself if short, else its type."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"of type {type(value).__name__}"


def storable_columns(
    given: Mapping[str, Any], wanted: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
) -> dict[str, NDArray[Any]]:
    """The additional values of a step, one for each column."""
    if set(given) != set(wanted):
        raise ConfigError(
            f"append got the columns {', '.join(given) or 'none'}, but this memory has {', '.join(wanted) or 'none'}; "
            "give a value for each of them."
        )
    return {name: storable_array(f"the column {name}", value, *wanted[name]) for name, value in given.items()}


def check_sizes(capacity: int, history: int, num_streams: int, spare: int) -> None:
    """Reject a memory too small for even one step."""
    require_whole(capacity=(capacity, 1), history=(history, 1), num_streams=(num_streams, 1), spare=(spare, 0))
    if history > MAX_HISTORY:
        raise ConfigError(f"history is {history}; give a number of frames from 1 to {MAX_HISTORY}.")
    if capacity // num_streams < history + 1:
        raise ConfigError(
            f"capacity ({capacity}) is too small for {num_streams} streams with a history of {history}; give at least "
            f"{history + 1} slots for each."
        )
