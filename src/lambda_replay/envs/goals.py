"""Gymnasium's goal environments: recognises them, and asks one what steps would earn under other goals."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lambda_replay.envs.faults import FaultGuard
from lambda_replay.errors import EnvironmentFault
from lambda_replay.replay.data import Floats
from lambda_replay.replay.goals import Goals, Outcomes

GymnasiumEnv = gymnasium.Env[Any, Any]
ACHIEVED, DESIRED, REWARD, TERMINATED = "achieved_goal", "desired_goal", "compute_reward", "compute_terminated"
GOAL_SPACES = (spaces.Box, spaces.MultiBinary)  # whose flattened form has the same numbers
# What a function for a single goal raises when it gets many at once.
NOT_FOR_MANY = (TypeError, ValueError, LookupError, AssertionError)
LARGEST_REWARD = float(np.finfo(np.float32).max)


def has_goals(env: GymnasiumEnv) -> bool:
    """Whether an environment has Dict observations with goals that are arrays of one shape, and compute_reward."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or not {"observation", ACHIEVED, DESIRED} <= space.spaces.keys():
        return False
    parts = space[ACHIEVED], space[DESIRED]
    is_array = all(isinstance(part, GOAL_SPACES) for part in parts)
    return is_array and parts[0].shape == parts[1].shape and env.has_wrapper_attr(REWARD)


@final
class GoalJudge:
    """Another instance of a goal environment, which is never played: only its own functions are asked.

    Some environments change their state when asked (a maze draws a new target), so the ones that are played must not
    be. It is created when first needed.
    """

    def __init__(self, env_id: str, space: spaces.Space[Any], make: Callable[[], GymnasiumEnv]) -> None:
        assert isinstance(space, spaces.Dict)
        wanted = f"{REWARD}(achieved_goal, desired_goal, info) must return a number, with an empty info too"
        self._env_id, self._space, self._make = env_id, space, make
        self._guard = FaultGuard(env_id, wanted=wanted)
        self._env: GymnasiumEnv | None = None

    @property
    def goals(self) -> Goals:
        """Where the flattened observations hold the goals, and this judge."""
        widths = [spaces.flatdim(part) for part in self._space.values()]
        ends = dict(zip(self._space, zip(accumulate(widths, initial=0), accumulate(widths), strict=False), strict=True))
        return Goals(slice(*ends[ACHIEVED]), slice(*ends[DESIRED]), self.outcomes, self.example)

    def example(self) -> tuple[Floats, Floats]:
        """The goals of a first observation."""
        with self._guard:
            observation: Any = self._environment().reset(seed=0)[0]
            achieved, desired = (
                np.asarray(observation[name], dtype=np.float32).reshape(1, -1) for name in (ACHIEVED, DESIRED)
            )
        return achieved, desired

    def outcomes(self, achieved: Floats, desired: Floats) -> Outcomes:
        """Rewards and terminations of n steps; those that a step had, if there is no compute_terminated."""
        given = self._unflattened(ACHIEVED, achieved), self._unflattened(DESIRED, desired)
        with self._guard:
            env = self._environment()
            rewards = _ask(env.get_wrapper_attr(REWARD), *given)
            has_ends = env.has_wrapper_attr(TERMINATED)
            terminated = _ask(env.get_wrapper_attr(TERMINATED), *given) if has_ends else None
        is_sound = np.abs(rewards) <= LARGEST_REWARD  # False where it is not a number
        if not is_sound.all():
            wrong = rewards[np.argmin(is_sound)]
            raise EnvironmentFault(f"{self._env_id} returned the reward {wrong} from {REWARD}")
        return Outcomes(rewards.astype(np.float32), None if terminated is None else terminated != 0)

    def close(self) -> None:
        if self._env is not None:
            with self._guard:
                self._env.close()

    def _environment(self) -> GymnasiumEnv:
        if self._env is None:
            self._env = self._make()
            self._env.reset(seed=0)  # some have no goals before
        return self._env

    def _unflattened(self, name: str, goals: Floats) -> NDArray[Any]:
        """Goals [n, G] as the environment knows them, [n, *goal]."""
        space = self._space[name]
        assert space.shape is not None
        return goals.astype(space.dtype).reshape(len(goals), *space.shape)


def _ask(function: Callable[..., Any], achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[np.float64]:
    """The function's numbers for n goals: all in one call if it can do that, else one by one.

    A function for many goals returns n numbers, and the same ones as for single goals; three of them are compared.
    """
    count = len(achieved)

    def one_by_one(rows: range | tuple[int, ...]) -> NDArray[np.float64]:
        numbers = [np.asarray(function(achieved[row], desired[row], {}), dtype=np.float64) for row in rows]
        return np.array([number.reshape(()) for number in numbers], dtype=np.float64)

    if count < 2:
        return one_by_one(range(count))
    try:
        together = np.asarray(function(achieved, desired, {}), dtype=np.float64)
    except NOT_FOR_MANY:
        return one_by_one(range(count))
    compared = (0, count // 2, count - 1)
    is_for_many = together.shape == (count,) and np.allclose(
        together[list(compared)], one_by_one(compared), equal_nan=True
    )
    return together if is_for_many else one_by_one(range(count))


def told_success(info: Any) -> bool | None:
    """Whether a step's info says that the goal is reached; None if it says nothing."""
    if not isinstance(info, dict):
        return None
    told = info.get("is_success", info.get("success"))
    is_number = isinstance(told, bool | int | float | np.bool_ | np.number)
    return bool(told) if is_number and not math.isnan(float(told)) else None  # type: ignore[arg-type]
