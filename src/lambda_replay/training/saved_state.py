"""What a checkpoint says about the loop and the agent, and whether it can belong to a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict  # pydantic reads this one before Python 3.12

from lambda_replay.agents.protocol import Tensors
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_streams
from lambda_replay.rundir.checkpoints import BEST, Checkpoint
from lambda_replay.rundir.directory import log_names
from lambda_replay.rundir.files import has_type
from lambda_replay.training.loop import MAX_RANDOM_SCORES, SCORE_WINDOW
from lambda_replay.training.playing import LARGEST_SEED


class GameState(TypedDict):
    """A game being played, as saved in a checkpoint."""

    seed: int
    first_slot: int
    actions: list[int] | list[list[float]]
    score: float
    reward_sum: float
    reward_sum_max: float


class LoopState(TypedDict):
    """The loop, as saved in a checkpoint."""

    step: int
    num_games: int
    recent_scores: list[float]
    recent_lengths: list[int]
    recent_reward_sums: list[float]
    random_scores: list[float]
    games: list[GameState]


def is_sound(state: Mapping[str, Any], config: RunConfig, spec: EnvironmentSpec, agent: Mapping[str, float]) -> bool:
    """What a checksum cannot say: whether these values can come from a run like this one.

    ``agent`` are the plain values of a new agent.
    """
    loop = state["loop"]
    return (
        has_type(loop, LoopState)
        and has_type(state["agent"], dict[str, float])
        and _is_like(state["agent"], agent)
        and set(state["logs"]) == set(log_names(config))
        and (state["best"] is None or config.evaluate_every > 0)
        and loop["step"] == state["step"] <= config.steps
        and len(loop["games"]) == config.envs
        and len(loop["recent_scores"]) == len(loop["recent_lengths"]) <= SCORE_WINDOW
        and len(loop["recent_reward_sums"]) == len(loop["recent_scores"])
        and len(loop["random_scores"]) <= MAX_RANDOM_SCORES
        and all(0 <= game["seed"] < LARGEST_SEED for game in loop["games"])
        and all(spec.accepts(action) for game in loop["games"] for action in game["actions"])
        and make_streams(config.seed, config.envs).accepts(state["streams"])
    )


def _is_like(found: Mapping[str, float], own: Mapping[str, float]) -> bool:
    """Whether plain values have the same names, are finite, and are whole numbers where ours are."""
    return found.keys() == own.keys() and all(
        math.isfinite(value) and (type(value) is int or type(own[name]) is float) for name, value in found.items()
    )


def check_tensors(checkpoint: Checkpoint, own: Mapping[str, Tensors]) -> None:
    """Reject tensors of another agent or network; ``own`` are those of a new agent."""
    best = {} if checkpoint.state["best"] is None else {BEST: own["weights"]}
    wanted: dict[str, Tensors] = {**own, **best}
    if wanted.keys() != checkpoint.tensors.keys():
        raise ConfigError("the checkpoint belongs to another agent; resume with the one it was made with.")
    for name, tensors in wanted.items():
        found = checkpoint.tensors[name]
        if found.keys() != tensors.keys() or not all(_fits(found[part], tensor) for part, tensor in tensors.items()):
            raise ConfigError(
                f"the checkpoint's {name} tensors belong to another network; resume with the one it was made with."
            )


def _fits(found: Tensor, own: Tensor) -> bool:
    """Whether a tensor has the form of ours; earlier versions saved a count, now an int64 scalar, as float32."""
    if found.shape != own.shape or found.dtype == own.dtype:
        return found.shape == own.shape
    is_count = own.dtype == torch.int64 and own.ndim == 0 and found.dtype == torch.float32
    return is_count and float(found).is_integer() and float(found) >= 0
