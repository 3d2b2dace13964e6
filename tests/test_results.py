"""The results that we publish: the page says what the files say, and verdicts follow the rules written beside them."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "results" / "mini" / "figures"


@pytest.fixture(scope="module")
def claims() -> Any:
    spec = importlib.util.spec_from_file_location("claims", ROOT / "results" / "claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def rows(name: str) -> list[dict[str, str]]:
    with (FIGURES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_holds_the_tables_that_the_files_give(claims: Any) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"{claims.BEGIN}\n{claims.make_tables()}\n{claims.END}" in page


def test_every_run_has_a_curve_that_ends_at_its_final_score() -> None:
    finals = {
        (row["environment"], row["arm"], row["seed"]): float(row["final_score"])
        for row in rows("runs.csv")
        if row["state"] == "finished"
    }
    ends = {(row["environment"], row["arm"], row["seed"]): list(row.values())[-1] for row in rows("seeds.csv")}
    assert finals
    for run, final in finals.items():
        assert float(ends[run]) == pytest.approx(final, rel=1e-4, abs=1e-9), run


def test_runs_come_from_one_commit() -> None:
    commits = {row["commit"] for row in rows("runs.csv") if row["state"] == "finished"}
    assert len(commits) == 1
    assert all(len(commit) == 40 for commit in commits)  # and from a tree without changes


def test_verdicts_follow_the_rules(claims: Any) -> None:
    above, below, unclear = (claims.Interval(0, *ends) for ends in ((1, 2), (-2, -1), (-1, 1)))
    assert [interval.side for interval in (above, below, unclear)] == ["above", "below", "unclear"]
    assert above.reversed().side == "below"
    assert claims.Interval(0.7, 0.6, 0.8, draw=0.5).reversed() == claims.Interval(
        pytest.approx(0.3), pytest.approx(0.2), pytest.approx(0.4), draw=0.5
    )
    assert claims.never("below", [above, unclear]) == claims.HOLDS
    assert claims.never("below", [above, below]) == claims.FAILS
    assert claims.always("above", [above, above]) == claims.HOLDS
    assert claims.always("above", [above, unclear]) == claims.OPEN
    assert claims.at_least([1.5, 2.5], [above, above]) == claims.FAILS  # 1 to 2 is no gain of 2.5
    assert claims.at_least([1.5, 1.5], [above, above]) == claims.HOLDS
    assert claims.at_least([0.5], [unclear]) == claims.OPEN
    assert claims.always("above", [above, below]) == claims.FAILS
    one_run = claims.Interval(3.0, float("nan"), float("nan"))
    assert str(one_run) == "+3.00"
    assert claims.always("above", [one_run]) == claims.never("below", [above, one_run]) == claims.OPEN
    assert [claims.over_all("below", interval) for interval in (below, unclear, above)] == [
        claims.HOLDS,
        claims.OPEN,
        claims.FAILS,
    ]
