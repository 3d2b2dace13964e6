"""What a run of the race records: its games by processor time and by steps, in compact form."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

WINDOW = 100  # games whose mean is the score, as in our own runs
POINTS = 60  # of a curve


class Over(Exception):
    """The budget is used up."""


class GameLog:
    """The mean score of the last 100 games at evenly spaced times; raises ``Over`` at the end of the budget."""

    def __init__(self, seconds: float) -> None:
        self.curve: list[dict[str, Any]] = []
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._budget, self._num_games = seconds, 0
        self.step, self._seconds = 0, 0.0  # where the contestant was last seen
        self._start, self._wall = time.process_time(), time.monotonic()

    def ended(self, score: float) -> None:
        """A training game ended."""
        self._recent.append(score)
        self._num_games += 1

    def stepped(self, step: int) -> None:
        """The contestant is at this step now."""
        self.step = step
        seconds = self._seconds = time.process_time() - self._start
        if seconds >= self._budget * (len(self.curve) + 1) / POINTS:
            self.curve.append(
                {
                    "seconds": round(seconds, 2),
                    "step": step,
                    "games": self._num_games,
                    "score": round(sum(self._recent) / len(self._recent), 4) if self._recent else None,
                }
            )
        if seconds >= self._budget:
            raise Over

    @property
    def speed(self) -> float:
        """Steps per second of processor time."""
        return self.step / self._seconds

    @property
    def used(self) -> float:
        """The share of the budget that was used."""
        return self._seconds / self._budget

    def summary(self) -> dict[str, Any]:
        return {
            "steps": self.step,
            "cpu_seconds": round(self._seconds, 2),
            "wall_seconds": round(time.monotonic() - self._wall, 2),
            "curve": self.curve,
        }
