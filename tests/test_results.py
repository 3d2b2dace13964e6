"""The results that we publish: the page says what the files say, and verdicts follow the rules written beside them."""

from __future__ import annotations

import csv
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import sb3_dropin
from lambda_replay.analysis.statistics import Estimate

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "results" / "mini" / "figures"


def script(name: str) -> Any:
    """A script of results/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "results" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def claims() -> Any:
    return script("claims")


def rows(name: str) -> list[dict[str, str]]:
    with (FIGURES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_holds_the_tables_that_the_files_give(claims: Any) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"{claims.BEGIN}\n{claims.make_tables()}\n{claims.END}" in page


def test_the_page_holds_the_scores_of_our_agents() -> None:
    agents, page = script("minatar_agents"), (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"{agents.BEGIN}\n{agents.make_tables()}\n{agents.END}" in page


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


def test_the_scores_beside_the_preset_are_those_of_the_curves() -> None:
    table = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    curves = [row for row in rows("seeds.csv") if (row["environment"], row["arm"]) == ("minatar/breakout", "peng-075")]
    for curve in curves[:3]:
        scores = [f"{float(curve[step]):.1f}" for step in ("100000", "200000", "300000")]
        assert f"| {curve['seed']} | {' | '.join(scores)} |" in table


def signs(arm: str, other: str) -> list[int]:
    """For Breakout, Space Invaders, Asterix, Freeway: 1 where the arm is clearly better, −1 worse, 0 neither."""
    found = []
    for game in ("breakout", "space_invaders", "asterix", "freeway"):
        (row,) = [
            row
            for row in rows("pairs.csv")
            if row["environment"] == f"minatar/{game}" and {row["arm"], row["other"]} == {arm, other}
        ]
        low, high = float(row["difference_low"]), float(row["difference_high"])
        sign = 1 if low > 0 else -1 if high < 0 else 0
        found.append(sign if row["arm"] == arm else -sign)
    return found


@pytest.mark.parametrize(
    ("arm", "other", "wanted"),
    [
        ("peng-025", "peng-075", [0, 0, 1, 1]),
        ("peng-025", "dqn-3step", [0, 0, 1, 1]),
        ("peng-050", "dqn-3step", [0, 0, 0, 1]),
        ("peng-075", "dqn-3step", [0, 0, 0, 0]),
        ("median", "peng-050", [0, 0, 0, 0]),
        ("median", "dqn-3step", [0, 0, 1, 1]),
        ("median", "peng-025", [0, 0, -1, -1]),
        ("watkins-075", "peng-075", [-1, -1, 1, 1]),
        ("watkins-published-075", "peng-075", [-1, -1, 1, 1]),
        ("cached-3step", "dqn-3step", [0, 0, 0, 0]),
    ],
)
def test_what_the_page_says_in_words(arm: str, other: str, wanted: list[int]) -> None:
    assert signs(arm, other) == wanted


def test_no_arm_has_a_lower_mean_than_lambda_1(claims: Any) -> None:
    study = claims.read_results("mini")
    for game in study.games:
        assert min((study.mean(game, arm), arm) for arm in study.arms)[1] == "peng-100"
    assert study.best(claims.SPACE_INVADERS, study.arms) == "peng-075"


def test_runs_come_from_one_commit() -> None:
    commits = {row["commit"] for row in rows("runs.csv") if row["state"] == "finished"}
    assert len(commits) == 1
    assert all(len(commit) == 40 for commit in commits)  # and from a tree without changes


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1, 2, "HOLDS"), (-2, -1, "FAILS"), (-1, 1, "OPEN"), (math.nan, math.nan, "OPEN")]
)
def test_a_verdict_needs_an_interval_on_one_side(claims: Any, low: float, high: float, verdict: str) -> None:
    assert claims.judge(Estimate(0.0, low, high)) == getattr(claims, verdict)
    assert claims.judge(Estimate(0.5, low + 0.5, high + 0.5), draw=0.5) == getattr(claims, verdict)


def test_claims_about_all_some_and_most_games(claims: Any) -> None:
    yes, no, unclear = claims.HOLDS, claims.FAILS, claims.OPEN
    assert [claims.every(found) for found in ([yes, yes], [yes, unclear], [yes, unclear, no])] == [yes, unclear, no]
    assert [claims.some(found) for found in ([no, no], [no, unclear], [no, unclear, yes])] == [no, unclear, yes]
    assert [claims.most(found) for found in ([yes, yes, no], [yes, no], [no, no, yes])] == [yes, unclear, no]


def a_study(claims: Any, **finals: list[float]) -> Any:
    """One game."""
    same = {"environment": "minatar/breakout", "state": "finished"}
    runs = [
        {**same, "arm": arm.replace("_", "-"), "final_score": str(score)}
        for arm, scores in finals.items()
        for score in scores
    ]
    return claims.Results(runs, [], [], [])


@pytest.mark.parametrize(
    ("scores", "beats", "matches", "gains_hugely"),
    [
        ([10.0, 10.2, 9.8, 10.1, 9.9], "OPEN", "HOLDS", "FAILS"),  # the same
        ([9.5, 9.6, 9.4, 9.5, 9.5], "FAILS", "HOLDS", "FAILS"),  # clearly below, by less than a tenth
        ([8.0, 8.1, 7.9, 8.0, 8.0], "FAILS", "FAILS", "FAILS"),  # by a fifth
        ([8.0, 12.0, 6.0, 14.0, 10.0], "OPEN", "OPEN", "FAILS"),  # the same mean, but who knows
        ([11.0, 11.2, 10.8, 11.1, 10.9], "HOLDS", "HOLDS", "FAILS"),  # clearly above, not hugely
        ([15.0, 15.5, 14.5, 15.1, 15.0], "HOLDS", "HOLDS", "OPEN"),  # half more
        ([20.0, 20.5, 19.5, 20.1, 20.0], "HOLDS", "HOLDS", "HOLDS"),
        ([20.0, 20.5, 19.5, 20.1], "OPEN", "OPEN", "OPEN"),  # too few runs say nothing
    ],
)
def test_beating_matching_and_huge_gains(
    claims: Any, scores: list[float], beats: str, matches: str, gains_hugely: str
) -> None:
    study = a_study(claims, dqn_3step=[10.0, 10.1, 9.9, 10.0, 10.0], arm=scores)
    pairs = [("minatar/breakout", "arm", "dqn-3step")]
    for times, verdict in ((claims.BEATS, beats), (claims.MATCHES, matches), (claims.GAINS_HUGELY, gains_hugely)):
        (comparison,) = claims.compare_scores(study, pairs, times)
        assert comparison.verdict == getattr(claims, verdict), times


def test_the_number_shown_is_the_one_tested_and_widened_for_the_others(claims: Any) -> None:
    study = a_study(claims, dqn_3step=[10.0, 10.5, 9.5, 10.0, 10.0], arm=[10.4, 11.0, 10.6, 10.2, 10.8])
    pair = ("minatar/breakout", "arm", "dqn-3step")
    (alone,) = claims.compare_scores(study, [pair])
    assert str(alone) == "Breakout: arm − dqn-3step = +0.60 (0.11 to 1.09) ✓"
    of_eight = claims.compare_scores(study, [pair] * 8)[0]
    assert of_eight.verdict == claims.OPEN
    (matched,) = claims.compare_scores(study, [pair], claims.MATCHES)
    assert matched.name == "Breakout: arm − 0.9 × dqn-3step ="


def test_speed_is_compared_round_by_round(claims: Any) -> None:
    """Student's interval of the mean logarithm, by hand: ratios e⁰·¹, e⁰·², e⁰·³ have mean 0.2 and error 0.1/√3."""
    ratios = np.exp([0.1, 0.2, 0.3])
    half = 4.302652729911275 * 0.1 / math.sqrt(3)  # Student's t with 2 degrees of freedom, 97.5 %
    ratio = claims.mean_ratio(ratios, comparisons=1)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(tuple(np.exp([0.2, 0.2 - half, 0.2 + half])))


def test_what_lambdas_were_chosen_is_of_the_runs_that_are_published() -> None:
    finished = {(row["environment"], row["arm"], row["seed"]) for row in rows("runs.csv") if row["state"] == "finished"}
    with (FIGURES.parent / "lambdas.csv").open(encoding="utf-8") as file:
        described = {(row["environment"], row["arm"], row["seed"]) for row in csv.DictReader(file)}
    assert described == {run for run in finished if run[1] in ("median", "bounded")}


def test_no_effect_matters_more_than_none(claims: Any) -> None:
    """All arms from one distribution: the mean of several noisy changes stands out from a single one by chance."""
    scores = np.random.default_rng(7).normal(10.0, 1.0, (8, 5))
    names = [*claims.PENG, *claims.WATKINS, claims.CACHED, claims.BASELINE]
    study = a_study(claims, **dict(zip(names, scores.tolist(), strict=True)))
    assert claims.matters_more(study, "minatar/breakout").verdict == claims.OPEN
    far = a_study(claims, **dict(zip(names, (scores + 20 * (np.arange(8) < 6)[:, None]).tolist(), strict=True)))
    assert claims.matters_more(far, "minatar/breakout").verdict == claims.HOLDS


def test_every_pair_is_what_the_report_made_of_it(claims: Any) -> None:
    """Differences and probabilities are computed anew from runs.csv; pairs.csv has them from the runs themselves."""
    study = claims.read_results("mini")
    for row in rows("pairs.csv"):
        game, arm, other = row["environment"], row["arm"], row["other"]
        if game == "all" and claims.BASELINE in (arm, other):
            assert study.probability(arm, other).value == pytest.approx(float(row["better"]), abs=1e-4)
        if game == "all":
            continue
        difference, reverse = study.difference(game, arm, other), study.difference(game, other, arm)
        assert difference.value == pytest.approx(float(row["difference"]), rel=1e-4, abs=1e-4)
        assert (reverse.low, reverse.high) == pytest.approx((-difference.high, -difference.low), nan_ok=True)
        wins = [
            (ours > theirs) + 0.5 * (ours == theirs)
            for ours in study.finals(game, arm)
            for theirs in study.finals(game, other)
        ]
        assert np.mean(wins) == pytest.approx(float(row["better"]), abs=1e-4)


def test_a_page_without_its_marks_is_left_alone(claims: Any) -> None:
    page = f"before\n{claims.BEGIN}old\n{claims.END}after\n"
    assert claims.put_into(page, "new\n") == f"before\n{claims.BEGIN}\nnew\n\n{claims.END}after\n"
    for broken in (page.replace(claims.END, ""), page.replace(claims.BEGIN, ""), page + page):
        with pytest.raises(SystemExit, match="once each"):
            claims.put_into(broken, "new\n")


def test_the_tables_of_the_drop_in_are_those_of_its_runs() -> None:
    page, runs = sb3_dropin.PAGE.read_text(encoding="utf-8"), sb3_dropin.read_runs(sb3_dropin.RESULTS)
    assert len(runs) > 50
    assert sb3_dropin.tasks_table(runs) in page
    assert sb3_dropin.settings_table(runs) in page
