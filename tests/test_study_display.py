"""What a study shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lambda_replay.cli.study_display import READ_EVERY, StudyDisplay, render_study
from lambda_replay.rundir.states import State
from lambda_replay.studies.plan import Study, read_study
from lambda_replay.studies.status import RunStatus

FILE = """
name = "shown"
environments = [{environments}]
seeds = {seeds}
baseline = "dqn-3step"
[defaults]
steps = 400_000
[arms.dqn-3step]
agent = "dqn"
estimator = "nstep:3"
[arms.peng-075]
estimator = "peng:0.75"
"""
FOUR_GAMES = '"minatar/breakout", "minatar/space_invaders", "minatar/asterix", "minatar/freeway"'


def make_study(root: Path, environments: str = '"minatar/breakout"', seeds: int = 2) -> Study:
    file = root / "shown.toml"
    file.write_text(FILE.format(environments=environments, seeds=seeds))
    return read_study(file)


def statuses_of(study: Study, states: list[State]) -> list[RunStatus]:
    """One run after the other in these states, waiting where they are too few."""
    known = dict(zip(study.runs, states, strict=False))
    return [RunStatus(run, Path(run.place), known.get(run, "waiting")) for run in study.runs]


def shown(study: Study, statuses: list[RunStatus], width: int, left: float | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(render_study(study, statuses, left))
    return capture.get()


def test_the_table_has_every_state_with_progress_and_reasons(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    done, running, failed, waiting = statuses_of(study, ["finished", "running", "failed", "waiting"])
    running = replace(running, step=100_000, timed_step=100_000, seconds=200.0, score=3.21)
    failed = replace(failed, reason="the arm of the robot is off")
    text = shown(study, [done, running, failed, waiting], 100, left=3_900.0)
    assert text.splitlines()[0] == "shown: 1 done, 1 running, 1 waiting, 1 failed; about 1 h 05 min left"
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith(("dqn", "peng"))}
    assert rows == {"dqn-3step": "●✗", "peng-075": "◐○"}  # a mark for each seed
    assert "minatar/breakout · peng-075 · seed 0" in text
    assert "25 %" in text
    assert "500 steps/s" in text
    assert "10 min 00 s left" in text
    assert "failed  minatar/breakout · dqn-3step · seed 1: the arm of the robot is off" in text


@pytest.mark.parametrize("seeds", [5, 10])
def test_the_table_fits_a_terminal_of_80_columns(tmp_path: Path, seeds: int) -> None:
    study = make_study(tmp_path, FOUR_GAMES, seeds)
    states: list[State] = [*("finished",) * 9, "running", "running", "failed"]
    statuses = statuses_of(study, states)
    text = shown(study, statuses, 80)
    assert max(map(len, text.splitlines())) <= 80
    for name in ("breakout", "space_invaders", "asterix", "freeway", "dqn-3step", "peng-075"):
        assert name in text
    total = len(study.runs)
    assert f"9 done, 2 running, {total - 12} waiting, 1 failed" in text


def test_a_terminal_sees_the_table_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    study, file = make_study(tmp_path), io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None, legacy_windows=False)
    with StudyDisplay(study, 2, console) as display:
        assert display.is_due()
        display.update(statuses_of(study, ["running"]))
        assert not display.is_due()
        now += READ_EVERY
        assert display.is_due()
        display.update(statuses_of(study, ["finished", "running"]))
    text = file.getvalue()
    assert text.index("0 done, 1 running") < text.index("1 done, 1 running")
    assert "started" not in text


def test_elsewhere_every_change_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)  # no time passes, so that it says nothing unasked
    study, file = make_study(tmp_path), io.StringIO()
    with StudyDisplay(study, 2, Console(file=file, width=40, color_system=None)) as display:
        display.update(statuses_of(study, ["running"]))
        finished, *others = statuses_of(study, ["finished", "failed"])
        others[0] = replace(others[0], reason="it was killed by SIGKILL")
        display.update([replace(finished, score=7.5, seconds=61.0), *others])
    lines = file.getvalue().splitlines()
    assert lines == [
        "started   minatar/breakout · dqn-3step · seed 0",
        "shown: 0 done, 1 running, 3 waiting, 0 failed",
        "finished  minatar/breakout · dqn-3step · seed 0: score 7.5 in 1 min 01 s",
        "failed    minatar/breakout · peng-075 · seed 0: it was killed by SIGKILL",
    ]


def test_a_diverged_run_has_a_mark_a_line_and_a_count_of_its_own(tmp_path: Path) -> None:
    study, file = make_study(tmp_path), io.StringIO()
    finished, diverged, *others = statuses_of(study, ["finished", "diverged"])
    diverged = replace(diverged, reason="at step 9 the loss is not finite: training diverged.")
    statuses = [finished, diverged, *others]
    text = shown(study, statuses, 120)
    assert text.splitlines()[0] == "shown: 1 done, 0 running, 2 waiting, 0 failed, 1 diverged"
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith(("dqn", "peng"))}
    assert rows == {"dqn-3step": "●○", "peng-075": "↯○"}
    assert "↯ diverged" in text
    line = "minatar/breakout · peng-075 · seed 0: at step 9 the loss is not finite: training diverged."
    assert f"diverged  {line}" in text
    with StudyDisplay(study, 2, Console(file=file, width=40, color_system=None)) as display:
        display.update(statuses_of(study, ["finished", "running"]))
        display.update(statuses)
    assert file.getvalue().splitlines()[-1] == f"diverged  {line}"
    assert "diverged" not in shown(study, statuses_of(study, ["finished"]), 120)
