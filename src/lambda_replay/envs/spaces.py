"""Converts Gymnasium observations to the arrays that the replay memory stores; rejects spaces that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box, Space

from lambda_replay.envs.interface import Observation
from lambda_replay.errors import ConfigError, EnvironmentFault

NUMERIC = (Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)  # and Tuple and Dict of these


def stored_form(env: str, space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype in which the space's observations are stored; ConfigError for a space that does not fit."""
    strange = next((part for part in _parts(space) if not isinstance(part, NUMERIC)), None)
    if strange is not None:
        raise ConfigError(
            f"{env} has {type(space).__name__} observations, but {type(strange).__name__} cannot become a vector "
            "of numbers; choose another environment, or register a wrapper that returns a Box."
        )
    size = spaces.flatdim(space)
    if size == 0:
        raise ConfigError(
            f"{env} has observations without any numbers ({space}); register a wrapper that returns at least one, "
            "which may always be 0."
        )
    if _is_array(space):
        # uint8 (pixels, memory bytes) and bool planes stay as they are; everything else becomes float32.
        is_kept = space.dtype == np.uint8 or (space.dtype == np.bool_ and len(space.shape) >= 2)
        return tuple(int(length) for length in space.shape), np.dtype(space.dtype if is_kept else np.float32)
    return (size,), np.dtype(np.float32)


def stored_observation(env: str, space: Space[Any], observation: Any, dtype: np.dtype[Any]) -> Observation:
    """A copy of the observation as stored: a Box unchanged, anything else flattened, with Discrete values one-hot.

    A copy, because some environments write all their observations into the same array.
    """
    if _is_array(space):
        given = np.asarray(observation)
        if given.shape != space.shape:
            raise EnvironmentFault(
                f"{env} returned an observation of shape {given.shape}, but its space has shape {space.shape}"
            )
    elif _contains(space, observation):
        given = np.asarray(spaces.flatten(space, observation))
    else:
        raise EnvironmentFault(f"{env} returned the observation {observation!r}, which is not in its space {space}")
    stored = np.array(given, dtype=dtype)
    if dtype.kind == "f" and np.count_nonzero(np.isfinite(stored)) != stored.size:
        raise EnvironmentFault(f"{env} returned an observation that is not finite")
    if dtype.kind != "f" and given.dtype != dtype and not np.array_equal(stored, given):
        raise EnvironmentFault(f"{env} returned an observation of {given.dtype} numbers that do not fit in {dtype}")
    return stored


def _is_array(space: Any) -> bool:
    return isinstance(space, Box) and len(space.shape) > 0


def _parts(space: Any) -> Iterator[Any]:
    """The innermost spaces of a nested space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.values() if isinstance(space, spaces.Dict) else space:
            yield from _parts(part)
    else:
        yield space


def _contains(space: Space[Any], observation: Any) -> bool:
    """Whether an observation has the space's structure and its integers are in range; a Box needs only the right shape.

    Many environments stray slightly outside their Box or return another dtype, and agents learn them all the same. But
    an integer out of range would be the one-hot code of another.
    """
    if isinstance(space, spaces.Dict):
        has_names = isinstance(observation, dict) and observation.keys() == space.keys()
        return has_names and all(_contains(part, observation[name]) for name, part in space.items())
    if isinstance(space, spaces.Tuple):
        has_length = isinstance(observation, tuple | list) and len(observation) == len(space)
        return has_length and all(map(_contains, space, observation))
    return np.shape(observation) == space.shape if isinstance(space, Box) else space.contains(observation)
