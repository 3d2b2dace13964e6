"""Atari 2600 games through the Arcade Learning Environment, preprocessed as in Mnih et al. (2015).

A *frame* is one of the emulator's 60 per second; a *step* is one action of the agent and lasts ``frame_skip`` frames.
Observations are stacked when they are read from the replay memory, not here.
"""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.config import AtariConfig
from lambda_replay.envs.faults import FaultGuard
from lambda_replay.envs.interface import EnvironmentSpec, Observation, Step
from lambda_replay.errors import ConfigError
from lambda_replay.extras import needed_for

if TYPE_CHECKING:  # an optional dependency
    from ale_py import ALEInterface

OBSERVATION_SHAPE = (84, 84)  # Mnih et al. 2015
NOOP, FIRE = 0, 1  # the emulator's action numbers

# Games where 4,000 frames of no-ops give no reward, lose no life and never end, unless one frame of FIRE comes first;
# found by trying all games of ale-py 0.12.
GAMES_WAITING_FOR_FIRE = frozenset({"blackjack", "breakout", "donkey_kong", "tennis"})


@final
class Atari:
    """One Atari game; observations are greyscale images, uint8 [84, 84].

    All randomness (the number of no-ops and the sticky actions) comes from a generator seeded with the game's seed; the
    emulator's own randomness is off.
    """

    def __init__(self, game: str, config: AtariConfig) -> None:
        name = _known_game(game)
        _check_limit(config)
        self._config = config
        self._guard = FaultGuard(f"atari/{name}")
        with self._guard:
            self._ale = _load_emulator(name)
        # reset_game() alone leaks state from one game into the next in about a fifth of all games (Beam Rider is one).
        # Restoring this state, saved before the first game, and then resetting leaves no trace in any game (tested on
        # all of ale-py 0.12). Reloading the ROM would also work but takes 0.1 seconds. States saved during a game are
        # not exact and are never used.
        self._untouched = self._ale.cloneState(include_rng=True)
        self._presses_fire = config.fire_on_reset and name in GAMES_WAITING_FOR_FIRE
        actions = self._ale.getLegalActionSet() if config.all_actions else self._ale.getMinimalActionSet()
        self._actions = [action.value for action in actions]
        self._spec = EnvironmentSpec(
            observation_shape=OBSERVATION_SHAPE,
            observation_dtype=np.dtype(np.uint8),
            num_actions=len(actions),
            action_names=tuple(action.name.lower() for action in actions),
        )
        screen = self._ale.getScreenDims()  # (H, W); H differs between games
        self._latest, self._previous, self._brightest = np.zeros((3, *screen), dtype=np.uint8)  # each [H, W]
        self._rng = np.random.default_rng(0)  # replaced by every reset
        self._held = NOOP  # the action a sticky frame repeats
        self._frames = 0  # in this game, including no-ops
        self._lives = 0
        self._game_over = True  # until the first reset

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        self._rng = np.random.default_rng(seed)
        num_noops = int(self._rng.integers(self._config.noop_max, endpoint=True))
        with self._guard:
            self._restart()
            for action in [NOOP] * num_noops + [FIRE] * self._presses_fire:
                self._play_frame(action)
                if self._is_lost():  # many no-ops can lose a game; it is then played from the start
                    self._restart()
                    break
            self._lives = self._ale.lives()  # only now: some games (Amidar) report no lives in their first frames
            self._previous.fill(0)  # so that the first observation is the latest frame alone
            self._ale.getScreenGrayscale(self._latest)
            return self._observation()

    def step(self, action: int) -> Step:
        assert 0 <= action < self._spec.num_actions, action
        assert not self._game_over, "the game is over; call reset first"
        with self._guard:
            score = self._play_frames(self._actions[action])
            lives, is_lost, observation = self._ale.lives(), self._is_lost(), self._observation()
        # Games without lives always report 0. If the last life is lost before the game is over (Q*bert), both that loss
        # and the end that follows are terminal.
        is_life_lost = lives < self._lives
        self._lives = lives
        is_out_of_time = self._frames >= self._config.max_frames
        self._game_over = is_lost or is_out_of_time
        return Step(
            observation=observation,
            reward=float((score > 0) - (score < 0)) if self._config.clip_rewards else float(score),
            terminated=is_lost or (is_life_lost and self._config.life_loss_terminal),
            truncated=is_out_of_time,
            game_over=self._game_over,
            score=float(score),
        )

    def render(self) -> NDArray[np.uint8]:
        """The latest frame of the emulator's screen, in colour."""
        with self._guard:
            return self._ale.getScreenRGB()

    def close(self) -> None:
        """Nothing to close: the emulator is freed with its object."""

    def _restart(self) -> None:
        self._ale.restoreState(self._untouched)
        self._ale.reset_game()
        self._held = NOOP
        self._frames = 0
        self._game_over = False

    def _play_frames(self, action: int) -> int:
        """Play one step's frames, keep the last two for the observation, and return the sum of their rewards."""
        num_frames = min(self._config.frame_skip, self._config.max_frames - self._frames)
        # Sticky actions are drawn per frame, not per step, as in the emulator itself (Machado et al. 2018): the
        # joystick stays where it was for one more frame.
        sticks = self._rng.random(num_frames) < self._config.sticky
        score = 0
        for index, sticks_here in enumerate(sticks.tolist()):
            score += self._play_frame(self._held if sticks_here else action)
            # Reading the screen costs a third of playing a frame, so only two are read. If the game ends earlier in the
            # skip, its last frame is combined with the one read before; nothing is learned from that image.
            is_lost = self._is_lost()
            if index >= num_frames - 2 or is_lost:
                self._previous, self._latest = self._latest, self._previous
                self._ale.getScreenGrayscale(self._latest)
            if is_lost:
                break
        return score

    def _play_frame(self, action: int) -> int:
        reward = self._ale.act(action)
        self._held = action
        self._frames += 1
        return reward

    def _is_lost(self) -> bool:
        return self._ale.game_over(with_truncation=False)

    def _observation(self) -> NDArray[np.uint8]:
        """The pixelwise maximum of the last two frames, which removes sprite flicker, resized.

        Greyscale first, then the maximum, as in Dopamine and Gymnasium; Mnih et al. (2015) take the maximum per colour
        first. The two differ only where both frames show something in different hues; greyscale is a third of the work.
        """
        from cv2 import INTER_AREA, resize

        np.maximum(self._previous, self._latest, out=self._brightest)
        # OpenCV uses threads only for results of more than 65,536 pixels, so its global thread setting is left alone.
        # The result is a new array, which the caller may keep.
        return np.asarray(resize(self._brightest, OBSERVATION_SHAPE, interpolation=INTER_AREA), dtype=np.uint8)


def _check_limit(config: AtariConfig) -> None:
    first_frames = config.noop_max + config.fire_on_reset
    if config.max_frames <= first_frames:
        raise ConfigError(
            f"atari.max_frames is {config.max_frames}, but starting a game takes up to {first_frames} frames "
            "(atari.noop_max and atari.fire_on_reset); raise atari.max_frames."
        )


def installed_games() -> tuple[str, ...]:
    """The games that come with ale-py; none if it is not installed.

    They are read from the package's file names: importing it would register them all with Gymnasium.
    """
    package = importlib.util.find_spec("ale_py")
    places = [] if package is None else package.submodule_search_locations or []
    return tuple(sorted(file.stem for place in places for file in Path(place, "roms").glob("*.bin")))


def _known_game(game: str) -> str:
    with needed_for(f"atari/{game}"):
        import cv2  # noqa: F401  needed for every observation; better to find out here
        from ale_py import ALEInterface, roms
    name = game.lower().replace("-", "_")
    names = sorted(roms.get_all_rom_ids())
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        guess = f"did you mean {' or '.join(f'atari/{match}' for match in close)}?" if close else "try atari/pong."
        raise ConfigError(f"there is no Atari game {game!r}; {guess}")
    # The package has a few games (combat, joust, ...) that its emulator cannot play: it would end the process.
    if ALEInterface.isSupportedROM(str(roms.get_rom_path(name))) is None:
        raise ConfigError(f"the Atari game {game!r} needs two players, which is not supported; try atari/pong.")
    return name


def _load_emulator(name: str) -> ALEInterface:
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)  # no banner on standard error
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)  # sticky actions are done here
    ale.setInt("random_seed", 0)  # the default is the clock
    ale.loadROM(str(roms.get_rom_path(name)))
    return ale
