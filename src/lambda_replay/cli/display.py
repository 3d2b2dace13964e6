"""Shows a run while it trains: a live panel on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lambda_replay.agents.table import agent_kind
from lambda_replay.cli.formatting import duration, number
from lambda_replay.config import RunConfig
from lambda_replay.training.events import Evaluated, Learned, RunEvent
from lambda_replay.training.health import HealthMonitor
from lambda_replay.training.loop import Loop

PLAIN_EVERY = 10.0  # seconds between plain lines
SPEED_WINDOW = 30.0  # seconds over which speed is averaged, or one cycle of acting and learning if that takes longer
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48


class RunConsole(Console):
    """Rich's console, but a broken pipe is an error that we handle; rich would end the process silently."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Display:
    """Shows one run; use as a context manager around its training."""

    def __init__(self, config: RunConfig, loop: Loop, health: HealthMonitor, title: str, console: Console) -> None:
        self._config, self._loop, self._health, self._title, self._console = config, loop, health, title, console
        self._said: set[str] = set()  # kinds of warnings
        self._metrics: dict[str, float | None] = {}
        self._scores: list[float] = []
        self._evaluated: Evaluated | None = None  # the last one
        self._speed = Speed(loop.step)
        self._said_at = time.monotonic()
        self._live = Live(
            get_renderable=self._panel, console=console, refresh_per_second=4, transient=False, auto_refresh=True
        )

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._console.print(Text(self._title), soft_wrap=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
        else:
            self._console.print(Text(self.line()), soft_wrap=True)

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, Evaluated):
            self._evaluated = event
        if isinstance(event, Learned):
            self._speed.end_cycle(self._loop.step)
            self._metrics = {**self._metrics, **event.metrics}
            if self._loop.score is not None:
                self._scores.append(self._loop.score)
            self._say_warnings()
        if not self._console.is_terminal and time.monotonic() - self._said_at >= PLAIN_EVERY:
            self._said_at = time.monotonic()
            self._console.print(Text(self.line()), soft_wrap=True)

    def _say_warnings(self) -> None:
        """On a terminal, the panel shows them as long as they hold."""
        for kind, sentence in self._health.warnings:
            if kind not in self._said and not self._console.is_terminal:
                self._console.print(Text(f"warning at step {self._loop.step:,}: {sentence}."), soft_wrap=True)
            self._said.add(kind)

    def line(self) -> str:
        """The current state as one plain line."""
        parts = [
            f"step {self._loop.step:>9,} of {self._config.steps:,}",
            f"{self._speed.at(self._loop.step):,.0f} steps/s",
            f"{duration(self._seconds_left())} left",
            *(f"{name} {value}" for name, value in self._numbers()),
        ]
        return " | ".join(parts)

    def _numbers(self) -> list[tuple[str, str]]:
        metrics = self._metrics
        shown = [
            ("score (last 100)", number(self._loop.score)),
            ("games", f"{self._loop.num_games:,}"),
            *(
                ("ε" if name == "epsilon" else name, number(value))
                for name, value in self._loop.describe_acting().items()
            ),
            ("loss", number(metrics.get("loss"))),
            ("mean |TD error|", number(metrics.get("td_error_abs_mean"))),
        ]
        if self._evaluated is not None:
            shown.append((f"greedy score ({self._evaluated.games})", number(self._evaluated.score_mean)))
        if "return_minus_q_mean" in metrics:
            shown.append(("return − Q", number(metrics["return_minus_q_mean"])))
        if "lambda_mean" in metrics:
            shown.append(("λ chosen", number(metrics["lambda_mean"])))
        if metrics.get("trace_cut_share"):
            shown.append(("traces cut", f"{100 * (metrics['trace_cut_share'] or 0):.0f} %"))
        return shown

    def _panel(self) -> RenderableType:
        speed, left = self._speed.at(self._loop.step), self._seconds_left()
        head = Table.grid(expand=True)
        head.add_column(ratio=1)
        head.add_column(justify="right")
        head.add_row(
            Text(f"step {self._loop.step:,} of {self._config.steps:,}", style="bold"),
            Text(f"{speed:,.0f} steps/s · {duration(left)} left", style="cyan"),
        )
        numbers = Table.grid(padding=(0, 3))
        rows = [*self._numbers(), (self._boundary_name(), f"in {self._steps_to_boundary():,} steps")]
        for first, second in zip(rows[::2], [*rows[1::2], ("", "")][: len(rows[::2])], strict=True):
            numbers.add_row(Text(first[0], style="dim"), first[1], Text(second[0], style="dim"), second[1])
        bar = ProgressBar(total=self._config.steps, completed=self._loop.step)
        scores = self._scores or ([] if self._loop.score is None else [self._loop.score])  # the first, before learning
        sparks = Text.assemble(("score  ", "dim"), (sparkline(scores, SPARK_WIDTH), "green"))
        return Panel(
            Group(head, bar, Text(), numbers, Text(), sparks, *self._warnings()),
            title=Text(self._title),
            padding=(1, 2),
            width=88,
        )

    def _warnings(self) -> list[Text]:
        return [Text(f"\nwarning: {warning.sentence}.", style="yellow") for warning in self._health.warnings]

    def _boundary_name(self) -> str:
        return agent_kind(self._config.agent).boundary

    def _steps_to_boundary(self) -> int:
        return self._config.steps_to_boundary(self._loop.step) or self._config.algorithm.boundary_every

    def _seconds_left(self) -> float | None:
        """None before it has learned: random play says nothing about how long learning takes."""
        speed = self._speed.at(self._loop.step)
        return (self._config.steps - self._loop.step) / speed if self._speed.has_learned and speed > 0 else None


class Speed:
    """Steps per second over whole cycles of acting and learning.

    A burst of learning can take far longer than the acting before it, so the speed of part of a cycle says little.
    """

    def __init__(self, step: int) -> None:
        """``step`` is where the run begins or is resumed."""
        self._began = (time.monotonic(), step)
        self._ends: deque[tuple[float, int]] = deque()  # of the cycles: time and step

    @property
    def has_learned(self) -> bool:
        return len(self._ends) > 0

    def end_cycle(self, step: int) -> None:
        now = time.monotonic()
        self._ends.append((now, step))
        while len(self._ends) > 2 and now - self._ends[1][0] > SPEED_WINDOW:
            self._ends.popleft()

    def at(self, step: int) -> float:
        """Before a whole cycle is known, the mean since the beginning."""
        (began, first), (ended, last) = self._began, (time.monotonic(), step)
        if len(self._ends) > 1:
            (began, first), (ended, last) = self._ends[0], self._ends[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


def sparkline(values: list[float], width: int) -> str:
    """The values as a row of small bars, averaged down to ``width`` of them."""
    if not values:
        return "no game has ended yet"
    size = max(1, -(-len(values) // width))
    means = [
        sum(values[start : start + size]) / len(values[start : start + size]) for start in range(0, len(values), size)
    ]
    low, high = min(means), max(means)
    span = high - low or 1.0
    bars = "".join(SPARKS[min(len(SPARKS) - 1, int((value - low) / span * len(SPARKS)))] for value in means)
    return f"{bars}  {number(low)} … {number(high)}"
