"""The command ``watch``: films a trained agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.cli.options import check_file, check_play_options, parse, split_path
from lambda_replay.cli.trust import asking
from lambda_replay.errors import ConfigError
from lambda_replay.extras import needed_for
from lambda_replay.randomness import make_streams
from lambda_replay.rundir.atomic import replacing
from lambda_replay.rundir.directory import read_config
from lambda_replay.rundir.resources import available_ram
from lambda_replay.training.playing import LARGEST_SEED, PlayedGame, play
from lambda_replay.training.policy import load_policy

SMALLEST_SIDE = 160  # pixels; smaller frames are enlarged by a whole factor
FILM_COPIES = 4  # in memory at once: the film, the best one so far, all frames as one array, and the encoder's copy


@dataclass(frozen=True)
class WatchOptions:
    """Film a trained agent playing one game."""

    out: Path | None = None  # file ending in .gif or .mp4; by default play.gif in the run's directory
    best_of: int = 1  # games to play; the one with the highest score is kept
    epsilon: float = 0.0  # probability of a random action; 0 is the greedy policy
    seed: int | None = None  # seed of the games; by default the run's, in a stream that training never uses
    max_steps: int = 600  # agent steps after which the film ends
    frames_per_second: int = 20  # agent steps shown per second, 1 to 50
    trust: bool = False  # import the module that a run names as its environment even if you did not create the run


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "watch")
    options = parse(WatchOptions, rest, usage="lambda-replay watch RUN")
    assert path is not None
    read_config(path)  # so that a missing run is reported first
    out = path / "play.gif" if options.out is None else options.out
    check_file(out, ".gif", ".mp4")
    if options.best_of < 1 or not 1 <= options.frames_per_second <= 50:
        raise ConfigError(
            f"--best-of is {options.best_of} and --frames-per-second {options.frames_per_second}; "
            "give 1 or more games, and 1 to 50 frames."
        )
    check_play_options(options.epsilon, options.seed, options.max_steps)
    _load_imageio()  # so that a missing package is reported before the game is played
    game, frames = _film(path, options)
    _write(out, frames, options.frames_per_second)
    end = "the film's end" if game.length == options.max_steps else f"its end ({game.ended})"
    print(f"{out}: {len(frames)} frames, score {game.score:g} after {game.length} steps, up to {end}")
    return 0


def _film(path: Path, options: WatchOptions) -> tuple[PlayedGame, list[NDArray[np.uint8]]]:
    trained = load_policy(path, asking(options.trust))
    rng = make_streams(trained.config.seed if options.seed is None else options.seed, num_envs=1).evaluate
    best: tuple[PlayedGame, list[NDArray[np.uint8]]] | None = None
    room = available_ram() // FILM_COPIES
    for _ in range(options.best_of):
        frames: list[NDArray[np.uint8]] = []

        def keep_frame(frames: list[NDArray[np.uint8]] = frames) -> None:
            frames.append(trained.environment.render())
            if len(frames) * frames[0].nbytes * _enlargement(frames[0]) ** 2 > room:
                raise ConfigError(f"a film of {len(frames):,} frames does not fit in memory; lower --max-steps.")

        game = play(
            trained.environment,
            trained.policy,
            history=trained.config.memory.history,
            epsilon=options.epsilon,
            seed=int(rng.integers(LARGEST_SEED)),
            max_steps=options.max_steps,
            on_frame=keep_frame,
        )
        if best is None or game.score > best[0].score:
            best = game, frames
    assert best is not None
    return best


def _enlargement(frame: NDArray[np.uint8]) -> int:
    return max(1, -(-SMALLEST_SIDE // min(frame.shape[:2])))


def _load_imageio() -> Any:
    """The package that writes films; ConfigError with how to install it if it is missing."""
    with needed_for("watch"):
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401  provides the program that writes MP4

        return imageio


def _write(out: Path, frames: list[NDArray[np.uint8]], frames_per_second: int) -> None:
    imageio = _load_imageio()
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
