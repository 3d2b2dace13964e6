"""The command ``evaluate``: a trained agent plays whole games without learning."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass

from lambda_replay.cli.options import check_play_options, parse, split_path
from lambda_replay.cli.trust import asking
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_streams
from lambda_replay.training.playing import LARGEST_SEED, PlayedGame, play
from lambda_replay.training.policy import Which, load_policy


@dataclass(frozen=True)
class EvaluateOptions:
    """Let a trained agent play whole games without learning."""

    games: int = 20  # whole games to play
    epsilon: float = 0.0  # probability of a random action; 0 is the greedy policy
    seed: int | None = None  # seed of the games; by default the run's, in a stream that training never uses
    max_steps: int = 27_000  # agent steps after which a game is stopped; 27,000 are Atari's usual 108,000 frames
    weights: Which = "last"  # best: those of the best evaluation during training (evaluate_every)
    trust: bool = False  # import the modules that a run names even if you did not create the run
    json: bool = False  # one JSON object on standard output


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "evaluate")
    options = parse(EvaluateOptions, rest, usage="lambda-replay evaluate RUN")
    assert path is not None
    if options.games < 1:
        raise ConfigError(f"--games is {options.games}; give 1 or more.")
    check_play_options(options.epsilon, options.seed, options.max_steps)
    trained = load_policy(path, asking(options.trust), weights=options.weights)
    rng = make_streams(trained.config.seed if options.seed is None else options.seed, num_envs=1).evaluate
    games = []
    for number in range(options.games):
        game = play(
            trained.environment,
            trained.policy,
            history=trained.config.memory.history,
            epsilon=options.epsilon,
            seed=int(rng.integers(LARGEST_SEED)),
            max_steps=options.max_steps,
        )
        games.append(game)
        if not options.json:
            print(f"game {number + 1:>3}: score {game.score:g}, {game.length} steps, {game.ended}", flush=True)
    print(json.dumps(_summary(games), allow_nan=False) if options.json else _sentence(games))
    stopped = _num_stopped(games)
    if stopped and not options.json:
        which = "1 game was" if stopped == 1 else f"{stopped} games were"
        print(f"{which} stopped after {options.max_steps:,} steps, before the end; raise --max-steps to play longer")
    return 0


def _summary(games: list[PlayedGame]) -> dict[str, object]:
    scores = [game.score for game in games]
    return {
        "games": len(games),
        "stopped": _num_stopped(games),
        "score_mean": statistics.fmean(scores),
        "score_standard_error": _standard_error(scores),
        "score_median": statistics.median(scores),
        "score_min": min(scores),
        "score_max": max(scores),
        "success_rate": _success_rate(games),
        "each": [game._asdict() for game in games],
    }


def _sentence(games: list[PlayedGame]) -> str:
    scores = [game.score for game in games]
    error = _standard_error(scores)
    spread = "" if error is None else f" ± {error:.3g} (standard error)"
    rate = _success_rate(games)
    return (
        f"mean score of {len(games)} games: {statistics.fmean(scores):.4g}{spread}, "
        f"median {statistics.median(scores):.4g}, from {min(scores):.4g} to {max(scores):.4g}"
        + ("" if rate is None else f"; {rate:.0%} reached the goal")
    )


def _success_rate(games: list[PlayedGame]) -> float | None:
    """The share of games whose last step reached the goal; None if the environment does not say."""
    known = [game.is_success for game in games if game.is_success is not None]
    return sum(known) / len(known) if known else None


def _num_stopped(games: list[PlayedGame]) -> int:
    return sum(game.ended == "stopped" for game in games)


def _standard_error(scores: list[float]) -> float | None:
    return statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None
