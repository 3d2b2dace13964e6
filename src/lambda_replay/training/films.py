"""Films of a policy at play: GIF or MP4, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.agents.protocol import Policy, Tensors
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment
from lambda_replay.errors import ConfigError
from lambda_replay.extras import needed_for
from lambda_replay.randomness import make_side_stream
from lambda_replay.rundir.atomic import replacing
from lambda_replay.rundir.directory import FILMS
from lambda_replay.rundir.resources import available_ram
from lambda_replay.training.evaluating import MakePolicy
from lambda_replay.training.events import Filmed
from lambda_replay.training.playing import LARGEST_SEED, PlayedGame, play

SMALLEST_SIDE = 160  # pixels; smaller frames are enlarged by a whole factor
FILM_COPIES = 4  # in memory at once: the film, the best one so far, all frames as one array, and the encoder's copy
LONGEST = 600  # agent steps after which a film ends, unless told otherwise
FRAMES_PER_SECOND = 20

Frames = list[NDArray[np.uint8]]


def film(
    environment: Environment, policy: Policy, *, history: int, epsilon: float, seed: int, max_steps: int
) -> tuple[PlayedGame, Frames]:
    """One game and its pictures; ConfigError if they do not fit in memory."""
    room = available_ram() // FILM_COPIES
    frames: Frames = []

    def keep_frame() -> None:
        frames.append(environment.render())
        if len(frames) * frames[0].nbytes * _enlargement(frames[0]) ** 2 > room:
            raise ConfigError(f"a film of {len(frames):,} frames does not fit in memory; lower --max-steps.")

    game = play(
        environment, policy, history=history, epsilon=epsilon, seed=seed, max_steps=max_steps, on_frame=keep_frame
    )
    return game, frames


def load_imageio(purpose: str) -> Any:
    """The package that writes films; ConfigError with how to install it if it is missing."""
    with needed_for(purpose):
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401  provides the program that writes MP4

        return imageio


def write_film(out: Path, frames: Frames, frames_per_second: int = FRAMES_PER_SECOND) -> None:
    """Write the pictures as a file ending in .gif or .mp4."""
    imageio = load_imageio("a film")
    factor = _enlargement(frames[0])
    pictures = np.stack([frame.repeat(factor, axis=0).repeat(factor, axis=1) for frame in frames])
    kinds: dict[str, dict[str, Any]] = {
        ".gif": {"extension": ".gif", "duration": 1000 / frames_per_second, "loop": 0},
        ".mp4": {
            "extension": ".mp4",
            "fps": frames_per_second,
            "codec": "libx264",
            "macro_block_size": 2,
            "output_params": ["-f", "mp4"],  # the temporary file's name does not show it
        },
    }
    with replacing(out) as temporary:
        imageio.imwrite(temporary, pictures, **kinds[out.suffix])


def _enlargement(frame: NDArray[np.uint8]) -> int:
    return max(1, -(-SMALLEST_SIDE // min(frame.shape[:2])))


class Filmer:
    """Films a greedy game with given weights into ``films/STEP.gif``, in an environment of its own."""

    def __init__(self, config: RunConfig, environment: Environment, make_policy: MakePolicy) -> None:
        """Reject, before anything is written, an environment that cannot be filmed."""
        self._config, self.environment, self._make_policy = config, environment, make_policy
        load_imageio("film_every")
        environment.reset(0)
        environment.render()

    def film(self, run: Path, step: int, weights: Tensors) -> Filmed:
        rng = make_side_stream(self._config.seed, "films", step)
        game, frames = film(
            self.environment,
            self._make_policy(weights),
            history=self._config.memory.history,
            epsilon=0.0,
            seed=int(rng.integers(LARGEST_SEED)),
            max_steps=LONGEST,
        )
        (run / FILMS).mkdir(exist_ok=True)
        path = run / FILMS / f"{step}.gif"
        write_film(path, frames)
        return Filmed(step, game.score, path)
