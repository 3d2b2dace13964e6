"""The documentation names things that exist, and its examples run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALGORITHM = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.[A-Za-z_0-9]+)+)`", ALGORITHM)))


def test_the_algorithm_page_covers_every_line_of_the_paper() -> None:
    assert len(NAMES) > 20
    for words in (
        "BUILD-CACHE(D)",
        "Sample block",
        "Append tuple",
        "t ≡ 0 mod F",
        "Sample minibatch",
        "Store transition",
    ):
        assert words in ALGORITHM


@pytest.mark.parametrize("name", NAMES)
def test_every_name_on_the_algorithm_page_exists(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module("lambda_replay." + ".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"docs/algorithm.md names {name}, which does not exist")


def test_every_deviation_that_the_source_refers_to_is_numbered() -> None:
    numbered = set(
        re.findall(r"^(\d+)\. ", (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for path in (ROOT / "src").rglob("*.py"):
        for number in re.findall(r"deviations\.md #(\d+)", path.read_text(encoding="utf-8")):
            assert number in numbered, f"{path.name} refers to deviation {number}"


def only_example(page: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return str(example)


def test_the_example_of_the_readme_runs() -> None:
    example = only_example("README.md")
    assert len(example.strip().splitlines()) <= 20
    exec(compile(example, "README.md", "exec"), {})


def test_the_estimator_on_the_library_page_runs() -> None:
    names: dict[str, Any] = {}
    exec(compile(only_example("docs/library.md"), "library.md", "exec"), names)
    assert names["cache"].returns[names["cache"].is_transition].min() >= 1  # rewards are 1, values 0 or more
