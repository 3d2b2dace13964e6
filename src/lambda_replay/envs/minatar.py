"""The five MinAtar games (Young & Tian 2019); their rules are in the MinAtar package, which is optional (GPL)."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.config import MinAtarConfig
from lambda_replay.envs.faults import FaultGuard
from lambda_replay.envs.interface import EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError
from lambda_replay.extras import not_installed

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
ACTION_NAMES = ("noop", "left", "up", "right", "down", "fire")  # the order in which every game numbers them
NOOP = 0

CELL = 32  # pixels per grid cell, so 10 cells are 320 wide
BACKGROUND = (16, 16, 24)
GRID = (32, 32, 44)
# One colour per channel: those of Okabe & Ito (2008), which colour-blind people can tell apart, with white instead of
# black because the background is dark, and two greys that differ from all of them in lightness.
PALETTE = (
    (86, 180, 233),  # sky blue: the player in every game
    (240, 228, 66),  # yellow
    (170, 170, 170),  # light grey: a trail or a mark in most games
    (213, 94, 0),  # vermilion
    (0, 158, 115),  # bluish green
    (204, 121, 167),  # reddish purple
    (0, 114, 178),  # blue
    (255, 255, 255),  # white
    (100, 100, 100),  # dark grey
    (230, 159, 0),  # orange
)


@final
class MinAtar:
    """One MinAtar game; observations are bool planes [10, 10, C]."""

    def __init__(self, game: str, config: MinAtarConfig) -> None:
        name = _known_game(game)
        self._config = config
        self._guard = FaultGuard(f"minatar/{name}")
        with self._guard:
            self._game = _load_game(name).Env(ramping=config.ramping)
            self._actions = list(range(len(ACTION_NAMES))) if config.all_actions else self._game.minimal_action_set()
        self._spec = EnvironmentSpec(
            observation_shape=tuple(self._game.state_shape()),  # (10, 10, C)
            observation_dtype=np.dtype(np.bool_),
            num_actions=len(self._actions),
            action_names=tuple(ACTION_NAMES[action] for action in self._actions),
        )
        self._random = np.random.RandomState(0)  # replaced by every reset
        self._held = NOOP  # the action a sticky step repeats

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        # MinAtar's own reset neither seeds nor forgets the last action, so stickiness leaks from game to game.
        # The games need the old RandomState. On top of PCG64 it takes seeds of any size, not only 32 bits, and is
        # created in a tenth of the time, which matters when games last ten steps.
        self._random = np.random.RandomState(np.random.PCG64(seed))
        self._held = NOOP
        self._game.random = self._random
        with self._guard:
            self._game.reset()
            return self._observation()

    def step(self, action: int) -> Step:
        assert 0 <= action < self._spec.num_actions, action
        assert not self._game.terminal, "the game is over; call reset first"
        # As in MinAtar's own environment: one draw per step, from the generator that the game uses too.
        if not self._random.rand() < self._config.sticky:
            self._held = self._actions[action]
        with self._guard:
            reward, terminal = self._game.act(self._held)
            observation = self._observation()
        return Step(
            observation=observation,
            reward=float(reward),
            terminated=bool(terminal),
            truncated=False,  # the only time limit is Freeway's, which is part of its rules
            game_over=bool(terminal),
            score=float(reward),
        )

    def render(self) -> NDArray[np.uint8]:
        """One colour per channel; where channels overlap, the first one shows, so the player is never hidden."""
        planes = self._observation()  # [10, 10, C]
        colours = np.array((BACKGROUND, *PALETTE), dtype=np.uint8)  # [11, 3]
        cells = colours[np.where(planes.any(axis=-1), planes.argmax(axis=-1) + 1, 0)]  # [10, 10, 3]
        picture: NDArray[np.uint8] = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)  # [320, 320, 3]
        picture[::CELL] = GRID
        picture[:, ::CELL] = GRID
        return picture

    def close(self) -> None:
        """Nothing to close: a game holds only plain Python values."""

    def _observation(self) -> NDArray[np.bool_]:
        planes: NDArray[np.bool_] = self._game.state()  # a new array each time, so the caller may keep it
        return planes


def _known_game(game: str) -> str:
    name = game.lower().replace("-", "_")
    if name in GAMES:
        return name
    close = difflib.get_close_matches(name, GAMES, n=1)
    guess = f"did you mean minatar/{close[0]}?" if close else f"the games are {', '.join(GAMES)}."
    raise ConfigError(f"there is no MinAtar game {game!r}; {guess}")


def _load_game(name: str) -> ModuleType:
    """The module of one game, without importing its package.

    ``import minatar`` imports matplotlib and seaborn, which takes more than a second, and sets up the root logger when
    they are missing, all for a display that is not used here. The games themselves import only NumPy.
    """
    package = importlib.util.find_spec("minatar")
    if package is None or not package.submodule_search_locations:
        raise not_installed("minatar", f"minatar/{name}")
    path = Path(package.submodule_search_locations[0]) / "environments" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"minatar.environments.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
