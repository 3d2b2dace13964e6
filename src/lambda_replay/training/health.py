"""Detects sick runs from their metrics: runs whose values or scores show that they are not learning.

A rule warns only after many rows of metrics.jsonl, or many games. docs/metrics.md says what to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lambda_replay.config import RunConfig

MANY_ROWS = 20  # consecutive rows of metrics in which values must look sick
MANY_GAMES = 200  # games before a score is judged, not counting those that were played mostly at random
MOSTLY_RANDOM = 0.5  # ε
FALLEN = 0.25  # of the way from random play's score to the best one: scores below it have collapsed
ALIKE = 0.02  # times the mean |TD error|: values that vary less over states than this do not depend on them
AWAY = 5.0  # times the largest discounted sum of rewards and entropies: no sound value is that large

Row = Mapping[str, float | None]


class HealthWarning(NamedTuple):
    """Why a run is sick, as one sentence with a remedy."""

    kind: str  # "values alike", "values away", "score" or "fall": each is said once
    sentence: str


class HealthMonitor:
    """Reads the rows of a run's metrics as they come; ``warnings`` are those that hold now."""

    def __init__(self, discount: float = RunConfig.discount) -> None:
        """``discount`` is the run's γ."""
        self._discount = discount
        self._entropy_sum = 0.0  # the largest that the policy's entropy ever was, summed over the steps ahead
        self._rows_alike = 0
        self._rows_away = 0
        self._dead_share = 0.0  # of the layer with the most dead units, when the network was last looked at
        self._games_before: float | None = None  # the number of games that are not counted
        self._best_score = -math.inf
        self._games_at_fall: float | None = None  # the number of games when the score fell
        self._current: dict[str, HealthWarning] = {}

    @property
    def warnings(self) -> list[HealthWarning]:
        return list(self._current.values())

    def see(self, row: Row) -> list[HealthWarning]:
        """Take in the next row; returns the warnings that are new."""
        before = set(self._current)
        score, fall = self._judge_score(row), self._judge_fall(row)
        found = [self._judge_spread(row), self._judge_size(row), fall or score]  # a fall says more
        self._current = {warning.kind: warning for warning in found if warning is not None}
        return [warning for kind, warning in self._current.items() if kind not in before]

    def _judge_spread(self, row: Row) -> HealthWarning | None:
        spread, error = row.get("q_std_states"), row.get("td_error_abs_mean")
        shares = [value or 0.0 for name, value in row.items() if name.startswith("dead_share_")]
        self._dead_share = max(shares, default=self._dead_share)
        if spread is None or error is None:
            return self._current.get("values alike")  # the last row of a run has no values
        self._rows_alike = self._rows_alike + 1 if spread < ALIKE * error else 0
        if self._rows_alike < MANY_ROWS:
            return None
        dead = 100 * self._dead_share
        units = f", and {dead:.0f} % of a layer's units are dead" if dead > 50 else ""
        return HealthWarning(
            "values alike",
            f"the Q-values no longer depend on the state (they vary by {spread:.2g}, the returns are off by "
            f"{error:.2g}{units}): lower optimizer.learning_rate, or set network.layer_norm",
        )

    def _judge_size(self, row: Row) -> HealthWarning | None:
        value, largest = row.get("q_mean"), row.get("reward_sum_max_100")
        self._see_entropy(row)
        if value is None or largest is None:
            return self._current.get("values away")
        # Before the first reward its size is unknown, and values are still those of the initial network.
        possible = largest + self._entropy_sum or 1.0
        self._rows_away = self._rows_away + 1 if abs(value) > AWAY * possible else 0
        if self._rows_away < MANY_ROWS:
            return None
        and_entropy = f", and {self._entropy_sum:.3g} of entropy" if self._entropy_sum else ""
        return HealthWarning(
            "values away",
            f"the Q-values run away from the returns (their mean is {value:.3g}, but no discounted sum of rewards in "
            f"the last 100 games exceeds {largest:.3g}{and_entropy}): lower optimizer.learning_rate or λ, or refresh "
            "less often",
        )

    def _see_entropy(self, row: Row) -> None:
        """A soft Q-value holds the entropies ahead too: α·H·(γ + γ² + …). It forgets them slowly when α falls."""
        alpha, entropy = row.get("alpha"), row.get("entropy")
        if alpha is not None and entropy is not None:
            steps = self._discount / (1 - self._discount) if self._discount < 1 else math.inf
            self._entropy_sum = max(self._entropy_sum, abs(alpha * entropy) * steps)

    def _judge_score(self, row: Row) -> HealthWarning | None:
        score, chance, error = (row.get(name) for name in ("score_mean_100", "score_random", "score_random_error"))
        games, epsilon = row.get("episodes"), row.get("epsilon")
        if score is None or chance is None or error is None or games is None:
            return None
        if epsilon is not None and epsilon > MOSTLY_RANDOM:
            return None
        if self._games_before is None:
            self._games_before = games
        if score > chance + 2 * error or games - self._games_before < MANY_GAMES:
            return None
        relation = "below" if score < chance - 2 * error else "no better than"
        return HealthWarning(
            "score",
            f"after {games - self._games_before:,.0f} games of learning the score of {score:.4g} is {relation} random "
            f"play's {chance:.4g}: change the learning rate, λ or the exploration, or check the rewards",
        )

    def _judge_fall(self, row: Row) -> HealthWarning | None:
        """A score that stays is not judged, as that of a solved task does."""
        score, chance, error = (row.get(name) for name in ("score_mean_100", "score_random", "score_random_error"))
        games = row.get("episodes")
        if score is None or chance is None or error is None or games is None:
            return None
        self._best_score = max(self._best_score, score)
        has_learned = self._best_score > chance + 10 * error
        if not has_learned or score >= chance + FALLEN * (self._best_score - chance):
            self._games_at_fall = None
            return None
        self._games_at_fall = games if self._games_at_fall is None else self._games_at_fall
        if games - self._games_at_fall < MANY_GAMES:
            return None
        return HealthWarning(
            "fall",
            f"the score has fallen from {self._best_score:.4g} to {score:.4g}, close to random play's {chance:.4g}: "
            "lower optimizer.learning_rate, let it fall (optimizer.final_learning_rate 0), or set network.layer_norm",
        )


def find_warnings(rows: Iterable[Row], discount: float = RunConfig.discount) -> list[HealthWarning]:
    """The warnings that hold at the end of a run's metrics."""
    monitor = HealthMonitor(discount)
    for row in rows:
        monitor.see(row)
    return monitor.warnings
