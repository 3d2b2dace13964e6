"""Any Gymnasium environment with Discrete or bounded Box actions; other observations than arrays are flattened."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_errors
from numpy.typing import NDArray

from lambda_replay.envs.actions import action_form
from lambda_replay.envs.faults import FaultGuard, first_line
from lambda_replay.envs.goals import GoalJudge, has_goals, told_success
from lambda_replay.envs.interface import EnvironmentSpec, Observation, Step
from lambda_replay.envs.names import check_family, check_spelling, unknown
from lambda_replay.envs.spaces import stored_form, stored_observation
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.extras import missing_package, not_installed

GymnasiumEnv = gymnasium.Env[Any, Any]
RESET = "reset(seed=…) must return observation, info"
STEP = "step(action) must return observation, reward, terminated, truncated, info"


@final
class GymnasiumEnvironment:
    """The environment that Gymnasium creates for an id such as ``CartPole-v1`` or ``package:Env-v0``.

    Time limits are Gymnasium's and arrive as truncation. Only ``reset(seed)`` sets a seed; the spaces' own generators
    are never used.
    """

    def __init__(
        self,
        env_id: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        given: GymnasiumEnv | Callable[[], GymnasiumEnv] | None = None,
    ) -> None:
        """``arguments`` are passed to the environment's constructor.

        ``given`` is the environment itself, which stays open, or a function that returns one; ``env_id`` then only
        names it in messages.
        """
        self._env_id, self._arguments = env_id, dict(arguments or {})
        self._given, self._is_lent = given, isinstance(given, gymnasium.Env)
        self._judge: GoalJudge | None = None
        self._guard = FaultGuard(env_id, wanted=f"{RESET}, and {STEP}")
        remedy = "fix the environment, or give it other env_args" if arguments else "fix the environment"
        with FaultGuard(env_id, remedy):
            self._env = _make(env_id, self._arguments) if given is None else _take(given)
            try:
                self._observation_space = self._env.observation_space  # a lookup through every wrapper, done once
                self._convert, self._spec = _read_spaces(env_id, self._env)
                self._judge = self._make_judge() if has_goals(self._env) else None
            except ConfigError:
                self.close()
                raise
        # The game so far, which is all we need to render it on request.
        self._seed: int | None = None
        self._actions: list[Any] = []

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        self._seed = seed
        self._actions.clear()
        with self._guard:
            result: Any = self._env.reset(seed=seed)
            if not (isinstance(result, tuple) and len(result) == 2):
                raise self._fault(f"{_count(result)} from reset", f"fix the environment: {RESET}")
            return self.stored(result[0])

    def step(self, action: Any) -> Step:
        assert self._spec.accepts(action), action
        converted = self.native(action)
        self._actions.append(converted)
        with self._guard:
            result: Any = self._env.step(converted)
            if not (isinstance(result, tuple) and len(result) == 5):
                raise self._fault(f"{_count(result)} from step", f"fix the environment: {STEP}")
            observation, reward, terminated, truncated, info = result
            number = self._number(reward)
            return Step(
                observation=self.stored(observation),
                reward=number,
                terminated=bool(terminated),
                truncated=bool(truncated),
                game_over=bool(terminated or truncated),
                score=number,
                is_success=told_success(info),
            )

    def render(self) -> NDArray[np.uint8]:
        with self._guard:
            if self._env.render_mode is None:
                self._rebuild_with_pictures()
            try:
                picture: Any = self._env.render()
            except gymnasium_errors.DependencyNotInstalled as error:
                package = missing_package(error.__cause__)
                if package is not None:
                    raise not_installed(package, f"rendering {self._env_id}") from error
                raise ConfigError(f"{self._env_id} cannot be rendered: {first_line(error)}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise self._fault(f"{type(picture).__name__} from render, which is not an image")
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        if not self._is_lent:
            with self._guard:
                self._env.close()
        if self._judge is not None:
            self._judge.close()

    def stored(self, observation: Any) -> Observation:
        """One of the environment's observations as the memory stores it."""
        return stored_observation(self._env_id, self._observation_space, observation, self._spec.observation_dtype)

    def native(self, action: Any) -> Any:
        """An action that ``spec.accepts`` as one of the environment's action space."""
        return self._convert(action)

    def _make_judge(self) -> GoalJudge:
        """Who can tell what steps earn under other goals; the spec then says where observations hold goals."""
        judge = GoalJudge(self._env_id, self._observation_space, self._make_another)
        self._spec = replace(self._spec, goals=judge.goals)
        return judge

    def _make_another(self) -> GymnasiumEnv:
        """A second instance of this environment."""
        if isinstance(self._given, gymnasium.Env):
            raise ConfigError(
                f"{self._env_id} is one environment, but choosing goals in hindsight needs a second one; "
                "pass a function that returns it instead.",
                "env",
            )
        return _make(self._env_id, self._arguments) if self._given is None else _take(self._given)

    def _rebuild_with_pictures(self) -> None:
        """Replace the environment with one that renders, brought to the same state by the same seed and actions.

        Gymnasium takes the render mode at construction, and some environments are slower or need more packages with
        one, so training never asks for it.
        """
        if self._given is not None:
            raise ConfigError(
                f"{self._env_id} was created without render_mode='rgb_array', so it can be played but not watched."
            )
        if "rgb_array" not in (self._env.metadata.get("render_modes") or ()):
            raise ConfigError(f"{self._env_id} has no rgb_array render mode, so it can be played but not watched.")
        drawing = _make(self._env_id, {**self._arguments, "render_mode": "rgb_array"})
        if self._seed is not None:
            drawing.reset(seed=self._seed)
        for action in self._actions:
            drawing.step(action)
        self._env.close()
        self._env = drawing

    def _fault(self, result: str, remedy: str = "fix the environment") -> EnvironmentFault:
        return EnvironmentFault(f"{self._env_id} returned {result}", remedy)

    def _number(self, reward: Any) -> float:
        """The reward as a float; an array with one element will do."""
        if type(reward) is float and math.isfinite(reward):
            return reward
        value = reward.item() if isinstance(reward, np.ndarray) and reward.size == 1 else reward
        number = math.nan
        if not isinstance(value, str | bytes):  # which float() would accept
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                number = float(value)
        if not math.isfinite(number):
            raise self._fault(f"the reward {reward!r}")
        return number


def _take(given: Any) -> GymnasiumEnv:
    """The caller's environment, or what the caller's function returns."""
    is_function = callable(given) and not isinstance(given, gymnasium.Env)
    env: Any = given() if is_function else given
    if isinstance(env, gymnasium.Env):
        return env
    several = " (several are made with envs=N)" if isinstance(env, gymnasium.vector.VectorEnv) else ""
    raise ConfigError(
        f"env {'returned' if is_function else 'is'} {type(env).__name__}; give the name of an environment, a "
        f"gymnasium.Env, or a function that returns one{several}.",
        "env",
    )


def _make(env_id: str, arguments: Mapping[str, Any]) -> GymnasiumEnv:
    """Create an environment with Gymnasium; turn the user's mistakes into one sentence, and silence its warnings."""
    check_spelling(env_id)
    check_family(env_id)
    if ":" in env_id and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # find modules in the working directory, as ``python -m`` does
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old versions and missing version numbers: the ids are still valid
            # The passive checker warns about style and slows down every step.
            return gymnasium.make(env_id, disable_env_checker=True, **arguments)
    except (gymnasium_errors.UnregisteredEnv, gymnasium_errors.DeprecatedEnv):
        raise unknown(env_id) from None
    except gymnasium_errors.Error as error:
        package = missing_package(error.__cause__)
        if package is not None:
            raise not_installed(package, env_id) from error
        raise ConfigError(f"{env_id} could not be created: {first_line(error)}") from error
    except ImportError as error:
        package = missing_package(error)
        if package is not None:
            raise not_installed(package, env_id) from error
        if error.name is not None and not isinstance(error, ModuleNotFoundError):
            raise  # the package is installed, but something in it is missing
        raise ConfigError(f"{env_id} needs a package that is missing ({first_line(error)}); install it.") from error
    except TypeError as error:
        # Gymnasium wraps what the constructor raised in its own exception.
        inner = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        if _is_about_arguments(inner, arguments):
            remedy = "give env_args that it accepts" if arguments else "pass what it needs as env_args"
            raise ConfigError(f"{env_id} could not be created: {first_line(inner)}; {remedy}.") from error
        raise inner from inner.__cause__


def _is_about_arguments(error: BaseException, arguments: Mapping[str, Any]) -> bool:
    """Whether Gymnasium could not call the constructor at all, or one of our arguments was rejected further down."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_gymnasiums = trace is not None and trace.tb_frame.f_globals.get("__name__") == gymnasium.make.__module__
    refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    return is_gymnasiums or (refused is not None and refused[1] in arguments)


def _count(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"one value ({type(result).__name__})"


def _read_spaces(env_id: str, env: GymnasiumEnv) -> tuple[Callable[[Any], Any], EnvironmentSpec]:
    """How actions are converted, and the spec; raises ConfigError for a space that does not fit."""
    actions = action_form(env_id, env.action_space, getattr(env.unwrapped, "get_action_meanings", None))
    shape, dtype = stored_form(env_id, env.observation_space)
    return actions.convert, EnvironmentSpec(
        observation_shape=shape,
        observation_dtype=dtype,
        num_actions=actions.num_actions,
        action_names=actions.names,
        action_shape=actions.shape,
    )
