"""The command ``watch``: films a trained agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lambda_replay.cli.options import check_file, check_play_options, parse, split_path
from lambda_replay.cli.trust import asking
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_streams
from lambda_replay.rundir.directory import read_config
from lambda_replay.training.films import Frames, film, load_imageio, write_film
from lambda_replay.training.playing import LARGEST_SEED, PlayedGame
from lambda_replay.training.policy import Which, load_policy


@dataclass(frozen=True)
class WatchOptions:
    """Film a trained agent playing one game."""

    out: Path | None = None  # file ending in .gif or .mp4; by default play.gif in the run's directory
    best_of: int = 1  # games to play; the one with the highest score is kept
    epsilon: float = 0.0  # probability of a random action; 0 is the greedy policy
    seed: int | None = None  # seed of the games; by default the run's, in a stream that training never uses
    max_steps: int = 600  # agent steps after which the film ends
    frames_per_second: int = 20  # agent steps shown per second, 1 to 50
    weights: Which = "last"  # best: those of the best evaluation during training (evaluate_every)
    trust: bool = False  # import the modules that a run names even if you did not create the run


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
    load_imageio("watch")  # so that a missing package is reported before the game is played
    game, frames = _film(path, options)
    write_film(out, frames, options.frames_per_second)
    end = "the film's end" if game.length == options.max_steps else f"its end ({game.ended})"
    print(f"{out}: {len(frames)} frames, score {game.score:g} after {game.length} steps, up to {end}")
    return 0


def _film(path: Path, options: WatchOptions) -> tuple[PlayedGame, Frames]:
    trained = load_policy(path, asking(options.trust), weights=options.weights)
    rng = make_streams(trained.config.seed if options.seed is None else options.seed, num_envs=1).evaluate
    best: tuple[PlayedGame, Frames] | None = None
    for _ in range(options.best_of):
        game, frames = film(
            trained.environment,
            trained.policy,
            history=trained.config.memory.history,
            epsilon=options.epsilon,
            seed=int(rng.integers(LARGEST_SEED)),
            max_steps=options.max_steps,
        )
        if best is None or game.score > best[0].score:
            best = game, frames
    assert best is not None
    return best
