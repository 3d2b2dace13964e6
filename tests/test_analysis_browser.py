"""The report as a person meets it, in a real browser: pointer, keyboard, finger, phone and dark mode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, find_chromium, launch_chromium, open_page
from test_analysis_summary import ARMS, STEPS, UNFINISHED, directory_of, empty_study, make_study

from lambda_replay.analysis.pairs import every_pair
from lambda_replay.analysis.records import StudyData
from lambda_replay.analysis.report import render_report
from lambda_replay.analysis.summary import StudySummary, summarise

pytestmark = pytest.mark.browser
PROGRAM = find_chromium() or pytest.skip(
    "Chromium is missing, so the tests of the report in a browser are left out.", allow_module_level=True
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyData:
    return make_study(tmp_path_factory.mktemp("study"), environments=2, seeds=3, states=UNFINISHED)


@pytest.fixture(scope="module")
def summary(study: StudyData) -> StudySummary:
    return summarise(study)


@pytest.fixture(scope="module")
def report(study: StudyData, summary: StudySummary) -> Path:
    return write_page(summary, directory_of(study))


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with launch_chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
def page(devtools: str) -> Iterator[Page]:
    """A tab that must stay silent and ask for nothing but its file."""
    with open_page(devtools) as tab:
        yield tab
        assert tab.complaints == []
        assert all(address.startswith("file:") for address in tab.requests)
        assert len(tab.requests) == 1


def write_page(summary: StudySummary, directory: Path) -> Path:
    """The page alone, without its figures."""
    page = directory / "report.html"
    page.write_text(render_report(summary, every_pair(summary), directory))
    return page


def path_of(arm: str) -> str:
    """The drawn curve of an arm in the first chart."""
    return f".plot path.curve[data-arm='{list(ARMS).index(arm)}']"


def exists(page: Page, selector: str) -> bool:
    return bool(page.evaluate(f"document.querySelector({json.dumps(selector)}) !== null"))


def text_of(page: Page, selector: str) -> str:
    """What can be read of an element; nothing of a hidden one."""
    found = f"document.querySelector({json.dumps(selector)})"
    return str(page.evaluate(f"{found}.checkVisibility() ? {found}.innerText : ''"))


def test_the_page_draws_every_arm_that_has_runs(page: Page, report: Path) -> None:
    page.open(report)
    assert page.evaluate("document.title") == "peng-mini · lambda-replay study"
    assert page.evaluate("document.querySelectorAll('.plot svg').length") == 2
    drawn = [arm for arm in ARMS if exists(page, path_of(arm))]
    assert drawn == ["dqn-3step", "cached-3step", "peng-0.25", "peng-0.75"]


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
    assert visited.count("scroll") == 3  # scores, all environments, pairs
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


def test_a_run_opens_to_show_its_settings(page: Page, report: Path) -> None:
    page.open(report)
    page.click(".group > summary")
    page.click(".run > summary")
    shown = text_of(page, ".run .columns")
    assert re.search(r"agent\s+dqn\s+estimator\s+nstep:3\s+cache\s+none\s+target\.copy_every\s+1000", shown)
    assert "versions.torch" in shown
    assert "discount" not in shown  # as the defaults have it


def test_names_cannot_break_the_page(page: Page, tmp_path: Path) -> None:
    arms = ("</script><b>", 'a&b "quoted" $title ${x}')
    report = write_page(summarise(empty_study(tmp_path, arms)), tmp_path)
    page.open(report)
    assert text_of(page, "button[data-arm='0']").strip() == arms[0]
    assert text_of(page, "button[data-arm='1']").strip() == arms[1]
    assert "No episode has ended yet." in page.evaluate("document.querySelector('.plot').textContent")
