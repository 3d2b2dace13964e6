"""Creates an environment from its name."""

from __future__ import annotations

from typing import Any

from lambda_replay.config import OBJECT, RunConfig
from lambda_replay.envs.atari import Atari
from lambda_replay.envs.bitflip import BitFlip
from lambda_replay.envs.flicker import Flicker
from lambda_replay.envs.interface import Environment
from lambda_replay.envs.minatar import MinAtar
from lambda_replay.envs.observe import Observe
from lambda_replay.errors import ConfigError
from lambda_replay.extras import needed_for


def make_environment(config: RunConfig, given: Any = None) -> Environment:
    """The environment that ``config.env`` names, with the config's preprocessing.

    ``given`` is a ``gymnasium.Env``, or a function that returns one, for a name that begins with ``object/``.
    """
    environment = make_bare_environment(config, given)
    if config.observe or config.scale:
        environment = Observe(environment, config.observe, config.scale)
    return Flicker(environment, config.flicker) if config.flicker > 0 else environment


def make_bare_environment(config: RunConfig, given: Any = None) -> Environment:
    """The same without the wrappers: it shows all of every observation, in the environment's own units."""
    game = config.env.partition("/")[2]
    if config.atari is not None:  # RunConfig ensures that the name matches
        return Atari(game, config.atari)
    if config.minatar is not None:
        return MinAtar(game, config.minatar)
    if config.env.startswith(OBJECT) and given is None:
        raise ConfigError(
            f"{config.env} was given as a Python object, which no name can find again; pass it again as env=, or "
            "register it with Gymnasium (docs/environments.md) and train that.",
            "env",
        )
    if config.env.startswith("goals/"):
        if config.env_args:
            raise ConfigError(f"env_args are for Gymnasium environments, but this is {config.env}; leave them out.")
        return BitFlip(game)
    # Imported here because importing Gymnasium takes a third of a second, and the families above do not need it.
    with needed_for(config.env):
        from lambda_replay.envs.gymnasium import GymnasiumEnvironment
    return GymnasiumEnvironment(config.env, config.env_arguments, given=given)
