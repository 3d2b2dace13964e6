"""Environments for resume tests: ``restless:Restless-v0`` never repeats itself; ``restless:Steady-v0`` always does."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

LENGTH = 37  # steps of an episode


class Restless(gymnasium.Env[NDArray[np.float32], int]):
    """Observes how long the episode lasts, and noise that comes from its seed or from nowhere."""

    observation_space = gymnasium.spaces.Box(-1.0, 100.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]

    def __init__(self, is_steady: bool = False) -> None:
        self._is_steady, self._age = is_steady, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._age += 1
        return self._observe(), float(action), self._age == LENGTH, False, {}

    def _observe(self) -> NDArray[np.float32]:
        noise = self.np_random.random() if self._is_steady else os.urandom(1)[0] / 256
        return np.array([self._age, noise], dtype=np.float32)


gymnasium.register("Restless-v0", f"{__name__}:Restless")
gymnasium.register("Steady-v0", f"{__name__}:Restless", kwargs={"is_steady": True})
