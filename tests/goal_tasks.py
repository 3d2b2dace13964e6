"""Small goal environments for tests; importing this module registers them: ``goal_tasks:Lane-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 6  # cells of a lane


class Lane(gymnasium.Env[Any, Any]):
    """A lane of cells 0 … 5; the goal is one of them, and reaching it earns 0 in place of −1.

    With ``continuous`` actions any number is a place, and within half a cell is near enough. ``wrong`` says what
    compute_reward does wrong.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, continuous: bool = False, wrong: str = "", render_mode: str | None = None) -> None:
        place = spaces.Box(-100, 100, shape=(1,), dtype=np.float64)
        self.observation_space = spaces.Dict(observation=place, achieved_goal=place, desired_goal=place)
        self.action_space = spaces.Box(-1, 1, shape=(1,)) if continuous else spaces.Discrete(2)
        self.render_mode, self._continuous, self._wrong = render_mode, continuous, wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.integers(LENGTH, size=(2, 1)).astype(np.float64)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = action[0] if self._continuous else 2 * action - 1
        self._place = np.clip(self._place + move, 0, LENGTH - 1)
        is_reached = self.compute_terminated(self._place, self._goal, {})
        return self._observation(), float(is_reached) - 1, is_reached, False, {"is_success": is_reached}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        if self._wrong == "raises":
            raise RuntimeError("no reward today")
        if self._wrong == "needs info":
            return info["reward"]
        if self._wrong == "nan":
            return np.full(np.shape(achieved_goal)[:-1], np.nan)
        return (np.abs(achieved_goal - desired_goal) <= 0.5).all(axis=-1) - 1.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> bool:
        """For one goal at a time, unlike compute_reward."""
        return bool(abs(achieved_goal[0] - desired_goal[0]) <= 0.5)

    def render(self) -> Any:
        picture = np.zeros((8, 8 * LENGTH, 3), dtype=np.uint8)
        for place, colour in ((self._goal, 120), (self._place, 255)):
            cell = int(np.rint(place[0]))
            picture[:, 8 * cell : 8 * (cell + 1)] = colour
        return picture

    def _observation(self) -> dict[str, Any]:
        return {name: place.copy() for name, place in self._places().items()}

    def _places(self) -> dict[str, Any]:
        return {"observation": self._place, "achieved_goal": self._place, "desired_goal": self._goal}


class Endless(gymnasium.Env[Any, Any]):
    """Bits and a scalar clock; has no compute_terminated, and its compute_reward changes the goal of its own game."""

    def __init__(self) -> None:
        bits = spaces.MultiBinary([2, 2])
        self.observation_space = spaces.Dict(observation=spaces.Discrete(3), achieved_goal=bits, desired_goal=bits)
        self.action_space = spaces.Discrete(4)
        self.bits, self.goal = np.zeros((2, 2, 2), dtype=np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(2, size=(2, 2, 2)).astype(np.int8)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bits.flat[action] ^= 1
        return self._observation(), float(np.sum(self.bits == self.goal)), False, False, {"success": 0.0}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> float:
        assert achieved_goal.shape == desired_goal.shape == (2, 2)
        assert achieved_goal.dtype == np.int8
        self.goal = np.ones((2, 2), dtype=np.int8)
        return float(np.sum(achieved_goal == desired_goal))

    def _observation(self) -> dict[str, Any]:
        return {"observation": 1, "achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}


class NoReward(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The lane without its compute_reward: its observations are dictionaries like any others."""

    def observation(self, observation: Any) -> Any:
        return observation

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "compute_reward" and super().has_wrapper_attr(name)


def _register(name: str, creator: Any, steps: int, **arguments: Any) -> None:
    gymnasium.register(name, entry_point=creator, max_episode_steps=steps, kwargs=arguments)


_register("Lane-v0", Lane, 12)
_register("Road-v0", Lane, 12, continuous=True)
_register("RaisingGoals-v0", Lane, 12, wrong="raises")
_register("InfoGoals-v0", Lane, 12, wrong="needs info")
_register("NanGoals-v0", Lane, 12, wrong="nan")
_register("EndlessBits-v0", Endless, 9)
_register("NoGoals-v0", lambda: NoReward(Lane()), 12)
