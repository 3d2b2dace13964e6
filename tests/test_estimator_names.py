"""Estimators of a user's own by the name of where they are; the spellings of ours are tested with the estimators."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blocks import random_block
from numpy.testing import assert_array_equal

import lambda_replay as lr
from lambda_replay.replay.estimator_names import NAMED, OwnEstimator, module_of_estimator
from lambda_replay.replay.estimators import explain

SOURCE = """
import numpy as np
import lambda_replay as lr

NUMBER = 3

def doubled(block):
    return 2 * block.rewards

def constant(value):
    return lambda block: np.full(block.rewards.shape, value)

five = constant(5.0)
half = lr.parse_estimator("peng:0.5")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current directory, which nothing else leads to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    name = "estimators_of_mine"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    yield name
    for new in set(sys.modules) - before:
        del sys.modules[new]


# --- golden -----------------------------------------------------------------------------------------------------------


def test_a_function_of_a_module_in_the_current_directory(module: str) -> None:
    estimator = lr.parse_estimator(f"{module}:doubled")
    block = random_block(np.random.default_rng(0))
    assert repr(estimator) == "estimators_of_mine:doubled"
    assert_array_equal(estimator(block), 2 * block.rewards)
    explanation = explain(estimator, block)
    assert_array_equal(explanation.returns, 2 * block.rewards)
    assert explanation.next_traces is None
    assert explanation.lambdas is None


def test_a_module_of_a_package(module: str, tmp_path: Path) -> None:
    package = tmp_path / "package_of_mine" / "inner"
    package.mkdir(parents=True)
    (package / "deep.py").write_text(SOURCE)
    estimator = lr.parse_estimator("package_of_mine.inner.deep:five")
    assert repr(estimator) == "package_of_mine.inner.deep:five"
    assert_array_equal(estimator(random_block(np.random.default_rng(0), num_blocks=2, length=3)), np.full((2, 3), 5))


@pytest.mark.parametrize(
    ("spelling", "module_name"),
    [
        ("package.module:callable", "package.module"),
        ("module:callable", "module"),
        ("pen:half", "pen"),
        ("peng:0.5", None),
        ("pen:0.5", None),
        ("peng:half", None),  # ours, with a λ that is no number
        ("median:mine", None),
        ("watkins-published:mine", None),  # no module has such a name
        ("median", None),
        ("median/10", None),
        ("retrace:0.9@0.05", None),
        ("package.module", None),
        ("package.:callable", None),
        (":callable", None),
        ("module:", None),
        ("module:two.parts", None),
        ("", None),
    ],
)
def test_which_names_are_of_a_user_s_own(spelling: str, module_name: str | None) -> None:
    assert module_of_estimator(spelling) == module_name


# --- identity ---------------------------------------------------------------------------------------------------------


def test_one_of_ours_under_a_name_of_one_s_own_explains_itself(module: str) -> None:
    block = random_block(np.random.default_rng(1))
    found = explain(lr.parse_estimator(f"{module}:half"), block)
    wanted = explain(lr.parse_estimator("peng:0.5"), block)
    assert_array_equal(found.returns, wanted.returns)
    assert found.next_traces is not None
    assert wanted.next_traces is not None
    assert_array_equal(found.next_traces, wanted.next_traces)


def test_the_name_gives_the_same_estimator_again(module: str) -> None:
    estimator = lr.parse_estimator(f"{module}:doubled")
    assert isinstance(estimator, OwnEstimator)
    assert lr.parse_estimator(repr(estimator)) == estimator
    assert lr.parse_estimator(f"{module}:five") != estimator


def test_a_cache_is_built_with_an_estimator_by_name(module: str) -> None:
    memory = lr.ReplayMemory(20, (), np.uint8)
    memory.begin(np.array(0, dtype=np.uint8))
    for number in range(1, 10):
        memory.append(0, float(number), np.array(number, dtype=np.uint8))
    cache = lr.refresh(
        memory,
        lambda states: np.zeros((len(states), 2), dtype=np.float32),
        lr.parse_estimator(f"{module}:doubled"),
        discount=0.9,
        size=9,
        block_length=9,
        rng=np.random.default_rng(0),
    )
    assert_array_equal(cache.returns, 2 * np.arange(1, 10))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_of_ours_says_what_it_computes_and_where_it_comes_from(name: str) -> None:
    form = NAMED[name].form
    assert form.startswith(name)
    spelling = form.replace("λ", "0.5").replace("ε", "0.1").replace("/k", "/4").replace(":n", ":3").replace("δ", "0.1")
    assert repr(lr.parse_estimator(spelling)) == spelling
    assert NAMED[name].formula
    assert NAMED[name].source


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["no_such_module:mine", "no_such_package.module:mine", "json.no_such_part:mine"])
def test_a_missing_module_is_answered_in_one_sentence(spelling: str, module: str) -> None:
    with pytest.raises(
        lr.ConfigError, match=rf"no module {spelling.partition(':')[0]}.*peng:λ.*package.module:callable"
    ) as e:
        lr.parse_estimator(spelling)
    assert_one_sentence(e.value)


def test_a_missing_callable_is_answered_in_one_sentence(module: str) -> None:
    with pytest.raises(lr.ConfigError, match="estimators_of_mine has no callable trebled") as caught:
        lr.parse_estimator(f"{module}:trebled")
    assert_one_sentence(caught.value)


def test_what_cannot_be_called_is_answered_in_one_sentence(module: str) -> None:
    with pytest.raises(lr.ConfigError, match="estimators_of_mine has no callable NUMBER") as caught:
        lr.parse_estimator(f"{module}:NUMBER")
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("missing", ["no_such_module_at_all", "estimators_of"])  # the second begins like the module
def test_a_module_that_misses_another_is_not_called_missing(missing: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(f"import {missing}\n")
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{missing}'"):
        lr.parse_estimator(f"{module}:doubled")


@pytest.mark.parametrize(
    "spelling", ["pen:0.5", "penguin:1", "watkin:0.9", "n-step:3", "retrase:0.9@0.05", "medain/10"]
)
def test_a_misspelt_one_of_ours_is_told_our_forms(spelling: str) -> None:
    with pytest.raises(lr.ConfigError, match=r"there is no estimator.*peng:λ, watkins:λ.*package.module:callable") as e:
        lr.parse_estimator(spelling)
    assert "no module" not in str(e.value)
    assert_one_sentence(e.value)


@pytest.mark.parametrize("spelling", ["peng:half", "nstep:three", "tree:x@y"])
def test_a_word_for_a_number_of_ours_is_told_the_form(spelling: str) -> None:
    name = spelling.partition(":")[0]
    with pytest.raises(lr.ConfigError, match=f"is misspelt; its form is {NAMED[name].form}") as caught:
        lr.parse_estimator(spelling)
    assert_one_sentence(caught.value)


def assert_one_sentence(error: Exception) -> None:
    text = str(error)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
