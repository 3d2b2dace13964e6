"""What a study shows while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lambda_replay.cli.words import duration, number
from lambda_replay.studies.plan import Study
from lambda_replay.studies.status import RunStatus, State, seconds_left

READ_EVERY = 1.0  # seconds between two looks at the runs' files
PLAIN_EVERY = 60.0  # seconds between plain lines when nothing begins or ends
MARKS: dict[State, tuple[str, str]] = {
    "finished": ("●", "green"),
    "running": ("◐", "cyan"),
    "waiting": ("○", "dim"),
    "failed": ("✗", "bold red"),
}
WORDS: dict[State, str] = {"finished": "done", "running": "running", "waiting": "waiting", "failed": "failed"}


class StudyDisplay:
    """Shows a study; use as a context manager around its running, with ``update`` whenever its state was read."""

    def __init__(self, study: Study, workers: int | None, console: Console) -> None:
        """``workers``: how many runs go on at once, for the time left; None: as many as are seen running."""
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
            and (self._states or status.state == "running")  # what was done before is counted, not listed
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
        return [f"started   {label}" + (f", going on from about step {status.step:,}" if status.step else "")]
    if status.state == "finished":
        return [f"finished  {label}: score {number(status.score)} in {duration(status.seconds)}"]
    if status.state == "failed":
        return [f"failed    {label}: {status.reason}"]
    return []


def summary_line(study: Study, statuses: Sequence[RunStatus], left: float | None) -> str:
    """The whole study as one plain line."""
    counts = count_states(statuses)
    parts = [f"{counts[state]} {WORDS[state]}" for state in WORDS]
    rest = counts["running"] + counts["waiting"]
    return f"{study.name}: {', '.join(parts)}" + (f"; about {duration(left)} left" if rest and left is not None else "")


def count_states(statuses: Sequence[RunStatus]) -> dict[State, int]:
    found = Counter(status.state for status in statuses)
    return {state: found[state] for state in WORDS}


def render_study(study: Study, statuses: Sequence[RunStatus], left: float | None) -> RenderableType:
    """Headline, a mark for every run, and what is running or failed."""
    parts: list[RenderableType] = [Text(summary_line(study, statuses, left), style="bold"), _overview(study, statuses)]
    parts.append(Text.assemble(*(part for state in WORDS for part in _legend(state))))
    running = [status for status in statuses if status.state == "running"]
    if running:
        parts += [Text(), _progress(running)]
    for status in statuses:
        if status.state == "failed":
            parts.append(Text.assemble((f"failed  {status.run.label}: ", "red"), status.reason))
    return Group(*parts)


def _legend(state: State) -> list[tuple[str, str]]:
    mark, style = MARKS[state]
    return [(f"{mark} ", style), (f"{WORDS[state]}   ", "dim")]


def _overview(study: Study, statuses: Sequence[RunStatus]) -> Table:
    """Arms × environments; in each cell one mark for each seed."""
    cells: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for status in statuses:
        cells.setdefault((status.run.arm, status.run.environment), []).append(MARKS[status.state])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("arm", no_wrap=True)
    for environment in study.environments:
        table.add_column(environment.replace("/", "/\n"), no_wrap=True)  # narrower, so that whole names are seen
    for arm in study.arms:
        table.add_row(arm, *(Text.assemble(*cells.get((arm, env), [])) for env in study.environments))
    return table


def _progress(running: Sequence[RunStatus]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for status in running:
        steps = status.run.config.steps
        speed = status.timed_step / status.seconds if status.seconds else None
        table.add_row(
            Text(status.run.label, no_wrap=True),
            ProgressBar(total=steps, completed=status.step, width=20),
            f"{100 * status.step // steps} %",
            Text(f"{number(speed)} steps/s", style="dim"),
            Text(f"score {number(status.score)}", style="dim"),
            Text("–" if not speed else f"{duration((steps - status.step) / speed)} left", style="cyan"),
        )
    return table
