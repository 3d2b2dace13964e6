"""How observations of Stable-Baselines3's environments are stored in a ReplayMemory: each of them once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import get_obs_shape

from lambda_replay.errors import ConfigError

Arrays = NDArray[Any] | dict[str, NDArray[Any]]  # observations [n, ...] as Stable-Baselines3 passes them around


class ArrayObservations:
    """Observations that are one array each; of a stack of frames, only the newest is stored."""

    def __init__(self, space: spaces.Space[Any], frame_stack: int) -> None:
        whole = get_obs_shape(space)
        assert isinstance(whole, tuple)
        if frame_stack > 1 and (not whole or whole[0] % frame_stack):
            raise ConfigError(
                f"frame_stack is {frame_stack}, but observations have shape {whole}; give the n_stack of "
                "VecFrameStack, or leave frame_stack out.",
                "frame_stack",
            )
        self.whole, self.frame_stack = whole, frame_stack
        self.channels = whole[0] // frame_stack if frame_stack > 1 else 0  # of one frame
        self.shape = whole if frame_stack == 1 else (self.channels, *whole[1:])  # what is stored
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)

    def split(self, observations: Arrays, num_envs: int) -> NDArray[Any]:
        """Observations of all environments as an array [E, ...]; those of a Discrete space come as [E]."""
        array = np.array(observations)
        if array.shape not in ((num_envs, *self.whole), (num_envs,)):
            raise ConfigError(
                f"observations have shape {array.shape[1:]}, but the space says {self.whole}; for images, wrap the "
                "environment in VecTransposeImage before VecNormalize."
            )
        return array.reshape(num_envs, *self.whole)

    def frame(self, observation: NDArray[Any]) -> NDArray[Any]:
        """What is stored of an observation."""
        return observation if self.frame_stack == 1 else observation[-self.channels :]

    def is_stacked(self, observation: NDArray[Any], before: NDArray[Any] | None) -> bool:
        """Whether its older frames are those of the observation before it; zeros before an episode's first."""
        if self.frame_stack == 1:
            return True
        older = observation[: -self.channels]
        return not older.any() if before is None else np.array_equal(older, before[self.channels :])

    def restore(self, states: NDArray[Any]) -> NDArray[Any]:
        """Observations [n, ...] from states [n, F, *shape] of the memory."""
        return states.reshape(len(states), *self.whole)


class DictObservations:
    """Observations that are dicts of arrays, whose bytes are stored side by side."""

    def __init__(self, space: spaces.Dict, frame_stack: int) -> None:
        if frame_stack > 1:
            raise ConfigError(
                "frame_stack does not work with Dict observations; leave it out, and stacks are stored as they are.",
                "frame_stack",
            )
        shapes = get_obs_shape(space)
        assert isinstance(shapes, dict)
        self.record = np.dtype([(key, space[key].dtype, shape) for key, shape in shapes.items()])
        self.shape, self.dtype, self.frame_stack = (self.record.itemsize,), np.dtype(np.uint8), 1

    def split(self, observations: Arrays, num_envs: int) -> NDArray[Any]:
        assert isinstance(observations, dict)
        records = np.zeros(num_envs, self.record)
        for key in self.record.names or ():
            records[key] = np.asarray(observations[key]).reshape(records[key].shape)
        return records.view(np.uint8).reshape(num_envs, -1)  # [E, bytes]

    def frame(self, observation: NDArray[Any]) -> NDArray[Any]:
        return observation

    def is_stacked(self, observation: NDArray[Any], before: NDArray[Any] | None) -> bool:
        return True

    def restore(self, states: NDArray[Any]) -> dict[str, NDArray[Any]]:
        records = np.ascontiguousarray(states[:, 0]).view(self.record)[:, 0]  # [n]
        return {key: np.ascontiguousarray(records[key]) for key in self.record.names or ()}


def make_layout(space: spaces.Space[Any], frame_stack: int) -> ArrayObservations | DictObservations:
    """The layout for an observation space of Stable-Baselines3."""
    if isinstance(space, spaces.Dict):
        return DictObservations(space, frame_stack)
    return ArrayObservations(space, frame_stack)
