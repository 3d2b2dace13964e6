"""A trained policy read back from a run directory, for playing and looking at; training goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lambda_replay.agents import choose_threads
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.learning.learner import Learner, find_device, set_threads
from lambda_replay.learning.networks import make_network
from lambda_replay.rundir.checkpoints import CHECKPOINTS, saved_steps
from lambda_replay.rundir.directory import WEIGHTS, is_diverged, read_config
from lambda_replay.rundir.files import load_tensors
from lambda_replay.rundir.trust import MayImport, check_trust, refuse

STOPPED_WEIGHTS = "weights-stopped.safetensors"  # of a run that its environment made impossible to finish


class Policy(NamedTuple):
    """A run's network with the environment it was trained on."""

    config: RunConfig
    environment: Environment
    learner: Learner
    step: int | None  # of the checkpoint the weights come from; None: they are the final ones


def load_policy(path: Path, may_import: MayImport = refuse) -> Policy:
    """The final weights of a run, those it had when its environment failed, or those of its newest checkpoint.

    ``may_import`` is asked before the module of an environment is imported for a run that this user did not create.
    """
    config = read_config(path)
    check_trust(path, config, may_import)
    environment = make_environment(config)
    spec = environment.spec
    set_threads(choose_threads(config, spec))
    network = make_network(
        config.network, (config.memory.history, *spec.observation_shape), spec.num_actions, seed=config.seed
    )
    learner = Learner(network, config.optimizer, find_device(config.device))
    step, place = _newest_weights(path)
    learner.load_weights(load_tensors(place))
    try:
        learner.check_finite()
    except DivergenceError as error:
        raise ConfigError(f"{place} is of no use: {error}") from None
    return Policy(config, environment, learner, step)


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
    return steps[0], path / CHECKPOINTS / str(steps[0]) / WEIGHTS
