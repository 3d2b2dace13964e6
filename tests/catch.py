"""Catch: a small game with the interface of the Atari emulator, which the real Atari path learns in under a minute.

A square falls straight down or diagonally. The player sees it for two steps; then it is hidden and the paddle can move.
Each part of the Atari path is needed to play well:

- Stacking: two frames show where the square will land. When the paddle moves, the newest frame shows no square, so a
  player who sees only that frame catches at most one square in three.
- Clipping: a missed square pays more than a caught one. Clipped, both pay 1. Unclipped, with a discount of 0.9, missing
  is the best policy: it pays 500 at once, and a catch 100 and at best 500 eight steps later, which is worth less.
- Lives: a missed square costs a life, and the next one starts at once; after a catch there is a pause. If a lost life
  is terminal, only a catch leads to more rewards. If it is not, missing leads to them sooner.
- Maximum of two frames: the sprites are drawn in every other frame only.

Where a square starts and where it goes depends on the frames played so far and their actions: the same actions always
give the same game.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from ale_py import Action
from numpy.typing import NDArray

LIVES = 5
SQUARES = 100  # per game
CATCH_POINTS, MISS_POINTS = 100, 500

# Time, in ticks of four frames: with the usual frame skip, every agent step has exactly one.
FRAMES_PER_TICK = 4
LAST_ROW_IN_SIGHT, LANDING_ROW = 1, 4  # a square falls one row per tick
PAUSE = 4  # after a catch
FIRST_PAUSE = 8  # before the first square; 32 frames, so that 30 no-ops miss nothing

# Places, in lanes to the right of the middle one: squares land in lanes −5 to 5.
STARTS = (-1, 0, 1)
DIRECTIONS = (-1, 0, 1)  # lanes per row
PADDLE_SPEED = 2  # lanes per tick: two ticks of it reach lane 4
PADDLE_REACH = 1  # lanes on either side of the paddle's middle

HEIGHT, WIDTH = 210, 160  # pixels, as most Atari games
LANE, ROW = 14, 40  # pixels
BRIGHT = 236


@dataclass
class Game:
    """The whole state of a game."""

    generator: int = 0
    frame: int = 0
    lives: int = LIVES
    landed: int = 0  # squares
    pause: int = FIRST_PAUSE  # ticks until the next square starts; 0 while one falls
    start: int = 0
    direction: int = 0
    row: int = 0
    paddle: int = 0

    @property
    def is_over(self) -> bool:
        return self.lives == 0 or self.landed == SQUARES

    @property
    def square(self) -> int:
        """The lane of the falling square."""
        return self.start + self.row * self.direction

    @property
    def is_in_sight(self) -> bool:
        return self.pause == 0 and self.row <= LAST_ROW_IN_SIGHT


@final
class CatchEmulator:
    """The part of ale_py's ALEInterface that ``envs/atari.py`` uses, with its names."""

    def __init__(self) -> None:
        self.game = Game()

    def getMinimalActionSet(self) -> list[Action]:  # noqa: N802
        return [Action.NOOP, Action.RIGHT, Action.LEFT]

    def getLegalActionSet(self) -> list[Action]:  # noqa: N802
        return [Action(number) for number in range(18)]

    def getScreenDims(self) -> tuple[int, int]:  # noqa: N802
        return HEIGHT, WIDTH

    def cloneState(self, *, include_rng: bool = False) -> Game:  # noqa: N802
        assert include_rng, "the generator is part of the state"
        return replace(self.game)

    def restoreState(self, state: Game) -> None:  # noqa: N802
        self.game = replace(state)

    def reset_game(self) -> None:
        self.game = Game(generator=self.game.generator)

    def lives(self) -> int:
        return self.game.lives

    def game_over(self, *, with_truncation: bool = True) -> bool:
        return self.game.is_over

    def act(self, action: int) -> int:
        """Play one frame and return its points."""
        game = self.game
        game.generator = (1_664_525 * game.generator + 1_013_904_223 + action) % 2**32  # Numerical Recipes' constants
        game.frame += 1
        if game.is_over or game.frame % FRAMES_PER_TICK:
            return 0
        return self._rest() if game.pause else self._fall(action)

    def _rest(self) -> int:
        self.game.pause -= 1
        if self.game.pause == 0:
            self._start_square()
        return 0

    def _fall(self, action: int) -> int:
        game = self.game
        game.row += 1
        if game.row > LAST_ROW_IN_SIGHT + 1:  # the player has seen a frame without the square
            game.paddle += PADDLE_SPEED * ((action == Action.RIGHT.value) - (action == Action.LEFT.value))
        return self._land() if game.row == LANDING_ROW else 0

    def _land(self) -> int:
        game = self.game
        is_caught = abs(game.square - game.paddle) <= PADDLE_REACH
        game.landed += 1
        game.paddle = 0
        if is_caught:
            game.pause = PAUSE
            return CATCH_POINTS
        game.lives -= 1
        self._start_square()
        return MISS_POINTS

    def _start_square(self) -> None:
        game = self.game
        start, direction = divmod((game.generator >> 16) % (len(STARTS) * len(DIRECTIONS)), len(DIRECTIONS))
        game.row, game.start, game.direction = 0, STARTS[start], DIRECTIONS[direction]

    def getScreenGrayscale(self, array: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:  # noqa: N802
        screen = np.zeros((HEIGHT, WIDTH), dtype=np.uint8) if array is None else array  # [H, W]
        screen.fill(0)
        if self.game.frame % 2 == 0:
            if self.game.is_in_sight:
                _draw(screen, self.game.row, self.game.square, self.game.square)
            _draw(screen, LANDING_ROW, self.game.paddle - PADDLE_REACH, self.game.paddle + PADDLE_REACH)
        return screen

    def getScreenRGB(self) -> NDArray[np.uint8]:  # noqa: N802
        return np.repeat(self.getScreenGrayscale()[:, :, None], 3, axis=2)  # [H, W, 3]


def _draw(screen: NDArray[np.uint8], row: int, first_lane: int, last_lane: int) -> None:
    middle, top = (WIDTH - LANE) // 2, LANE + row * ROW
    screen[top : top + LANE, middle + first_lane * LANE : middle + (last_lane + 1) * LANE] = BRIGHT
