"""The settings of a LambdaReplayBuffer: what ``replay_buffer_kwargs`` may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from lambda_replay.checks import is_whole
from lambda_replay.errors import ConfigError
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator, Retrace

Minimum = Literal["step", "return"]

HER_REASON = "HerReplayBuffer draws new goals whenever it samples, so no return can be computed in advance"
# What belongs to other buffers of Stable-Baselines3, and what to do instead.
FOREIGN = {
    "n_steps": "give the number of steps as the estimator, such as estimator='nstep:3'",
    "gamma": "leave it out, the discount is the model's",
    **dict.fromkeys(("n_sampled_goal", "goal_selection_strategy", "copy_info_dict"), f"{HER_REASON}; leave it out"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a LambdaReplayBuffer computes returns and hands them out."""

    estimator: str | Estimator = "peng:0.7"  # a name such as nstep:3, or a callable from blocks to returns
    cache_size: int = 10_000  # rows S; fewer while the buffer holds fewer transitions
    block_length: int = 50  # steps B per block; fewer while no environment has played as many
    updates_per_refresh: int = 100  # minibatches from one cache
    priority: float = 0.0  # p: how much more often rows with a large TD error are drawn; paper 0 or 0.1
    tail: int = 0  # steps computed beyond each block and discarded, which lengthens its last returns
    frame_stack: int = 1  # the n_stack of VecFrameStack: each frame is then stored once
    critic_minimum: Minimum = "step"  # the smaller critic at each step, or the smaller return

    def __post_init__(self) -> None:
        for name in ("cache_size", "block_length", "updates_per_refresh", "frame_stack"):
            _require(is_whole(getattr(self, name), 1), name, getattr(self, name), "a whole number, 1 or more")
        _require(is_whole(self.tail, 0), "tail", self.tail, "a whole number of steps, 0 or more")
        _require(_is_share(self.priority), "priority", self.priority, "a number from 0 to 1")
        _require(self.critic_minimum in ("step", "return"), "critic_minimum", self.critic_minimum, "step or return")
        _require(
            self.cache_size >= self.block_length, "cache_size", self.cache_size, f"{self.block_length} rows or more"
        )
        is_estimator = isinstance(self.estimator, str) or callable(self.estimator)
        _require(is_estimator, "estimator", self.estimator, "a name such as peng:0.7, or a callable")
        if isinstance(self.parsed_estimator(), Retrace):
            raise ConfigError(
                f"{self.estimator} needs the probability of every stored action, which Stable-Baselines3 does not "
                "hand to its buffers; use peng, or with DQN also watkins or tree.",
                "estimator",
            )

    def parsed_estimator(self) -> Estimator:
        return parse_estimator(self.estimator) if isinstance(self.estimator, str) else self.estimator


def _is_share(value: object) -> bool:
    return isinstance(value, float | int | np.floating) and bool(0 <= value <= 1)


def _require(is_sound: bool, name: str, value: object, wanted: str) -> None:
    if not is_sound:
        raise ConfigError(f"{name} is {value!r}; give {wanted}.", name)


def read_settings(given: Mapping[str, Any]) -> Settings:
    """The settings given as ``replay_buffer_kwargs``; a name that is not among them is rejected."""
    known = [field.name for field in fields(Settings)]
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        remedy = FOREIGN.get(unknown, f"choose from {', '.join(known)}")
        raise ConfigError(f"LambdaReplayBuffer has no setting {unknown}; {remedy}.", unknown)
    return Settings(**given)
