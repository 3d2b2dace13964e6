"""The report of a study: its words, its files, and the page in a real browser."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Page, find_chromium, launch_chromium, open_page
from test_analysis_summary import ARMS, STEPS, UNFINISHED, directory_of, make_study

from lambda_replay.analysis import wording
from lambda_replay.analysis.files import write_atomically
from lambda_replay.analysis.records import RunRecord, StudyData
from lambda_replay.analysis.report import write_report
from lambda_replay.analysis.summary import StudySummary, summarise
from lambda_replay.errors import ConfigError


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


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is missing, so the tests of the report in a browser are left out.")
    with launch_chromium(program, tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
def page(devtools: str) -> Iterator[Page]:
    """A tab that must stay silent and ask for nothing but its file."""
    with open_page(devtools) as tab:
        yield tab
        assert tab.complaints == []
        assert all(address.startswith("file:") for address in tab.requests)
        assert len(tab.requests) == 1


def empty_study(root: Path, arms: tuple[str, ...] = ("dqn", "peng")) -> StudyData:
    runs = tuple(RunRecord("CartPole-v1", arm, 0, root / "runs" / arm, "waiting") for arm in arms)
    return StudyData("empty", ("CartPole-v1",), arms, arms[0], (0,), 1_000, runs)


def path_of(arm: str) -> str:
    """The drawn curve of an arm in the first chart."""
    return f".plot path.curve[data-arm='{list(ARMS).index(arm)}']"


def exists(page: Page, selector: str) -> bool:
    return bool(page.evaluate(f"document.querySelector({json.dumps(selector)}) !== null"))


def text_of(page: Page, selector: str) -> str:
    """What can be read of an element; nothing of a hidden one."""
    found = f"document.querySelector({json.dumps(selector)})"
    return str(page.evaluate(f"{found}.checkVisibility() ? {found}.innerText : ''"))


# The words.


def test_numbers_in_words() -> None:
    assert wording.number(-0.001, 2) == "0.00"
    assert wording.number(-1234.5, 1) == "−1,234.5"
    assert wording.signed(0.25, 2) == "+0.25"
    assert [wording.steps(value) for value in (950, 75_400, 1_250_000, 1e7)] == ["950", "75k", "1.25M", "10M"]
    assert [wording.hours(value) for value in (0.01, 0.05, 0.5, 2.25)] == ["36 s", "3.0 min", "30 min", "2.2 h"]
    assert wording.steps(math.inf) == "not reached"
    assert [wording.decimals_for(value) for value in (0.4, 5.6, 12.3, 358.0, 9497.0)] == [2, 2, 1, 0, 0]


def test_the_report_says_what_is_in_and_what_is_missing(report: Path) -> None:
    text = report.read_text()
    assert "22 of 30 runs have finished (1 running, 6 waiting, 1 failed)." in text
    assert "No finished run yet: <b>watkins-0.75</b>." in text
    assert "Of the 4 arms with finished runs in every environment, <b>peng-0.75</b> scores highest overall" in text
    assert "the environment raised RuntimeError: out of memory" in text


def test_the_winner_is_named_with_its_lead_and_its_certainty(summary: StudySummary) -> None:
    sentence = wording.environment_sentence(summary.environments[1], "dqn-3step")
    best = summary.environments[1].arm("peng-0.75")
    assert best.comparison is not None
    assert sentence.startswith(f"<b>peng-0.75</b> is first with {best.final.value:.1f} ± ")
    assert f"{best.comparison.difference.value:.1f} above <b>dqn-3step</b> (95% interval " in sentence
    assert ("a clear gain" in sentence) == (best.comparison.difference.low > 0)
    assert "(final score of dqn-3step) after" in sentence


def test_one_seed_says_nothing_about_chance(tmp_path: Path) -> None:
    summary = summarise(make_study(tmp_path, environments=1, seeds=1, states={}))
    sentence = wording.environment_sentence(summary.environments[0], "dqn-3step")
    assert "one run on a side says nothing about chance" in sentence
    assert "±" not in sentence


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


def test_every_figure_is_a_picture_a_page_and_a_table(report: Path) -> None:
    figures = report.parent / "figures"
    stems = [
        f"{name}-{axis}"
        for name in ("all", "minatar-breakout", "minatar-space_invaders")
        for axis in ("steps", "hours")
    ]
    expected = {f"{stem}.{kind}" for stem in [*stems, "aggregate"] for kind in ("png", "pdf", "csv")} | {"runs.csv"}
    assert {path.name for path in figures.iterdir()} == expected
    assert all((figures / f"{stem}.png").read_bytes().startswith(b"\x89PNG") for stem in stems)
    linked = re.findall(r'href="figures/([^"]+)"', report.read_text())
    assert set(linked) <= expected


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
        write_atomically(occupied, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_study_that_has_not_started_has_a_report(tmp_path: Path) -> None:
    text = write_report(empty_study(tmp_path), tmp_path / "report.html").read_text()
    assert "0 of 2 runs have finished (2 waiting)." in text
    assert "no run has finished yet" in text


@pytest.mark.parametrize("missing", ["matplotlib", "scipy"])
def test_a_missing_extra_is_one_sentence(
    study: StudyData, tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{missing} is missing; install it with: pip install"):
        write_report(study, tmp_path / "report.html")


# The page in a browser.


@pytest.mark.browser
def test_the_page_draws_every_arm_that_has_runs(page: Page, report: Path) -> None:
    page.open(report)
    assert page.evaluate("document.title") == "peng-mini · lambda-replay study"
    assert page.evaluate("document.querySelectorAll('.plot svg').length") == 2
    drawn = [arm for arm in ARMS if exists(page, path_of(arm))]
    assert drawn == ["dqn-3step", "cached-3step", "peng-0.25", "peng-0.75"]


@pytest.mark.browser
def test_pointing_at_a_chart_shows_the_values(page: Page, report: Path, summary: StudySummary) -> None:
    page.open(report)
    assert text_of(page, ".readout") == ""
    page.hover(".plot", across=0.6, down=0.5)
    shown = text_of(page, ".readout")
    step = int(shown.split(" steps")[0].replace(",", ""))
    index = round(step / STEPS * 200) - 1
    assert step == summary.environments[0].grids["steps"][index]
    curve = summary.environments[0].arm("peng-0.25").curves["steps"]
    expected = f"{curve.mean[index]:.2f} ± {curve.standard_error[index]:.2f}"
    assert re.search(rf"peng-0\.25\s+{expected}\s+3 runs", shown), (shown, expected)
    assert exists(page, ".plot .crosshair")
    page.hover("h1")
    assert text_of(page, ".readout") == ""
    assert not exists(page, ".plot .crosshair")


@pytest.mark.browser
def test_arms_are_switched_off_and_on(page: Page, report: Path) -> None:
    page.open(report)
    button = f"button[data-arm='{list(ARMS).index('peng-0.75')}']"
    page.click(button)
    assert page.evaluate(f'document.querySelector("{button}").getAttribute("aria-pressed")') == "false"
    assert not exists(page, path_of("peng-0.75"))
    assert exists(page, path_of("dqn-3step"))
    page.hover(".plot")
    assert "peng-0.75" not in text_of(page, ".readout")
    page.click("button.everything")
    assert exists(page, path_of("peng-0.75"))


@pytest.mark.browser
def test_the_axis_is_switched_to_time_and_back(page: Page, report: Path) -> None:
    page.open(report)
    assert "agent steps" in page.evaluate("document.querySelector('.plot').textContent")
    before = page.evaluate(f'document.querySelector("{path_of("dqn-3step")}").getAttribute("d")')
    page.click("[data-axis=hours]")
    assert "minutes of training" in page.evaluate("document.querySelector('.plot').textContent")
    assert page.evaluate(f'document.querySelector("{path_of("dqn-3step")}").getAttribute("d")') != before
    page.hover(".plot")
    assert re.match(r"\d+ min \d+ s\n", text_of(page, ".readout"))
    page.click("[data-axis=steps]")
    assert page.evaluate(f'document.querySelector("{path_of("dqn-3step")}").getAttribute("d")') == before


@pytest.mark.browser
def test_everything_can_be_done_with_the_keyboard(page: Page, report: Path) -> None:
    page.open(report)
    visited: list[str] = []
    while "plot" not in visited:
        page.press("Tab")
        visited.append(page.evaluate("document.activeElement.className || document.activeElement.dataset.axis || ''"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", visited
        if visited[-1] == "arm" and visited.count("arm") == 2:
            page.press("Enter")
        assert len(visited) < 40, visited
    assert not exists(page, path_of("cached-3step"))
    position = "+document.activeElement.getAttribute('aria-valuenow')"
    assert page.evaluate(position) == 199  # the end, as soon as it has the focus
    assert text_of(page, ".readout").startswith("200,000 steps")
    for key, expected in (("ArrowLeft", 198), ("PageDown", 178), ("Home", 0), ("ArrowRight", 1), ("End", 199)):
        page.press(key)
        assert page.evaluate(position) == expected
    assert "peng-0.25 " in page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    page.press("Escape")
    assert text_of(page, ".readout") == ""


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone(page: Page, report: Path, dark: bool) -> None:
    page.open(report, width=360, height=740, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert text_of(page, ".readout").startswith("200,000 steps")  # under the chart from the start
    box = page.box(".plot")
    below = page.evaluate("document.querySelector('.readout').getBoundingClientRect().top")
    assert below >= box["y"] + box["height"] - 1
    page.tap(".plot", across=0.5)
    shown = text_of(page, ".readout")
    assert re.match(r"\d+,\d+ steps\n", shown)
    assert not shown.startswith("200,000")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


@pytest.mark.browser
def test_a_run_opens_to_show_its_settings(page: Page, report: Path) -> None:
    page.open(report)
    page.click(".group > summary")
    page.click(".run > summary")
    shown = text_of(page, ".run .columns")
    assert re.search(r"agent\s+dqn\s+estimator\s+nstep:3\s+cache\s+none\s+target\.copy_every\s+1000", shown)
    assert "versions.torch" in shown
    assert "discount" not in shown  # as the defaults have it


@pytest.mark.browser
def test_names_cannot_break_the_page(page: Page, tmp_path: Path) -> None:
    arms = ("</script><b>", 'a&b "quoted" $title ${x}')
    report = write_report(empty_study(tmp_path, arms), tmp_path / "report.html")
    page.open(report)
    assert text_of(page, "button[data-arm='0']").strip() == arms[0]
    assert text_of(page, "button[data-arm='1']").strip() == arms[1]
    assert "No episode has ended yet." in page.evaluate("document.querySelector('.plot').textContent")
