"""What a run shows: a live panel on a terminal, plain lines elsewhere; the pseudo-terminal itself is in test_cli."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from environments import Scripted, make_loop, tiny_config
from rich.console import Console

from lambda_replay.cli.display import Display, Speed, sparkline
from lambda_replay.config import RunConfig
from lambda_replay.training.health import HealthMonitor, HealthWarning
from lambda_replay.training.loop import GameEnd, Learned, Loop


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Sick(HealthMonitor):
    """A run that was sick from the start."""

    @property
    def warnings(self) -> list[HealthWarning]:
        return [HealthWarning("score", "the score is too low: try something else")]


def show(
    config: RunConfig,
    clock: Clock,
    *,
    is_terminal: bool,
    seconds_per_event: float = 1.0,
    health: HealthMonitor | None = None,
) -> tuple[str, Loop]:
    """Everything printed by a whole run in which every event takes some seconds."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=100, color_system=None, legacy_windows=False)
    loop = make_loop(config, [Scripted("....T......U", num_actions=3)]).loop
    with Display(config, loop, health or HealthMonitor(), "the title", console) as display:
        for event in loop.run():
            clock.now += seconds_per_event
            display.on_event(event)
    return file.getvalue(), loop


# --- golden -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([0.0, 7.0], "▁█  0 … 7"),
        ([0.0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█  0 … 7"),
        ([3.0, 3.0, 3.0], "▁▁▁  3 … 3"),
        ([-1.0, 1.0], "▁█  -1 … 1"),
        ([], "no game has ended yet"),
    ],
)
def test_a_row_of_small_bars(values: list[float], bars: str) -> None:
    assert sparkline(values, width=48) == bars


def test_many_values_are_averaged_down_to_the_width() -> None:
    """100 values over at most 10 bars: tens, whose means are 4.5, 14.5 … 94.5."""
    bars, _, span = sparkline([float(value) for value in range(100)], width=10).partition("  ")
    assert len(bars) == 10
    assert list(bars) == sorted(bars)
    assert span == "4.5 … 94.5"
    assert len(sparkline([1.0] * 101, width=10).partition("  ")[0]) <= 10


# --- plain lines ------------------------------------------------------------------------------------------------------


def test_plain_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    out, loop = show(tiny_config("Scripted-v0"), Clock(monkeypatch), is_terminal=False)
    lines = out.splitlines()
    assert lines[0] == "the title"
    assert "\x1b" not in out
    assert len(lines) > 3
    for line in lines[1:]:
        for word in ("step", "of 400", "steps/s", "left", "score (last 100)", "games", "ε", "loss", "|TD error|"):
            assert word in line, word
    assert lines[-1].startswith("step       400 of 400 |")
    assert f"games {loop.num_games} |" in lines[-1]
    assert f"score (last 100) {loop.score:.4g}" in lines[-1]
    assert "ε 0.1 " in lines[-1]


def test_plain_lines_come_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("Scripted-v0")
    slow, _ = show(config, Clock(monkeypatch), is_terminal=False, seconds_per_event=10.0)
    quick, _ = show(config, Clock(monkeypatch), is_terminal=False, seconds_per_event=0.001)
    events = len(list(make_loop(config, [Scripted("....T......U", num_actions=3)]).loop.run()))
    assert len(slow.splitlines()) == events + 2
    assert len(quick.splitlines()) == 2


def test_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 steps: random play until 100, then 20 steps every 4 seconds, most of which are spent on learning."""
    clock = Clock(monkeypatch)
    config = tiny_config("Scripted-v0")
    loop = make_loop(config, [Scripted(".", num_actions=3)]).loop
    display = Display(config, loop, HealthMonitor(), "title", Console(file=io.StringIO()))

    def line_after(steps: int, seconds: float, *, has_learned: bool = False) -> str:
        loop.step, clock.now = loop.step + steps, clock.now + seconds
        if has_learned:
            display.on_event(Learned(loop.step, {}))
        return display.line()

    assert "0 steps/s | – left" in display.line()  # nothing is known yet
    assert "step       100 of 400 | 50 steps/s | – left" in line_after(100, 2)  # nor how long learning takes
    assert "| 20 steps/s | 0 min 15 s left" in line_after(0, 3, has_learned=True)  # the mean since the beginning
    assert "| 20 steps/s |" in line_after(20, 1)
    assert "| 5 steps/s | 0 min 56 s left" in line_after(0, 3, has_learned=True)  # the first whole cycle
    assert "| 5 steps/s | 0 min 52 s left" in line_after(20, 1)  # the speed of acting alone does not count
    assert "| 5 steps/s | 0 min 52 s left" in line_after(0, 3, has_learned=True)


def test_speed_forgets_what_is_long_past(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    speed = Speed(1_000)
    for step in (1_100, 1_200, 1_300):  # cycles of 100 steps in 50 seconds
        clock.now += 50
        speed.end_cycle(step)
    assert speed.at(1_350) == 2.0  # of the last cycle, which is longer than the window
    for step in range(1_400, 2_400, 100):  # in 5 seconds
        clock.now += 5
        speed.end_cycle(step)
    assert speed.at(2_350) == 20.0


def test_what_is_not_known_yet_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("Scripted-v0")
    loop = make_loop(config, [Scripted(".", num_actions=3)]).loop
    line = Display(config, loop, HealthMonitor(), "title", Console(file=io.StringIO())).line()
    assert "score (last 100) – | games 0 | ε 1 | loss – | mean |TD error| –" in line


@pytest.mark.parametrize(
    ("estimator", "words"),
    [("median", "λ chosen"), ("watkins:0.9", "traces cut"), ("peng:0.9", "return − Q")],
)
def test_what_the_estimator_does_is_shown(monkeypatch: pytest.MonkeyPatch, estimator: str, words: str) -> None:
    out, _ = show(tiny_config("Scripted-v0", estimator=estimator), Clock(monkeypatch), is_terminal=False)
    assert words in out.splitlines()[-1]


# --- the panel --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "boundary"), [({}, "next refresh"), ({"agent": "dqn"}, "next target copy")], ids=["dqn-lambda", "dqn"]
)
def test_the_panel_on_a_terminal(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], boundary: str) -> None:
    out, loop = show(tiny_config("Scripted-v0", **changes), Clock(monkeypatch), is_terminal=True)
    last = out[out.rindex("the title") :]
    for word in (
        "step 400 of 400",
        "steps/s",
        "left",
        "score (last 100)",
        "games",
        "ε",
        "loss",
        "|TD error|",
        boundary,
    ):
        assert word in last, word
    assert re.search(rf"{boundary}\s+in \d+ steps", last)
    assert f"{loop.score:.4g}" in last
    assert any(bar in last for bar in "▁▂▃▄▅▆▇█")


def test_the_panel_shows_the_first_score_before_anything_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a score beside "no game has ended yet"."""
    config = tiny_config("Scripted-v0")
    loop = make_loop(config, [Scripted("....T", num_actions=3)]).loop
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None, legacy_windows=False)
    with Display(config, loop, HealthMonitor(), "the title", console) as display:
        event = next(event for event in loop.run() if isinstance(event, GameEnd))
        display.on_event(event)
    last = file.getvalue()[file.getvalue().rindex("the title") :]
    assert re.search(rf"score \(last 100\) +{event.score:.4g} ", last)
    assert "no game has ended yet" not in last
    assert "▁  " in last


def test_a_title_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would take it for markup and for an emoji."""
    config = tiny_config("Scripted-v0")
    loop = make_loop(config, [Scripted(".", num_actions=3)]).loop
    for is_terminal in (False, True):
        file = io.StringIO()
        console = Console(file=file, force_terminal=is_terminal, width=100, color_system=None, legacy_windows=False)
        with Display(config, loop, HealthMonitor(), "a[/b]:dog:", console):
            pass
        assert "a[/b]:dog:" in file.getvalue()


def test_the_panel_counts_down_to_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start at 100 and refresh every 50: at step 30 it is 70 away, at step 120 30, and at a refresh a whole window."""
    config = tiny_config("Scripted-v0")
    loop = make_loop(config, [Scripted(".", num_actions=3)]).loop
    for step, left in ((0, 100), (30, 70), (120, 30), (150, 50)):
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=100, color_system=None, legacy_windows=False)
        loop.step = step
        with Display(config, loop, HealthMonitor(), "title", console):
            pass
        assert re.search(rf"next refresh\s+in {left} steps", file.getvalue()), step


def test_a_warning_is_said_once_on_plain_lines_and_as_long_as_it_holds_in_the_panel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, _ = show(tiny_config(), Clock(monkeypatch), is_terminal=False, health=Sick())
    [line] = [line for line in plain.splitlines() if "warning" in line]
    assert re.fullmatch(r"warning at step \d+: the score is too low: try something else\.", line)
    panel, _ = show(tiny_config(), Clock(monkeypatch), is_terminal=True, health=Sick())
    assert "warning: the score is too low: try something else." in panel
    healthy, _ = show(tiny_config(), Clock(monkeypatch), is_terminal=True)
    assert "warning" not in healthy
