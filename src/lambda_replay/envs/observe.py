"""A wrapper that shows some components of a vector observation and hides the others; the game itself is unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.envs.interface import Environment, EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError


@final
class Observe:
    """Any environment with vector observations, of which only these components are seen, in this order."""

    def __init__(self, environment: Environment, components: tuple[int, ...]) -> None:
        spec = environment.spec
        chosen = " ".join(map(str, components))
        if spec.has_pixels:
            raise ConfigError(
                f"observe is {chosen}, but this environment's observations have shape {spec.observation_shape} and "
                "are images; use flicker for them, or leave observe out.",
                "observe",
            )
        (size,) = spec.observation_shape
        if not all(0 <= component < size for component in components):
            raise ConfigError(
                f"observe is {chosen}, but this environment's observations have {size} components; "
                f"give numbers from 0 to {size - 1}.",
                "observe",
            )
        self._environment, self._components = environment, list(components)
        self._spec = replace(spec, observation_shape=(len(components),), goals=None)

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        return self._environment.reset(seed)[self._components]

    def step(self, action: Any) -> Step:
        step = self._environment.step(action)
        return step._replace(observation=step.observation[self._components])

    def render(self) -> NDArray[np.uint8]:
        """The whole game: people may see what the agent does not."""
        return self._environment.render()

    def close(self) -> None:
        self._environment.close()
