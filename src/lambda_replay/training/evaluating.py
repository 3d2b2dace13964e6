"""Evaluations while a run trains: greedy games with random numbers of their own, and the weights that did best."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from lambda_replay.agents.protocol import Policy, Tensors
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment
from lambda_replay.randomness import make_side_stream
from lambda_replay.training.events import Evaluated
from lambda_replay.training.playing import LARGEST_SEED, play

MOST_STEPS = 27_000  # agent steps after which a game is stopped, as by the command evaluate

MakePolicy = Callable[[Tensors], Policy]


class Best(NamedTuple):
    """The weights with the highest mean score, the earliest of equals."""

    step: int
    score: float
    weights: Tensors


class Evaluator:
    """Plays whole games with given weights in an environment of its own, and remembers the best weights.

    The games depend on the run's seed and the step alone, so a resumed run repeats them, and training is the same with
    or without them.
    """

    def __init__(self, config: RunConfig, environment: Environment, make_policy: MakePolicy) -> None:
        self._config, self.environment, self._make_policy = config, environment, make_policy
        self.best: Best | None = None

    def evaluate(self, step: int, weights: Tensors) -> Evaluated:
        config, policy = self._config, self._make_policy(weights)
        rng = make_side_stream(config.seed, "evaluations", step)
        games = [
            play(
                self.environment,
                policy,
                history=config.memory.history,
                epsilon=0.0,
                seed=int(rng.integers(LARGEST_SEED)),
                max_steps=min(MOST_STEPS, config.max_game_steps),
            )
            for _ in range(config.evaluate_games)
        ]
        scores = [game.score for game in games]
        mean = statistics.fmean(scores)
        is_best = self.best is None or mean > self.best.score
        if is_best:
            self.best = Best(step, mean, weights)
        return Evaluated(
            step=step,
            games=len(games),
            score_mean=mean,
            score_error=statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None,
            score_min=min(scores),
            score_max=max(scores),
            length_mean=statistics.fmean(game.length for game in games),
            is_best=is_best,
        )
