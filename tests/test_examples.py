"""The examples run against the real libraries, and learn."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import lambda_replay
from lambda_replay import testing

FOLDER = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*_agent.py"))
PYTEST_EXAMPLE = FOLDER / "test_your_returns.py"


def test_there_is_an_example_for_each_library_that_the_readme_names() -> None:
    assert [path.stem for path in EXAMPLES] == ["jax_agent", "pytorch_agent", "sb3_agent"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_alone(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    ours = [(alias.name, alias.asname) for alias in imported if alias.name.startswith("lambda_replay")]
    assert ours == [("lambda_replay", "lr")]
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and "lambda_replay" in str(node.module)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "lr"}
    assert used
    assert used <= set(lambda_replay.__all__)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_learns(path: Path) -> None:
    result = subprocess.run([sys.executable, path, "12000"], capture_output=True, text=True, check=True)
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


@pytest.fixture(scope="module")
def sb3_agent() -> Any:
    spec = importlib.util.spec_from_file_location("sb3_agent", EXAMPLES[-1])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counting(gym.Env[Any, Any]):
    """Observes how many steps the game has had, plus 100 for every game; terminated after 3 steps."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    games = steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.games, self.steps = self.games + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observe(), float(self.steps), self.steps == 3, False, {}

    def observe(self) -> Any:
        return np.array([100 * self.games + self.steps], np.float32)


def play(sb3_agent: Any, env: gym.Env[Any, Any], *calls: int) -> Any:
    """The memory of an agent after so many steps in each call of learn."""
    model = sb3_agent.DQNLambda("MlpPolicy", env, learning_starts=1_000, train_freq=1, device="cpu", seed=0)
    for steps in calls:
        model.learn(steps)
    return model.replay_buffer.memory


def test_terminal_observations_of_sb3_reach_the_memory(sb3_agent: Any) -> None:
    memory = play(sb3_agent, Counting(), 7)
    assert memory.observations[:10, 0].tolist() == [100, 101, 102, 103, 200, 201, 202, 203, 300, 301]
    assert memory.rewards[:10].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1, 0]
    assert np.flatnonzero(memory.terminated[:10]).tolist() == [2, 6]
    assert np.flatnonzero(~memory.is_step[:10]).tolist() == [3, 7, 9]


def test_a_time_limit_truncates_and_does_not_terminate(sb3_agent: Any) -> None:
    memory = play(sb3_agent, gym.wrappers.TimeLimit(Counting(), 2), 5)
    assert memory.observations[:8, 0].tolist() == [100, 101, 102, 200, 201, 202, 300, 301]
    assert not memory.terminated.any()
    assert np.flatnonzero(~memory.is_step[:8]).tolist() == [2, 5, 7]


def test_learning_again_begins_a_new_episode(sb3_agent: Any) -> None:
    memory = play(sb3_agent, Counting(), 2, 2)
    assert memory.observations[:6, 0].tolist() == [100, 101, 102, 200, 201, 202]
    assert not memory.terminated.any()
    assert np.flatnonzero(~memory.is_step[:6]).tolist() == [2, 5]
