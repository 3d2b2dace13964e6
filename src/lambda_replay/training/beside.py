"""What a run does beside training, at boundaries: evaluations and films, each in an environment of its own."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import nn

from lambda_replay.agents.protocol import Policy, Tensors
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.training.evaluating import Evaluator
from lambda_replay.training.films import Filmer
from lambda_replay.training.policy import make_policy


class Beside(NamedTuple):
    """None where the config asks for nothing."""

    evaluator: Evaluator | None
    filmer: Filmer | None

    @property
    def environments(self) -> list[Environment]:
        return [part.environment for part in self if part is not None]


def make_beside(config: RunConfig, network: nn.Module | None = None, env: Any = None) -> Beside:
    """What the config asks for, with a copy of the user's own ``network``, in environments like the user's ``env``."""
    own = copy.deepcopy(network)
    return Beside(
        _make(Evaluator, config, own, env) if config.evaluate_every > 0 else None,
        _make(Filmer, config, own, env) if config.film_every > 0 else None,
    )


def _make(kind: Any, config: RunConfig, network: nn.Module | None, env: Any) -> Any:
    environment: Environment = make_environment(config, env)

    def policy(weights: Tensors) -> Policy:
        return make_policy(config, environment.spec, weights, network)

    return kind(config, environment, policy)
