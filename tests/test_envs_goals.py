"""Goal environments: how they are recognised, where observations hold goals, and what steps earn under others."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import goal_tasks  # noqa: F401  registers environments
import numpy as np
import pytest

from lambda_replay.envs import make_environment
from lambda_replay.envs.bitflip import BitFlip
from lambda_replay.envs.goals import told_success
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.training.presets import make_config

# --- bit flipping -----------------------------------------------------------------------------------------------------


def test_flipping_the_bits_that_differ_reaches_the_goal() -> None:
    environment = BitFlip("bitflip-8")
    observation = environment.reset(5)
    bits, goal = observation[:8], observation[8:]
    wrong = np.flatnonzero(bits != goal).tolist()
    assert 0 < len(wrong) <= 8
    steps = [environment.step(action) for action in wrong]
    assert [step.reward for step in steps] == [-1.0] * (len(wrong) - 1) + [0.0]
    assert [step.terminated for step in steps] == [False] * (len(wrong) - 1) + [True]
    assert (steps[-1].game_over, steps[-1].truncated, steps[-1].is_success) == (True, False, True)
    assert np.array_equal(steps[-1].observation, np.concatenate([goal, goal]))
    assert np.array_equal(observation, np.concatenate([bits, goal]))  # an earlier observation did not change


def test_a_game_has_as_many_steps_as_bits() -> None:
    environment = BitFlip("bitflip-5")
    seed = 0
    while (first := environment.reset(seed))[1] == first[6]:
        seed += 1
    steps = [environment.step(0) for _ in range(5)]  # the second bit stays wrong
    assert [step.truncated for step in steps] == [False] * 4 + [True]
    assert (steps[-1].game_over, steps[-1].terminated, steps[-1].is_success) == (True, False, False)


def test_bits_and_goals_are_uniform_and_follow_from_the_seed() -> None:
    environment = BitFlip("bitflip-4")
    games = np.array([environment.reset(seed) for seed in range(2_000)])
    assert np.array_equal(games[7], environment.reset(7))
    assert (np.abs(games.mean(axis=0) - 0.5) < 0.05).all()
    assert len(np.unique(games, axis=0)) == 2**8
    assert environment.render().shape == (64, 128, 3)


def test_its_outcomes_are_those_of_its_steps() -> None:
    environment = BitFlip("bitflip-3")
    goals = environment.spec.goals
    assert goals is not None
    for seed in range(20):
        environment.reset(seed)
        for action in (0, 1, 2):
            step = environment.step(action)
            seen = step.observation[None]
            rewards, terminated = goals.outcomes(seen[:, goals.achieved], seen[:, goals.desired])
            assert terminated is not None
            assert (rewards[0], terminated[0]) == (step.reward, step.terminated)
            if step.game_over:
                break


@pytest.mark.parametrize("name", ["bitflip-0", "bitflip-1001", "bitflip-", "bitflip", "flip-3", "bitflip-05", ""])
def test_names_that_do_not_exist_are_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no environment goals/.*; write goals/bitflip-N with 1 to 1000"):
        make_environment(make_config(f"goals/{name}"))


# --- Gymnasium --------------------------------------------------------------------------------------------------------


def test_a_goal_environment_s_observation_is_flattened_with_its_goals_inside() -> None:
    environment = GymnasiumEnvironment("goal_tasks:Lane-v0")
    goals, observation = environment.spec.goals, environment.reset(3)
    assert goals is not None
    assert environment.spec.observation_shape == (3,)
    assert (goals.achieved, goals.desired) == (slice(1, 2), slice(2, 3))  # in the order of the space
    assert observation[0] == observation[1]  # achieved is the place, which is all there is to see
    step = environment.step(1)
    assert step.is_success is bool(step.observation[1] == step.observation[2])


def test_outcomes_of_many_goals_are_those_of_each() -> None:
    """compute_reward takes many goals at once, compute_terminated only one."""
    goals = GymnasiumEnvironment("goal_tasks:Lane-v0").spec.goals
    assert goals is not None
    achieved = np.array([[0], [1], [2], [3]], dtype=np.float32)
    rewards, terminated = goals.outcomes(achieved, np.array([[0], [3], [2], [2]], dtype=np.float32))
    assert rewards.tolist() == [0, -1, 0, -1]
    assert terminated is not None
    assert terminated.tolist() == [True, False, True, False]
    assert goals.outcomes(achieved[:0], achieved[:0]).rewards.shape == (0,)


def test_goals_keep_their_shape_and_dtype_and_the_game_is_left_alone() -> None:
    """Its functions see goals as the space has them; asking them does not change the game that is played."""
    environment = GymnasiumEnvironment("goal_tasks:EndlessBits-v0")
    goals, first = environment.spec.goals, environment.reset(1)
    assert goals is not None
    assert (goals.achieved, goals.desired) == (slice(3, 7), slice(7, 11))  # after the one-hot clock
    achieved = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], dtype=np.float32)
    outcomes = goals.outcomes(achieved, np.zeros((3, 4), dtype=np.float32))
    assert outcomes.rewards.tolist() == [4, 2, 0]
    assert outcomes.terminated is None
    step = environment.step(0)
    assert np.array_equal(step.observation[7:], first[7:])
    assert not np.array_equal(first[7:], np.ones(4))
    assert step.is_success is False
    environment.close()


@pytest.mark.parametrize("env", ["CartPole-v1", "goal_tasks:NoGoals-v0"])
def test_other_environments_have_no_goals(env: str) -> None:
    assert GymnasiumEnvironment(env).spec.goals is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("RaisingGoals-v0", "raised RuntimeError: no reward today"),
        ("InfoGoals-v0", "raised KeyError: 'reward'"),
        ("NanGoals-v0", "returned the reward nan from compute_reward"),
    ],
)
def test_a_fault_of_compute_reward_is_told(env: str, words: str) -> None:
    goals = GymnasiumEnvironment(f"goal_tasks:{env}").spec.goals
    assert goals is not None
    with pytest.raises(EnvironmentFault) as caught:
        goals.outcomes(*(np.repeat(goal, 3, axis=0) for goal in goals.example()))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"is_success": np.float32(1)}, True),
        ({"is_success": False, "success": True}, False),
        ({"success": np.bool_(True)}, True),
        ({"is_success": None}, None),
        ({"is_success": float("nan")}, None),
        ({"is_success": "yes"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_an_info_says_about_success(info: Any, told: bool | None) -> None:
    assert told_success(info) is told


def test_robotics_are_named_with_their_package() -> None:
    with pytest.raises(ConfigError, match="write gymnasium_robotics:FetchReach-v4"):
        make_environment(make_config("FetchReach-v4"))


def test_the_example_of_the_docs_has_goals() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "goals.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(page), "exec"), {})
    environment = GymnasiumEnvironment("Street-v0")
    goals = environment.spec.goals
    assert goals is not None
    environment.reset(0)
    step = environment.step(1)
    seen = step.observation[None]
    assert goals.outcomes(seen[:, goals.achieved], seen[:, goals.desired]).rewards[0] == step.reward
    many = np.arange(4, dtype=np.float32)[:, None]
    assert goals.outcomes(many, many[::-1].copy()).rewards.tolist() == [-1] * 4


@pytest.mark.skipif(importlib.util.find_spec("gymnasium_robotics") is None, reason="the extra robotics is optional")
@pytest.mark.parametrize(("env", "size"), [("FetchReach-v4", 3), ("FetchPush-v4", 3), ("PointMaze_UMaze-v3", 2)])
def test_the_goals_of_robotics(env: str, size: int) -> None:
    """The rewards of its steps are those of its compute_reward; reaching the goal does not end these episodes."""
    environment = GymnasiumEnvironment(f"gymnasium_robotics:{env}")
    goals = environment.spec.goals
    assert goals is not None
    assert goals.achieved.stop - goals.achieved.start == goals.desired.stop - goals.desired.start == size
    environment.reset(4)
    rng = np.random.default_rng(0)
    steps = [environment.step(rng.uniform(-1, 1, environment.spec.action_shape)) for _ in range(20)]
    seen = np.array([step.observation for step in steps])
    outcomes = goals.outcomes(seen[:, goals.achieved], seen[:, goals.desired])
    assert outcomes.rewards.tolist() == [step.reward for step in steps]
    reached = goals.outcomes(seen[:, goals.achieved], seen[:, goals.achieved])
    assert (reached.rewards > outcomes.rewards).all()
    assert reached.terminated is not None
    assert not reached.terminated.any()
    assert [step.is_success for step in steps] == [False] * 20
    environment.close()
