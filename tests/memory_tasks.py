"""A game that nobody without a memory can win: a cue at the start, a walk through the dark, a choice at its end.

Importing this module registers ``memory_tasks:Cue-v0``; ``--env-args steps=30`` makes the walk longer.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Cue(gymnasium.Env[Any, Any]):
    """Shows −1 or 1 at first, then 0; after ``steps`` steps the choice pays 1 if it names the cue, else −1.

    The observation is the cue and whether this is the moment of choice. Earlier actions do nothing.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, steps: int = 3, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, shape=(2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode, self._steps, self._time, self._cue = render_mode, steps, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time, self._cue = 0, int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_choice = self._time == self._steps
        self._time += 1
        reward = 0.0 if not is_choice else 1.0 if action == self._cue else -1.0
        return self._observation(), reward, is_choice, False, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), 255 * self._cue, dtype=np.uint8)

    def _observation(self) -> NDArray[np.float32]:
        cue = 2.0 * self._cue - 1 if self._time == 0 else 0.0
        return np.array([cue, self._time == self._steps], dtype=np.float32)


gymnasium.register("Cue-v0", Cue)  # type: ignore[arg-type]
