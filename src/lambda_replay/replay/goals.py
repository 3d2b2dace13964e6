"""Goals in the memory: where an observation holds them, and states that show another goal than the stored one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lambda_replay.replay.data import Booleans, Floats, Integers


class Outcomes(NamedTuple):
    """What n steps earn under some goals."""

    rewards: Floats  # [n]
    terminated: Booleans | None  # [n]; None: ends do not depend on the goal, so steps keep the ones they had


@dataclass(frozen=True)
class Goals:
    """The goals of an environment whose observations are vectors that hold them.

    ``outcomes`` maps the goals achieved *after* n steps [n, G] and the desired ones [n, G] to what those steps earn.
    """

    achieved: slice  # the numbers of an observation that say what has been achieved
    desired: slice  # those that say what is desired
    outcomes: Callable[[Floats, Floats], Outcomes]
    example: Callable[[], tuple[Floats, Floats]]  # an achieved and a desired goal [1, G] that the environment has


class Relabelled(NamedTuple):
    """Goals that the first m of some states are to show; the others show their own."""

    goals: Floats  # [m, G]
    part: slice  # the numbers of an observation that hold the desired goal

    def show(self, states: NDArray[Any], rows: Integers, frames: Integers) -> NDArray[Any]:
        """States [n, F, D] of these rows [n], changed in place; of their frames only the last ``frames`` [n] exist."""
        ages = np.arange(states.shape[1] - 1, -1, -1)  # [F]  how long ago each frame was
        is_shown = (rows < len(self.goals))[:, None] & (ages < frames[:, None])  # [n, F]
        which, frame = np.nonzero(is_shown)
        states[which, frame, self.part] = self.goals[rows[which]]
        return states
