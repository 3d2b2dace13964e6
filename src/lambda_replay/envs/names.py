"""Errors for environment names that do not exist, with suggestions."""

from __future__ import annotations

import difflib
import re

import gymnasium

from lambda_replay.envs.atari import installed_games
from lambda_replay.envs.minatar import GAMES
from lambda_replay.errors import ConfigError

ATARI_NAME = re.compile(r"(?:ALE/)?([A-Za-z0-9]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+")
ROBOTICS_NAME = re.compile(r"(?:Fetch|Hand|PointMaze|AntMaze|Adroit|FrankaKitchen).*-v\d+")
MINATAR_NAME = re.compile(r"MinAtar/([A-Za-z0-9_]+)-v\d+")


def check_spelling(env_id: str) -> None:
    """Reject ids for which Gymnasium itself would raise an error about unpacking or relative imports."""
    package, colon, name = env_id.rpartition(":")
    if not name or (colon and not all(part.isidentifier() for part in package.split("."))):
        raise ConfigError(
            f"{env_id!r} is not an environment; write atari/pong, minatar/breakout, CartPole-v1 or package:Env-v0."
        )


def check_family(env_id: str) -> None:
    """Point from the names that other packages give Atari and MinAtar games to the names used here."""
    game = _game(MINATAR_NAME, env_id, GAMES)
    if game is not None:
        raise ConfigError(
            f"{env_id} is called minatar/{game} here; it has sticky actions, ramping difficulty and the actions of v1 "
            "(set minatar.sticky, minatar.ramping and minatar.all_actions to change that)."
        )
    game = None if _is_registered(env_id) else _game(ATARI_NAME, env_id, installed_games())
    if game is not None:
        raise ConfigError(
            f"{env_id} is called atari/{game} here; it has 84×84 images, 4 frames per step and no sticky actions "
            "(set atari.frame_skip and atari.sticky to change that; sticky is 0.25 in v0 and v5)."
        )


def _is_registered(env_id: str) -> bool:
    """Whether any version of the name is registered, except by ale-py, which registers its games on import."""
    name = env_id.rpartition("-v")[0]
    specs = gymnasium.registry.items()
    return any(
        key.rpartition("-v")[0] == name and not str(spec.entry_point).startswith("ale_py") for key, spec in specs
    )


def _game(pattern: re.Pattern[str], env_id: str, games: tuple[str, ...]) -> str | None:
    """The game that an id such as ALE/SpaceInvaders-v5 stands for, if any: space_invaders."""
    match = pattern.fullmatch(env_id)
    name = "" if match is None else match[1].lower().replace("_", "")
    return next((game for game in games if game.replace("_", "") == name), None)


def unknown(env_id: str) -> ConfigError:
    """The error for a name that is not registered."""
    name = env_id.rpartition(":")[2]
    if name == env_id and ROBOTICS_NAME.fullmatch(name):
        return ConfigError(f"{name} is an environment of gymnasium-robotics; write gymnasium_robotics:{name}.")
    families = {
        "atari": "atari/pong",
        "minatar": "minatar/breakout",
        "goals": "goals/bitflip-15",
        "ALE": "atari/pong",
        "MinAtar": "minatar/breakout",
    }
    family = families.get(name.partition("/")[0])
    close = [family] if family else difflib.get_close_matches(name, gymnasium.registry, n=1)
    guess = f"did you mean {close[0]}?" if close else "write package:Env-v0 if a package must be imported first."
    return ConfigError(f"there is no Gymnasium environment {name!r} (nor is it atari/… or minatar/…); {guess}")
