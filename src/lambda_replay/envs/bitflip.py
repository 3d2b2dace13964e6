"""Bit flipping (Andrychowicz et al. 2017, section 3.1): simple, and out of reach of exploration without hindsight."""

from __future__ import annotations

import re
from typing import final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.envs.interface import EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Floats
from lambda_replay.replay.goals import Goals, Outcomes

NAME = re.compile(r"bitflip-([1-9][0-9]{0,3})")
MOST_BITS = 1_000
CELL = 32  # pixels
BACKGROUND, OFF, ON = (16, 16, 24), (60, 60, 76), (240, 228, 66)


@final
class BitFlip:
    """N bits, of which every action flips one; the goal is a setting of them, drawn anew for every game.

    A step earns −1, or 0 if it reaches the goal, which ends the game; after N steps it is truncated. An observation has
    the N bits, then the N bits of the goal.
    """

    def __init__(self, name: str) -> None:
        bits = _known(name)
        self._spec = EnvironmentSpec(
            observation_shape=(2 * bits,),
            observation_dtype=np.dtype(np.float32),
            num_actions=bits,
            action_names=tuple(f"flip {number}" for number in range(bits)),
            goals=Goals(slice(0, bits), slice(bits, 2 * bits), outcomes, lambda: (np.zeros((1, bits)),) * 2),
        )
        self._bits, self._goal = np.zeros((2, bits), dtype=np.float32)
        self._taken = 0  # steps in this game

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        drawn = np.random.default_rng(seed).integers(2, size=(2, len(self._bits)))
        self._bits, self._goal = drawn.astype(np.float32)
        self._taken = 0
        return self._observation()

    def step(self, action: int) -> Step:
        assert 0 <= action < len(self._bits), action
        self._bits[action] = 1 - self._bits[action]
        self._taken += 1
        is_reached = bool((self._bits == self._goal).all())
        is_out_of_time = self._taken >= len(self._bits)
        reward = 0.0 if is_reached else -1.0
        return Step(
            observation=self._observation(),
            reward=reward,
            terminated=is_reached,
            truncated=is_out_of_time and not is_reached,
            game_over=is_reached or is_out_of_time,
            score=reward,
            is_success=is_reached,
        )

    def render(self) -> NDArray[np.uint8]:
        """A row of cells for the goal, and one for the bits below it."""
        colours = np.array((OFF, ON), dtype=np.uint8)
        rows = colours[np.stack([self._goal, self._bits]).astype(np.int64)]  # [2, N, 3]
        picture: NDArray[np.uint8] = rows.repeat(CELL, axis=0).repeat(CELL, axis=1)
        picture[::CELL] = BACKGROUND
        picture[:, ::CELL] = BACKGROUND
        return picture

    def close(self) -> None:
        """Nothing to close."""

    def _observation(self) -> Observation:
        return np.concatenate([self._bits, self._goal])  # a new array each time, so the caller may keep it


def outcomes(achieved: Floats, desired: Floats) -> Outcomes:
    """r = −[achieved ≠ desired] for goals [n, N]; reaching the goal terminates."""
    is_reached = (achieved == desired).all(axis=-1)
    return Outcomes(is_reached.astype(np.float32) - 1, is_reached)


def _known(name: str) -> int:
    """The number of bits in a name such as bitflip-15."""
    match = NAME.fullmatch(name)
    if match is None or int(match[1]) > MOST_BITS:
        raise ConfigError(
            f"there is no environment goals/{name}; write goals/bitflip-N with 1 to {MOST_BITS} bits, such as "
            "goals/bitflip-15."
        )
    return int(match[1])
