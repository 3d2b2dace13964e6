"""Box actions: scaled from [−1, 1] to the environment's bounds; action spaces that do not fit; replay and pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lambda_replay.envs import EnvironmentSpec
from lambda_replay.envs.actions import action_form
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.errors import ConfigError

UNEVEN = spaces.Box(np.array([[-2, 0], [5, -1]], np.float32), np.array([[2, 10], [5, 3]], np.float32))
# Fractions of the way between the bounds, as float32, which is what the memory and a checkpoint hold.
NUMBERS = st.floats(-1, 1, width=32)


def with_nan(space: spaces.Box) -> spaces.Box:
    """Gymnasium rejects such bounds when a space is created, but not afterwards."""
    space.low[0] = np.nan
    return space


def form(space: spaces.Space[Any], meanings: Callable[[], list[str]] | None = None) -> Any:
    return action_form("Some-v0", space, meanings)


# --- golden -----------------------------------------------------------------------------------------------------------


def test_numbers_from_minus_one_to_one_reach_from_bound_to_bound() -> None:
    # low + (a + 1)/2 · (high − low): −2 + 1/2·4 = 0, 0 + 3/4·10 = 7.5, 5 where both bounds are 5, −1 + 0·4 = −1
    found = form(UNEVEN)
    assert (found.num_actions, found.shape) == (0, (4,))
    assert found.names == ("-2 to 2", "0 to 10", "5 to 5", "-1 to 3")
    converted = found.convert([0.0, 0.5, 0.25, -1.0])
    assert_array_equal(converted, np.array([[0, 7.5], [5, -1]], np.float32))
    assert converted.dtype == np.float32


def test_a_single_number_is_a_vector_of_one() -> None:
    found = form(spaces.Box(-3, 3, shape=(), dtype=np.float64))
    assert found.shape == (1,)
    converted = found.convert([1.0])
    assert (converted.shape, converted.dtype, float(converted)) == ((), np.float64, 3.0)


def test_discrete_actions_keep_their_numbers_and_names() -> None:
    found = form(spaces.Discrete(3, start=5))
    assert (found.num_actions, found.shape, found.names, found.convert(2)) == (3, (), ("5", "6", "7"), 7)
    assert form(spaces.Discrete(2), lambda: ["NOOP", "FIRE"]).names == ("noop", "fire")


# --- property ---------------------------------------------------------------------------------------------------------


@given(
    bounds=st.tuples(*[st.floats(-(2.0**100), 2.0**100, width=32)] * 2).map(sorted),
    action=NUMBERS,
)
def test_every_action_is_within_the_bounds_and_the_ends_reach_them(bounds: list[float], action: float) -> None:
    space = spaces.Box(np.float32(bounds[0]), np.float32(bounds[1]), shape=(1,))
    convert = form(space).convert
    assert space.contains(convert([action]))
    assert_array_equal(convert([-1.0]), space.low)
    assert_array_equal(convert([1.0]), space.high)


@given(action=st.lists(NUMBERS, min_size=4, max_size=4))
def test_a_spec_accepts_what_an_agent_may_do(action: list[float]) -> None:
    spec = EnvironmentSpec((2,), np.dtype(np.float32), 0, ("-1 to 1",) * 4, action_shape=(4,))
    assert spec.accepts(action)
    assert spec.accepts(np.array(action, np.float32))
    assert not spec.accepts(action[:-1])
    assert not spec.accepts([*action[:-1], 1.5])
    assert not spec.accepts([*action[:-1], float("nan")])
    assert not spec.accepts(1)


# --- behaviour --------------------------------------------------------------------------------------------------------


def test_a_game_of_pendulum_is_gymnasium_s_own() -> None:
    ours, theirs = GymnasiumEnvironment("Pendulum-v1"), gymnasium.make("Pendulum-v1")
    assert (ours.spec.is_continuous, ours.spec.action_shape, ours.spec.action_names) == (True, (1,), ("-2 to 2",))
    assert_array_equal(ours.reset(3), theirs.reset(seed=3)[0])
    for action in np.linspace(-1, 1, 20):
        step = ours.step([float(action)])
        observation, reward, *_ = theirs.step(np.array([2 * action], np.float32))
        assert_array_equal(step.observation, observation)
        assert step.reward == pytest.approx(float(reward), abs=1e-6)


def test_a_game_with_pictures_goes_on_where_it_was() -> None:
    plain, watched = GymnasiumEnvironment("Pendulum-v1"), GymnasiumEnvironment("Pendulum-v1")
    for environment in (plain, watched):
        environment.reset(5)
        for action in (0.3, -0.9, 1.0):
            environment.step([action])
    assert watched.render().shape == (500, 500, 3)
    assert_array_equal(plain.step([0.5]).observation, watched.step([0.5]).observation)


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "Hopper-v5"])
def test_extras_bring_the_environments(env_id: str) -> None:
    environment = GymnasiumEnvironment(env_id, {"continuous": True} if env_id.startswith("Lunar") else None)
    environment.reset(0)
    size = environment.spec.action_shape[0]
    first, again = environment.step([0.1] * size).observation, environment.reset(0)
    assert not np.array_equal(first, again)
    assert_array_equal(environment.step([0.1] * size).observation, first)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiDiscrete([2, 3]), ["MultiDiscrete actions", "Discrete or Box"]),
        (spaces.MultiBinary(3), ["MultiBinary actions"]),
        (spaces.Dict({"a": spaces.Discrete(2)}), ["Dict actions"]),
        (spaces.Tuple([spaces.Discrete(2)]), ["Tuple actions"]),
        (spaces.Box(-np.inf, np.inf, shape=(1,)), ["from -inf to inf", "finite bounds"]),
        (spaces.Box(np.array([-1, 0]), np.array([1, np.inf]), dtype=np.float64), ["from 0 to inf (number 1 of 2)"]),
        (spaces.Box(-np.inf, 0, shape=(2,)), ["from -inf to 0 (number 0 of 2)"]),
        (spaces.Box(-np.finfo(np.float32).max, 0, shape=(1,)), ["from -3.40282e+38 to 0"]),
        (with_nan(spaces.Box(-1, 1, shape=(2,))), ["from nan to 1"]),
        (spaces.Box(0, 5, shape=(2,), dtype=np.int64), ["Box actions of int64", "floats"]),
        (spaces.Box(-1, 1, shape=(0,)), ["hold no number"]),
    ],
)
def test_action_spaces_that_do_not_fit_are_one_sentence(space: spaces.Space[Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        form(space)
    sentence = str(caught.value)
    assert sentence.startswith("Some-v0 has ")
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("env_id", "package", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("Hopper-v5", "mujoco", "mujoco")]
)
def test_a_missing_extra_is_named(env_id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(*arguments: Any, **options: Any) -> None:
        missing = ModuleNotFoundError(f"No module named '{package}'", name=package)
        raise gymnasium.error.DependencyNotInstalled("run pip install") from missing

    monkeypatch.setattr(gymnasium, "make", not_there)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        GymnasiumEnvironment(env_id)
    assert f"{env_id} needs {package}" in str(caught.value)
    assert f"pip install 'lambda-replay[{extra}]'" in str(caught.value)
