"""The interface that every environment provides to the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Observation = NDArray[Any]


@dataclass(frozen=True)
class EnvironmentSpec:
    """What must be known about an environment before anything is allocated."""

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]  # uint8 pixels, bool planes, or float32 vectors
    num_actions: int
    action_names: tuple[str, ...]

    @property
    def has_pixels(self) -> bool:
        return len(self.observation_shape) >= 2


class Step(NamedTuple):
    """The result of one action; the observation is the one that follows it."""

    observation: Observation
    reward: float  # what the agent learns from, clipped where the environment's config says so
    terminated: bool  # for learning; in Atari also the loss of a life
    truncated: bool  # a time limit: the observation is still worth bootstrapping from
    game_over: bool  # the whole game ended; the environment must be reset before the next step
    score: float  # the unclipped reward, summed over a whole game for its score


class Environment(Protocol):
    """A game is (seed, actions): ``reset(seed)`` and the same actions always give the same observations."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    def reset(self, seed: int) -> Observation: ...

    def step(self, action: int) -> Step: ...

    def render(self) -> NDArray[np.uint8]:
        """The current image, RGB [H, W, 3], for people."""
        ...

    def close(self) -> None: ...
