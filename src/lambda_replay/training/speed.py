"""Measures how fast a run is on this machine: whole cycles, timed after a warm-up."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.training.events import Boundary, RunEvent
from lambda_replay.training.run import Run, start_run

CYCLE = 200  # agent steps: longer cycles are cut to about this many, with learning in proportion
START, CAPACITY = 2_000, 20_000  # minimum agent steps of random play and minimum memory slots
ENDLESS = 10**9  # agent steps; the stopwatch ends the run


class Stopwatch:
    """Checked at the end of every cycle; starts with the first to end at ``first_step`` or later."""

    def __init__(self, first_step: int, seconds: float) -> None:
        self._first_step, self._wanted = first_step, seconds
        self._began_at: tuple[int, float] | None = None
        self.steps, self.seconds = 0, 0.0

    @property
    def steps_per_second(self) -> float:
        assert self.seconds > 0
        return self.steps / self.seconds

    def is_over(self, step: int) -> bool:
        now = time.perf_counter()
        if self._began_at is None:
            if step >= self._first_step:
                self._began_at = step, now
            return False
        self.steps, self.seconds = step - self._began_at[0], now - self._began_at[1]
        return self.steps > 0 and self.seconds >= self._wanted  # several games can end at one step


def shorten(config: RunConfig, start: int = START) -> tuple[RunConfig, bool]:
    """The config with a small memory in RAM and short cycles that keep the proportions of acting and learning.

    Also returns whether it has cycles at all; otherwise its learning is spread evenly over its steps. ``start`` is the
    least number of agent steps of random play.
    """
    kind, whole = agent_kind(config.agent), config.algorithm.boundary_every
    share = next((n for n in range(max(1, whole // CYCLE), 0, -1) if whole % (n * config.envs) == 0), 1)
    algorithm, scale = kind.probe(config, whole // share, share)
    start = max(-(-start // config.envs), kind.shortest_start(config) + 1) * config.envs
    small = replace(
        config,
        steps=ENDLESS // config.envs * config.envs,
        checkpoint_every=0,
        evaluate_every=0,
        film_every=0,
        stop_at_score=None,
        max_game_steps=config.max_game_steps if scale > 0 else min(config.max_game_steps, CYCLE),  # games are marks
        algorithm=algorithm,
        memory=replace(config.memory, capacity=max(CAPACITY, 2 * start), start=start, storage="ram"),
    )
    return small, scale > 0


def make_stopwatch(small: RunConfig, seconds: float, *, has_cycles: bool) -> Stopwatch:
    """For a short config: starts when its first cycle of learning is over, in which libraries set themselves up."""
    return Stopwatch(small.memory.start + (small.algorithm.boundary_every if has_cycles else CYCLE), seconds)


def is_mark(event: RunEvent, *, has_cycles: bool) -> bool:
    """Whether the stopwatch may start or stop here: where a cycle ends or, without cycles, at the end of a game."""
    return isinstance(event, Boundary) or not has_cycles


class _Over(Exception):
    """Ends a run that would otherwise go on forever."""


def time_run(config: RunConfig, stopwatch: Stopwatch, *, has_cycles: bool = True) -> Run:
    """The run that ``train`` starts, logs and all, stopped and closed when the stopwatch runs out.

    A cycle lasts from one boundary to the next.
    """

    def on_event(event: RunEvent) -> None:
        if is_mark(event, has_cycles=has_cycles) and stopwatch.is_over(event.step):
            raise _Over

    with tempfile.TemporaryDirectory() as directory:
        run = start_run(Path(directory) / "run", config)
        try:
            with contextlib.suppress(_Over):
                run.train(on_event)
        finally:
            run.close()
    return run
