"""Our environments as Gymnasium environments, so that the peers step exactly the same emulator."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.training.playing import LARGEST_SEED


class GymnasiumAdapter(gymnasium.Env[NDArray[Any], Any]):
    """One of our environments with stacked states: pixels uint8 [4, 84, 84], planes uint8 [C, 10, 10], vectors float32.

    A lost life ends the episode but not the game: the next reset continues the game, as in our own loop.
    """

    def __init__(self, config: RunConfig, seed: int) -> None:
        self._environment: Environment = make_environment(config)
        self._rng = np.random.default_rng(seed)
        self._history = config.memory.history
        self._is_game_over = True
        spec = self._environment.spec
        self._is_planes = spec.observation_dtype == np.bool_
        self._state = np.zeros(self._state_shape(spec.observation_shape), self._state_dtype(spec.observation_dtype))
        self.action_space = Discrete(spec.num_actions)
        self.observation_space = self._space(spec.observation_dtype)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        newest = self._state[-1]
        if self._is_game_over:
            if seed is not None:
                self._rng = np.random.default_rng(seed)
            newest = self._environment.reset(int(self._rng.integers(LARGEST_SEED)))
            self._is_game_over = False
        elif self._history == 1:  # no history to clear
            return self._state, {}
        return self._stack(newest, np.zeros_like(self._state)), {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        step = self._environment.step(int(action))
        self._is_game_over = step.game_over
        state = self._stack(step.observation, self._state)
        return state, step.reward, step.terminated, step.truncated, {}

    def close(self) -> None:
        self._environment.close()

    def _stack(self, observation: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """Returns a new array, which the caller may keep."""
        if self._history == 1:
            planes = np.moveaxis(observation, -1, 0) if self._is_planes else observation
            self._state = np.ascontiguousarray(planes, dtype=self._state.dtype)
        else:
            self._state = np.concatenate([before[1:], observation[None]])
        return self._state

    def _state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self._is_planes:
            return (shape[-1], *shape[:-1])
        return shape if self._history == 1 else (self._history, *shape)

    def _state_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self._is_planes else dtype

    def _space(self, dtype: np.dtype[Any]) -> Box:
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else (0, 1 if self._is_planes else 255)
        return Box(low, high, self._state.shape, self._state.dtype.type)


def make_adapters(config: RunConfig) -> list[GymnasiumAdapter]:
    """One adapter per environment of the config, each with its own seeds."""
    return [GymnasiumAdapter(config, seed=config.seed + index) for index in range(config.envs)]
