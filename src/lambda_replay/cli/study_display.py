"""Shows a study while it runs: a live table on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lambda_replay.cli.formatting import duration, number
from lambda_replay.rundir.states import State
from lambda_replay.studies.plan import Study
from lambda_replay.studies.status import RunStatus, seconds_left

UNLIMITED = 10_000  # columns; wider than any table
READ_EVERY = 1.0  # seconds between reads of the runs' files
PLAIN_EVERY = 60.0  # seconds between plain lines when no run starts or ends
MARKS: dict[State, tuple[str, str]] = {
    "finished": ("●", "green"),
    "running": ("◐", "cyan"),
    "waiting": ("○", "dim"),
    "failed": ("✗", "bold red"),
    "diverged": ("↯", "bold yellow"),
}
WORDS: dict[State, str] = {
    "finished": "done",
    "running": "running",
    "waiting": "waiting",
    "failed": "failed",
    "diverged": "diverged",
}
RARE: tuple[State, ...] = ("diverged",)  # shown only if there are any


class StudyDisplay:
    """Shows a study; use as a context manager while it runs, and call ``update`` whenever its state was read."""

    def __init__(self, study: Study, workers: int | None, console: Console) -> None:
        """``workers``: how many runs are executed at once, to estimate the time left; None: as many as are running."""
        self._study, self._workers, self._console = study, workers, console
        self._statuses: list[RunStatus] = []
        self._states: dict[str, State] = {}
        self._read_at = self._said_at = -float("inf")
        self._live = Live(get_renderable=self._render, console=console, auto_refresh=False)

    def __enter__(self) -> StudyDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def is_due(self) -> bool:
        return time.monotonic() - self._read_at >= READ_EVERY

    def update(self, statuses: Sequence[RunStatus]) -> None:
        self._read_at = time.monotonic()
        self._statuses = list(statuses)
        if self._console.is_terminal:
            self._live.refresh()
        else:
            self._say_changes()
        self._states = {status.run.label: status.state for status in statuses}

    def _render(self) -> RenderableType:
        return render_study(self._study, self._statuses, self._time_left())

    def _time_left(self) -> float | None:
        running = sum(status.state == "running" for status in self._statuses)
        return seconds_left(self._statuses, running if self._workers is None else self._workers)

    def _say_changes(self) -> None:
        lines = [
            line
            for status in self._statuses
            if self._states.get(status.run.label, "waiting") != status.state
            and (self._states or status.state == "running")  # what was already done is counted, not listed
            for line in _change(status)
        ]
        if not self._states or time.monotonic() - self._said_at >= PLAIN_EVERY:
            lines.append(summary_line(self._study, self._statuses, self._time_left()))
        for line in lines:
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)
            self._said_at = time.monotonic()


def _change(status: RunStatus) -> list[str]:
    label = status.run.label
    if status.state == "running":
        return [f"started   {label}" + (f", resuming from about step {status.step:,}" if status.step else "")]
    if status.state == "finished":
        return [f"finished  {label}: score {number(status.score)} in {duration(status.seconds)}"]
    if status.state in ("failed", "diverged"):
        return [f"{status.state:<9} {label}: {status.reason}"]
    return []


def summary_line(study: Study, statuses: Sequence[RunStatus], left: float | None) -> str:
    """The whole study as one plain line."""
    counts = count_states(statuses)
    parts = [f"{counts[state]} {WORDS[state]}" for state in _shown_states(counts)]
    rest = counts["running"] + counts["waiting"]
    return f"{study.name}: {', '.join(parts)}" + (f"; about {duration(left)} left" if rest and left is not None else "")


def count_states(statuses: Sequence[RunStatus]) -> dict[State, int]:
    found = Counter(status.state for status in statuses)
    return {state: found[state] for state in WORDS}


def _shown_states(counts: Mapping[State, int]) -> list[State]:
    return [state for state in WORDS if counts[state] or state not in RARE]


def render_study(study: Study, statuses: Sequence[RunStatus], left: float | None) -> RenderableType:
    """Headline, a mark for every run, and what is running, failed or diverged."""
    parts: list[RenderableType] = [Text(summary_line(study, statuses, left), style="bold"), _Overview(study, statuses)]
    parts.append(Text.assemble(*(part for state in _shown_states(count_states(statuses)) for part in _legend(state))))
    running = [status for status in statuses if status.state == "running"]
    if running:
        parts += [Text(), _progress(running)]
    for status in statuses:
        if status.state in ("failed", "diverged"):
            parts.append(
                Text.assemble((f"{status.state}  {status.run.label}: ", MARKS[status.state][1]), status.reason)
            )
    return Group(*parts)


def _legend(state: State) -> list[tuple[str, str]]:
    mark, style = MARKS[state]
    return [(f"{mark} ", style), (f"{WORDS[state]}   ", "dim")]


@dataclass(frozen=True)
class _Overview:
    """Arms × environments; in each cell one mark for each seed, or counts where that would be too wide."""

    study: Study
    statuses: Sequence[RunStatus]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table(_marks)
        fits = Measurement.get(console, options.update(width=UNLIMITED), table).maximum <= options.max_width
        yield table if fits else self._table(_numbers)

    def _table(self, cell: Callable[[Sequence[State]], Text]) -> Table:
        states: dict[tuple[str, str], list[State]] = {}
        for status in self.statuses:
            states.setdefault((status.run.arm, status.run.environment), []).append(status.state)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("arm", overflow="fold")
        for environment in self.study.environments:
            table.add_column(environment.replace("/", "/\n"), overflow="fold")  # narrower, so that whole names fit
        for arm in self.study.arms:
            table.add_row(arm, *(cell(states.get((arm, env), [])) for env in self.study.environments))
        return table


def _marks(states: Sequence[State]) -> Text:
    return Text.assemble(*(MARKS[state] for state in states))


def _numbers(states: Sequence[State]) -> Text:
    """●3 ◐1 ○6."""
    counts = [(f"{MARKS[state][0]}{states.count(state)} ", MARKS[state][1]) for state in WORDS if state in states]
    return Text.assemble(*counts)


def _progress(running: Sequence[RunStatus]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for status in running:
        steps = status.run.config.steps
        speed = status.timed_step / status.seconds if status.seconds else None
        table.add_row(
            status.run.label,
            ProgressBar(total=steps, completed=status.step, width=12),
            f"{100 * status.step // steps} %",
            Text(f"{number(speed)} steps/s", style="dim"),
            Text(f"score {number(status.score)}", style="dim"),
            Text("–" if not speed else f"{duration((steps - status.step) / speed)} left", style="cyan"),
        )
    return table
