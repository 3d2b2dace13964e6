"""Converts our actions to those of a Gymnasium action space; rejects spaces that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from lambda_replay.errors import ConfigError


class ActionForm(NamedTuple):
    """How an agent sees an action space, and what the environment gets for an action."""

    num_actions: int  # 0: actions are vectors
    names: tuple[str, ...]  # of the actions, or the range of each number of a vector
    shape: tuple[int, ...]  # (D,) of a vector; () of an integer
    convert: Callable[[Any], Any]


def action_form(env: str, space: Any, meanings: Callable[[], list[str]] | None) -> ActionForm:
    """The form of a Discrete or a bounded Box space; ConfigError for any other.

    ``meanings`` are the environment's own names of its discrete actions.
    """
    if isinstance(space, Discrete):
        return _discrete(int(space.start), int(space.n), meanings)
    if isinstance(space, Box):
        return _box(env, space)
    raise ConfigError(
        f"{env} has {type(space).__name__} actions, but agents need Discrete or Box ones; "
        "choose an environment that has them, or register a wrapper that converts the actions."
    )


def _discrete(first: int, count: int, meanings: Callable[[], list[str]] | None) -> ActionForm:
    names = range(first, first + count) if meanings is None else [str(name).lower() for name in meanings()]
    return ActionForm(count, tuple(map(str, names)), (), lambda action: action + first)


def _box(env: str, space: Box) -> ActionForm:
    if space.dtype.kind != "f":
        raise ConfigError(
            f"{env} has Box actions of {space.dtype}, but a continuous action is a vector of floats; "
            "choose another environment, or register a wrapper with float actions."
        )
    lows, highs = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)  # [D]
    if len(lows) == 0:
        raise ConfigError(f"{env} has Box actions of shape {space.shape}, which hold no number; choose another one.")
    _check_bounds(env, lows, highs, float(np.finfo(str(space.dtype)).max))
    names = tuple(f"{low:g} to {high:g}" for low, high in zip(lows, highs, strict=True))
    return ActionForm(0, names, lows.shape, lambda action: _scaled(action, lows, highs, space))


def _check_bounds(env: str, lows: NDArray[np.float64], highs: NDArray[np.float64], largest: float) -> None:
    """Reject bounds between which actions cannot be scaled; the largest float stands for no bound."""
    for number, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if not (-largest < low <= high < largest):
            raise ConfigError(
                f"{env} has Box actions from {low:g} to {high:g} (number {number} of {len(lows)}), but actions are "
                "scaled from [−1, 1] to finite bounds; choose another environment, or register a wrapper with finite "
                "bounds."
            )


def _scaled(action: Any, lows: NDArray[np.float64], highs: NDArray[np.float64], space: Box) -> NDArray[Any]:
    """A vector [D] of numbers from −1 to 1 as an action of the space; −1 and 1 give the bounds exactly."""
    given = np.asarray(action, dtype=np.float64)
    scaled = ((1 - given) * lows + (1 + given) * highs) / 2
    return np.clip(scaled, lows, highs).astype(space.dtype).reshape(space.shape)
