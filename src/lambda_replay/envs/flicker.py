"""A wrapper that blanks whole observations at random (Hausknecht & Stone 2015); the game itself is unchanged."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.envs.interface import Environment, EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError

# Separates the flicker's generator from the environment's, which has the same seed, so that turning flicker on does
# not change the game. The value is arbitrary.
FLICKER_STREAM = 0xF11C


@final
class Flicker:
    """Any pixel environment, with each observation (including the first) zeroed with the given probability."""

    def __init__(self, environment: Environment, probability: float) -> None:
        if not 0 <= probability <= 1:
            raise ConfigError(f"flicker is {probability}; give a number from 0 to 1.", "flicker")
        if not environment.spec.has_pixels:
            raise ConfigError(
                f"flicker is {probability}, but this environment's observations have shape "
                f"{environment.spec.observation_shape} and are not images; set flicker to 0.",
                "flicker",
            )
        self._environment = environment
        self._probability = probability
        self._rng = np.random.default_rng(0)  # replaced by every reset

    @property
    def spec(self) -> EnvironmentSpec:
        return self._environment.spec

    def reset(self, seed: int) -> Observation:
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, FLICKER_STREAM]))
        return self._flickered(self._environment.reset(seed))

    def step(self, action: Any) -> Step:
        step = self._environment.step(action)
        return step._replace(observation=self._flickered(step.observation))

    def render(self) -> NDArray[np.uint8]:
        """The image without flicker: people may see what the agent does not."""
        return self._environment.render()

    def close(self) -> None:
        self._environment.close()

    def _flickered(self, observation: Observation) -> Observation:
        return np.zeros_like(observation) if self._rng.random() < self._probability else observation
