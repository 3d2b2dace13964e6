"""``lr.train``, ``lr.resume`` and ``lr.load``: what the commands do, from Python, with objects of the caller's own."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents.run_settings import merge, override
from lambda_replay.agents.table import agents_for
from lambda_replay.config import OBJECT, RunConfig
from lambda_replay.envs.make import make_bare_environment
from lambda_replay.envs.observe import make_view
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_streams
from lambda_replay.replay.estimator_names import given_estimator, name_of_estimator
from lambda_replay.rundir.directory import free_name, read_config
from lambda_replay.training.assembly import default_agent
from lambda_replay.training.events import OnEvent
from lambda_replay.training.extending import Extension
from lambda_replay.training.health import HealthWarning
from lambda_replay.training.player import Forms, Player, plain_forms
from lambda_replay.training.policy import Which, load_policy
from lambda_replay.training.presets import make_config
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import Run, complete, train_run

OwnEstimator = Callable[[Any], NDArray[Any]]  # blocks to returns [K, L]: an ``lr.Block`` or, with values, another
AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run."""

    path: Path
    config: RunConfig
    step: int  # the last one; fewer than config.steps if it stopped at a score
    score: float | None  # mean score of the last 100 games; None if no game ended
    warnings: tuple[HealthWarning, ...]  # that hold at the end


def train(
    env: Any,
    *,
    out: AnyPath | None = None,
    agent: str | None = None,
    preset: str | None = None,
    estimator: str | OwnEstimator | None = None,
    network: nn.Module | Mapping[str, Any] | None = None,
    on_event: OnEvent = lambda event: None,
    keep_memory: bool = False,
    **settings: Any,
) -> TrainedRun:
    """Train an agent to the end, as ``lambda-replay train`` does, in the new directory ``out``.

    ``env`` is a name, a ``gymnasium.Env``, or a function that returns one. ``settings`` are those of the command, as
    nested dictionaries or dotted names: ``steps=50_000``, ``cache={"size": 4_000}``, ``**{"cache.size": 4_000}``.
    ``network`` is a module of your own (states [n, history, …] to Q-values [n, actions]), or such settings.
    ``on_event`` is called with everything that happens (``lambda_replay.training.events``).
    To resume a run with a ``network``, an ``env`` object or an ``estimator`` that no module has, pass it again.
    """
    _check_callables(on_event, None if isinstance(estimator, str) else estimator)
    name, given = _name_environment(env)
    module, of_network = _split_network(network)
    values = nested({**settings, **of_network})
    function = None if estimator is None or isinstance(estimator, str) else estimator
    if estimator is not None:
        values["estimator"] = name_of_estimator(function) if function is not None else estimator
    if isinstance(values.get("env_args"), Mapping):
        values["env_args"] = [f"{key}={json.dumps(value)}" for key, value in values["env_args"].items()]
    if agent is None:
        agent = _agent_for(name, given, tuple(values.get("env_args", ())))
    config = override(make_config(name, preset, agent), values)
    path = free_name(Path("runs"), config) if out is None else Path(out)
    with given_estimator(config.estimator, function):
        run = train_run(path, config, network=module, env=given, on_event=on_event, keep_memory=keep_memory)
    return _summary(run)


def resume(
    path: AnyPath,
    *,
    steps: int | None = None,
    stop_at_score: float | None = None,
    env: Any = None,
    estimator: OwnEstimator | None = None,
    network: nn.Module | None = None,
    on_event: OnEvent = lambda event: None,
    keep_memory: bool = False,
    trust: bool = False,
) -> TrainedRun:
    """Continue a stopped run to its end, as ``lambda-replay resume`` does; with ``steps``, for longer than planned.

    ``env``, ``estimator`` and ``network`` are needed exactly if ``train`` was given such objects.
    ``trust``: import the modules that a run names even if you did not create it.
    """
    _check_callables(on_event, estimator)
    with given_estimator(read_config(Path(path)).estimator, estimator):
        run = resume_run(
            path,
            lambda sentence: warnings.warn(sentence, stacklevel=4),
            network,
            env=env,
            keep_memory=keep_memory,
            extension=Extension(steps, stop_at_score),
            may_import=lambda path, module: trust,
        )
        return _summary(complete(run, on_event))


def load(
    path: AnyPath,
    *,
    weights: Which = "last",
    env: Any = None,
    network: nn.Module | None = None,
    seed: int | None = None,
    trust: bool = False,
) -> Player:
    """The trained agent of a run: its final weights or, while it is not finished, those of its newest checkpoint.

    ``weights="best"``: those of its best evaluation. ``env`` and ``network`` are needed exactly if ``train`` was given
    such objects. ``seed`` is for random actions. ``trust``: import the modules that a run names even if you
    did not create it.
    """
    trained = load_policy(path, lambda path, module: trust, weights=weights, network=network, env=env)
    config, spec = trained.config, trained.environment.spec
    rng = make_streams(config.seed if seed is None else seed, num_envs=1).evaluate
    trained.environment.close()
    return Player(config, trained.policy, spec, forms=_forms(config, env), rng=rng, step=trained.step)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested tables: ``{"cache.size": 400}`` becomes ``{"cache": {"size": 400}}``."""
    values: dict[str, Any] = {}
    for name, value in settings.items():
        *parts, last = name.split(".")
        table = {last: nested(value) if isinstance(value, Mapping) and last != "env_args" else value}
        for part in reversed(parts):
            table = {part: table}
        values = merge(values, table)
    return values


def _check_callables(on_event: Any, estimator: Any) -> None:
    if not callable(on_event):
        raise ConfigError(f"on_event is {on_event!r}; give a function that takes an event, or leave it out.")
    if estimator is not None and not callable(estimator):
        raise ConfigError(
            f"estimator is {estimator!r}; give a callable or, to train, a name such as 'peng:0.7'.", "estimator"
        )


def _split_network(network: Any) -> tuple[nn.Module | None, dict[str, Any]]:
    """The caller's own module, or settings of the agent's network."""
    if network is None or isinstance(network, nn.Module):
        return network, {}
    if isinstance(network, Mapping):
        return None, {"network": network}
    raise ConfigError(f"network is {type(network).__name__}; give a torch.nn.Module, or settings.", "network")


def _name_environment(env: Any) -> tuple[str, Any]:
    """An environment's name in the config, and the object itself if it was given as one."""
    if isinstance(env, str):
        if env.startswith(OBJECT):
            raise ConfigError(f"{env} is the name of an environment object; give the object itself.", "env")
        return env, None
    if env is None:
        raise ConfigError(
            "env is None; give the name of an environment, a gymnasium.Env, or a function that returns one.", "env"
        )
    kind = getattr(env, "__qualname__", type(getattr(env, "unwrapped", env)).__qualname__)
    return OBJECT + re.sub(r"[^A-Za-z0-9_]+", "-", kind).strip("-"), env


def _agent_for(name: str, given: Any, env_args: tuple[str, ...]) -> str:
    """The default agent for the environment's actions."""
    if given is None:
        return default_agent(name, env_args)
    environment = make_bare_environment(make_config(name), given)
    try:
        return agents_for(environment.spec)[0]
    finally:
        environment.close()


def _forms(config: RunConfig, env: Any) -> Forms:
    """How the environment's own observations and actions look to the policy; Gymnasium's have forms of their own."""
    environment: Any = make_bare_environment(config, env)
    environment.close()  # what follows needs its spaces only
    has_forms = hasattr(environment, "stored")
    forms = Forms(environment.stored, environment.native) if has_forms else plain_forms(environment.spec)
    if not (config.observe or config.scale):
        return forms
    view = make_view(config.observe, config.scale)
    return forms._replace(stored=lambda observation: view(forms.stored(observation)))


def _summary(run: Run) -> TrainedRun:
    recorded = replace(run.recorded, threads=run.config.threads)
    return TrainedRun(run.path, recorded, run.loop.step, run.loop.score, tuple(run.health.warnings))
