"""The interface that every environment provides to the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lambda_replay.replay.goals import Goals

Observation = NDArray[Any]


@dataclass(frozen=True)
class EnvironmentSpec:
    """What must be known about an environment before anything is allocated."""

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]  # uint8 pixels, bool planes, or float32 vectors
    num_actions: int  # 0: actions are vectors
    action_names: tuple[str, ...]  # or the range of each number of a vector, as the environment sees it
    action_shape: tuple[int, ...] = ()  # (D,) of a vector, whose numbers are from −1 to 1; () of an integer
    goals: Goals | None = None  # of an environment whose observations hold them

    @property
    def has_pixels(self) -> bool:
        return len(self.observation_shape) >= 2

    @property
    def is_continuous(self) -> bool:
        return bool(self.action_shape)

    def accepts(self, action: Any) -> bool:
        """Whether this is an action: an integer, or the numbers of a vector."""
        if not self.is_continuous:
            return isinstance(action, int | np.integer) and 0 <= int(action) < self.num_actions
        return np.shape(action) == self.action_shape and all(-1 <= number <= 1 for number in action)


class Step(NamedTuple):
    """The result of one action; the observation is the one that follows it."""

    observation: Observation
    reward: float  # what the agent learns from, clipped where the environment's config says so
    terminated: bool  # for learning; in Atari also the loss of a life
    truncated: bool  # a time limit: the observation is still worth bootstrapping from
    game_over: bool  # the whole game ended; the environment must be reset before the next step
    score: float  # the unclipped reward, summed over a whole game for its score
    is_success: bool | None = None  # whether the goal is reached; None: the environment does not say


class Environment(Protocol):
    """A game is (seed, actions): ``reset(seed)`` and the same actions always give the same observations."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    def reset(self, seed: int) -> Observation: ...

    def step(self, action: Any) -> Step:
        """The result of an action that ``spec.accepts``."""
        ...

    def render(self) -> NDArray[np.uint8]:
        """The current image, RGB [H, W, 3], for people."""
        ...

    def close(self) -> None: ...
