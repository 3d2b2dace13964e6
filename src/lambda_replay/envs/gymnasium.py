"""Any Gymnasium environment with Discrete actions and Box observations; wrapping other spaces is left to its owner."""

from __future__ import annotations

import difflib
import math
import warnings
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_errors
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from lambda_replay.envs.interface import EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError

GymnasiumEnv = gymnasium.Env[Any, Any]


@final
class GymnasiumEnvironment:
    """The environment that Gymnasium makes for an id such as ``CartPole-v1`` or ``package:Env-v0``.

    Time limits are Gymnasium's and arrive as truncation. Only ``reset(seed)`` seeds; the spaces' own generators are
    never drawn from.
    """

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._env = _make(env_id)
        try:
            self._first_action, self._spec = _read_spaces(env_id, self._env)
        except ConfigError:
            self._env.close()
            raise
        # The game so far, which is all it takes to build its picture when somebody asks for one.
        self._seed: int | None = None
        self._actions: list[int] = []

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        self._seed = seed
        self._actions.clear()
        observation, _ = self._env.reset(seed=seed)
        return self._own(observation)

    def step(self, action: int) -> Step:
        assert 0 <= action < self._spec.num_actions, action
        self._actions.append(action + self._first_action)
        observation, reward, terminated, truncated, _ = self._env.step(action + self._first_action)
        number = _as_number(reward)
        return Step(
            observation=self._own(observation),
            reward=number,
            terminated=bool(terminated),
            truncated=bool(truncated),
            game_over=bool(terminated or truncated),
            score=number,
        )

    def render(self) -> NDArray[np.uint8]:
        if self._env.render_mode is None:
            self._rebuild_with_pictures()
        try:
            picture: Any = self._env.render()
        except gymnasium_errors.DependencyNotInstalled as error:
            raise ConfigError(f"{self._env_id} cannot be drawn: {_first_line(error)}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise ConfigError(f"{self._env_id} cannot be drawn: its rgb_array is {type(picture).__name__}, no picture.")
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        self._env.close()

    def _rebuild_with_pictures(self) -> None:
        """Replace the environment by one that draws, brought to the same place by the same seed and actions.

        Gymnasium wants the render mode at construction, and some environments are slower or need more packages with
        one; so training never asks for it.
        """
        if "rgb_array" not in (self._env.metadata.get("render_modes") or ()):
            raise ConfigError(f"{self._env_id} offers no rgb_array pictures, so it can be played but not watched.")
        drawing = _make(self._env_id, render_mode="rgb_array")
        if self._seed is not None:
            drawing.reset(seed=self._seed)
        for action in self._actions:
            drawing.step(action)
        self._env.close()
        self._env = drawing

    def _own(self, observation: Any) -> Observation:
        """A copy in the spec's dtype: some environments write all their observations into one array."""
        own = np.array(observation, dtype=self._spec.observation_dtype)
        if own.shape != self._spec.observation_shape:
            raise ConfigError(
                f"{self._env_id} gave an observation of shape {own.shape}, but its observation space has shape "
                f"{self._spec.observation_shape}; repair the environment."
            )
        return own


def _make(env_id: str, **arguments: Any) -> GymnasiumEnv:
    """What Gymnasium makes for an id, its errors turned into one sentence and its advice kept quiet."""
    _check_spelling(env_id)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old versions, missing version numbers: correct ids all the same
            # The passive checker warns about style, and costs time at every step.
            return gymnasium.make(env_id, disable_env_checker=True, **arguments)
    except (gymnasium_errors.UnregisteredEnv, gymnasium_errors.DeprecatedEnv):
        raise ConfigError(_unknown(env_id)) from None
    except ImportError as error:
        raise ConfigError(f"{env_id} needs a package that is missing ({_first_line(error)}); install it.") from error
    except (gymnasium_errors.Error, TypeError) as error:  # TypeError: arguments without default, or an old gym.Env
        raise ConfigError(f"{env_id} could not be made: {_first_line(error)}") from error


def _check_spelling(env_id: str) -> None:
    """Refuse what Gymnasium itself would answer with an error about unpacking or relative imports."""
    package, colon, name = env_id.rpartition(":")
    if not name or (colon and not all(part.isidentifier() for part in package.split("."))):
        raise ConfigError(
            f"{env_id!r} is no environment; write atari/pong, minatar/breakout, CartPole-v1 or package:Env-v0."
        )


def _unknown(env_id: str) -> str:
    name = env_id.rpartition(":")[2]
    families = {"atari": "atari/pong", "minatar": "minatar/breakout"}
    close = [families[name]] if name in families else difflib.get_close_matches(name, gymnasium.registry, n=1)
    guess = f"did you mean {close[0]}?" if close else "write package:Env-v0 if a package must be imported first."
    return f"there is no Gymnasium environment {name!r} (nor is it atari/… or minatar/…); {guess}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _read_spaces(env_id: str, env: GymnasiumEnv) -> tuple[int, EnvironmentSpec]:
    """The number of the first action and the spec, or a sentence about the space that does not fit."""
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, Discrete):
        raise ConfigError(
            f"{env_id} has {type(actions).__name__} actions, but Q-values are for Discrete ones; "
            "choose an environment with Discrete actions, or register one that wraps them."
        )
    if not isinstance(observations, Box) or not observations.shape:
        raise ConfigError(
            f"{env_id} has {type(observations).__name__} observations of shape {observations.shape}, but a Box with at "
            "least one axis is needed; register an environment wrapped in gymnasium.wrappers.FlattenObservation."
        )
    first, count = int(actions.start), int(actions.n)
    return first, EnvironmentSpec(
        observation_shape=tuple(int(length) for length in observations.shape),
        observation_dtype=_stored_dtype(observations),
        num_actions=count,
        action_names=_action_names(env, first, count),
    )


def _stored_dtype(space: Box) -> np.dtype[Any]:
    """uint8 stays (pixels, memory bytes) and so do bool planes; every other number becomes float32."""
    is_kept = space.dtype == np.uint8 or (space.dtype == np.bool_ and len(space.shape) >= 2)
    return np.dtype(space.dtype if is_kept else np.float32)


def _action_names(env: GymnasiumEnv, first: int, count: int) -> tuple[str, ...]:
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if meanings is None:
        return tuple(str(first + index) for index in range(count))
    return tuple(str(name).lower() for name in meanings())


def _as_number(reward: Any) -> float:
    """The reward as a float; what is no number becomes NaN, which stops the run where it is noticed."""
    try:
        return float(reward)
    except (TypeError, ValueError):
        return math.nan
