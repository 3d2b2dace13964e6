"""Loads a trained policy from a run directory, for playing and inspecting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from lambda_replay.agents.protocol import Policy, Tensors
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, EnvironmentSpec, make_environment
from lambda_replay.errors import ConfigError, diverged
from lambda_replay.learning.device import set_threads
from lambda_replay.rundir.checkpoints import CHECKPOINTS, saved_steps, tensor_file
from lambda_replay.rundir.directory import BEST_WEIGHTS, WEIGHTS, is_diverged, read_config
from lambda_replay.rundir.files import load_tensors
from lambda_replay.rundir.trust import MayImport, check_trust, refuse

STOPPED_WEIGHTS = "weights-stopped.safetensors"  # of a run that stopped because its environment failed


Which = Literal["last", "best"]


class TrainedPolicy(NamedTuple):
    """What a run learnt, with the environment it was trained on."""

    config: RunConfig
    environment: Environment
    policy: Policy
    step: int | None  # of the checkpoint that the weights come from; None: they are the final ones


def load_policy(
    path: str | os.PathLike[str],
    may_import: MayImport = refuse,
    *,
    weights: Which = "last",
    network: nn.Module | None = None,
    env: Any = None,
) -> TrainedPolicy:
    """The final weights of a run, those it had when its environment failed, or those of its newest checkpoint.

    ``weights="best"``: those of its best evaluation. ``network`` and ``env`` are the user's own, as in training.
    ``may_import`` is called before importing an environment's module for a run that this user did not create.
    """
    if weights not in get_args(Which):
        raise ConfigError(f"weights is {weights!r}; choose last or best.")
    path = Path(path)
    config = read_config(path)
    check_trust(path, config, may_import)
    environment = make_environment(config, env)
    kind = agent_kind(config.agent)
    set_threads(kind.threads(config, environment.spec) if config.threads is None else config.threads)
    step, place = _newest_weights(path) if weights == "last" else (None, _best_weights(path))
    tensors = load_tensors(place)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise ConfigError(f"{place} cannot be used: {diverged('the weights are')}")
    return TrainedPolicy(config, environment, make_policy(config, environment.spec, tensors, network), step)


def make_policy(config: RunConfig, spec: EnvironmentSpec, weights: Tensors, network: nn.Module | None = None) -> Policy:
    """The policy with these weights, which the user's own ``network`` receives if there is one."""
    kind = agent_kind(config.agent)
    if network is None:
        return kind.load(config, spec, weights)
    if kind.load_own is None:
        raise ConfigError(f"agent {config.agent} takes no network of your own; leave network out.", "agent")
    return kind.load_own(config, spec, weights, network)


def _best_weights(path: Path) -> Path:
    if not (path / BEST_WEIGHTS).exists():
        raise ConfigError(f"{path} has no best weights: it was not evaluated while it trained (evaluate_every).")
    return path / BEST_WEIGHTS


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
