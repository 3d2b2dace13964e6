"""A wrapper that multiplies the components of a vector observation; the game itself is unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.envs.interface import Environment, EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError


@final
class Scale:
    """Any environment with vector observations, each component of which is multiplied by its own factor."""

    def __init__(self, environment: Environment, factors: tuple[float, ...]) -> None:
        shape, given = environment.spec.observation_shape, " ".join(f"{factor:g}" for factor in factors)
        if environment.spec.has_pixels:
            raise ConfigError(
                f"scale is {given}, but this environment's observations have shape {shape} and are images, which the "
                "network scales itself; leave scale out.",
                "scale",
            )
        if len(factors) != shape[0]:
            raise ConfigError(
                f"scale is {given}, but the agent sees {shape[0]} components; give a factor for each of them.", "scale"
            )
        self._environment, self._factors = environment, np.array(factors, np.float32)
        # The environment computes rewards from goals in its own units.
        self._spec = replace(environment.spec, goals=None)

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        return self._environment.reset(seed) * self._factors

    def step(self, action: Any) -> Step:
        step = self._environment.step(action)
        return step._replace(observation=step.observation * self._factors)

    def render(self) -> NDArray[np.uint8]:
        return self._environment.render()

    def close(self) -> None:
        self._environment.close()
