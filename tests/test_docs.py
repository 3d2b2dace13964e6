"""The documentation names things that exist, and its examples run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
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


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(example: str, page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(example, page, "exec"), names)
    return names


def test_the_example_of_the_readme_runs() -> None:
    (example,) = examples("README.md")
    assert len(example.strip().splitlines()) <= 20
    run(example, "README.md")


def test_training_from_python_on_the_library_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(examples("docs/library.md")[0], "library.md")
    assert names["run"].score > 25  # random play scores 22
    assert names["truncated"] or names["terminated"]
    rows = (tmp_path / "runs" / "cartpole" / "evaluations.jsonl").read_text().splitlines()
    assert len(rows) == 4


def test_the_environment_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered under its name, then as an object, which learns to walk right."""
    monkeypatch.chdir(tmp_path)
    page = examples("docs/environments.md")
    names = run("\n".join(page), "environments.md")
    assert gymnasium.make("Corridor-v0", length=20).reset(seed=0)[0].shape == (1,)
    assert [names["policy"].act(np.array([place / 4], dtype=np.float32)) for place in range(4)] == [1, 1, 1, 1]
    assert names["run"].config.env == "object/lambda"


def test_the_estimator_on_the_library_page_runs() -> None:
    cache = run(examples("docs/library.md")[1], "library.md")["cache"]
    assert cache.returns[cache.is_transition].min() >= 1  # rewards are 1, values 0 or more


def test_the_critic_on_the_library_page_runs() -> None:
    """λ = 0.7 of returns of which each step pays 1 and V is 0 or less: at most 1 / (1 − 0.9)."""
    example = examples("docs/library.md")[2]
    cache = run(example, "library.md")["cache"]
    assert cache.returns.max() < 10
    assert len(np.unique(cache.returns)) > 50
