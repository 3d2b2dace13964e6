"""The report of a study: its words, its files, and the page in a real browser."""

from __future__ import annotations

import csv
import html
import json
import math
import os
import re
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from test_analysis_summary import ARMS, STEPS, UNFINISHED, directory_of, empty_study, make_study

from lambda_replay.analysis import numbers
from lambda_replay.analysis.files import write_shared
from lambda_replay.analysis.pairs import every_pair, is_enough
from lambda_replay.analysis.records import StudyData
from lambda_replay.analysis.report import render_report, write_report
from lambda_replay.analysis.summary import StudySummary, summarise
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.states import State
from lambda_replay.training.health import MANY_ROWS


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyData:
    root = tmp_path_factory.mktemp("study")
    return make_study(root, environments=2, seeds=3, states=UNFINISHED)


@pytest.fixture(scope="module")
def summary(study: StudyData) -> StudySummary:
    return summarise(study)


@pytest.fixture(scope="module")
def report(study: StudyData) -> Path:
    return write_report(study, directory_of(study) / "report.html")


def read(page: Path) -> str:
    """The page with every run of white space as one space, as a browser shows it."""
    return " ".join(page.read_text().split())


def render(summary: StudySummary) -> str:
    """The same of a page that is not written."""
    return " ".join(render_report(summary, every_pair(summary), Path()).split())


def lead_of(page: str) -> str:
    """The sentences on all environments together."""
    found = re.search(r'<p class="lead"> ?(.*?) ?</p>', page)
    assert found
    return found[1]


def findings_of(page: str) -> list[str]:
    """The sentences on each environment."""
    return re.findall(r'<li><span class="where">[^<]*:</span> (.*?) ?</li>', page)


def section_of(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}">')[2].partition("</section>")[0]


# The words.


def test_numbers_in_words() -> None:
    assert numbers.fixed(-0.001, 2) == "0.00"
    assert numbers.fixed(-1234.5, 1) == "−1,234.5"
    assert numbers.signed(0.25, 2) == "+0.25"
    assert [numbers.steps(value) for value in (950, 75_400, 1_250_000, 1e7)] == ["950", "75k", "1.25M", "10M"]
    assert [numbers.hours(value) for value in (0.01, 0.05, 0.5, 2.25)] == ["36 s", "3.0 min", "30 min", "2.2 h"]
    assert numbers.steps(math.inf) == "not reached"
    assert [numbers.decimals_for(value) for value in (0.4, 5.6, 12.3, 358.0, 9497.0)] == [2, 2, 1, 0, 0]


def test_the_report_says_what_is_in_and_what_is_missing(report: Path) -> None:
    text = read(report)
    assert "22 of 30 runs have finished (1 running, 6 waiting, 1 failed)." in text
    assert "No finished run yet: <b>watkins-0.75</b>." in text
    assert "Of the 4 arms with finished runs in every environment, <b>peng-0.75</b> scores highest overall" in text
    assert "the environment raised RuntimeError: out of memory" in text


def test_no_name_or_reason_can_break_the_markup(study: StudyData) -> None:
    spoilt = {arm: f"{arm}<i>&\"'{{{{ 1 }}}}" for arm in study.arms}
    runs = tuple(replace(run, arm=spoilt[run.arm], reason=run.reason and "<i>&") for run in study.runs)
    named = replace(study, name="<i>&", arms=tuple(spoilt.values()), baseline=spoilt[study.baseline], runs=runs)
    page = render(summarise(named))
    assert "<i>" not in page
    assert page.count(html.escape("peng-0.75<i>&").replace("&#x27;", "&#39;")) > 10
    assert "peng-0.75\\u003ci\\u003e\\u0026" in page  # in the data of the charts
    assert '<p class="reason">&lt;i&gt;&amp;</p>' in page


def test_no_template_switches_escaping_off() -> None:
    templates = sorted(files("lambda_replay.analysis").joinpath("templates").iterdir(), key=str)
    assert len(templates) > 8
    for template in templates:
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", template.read_text("utf-8")), template


def test_the_winner_is_named_with_its_lead_and_its_certainty(summary: StudySummary) -> None:
    sentence = findings_of(render(summary))[1]
    best = summary.environments[1].arm("peng-0.75")
    assert best.comparison is not None
    assert sentence.startswith(f"<b>peng-0.75</b> is first with {best.final.value:.1f} ± ")
    gain = f"{best.comparison.difference.value:.1f} above <b>dqn-3step</b>"
    assert f"{gain} (95% interval, as the best of 3: " in sentence
    lead = summary.environments[1].lead("dqn-3step")
    assert lead is not None
    assert lead.low < best.comparison.difference.low  # it was picked among three
    assert ("a clear gain" in sentence) == (lead.low > 0)
    assert "(final score of dqn-3step) after" in sentence


def test_the_baseline_does_not_win_against_nobody(tmp_path: Path) -> None:
    waiting: dict[tuple[str, str, int], State] = {
        ("minatar/breakout", arm, 0): "waiting" for arm in ARMS if arm != "dqn-3step"
    }
    page = render(summarise(make_study(tmp_path, environments=1, seeds=1, states=waiting)))
    assert findings_of(page)[0].startswith("<b>dqn-3step</b> is the only arm with finished runs, with ")
    assert lead_of(page) == (
        "Only <b>dqn-3step</b> has a finished run in every environment, so there is no overall comparison."
    )


def test_an_environment_where_nobody_learns_is_left_out_of_the_whole(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=2, seeds=2, states={})
    for run in study.runs_of("minatar/breakout", "dqn-3step"):
        games = (run.path / "episodes.csv").read_text().splitlines()
        early = [game for game in games[1:] if int(game.split(",")[1]) <= 5_000]
        for arm in ARMS:  # everyone plays as at the beginning until the end
            later = [f"{i},{5_000 + i},0,{early[i % len(early)].split(',')[3]},9,0,terminated" for i in range(1_000)]
            path = run.path.parents[1] / arm / run.path.name / "episodes.csv"
            path.write_text("\n".join([games[0], *early, *later]) + "\n")
    summary = summarise(study)
    assert [environment.is_learnt for environment in summary.environments] == [False, True]
    sentence = "Left out, since no arm scores clearly above random play there: <b>minatar/breakout</b>."
    assert f'<p class="note">{sentence}</p>' in section_of(render(summary), "aggregate")
    best = summary.environments[1].best
    assert best is not None
    assert summary.aggregates[0].arm == best.arm
    assert all(abs(result.interquartile_mean.value) < 2 for result in summary.aggregates)


def test_runs_of_different_commits_are_called_out(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=1, seeds=1, states={})
    assert "Runs differ in more than their settings" not in render(summarise(study))
    path = study.runs[0].path / "provenance.json"
    provenance = json.loads(path.read_text())
    path.write_text(json.dumps({**provenance, "commit": "f" * 40, "notes": ["from step 9 on with another processor"]}))
    text = read(write_report(study, tmp_path / "report.html"))
    assert "Runs differ in more than their settings: commit. 1 run has notes: see its provenance." in text
    assert "from step 9 on with another processor" in text
    assert "config.memory" not in text


def test_one_seed_says_nothing_about_chance(tmp_path: Path) -> None:
    summary = summarise(make_study(tmp_path, environments=1, seeds=1, states={}))
    sentence = findings_of(render(summary))[0]
    assert "with only one run on a side this may be chance" in sentence
    assert "±" not in sentence


def test_greedy_games_have_a_table_of_their_own(tmp_path: Path) -> None:
    """Only the last evaluation of a finished run counts; without evaluations there is no such table."""
    study = make_study(tmp_path, environments=2, seeds=3, states={("minatar/breakout", "peng-0.75", 2): "running"})
    assert "Greedy games" not in render(summarise(study))
    for run in study.runs:
        score = {"dqn-3step": 10.0, "peng-0.75": 30.0}.get(run.arm)
        if score is not None and run.environment == "minatar/breakout":
            rows = [{"step": step, "score_mean": score + run.seed + step - STEPS} for step in (STEPS - 50, STEPS)]
            (run.path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    breakout, other = (summary := summarise(study)).environments
    assert breakout.best_greedy is breakout.arm("peng-0.75")
    assert other.best_greedy is None
    assert (breakout.arm("dqn-3step").greedy.value, breakout.arm("peng-0.75").greedy.value) == (11.0, 30.5)
    comparison = breakout.arm("peng-0.75").greedy_comparison
    assert comparison is not None
    assert comparison.difference.value == 19.5
    table = render(summary).partition('aria-label="Greedy games"')[2].partition("</table>")[0]
    assert "<td><b>30.50 ± 0.50</b>" in table
    assert "<td>11.00 ± 0.58" in table
    assert table.count("–") == 2 * len(ARMS) - 2
    write_report(study, tmp_path / "report.html")
    with (tmp_path / "figures" / "runs.csv").open() as file:
        shown = {(row["environment"], row["arm"], row["seed"]): row["greedy_score"] for row in csv.DictReader(file)}
    assert shown["minatar/breakout", "dqn-3step", "1"] == "11"
    assert shown["minatar/space_invaders", "dqn-3step", "1"] == ""
    path = study.runs_of("minatar/breakout", "dqn-3step")[0].path / "evaluations.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"evaluations.jsonl is damaged \(its last line has no score_mean\)"):
        summarise(study)


# The files.


def test_the_tables_hold_the_numbers_of_the_curves(study: StudyData, summary: StudySummary, report: Path) -> None:
    with (report.parent / "figures" / "minatar-breakout-steps.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == "dqn-3step"]
    curve = summary.environments[0].arm("dqn-3step").curves["steps"]
    known = curve.count > 0
    np.testing.assert_allclose([float(row["mean"]) for row in rows], curve.mean[known], rtol=1e-5)
    assert float(rows[-1]["steps"]) == STEPS
    with (report.parent / "figures" / "runs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(study.runs)
    with (report.parent / "figures" / "seeds.csv").open() as file:
        seeds = list(csv.DictReader(file))
    assert len(seeds) == len(study.runs)
    curves = [row for row in seeds if row["environment"] == "minatar/breakout" and row["arm"] == "dqn-3step"]
    ends = [float(row[str(STEPS)]) for row in curves if row[str(STEPS)]]
    assert np.mean(ends) == pytest.approx(curve.mean[-1], rel=1e-3)


def test_the_page_and_a_table_hold_every_pair(summary: StudySummary, report: Path) -> None:
    with (report.parent / "figures" / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    pairs = every_pair(summary)
    assert len(rows) == len(pairs) * (len(summary.environments) + 1)
    together = [row for row in rows if row["environment"] == "all"]
    assert [float(row["better"]) for row in together] == pytest.approx([pair.probability.value for pair in pairs], 1e-5)
    section = section_of(read(report), "pairs")
    cells = re.findall(r'title="(\S+) against (\S+)">([\d.]+)<', section)
    shown = {(arm, other): float(number) for arm, other, number in cells}
    assert len(shown) == 2 * len(pairs)
    for pair in pairs:
        assert shown[pair.arm, pair.other] == pytest.approx(pair.probability.value, abs=0.005)
        assert shown[pair.other, pair.arm] == pytest.approx(1 - pair.probability.value, abs=0.005)


def test_every_figure_is_a_picture_a_page_and_a_table(report: Path) -> None:
    figures = report.parent / "figures"
    stems = [
        f"{name}-{axis}"
        for name in ("all", "minatar-breakout", "minatar-space_invaders")
        for axis in ("steps", "hours")
    ]
    expected = {f"{stem}.{kind}" for stem in [*stems, "aggregate"] for kind in ("png", "pdf", "csv")} | {
        "runs.csv",
        "seeds.csv",
        "pairs.csv",
    }
    assert {path.name for path in figures.iterdir()} == expected
    assert all((figures / f"{stem}.png").read_bytes().startswith(b"\x89PNG") for stem in stems)
    linked = re.findall(r'href="figures/([^"]+)"', report.read_text())
    assert set(linked) == expected


def test_the_same_runs_give_the_same_bytes(study: StudyData, report: Path) -> None:
    before = {path: path.read_bytes() for path in report.parent.glob("**/*") if path.is_file()}
    write_report(study, report)
    assert before == {path: path.read_bytes() for path in report.parent.glob("**/*") if path.is_file()}


def test_the_page_names_nothing_outside_itself(report: Path) -> None:
    text = report.read_text()
    assert re.findall(r"https?://[^\"'\s]*", text) == ["http://www.w3.org/2000/svg"]  # a name, never fetched
    assert "default-src 'none'" in text
    assert str(report.parent) not in text


def test_a_report_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=1, seeds=1, states={})
    page = tmp_path / "report.html"
    page.write_text("old")
    (study.runs[0].path / "episodes.csv").write_text("nonsense\n1\n")
    with pytest.raises(ConfigError, match="needs step and score"):
        write_report(study, page)
    assert page.read_text() == "old"
    assert list(tmp_path.glob(".*")) == []


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    occupied = tmp_path / "report.html"
    (occupied / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"report\.html"):
        write_shared(occupied, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_what_a_killed_process_left_is_removed_but_not_what_another_writes(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (".a.csv.7.part", ".a.csv.8.part", ".b.csv.7.part"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    write_shared(tmp_path / "a.csv", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.csv.8.part", ".b.csv.7.part", "a.csv"]


def test_ctrl_c_leaves_the_old_report(study: StudyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the worst moment: the new page is half on the disk."""
    page = tmp_path / "report.html"
    page.write_text("old")
    write_bytes = Path.write_bytes

    def interrupted(path: Path, content: bytes) -> int:
        if "report.html" in path.name:
            write_bytes(path, content[: len(content) // 2])
            raise KeyboardInterrupt
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(study, page)
    assert page.read_text() == "old"
    assert list(tmp_path.rglob(".*")) == []


def test_pairs_are_marked_only_where_runs_are_enough(tmp_path: Path) -> None:
    assert [is_enough(runs) for runs in ([20], [19], [5] * 4, [4] * 5, [2] * 20)] == [True, False, True, False, False]
    study = make_study(tmp_path, environments=4, seeds=5, states={})
    enough = render(summarise(study))
    section = section_of(enough, "pairs")
    assert section.count("▲") == section.count("▼") > 1
    assert (
        "▲ and ▼: the interval is entirely above or below 0.5. Of 10 pairs, chance alone would mark about 0.5.</p>"
        in section
    )
    assert "too narrow; reliable ones need" not in enough
    few = render(summarise(replace(study, runs=tuple(run for run in study.runs if run.seed < 3))))
    needed = "20 runs of each arm, and 5 in each environment"
    section = section_of(few, "pairs")
    assert f"Nothing is marked: these intervals are too narrow; reliable ones need {needed}.</p>" in section
    assert "▲" not in section
    assert lead_of(few).endswith(f" These intervals are too narrow; reliable ones need {needed}.")


def test_a_study_that_has_not_started_has_a_report(tmp_path: Path) -> None:
    text = read(write_report(empty_study(tmp_path), tmp_path / "report.html"))
    assert "0 of 2 runs have finished (2 waiting)." in text
    assert "no run has finished yet" in text


@pytest.mark.parametrize("missing", ["matplotlib", "scipy", "jinja2"])
def test_a_missing_extra_is_one_sentence(
    study: StudyData, tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.startswith(f"{missing}.")]
    for module in [missing, *loaded]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs {missing}, which is not installed; install it with: pip install"):
        write_report(study, tmp_path / "report.html")


# Divergence


def diverged_study(root: Path, **runs: tuple[int, ...]) -> StudyData:
    """Two environments, three seeds; ``breakout_peng=(0, 2)`` are the seeds of such runs that diverged."""
    environments = {"breakout": "minatar/breakout", "invaders": "minatar/space_invaders"}
    arms = {"dqn": "dqn-3step", "peng": "peng-0.75"}
    states: dict[tuple[str, str, int], State] = {}
    for name, seeds in runs.items():
        environment, arm = name.split("_")
        states |= {(environments[environment], arms[arm], seed): "diverged" for seed in seeds}
    return make_study(root, environments=2, seeds=3, states=states)


def test_diverged_runs_are_in_no_score_curve_or_time(tmp_path: Path) -> None:
    study = diverged_study(tmp_path, breakout_peng=(1,))
    arm = summarise(study).environments[0].arm("peng-0.75")
    survivors = replace(study, runs=tuple(run for run in study.runs if run.state != "diverged"))
    alone = summarise(survivors).environments[0].arm("peng-0.75")
    assert len(arm.runs) == 3
    assert len(arm.final_scores) == 2
    assert (arm.final, arm.area, arm.to_threshold) == (alone.final, alone.area, alone.to_threshold)
    for axis in ("steps", "hours"):
        assert arm.curves[axis].count.max() == 2
    np.testing.assert_array_equal(arm.curves["steps"].mean, alone.curves["steps"].mean)


def test_the_report_says_first_of_all_that_the_numbers_are_of_the_survivors(tmp_path: Path) -> None:
    study = diverged_study(tmp_path, breakout_peng=(1,), invaders_peng=(0, 1, 2))
    text = read(write_report(study, tmp_path / "report.html"))
    assert "26 of 30 runs have finished (4 diverged)." in text
    assert "<progress" not in text  # nothing is left to wait for
    assert "Training diverged in 4 of 30 runs: their values were no longer finite" in text
    assert (
        "<b>peng-0.75</b>: 1 of 3 runs in minatar/breakout and all 3 runs in minatar/space_invaders diverged. Its "
        "numbers include only the surviving runs, which flatters it. It has no score in minatar/space_invaders."
    ) in text
    assert text.index("flatters it") < text.index('<section id="summary">')
    assert "No finished run yet" not in text
    assert '<td class="lost">diverged<small>all 3 runs</small></td>' in text
    assert "<small>2 of 3 runs, 1 diverged</small>" in text
    assert '<span class="state diverged">diverged</span>' in text
    assert "<span>14 of 15 runs finished, 1 diverged</span>" in text
    assert "<dt>Diverged runs</dt>" in text
    with (tmp_path / "figures" / "runs.csv").open() as file:
        assert sum(row["state"] == "diverged" for row in csv.DictReader(file)) == 4


def test_a_sick_run_is_marked_before_the_numbers_and_explained_below(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=1, seeds=2, states={})
    healthy = read(write_report(study, tmp_path / "report.html"))
    assert "warning" not in healthy.partition("</style>")[2].partition("<script>")[0].lower()
    rows = [{"step": 100 * number, "q_std_states": 0.0, "td_error_abs_mean": 1.0} for number in range(MANY_ROWS)]
    (study.runs[0].path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = read(write_report(study, tmp_path / "report.html"))
    assert f"<b>1 of {len(study.runs)} runs has a warning</b>: values or scores say that it does not learn." in text
    assert text.index("has a warning") < text.index('<section id="summary">')
    assert text.count('<span class="state warned">warning</span>') == 1
    assert "Warning: the Q-values no longer depend on the state" in text


def test_a_winner_of_which_runs_diverged_says_so(tmp_path: Path) -> None:
    summary = summarise(diverged_study(tmp_path, breakout_peng=(1,), breakout_dqn=(0,)))
    page = render(summary)
    sentence = findings_of(page)[0]
    assert "(2 runs, 1 diverged)" in sentence
    assert sentence.endswith(" 1 of 3 runs of <b>dqn-3step</b> diverged, which flatters it.")
    assert " 1 run of <b>peng-0.75</b> diverged and is not counted. " in lead_of(page)
    assert (
        '<p class="note">Flattered, since only surviving runs count: <b>peng-0.75</b> (1 diverged) and '
        "<b>dqn-3step</b> (1 diverged).</p>"
    ) in section_of(page, "aggregate")


def test_a_baseline_without_a_surviving_run_is_compared_with_nothing(tmp_path: Path) -> None:
    study = diverged_study(tmp_path, breakout_dqn=(0, 1, 2))
    summary = summarise(study)
    assert all(arm.comparison is None for arm in summary.environments[0].arms)
    assert summary.environments[1].arm("peng-0.75").comparison is not None
    page = render(summary)
    assert findings_of(page)[0].endswith(
        "; every run of the baseline <b>dqn-3step</b> diverged, so nothing is compared with it."
    )
    lead = lead_of(page).partition(". ")[0]
    assert lead.endswith(
        "every run of the baseline <b>dqn-3step</b> in minatar/breakout diverged, so it is not compared"
    )
    assert re.findall(r"<li>(<b>.*?) </li>", page.partition('<section id="summary">')[0]) == [
        "<b>dqn-3step</b>: all 3 runs in minatar/breakout diverged. It has no score in minatar/breakout, and since it "
        "is the baseline, nothing is compared with it there."
    ]


def test_a_study_in_which_everything_diverged_has_a_report(tmp_path: Path) -> None:
    states: dict[tuple[str, str, int], State] = {("minatar/breakout", arm, 0): "diverged" for arm in ARMS}
    study = make_study(tmp_path, environments=1, seeds=1, states=states)
    text = read(write_report(study, tmp_path / "report.html"))
    assert "0 of 5 runs have finished (5 diverged)." in text
    assert "every run diverged." in text
    assert "<b>dqn-3step</b>: the only run in minatar/breakout diverged." in text
    assert '"empty":"Every run diverged."' in text
    assert "NaN" not in text.partition('type="application/json"')[2].partition("</script>")[0]


def test_a_study_without_divergence_does_not_speak_of_it(report: Path) -> None:
    assert "iverge" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", report.read_text(), flags=re.DOTALL)


def test_a_score_that_is_not_finite_is_damage(tmp_path: Path) -> None:
    study = make_study(tmp_path, environments=1, seeds=1, states={})
    path = study.runs[0].path / "episodes.csv"
    for value in ("nan", "inf"):
        path.write_text(f"episode,step,score\n0,10,{value}\n")
        with pytest.raises(ConfigError, match=r"episodes\.csv is damaged \(a number is not finite\)"):
            summarise(study)
