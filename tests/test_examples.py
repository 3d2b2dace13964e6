"""The examples run against the real libraries, and learn."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lambda_replay
from lambda_replay import testing

FOLDER = Path(__file__).resolve().parents[1] / "examples"
PYTEST_EXAMPLE = FOLDER / "test_your_returns.py"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path != PYTEST_EXAMPLE)
# Large, and Tianshou refuses the pandas of the other packages: they are in the extra bench, not in dev.
APART = {"tianshou_agent", "torchrl_agent"}


def test_there_is_an_example_for_each_library_that_the_readme_names() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "cleanrl_style",
        "jax_agent",
        "pytorch_agent",
        "sb3_dropin",
        "tianshou_agent",
        "torchrl_agent",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_alone(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    taken = [node for node in nodes if isinstance(node, ast.ImportFrom) and "lambda_replay" in str(node.module)]
    if path.stem == "sb3_dropin":
        assert [(node.module, [alias.name for alias in node.names]) for node in taken] == [
            ("lambda_replay.sb3", ["LambdaReplayBuffer"])
        ]
        return
    ours = [(alias.name, alias.asname) for alias in imported if alias.name.startswith("lambda_replay")]
    assert ours == [("lambda_replay", "lr")]
    assert not taken
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "lr"}
    assert used
    assert used <= set(lambda_replay.__all__)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.peers] if path.stem in APART else []) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_learns(path: Path) -> None:
    arguments = ["--total-timesteps", "12000"] if path.stem == "cleanrl_style" else ["12000"]
    quiet = {**os.environ, "RL_LOGGING_LEVEL": "WARNING"}  # TorchRL logs to standard output
    command = [sys.executable, str(path), *arguments]
    result = subprocess.run(command, env=quiet, capture_output=True, text=True, check=True)
    match = re.fullmatch(r"mean score of the last 100 games: (\d+\.\d)\n", result.stdout)
    assert match, result.stdout
    assert float(match[1]) > 60  # random play scores 22


def test_the_pytest_example_passes_and_finds_a_time_limit_that_terminates(tmp_path: Path) -> None:
    right = PYTEST_EXAMPLE.read_text(encoding="utf-8")
    (tmp_path / "test_right.py").write_text(right, encoding="utf-8")
    (tmp_path / "test_wrong.py").write_text(right.replace("~terminated[t]", "~ends[t]"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 failed, 29 passed, 10 skipped" in result.stdout, result.stdout
    assert "FAILED test_wrong.py::test_advantages" in result.stdout
    assert "peng: 4 of 19 cases are wrong. This treats the time limit as a termination" in result.stdout


def test_the_pytest_example_uses_public_names_alone() -> None:
    nodes = list(ast.walk(ast.parse(PYTEST_EXAMPLE.read_text(encoding="utf-8"))))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "testing"}
    assert {"check", "check_returns", "cases"} <= used <= set(testing.__all__)
