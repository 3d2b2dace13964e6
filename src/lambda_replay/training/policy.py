"""Loads a trained policy from a run directory, for playing and inspecting."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from lambda_replay.agents.protocol import Policy
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.errors import ConfigError, diverged
from lambda_replay.learning.device import set_threads
from lambda_replay.rundir.checkpoints import CHECKPOINTS, saved_steps, tensor_file
from lambda_replay.rundir.directory import WEIGHTS, is_diverged, read_config
from lambda_replay.rundir.files import load_tensors
from lambda_replay.rundir.trust import MayImport, check_trust, refuse

STOPPED_WEIGHTS = "weights-stopped.safetensors"  # of a run that stopped because its environment failed


class TrainedPolicy(NamedTuple):
    """What a run learnt, with the environment it was trained on."""

    config: RunConfig
    environment: Environment
    policy: Policy
    step: int | None  # of the checkpoint that the weights come from; None: they are the final ones


def load_policy(path: Path, may_import: MayImport = refuse) -> TrainedPolicy:
    """The final weights of a run, those it had when its environment failed, or those of its newest checkpoint.

    ``may_import`` is called before importing an environment's module for a run that this user did not create.
    """
    config = read_config(path)
    check_trust(path, config, may_import)
    environment = make_environment(config)
    kind = agent_kind(config.agent)
    set_threads(kind.threads(config, environment.spec) if config.threads is None else config.threads)
    step, place = _newest_weights(path)
    weights = load_tensors(place)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
        raise ConfigError(f"{place} cannot be used: {diverged('the weights are')}")
    return TrainedPolicy(config, environment, kind.load(config, environment.spec, weights), step)


def _newest_weights(path: Path) -> tuple[int | None, Path]:
    for name in (WEIGHTS, STOPPED_WEIGHTS):
        if (path / name).exists():
            return None, path / name
    steps = saved_steps(path)
    if not steps and is_diverged(path):
        raise ConfigError(
            f"{path} has no weights to use: it diverged before its first checkpoint; start a new run with a lower "
            "learning rate."
        )
    if not steps:
        raise ConfigError(f"{path} has no weights yet: it is not finished and has no checkpoint; train it further.")
    return steps[0], tensor_file(path / CHECKPOINTS / str(steps[0]), "weights")
