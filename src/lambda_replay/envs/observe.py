"""A wrapper that shows part of a vector observation, in units of the user's choice; the game itself is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.checks import shown
from lambda_replay.envs.interface import Environment, EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError


def make_view(components: tuple[int, ...], factors: tuple[float, ...]) -> Callable[[Observation], Observation]:
    """What is seen of a vector observation: these components (none: all), each times its factor (none: 1)."""
    seen = list(components) or slice(None)
    if not factors:
        return lambda observation: observation[seen]
    scale = np.array(factors, np.float32)
    return lambda observation: observation[seen] * scale


@final
class Observe:
    """Any environment with vector observations, of which only these components are seen, each times its factor."""

    def __init__(self, environment: Environment, components: tuple[int, ...], factors: tuple[float, ...] = ()) -> None:
        spec = environment.spec
        if spec.has_pixels:
            raise _no_vector(spec, components, factors)
        (size,) = spec.observation_shape
        if not all(0 <= component < size for component in components):
            raise ConfigError(
                f"observe is {_listed(components)}, but this environment's observations have {size} components; "
                f"give numbers from 0 to {size - 1}.",
                "observe",
            )
        num_seen = len(components) or size
        if factors and len(factors) != num_seen:
            raise ConfigError(
                f"scale is {_listed(factors)}, but the number of components that the agent sees is {num_seen}; give as "
                "many factors.",
                "scale",
            )
        self._environment, self._view = environment, make_view(components, factors)
        # The environment computes rewards from whole goals, in its own units.
        dtype = np.dtype(np.float32) if factors else spec.observation_dtype
        self._spec = replace(spec, observation_shape=(num_seen,), observation_dtype=dtype, goals=None)

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        return self._view(self._environment.reset(seed))

    def step(self, action: Any) -> Step:
        step = self._environment.step(action)
        return step._replace(observation=self._view(step.observation))

    def render(self) -> NDArray[np.uint8]:
        """The whole game: people may see what the agent does not."""
        return self._environment.render()

    def close(self) -> None:
        self._environment.close()


def _no_vector(spec: EnvironmentSpec, components: tuple[int, ...], factors: tuple[float, ...]) -> ConfigError:
    name, given = ("observe", _listed(components)) if components else ("scale", _listed(factors))
    remedy = "use flicker for them, or leave" if components else "the network scales them itself, so leave"
    return ConfigError(
        f"{name} is {given}, but this environment's observations have shape {spec.observation_shape} and are images; "
        f"{remedy} {name} out.",
        name,
    )


def _listed(numbers: tuple[float, ...]) -> str:
    return " ".join(shown(number) if isinstance(number, int) else f"{number:g}" for number in numbers)
