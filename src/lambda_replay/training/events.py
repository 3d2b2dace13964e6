"""What happens in a run, as its callback sees it; the events of the loop itself are in ``loop.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lambda_replay.training.loop import Boundary, Event, GameEnd, Learned

__all__ = [
    "Event",
    "GameEnd",
    "Boundary",
    "Learned",
    "Warned",
    "Evaluated",
    "Filmed",
    "Checkpointed",
    "Finished",
    "RunEvent",
    "OnEvent",
]


class Warned(NamedTuple):
    """The run began to look sick; docs/metrics.md says what to change."""

    step: int
    kind: str
    sentence: str


class Evaluated(NamedTuple):
    """Greedy games beside training; the fields are those of a row of evaluations.jsonl."""

    step: int
    games: int
    score_mean: float
    score_error: float | None  # standard error of the mean; None with a single game
    score_min: float
    score_max: float
    length_mean: float
    is_best: bool  # the highest mean so far: its weights are weights-best.safetensors


class Filmed(NamedTuple):
    """A greedy game was filmed."""

    step: int
    score: float
    path: Path


class Checkpointed(NamedTuple):
    """A checkpoint is safely on disk: the run would resume from here."""

    step: int


class Finished(NamedTuple):
    """The final weights are saved."""

    step: int
    score: float | None  # mean of the last 100 games; None if no game ended
    path: Path


RunEvent = Event | Warned | Evaluated | Filmed | Checkpointed | Finished
OnEvent = Callable[[RunEvent], None]
