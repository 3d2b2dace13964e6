"""Gymnasium environments, tiny ones registered here among them, and the way from a name to an environment."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from lambda_replay.config import RunConfig, override
from lambda_replay.envs import make_environment
from lambda_replay.envs.atari import Atari
from lambda_replay.envs.flicker import Flicker
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.envs.minatar import MinAtar
from lambda_replay.errors import ConfigError
from lambda_replay.presets import make_config


class Tiny(gymnasium.Env[Any, Any]):
    """Observes how often it was stepped and the last action, both in one array that it overwrites."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(
        self, observations: spaces.Space[Any], actions: spaces.Space[Any], render_mode: str | None = None
    ) -> None:
        self.observation_space, self.action_space, self.render_mode = observations, actions, render_mode
        self._shared = np.zeros(observations.shape or (), dtype=observations.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._shared[...] = 0
        return self._shared, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._shared.flat[0] += 1
        self._shared.flat[1] = action
        return self._shared, float(action), False, False, {}

    def render(self) -> Any:
        return np.full((4, 5, 3), self._shared.flat[0], dtype=np.uint8)


class TinyWithoutPictures(Tiny):
    metadata = {"render_modes": []}  # noqa: RUF012


class NeedsArguments(gymnasium.Env[Any, Any]):
    def __init__(self, size: int) -> None:
        raise AssertionError("never reached")


VECTOR = spaces.Box(-np.inf, np.inf, shape=(2,), dtype=np.float64)
SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "Offset-v0": (VECTOR, spaces.Discrete(3, start=5)),
    "Whole-v0": (spaces.Box(0, 100, shape=(2,), dtype=np.int64), spaces.Discrete(2)),
    "Bytes-v0": (spaces.Box(0, 255, shape=(6, 6, 3), dtype=np.uint8), spaces.Discrete(2)),
    "Planes-v0": (spaces.Box(0, 1, shape=(3, 3, 2), dtype=np.bool_), spaces.Discrete(2)),
    "Flags-v0": (spaces.Box(0, 1, shape=(2,), dtype=np.bool_), spaces.Discrete(2)),
    "Continuous-v0": (VECTOR, spaces.Box(-1, 1, shape=(1,))),
    "Several-v0": (VECTOR, spaces.MultiDiscrete([2, 3])),
    "Dictionary-v0": (spaces.Dict({"a": VECTOR}), spaces.Discrete(2)),
    "Numbered-v0": (spaces.Discrete(16), spaces.Discrete(2)),
    "Scalar-v0": (spaces.Box(-1, 1, shape=()), spaces.Discrete(2)),
}


def register(name: str, creator: Any, **arguments: Any) -> None:
    gymnasium.register(name, entry_point=creator, kwargs=arguments)


@pytest.fixture(autouse=True)
def tiny_environments() -> Iterator[None]:
    before = dict(gymnasium.registry)
    for name, (observations, actions) in SPACES.items():
        register(name, Tiny, observations=observations, actions=actions)
    register("Blind-v0", TinyWithoutPictures, observations=VECTOR, actions=spaces.Discrete(2))
    register("NeedsArguments-v0", NeedsArguments)
    register("Misplaced-v0", "a_package_nobody_has:Env")
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def refusal(env_id: str) -> str:
    with pytest.raises(ConfigError) as caught:
        GymnasiumEnvironment(env_id)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_cartpole_is_truncated_at_500_steps_and_terminated_before() -> None:
    environment = GymnasiumEnvironment("CartPole-v1")
    assert (environment.spec.observation_shape, environment.spec.observation_dtype) == ((4,), np.dtype(np.float32))
    assert environment.spec.num_actions == 2
    environment.reset(0)
    steps = [environment.step(0) for _ in range(8)]  # always to the left: the pole falls within ten steps
    while not steps[-1].game_over:
        steps.append(environment.step(0))
    assert len(steps) < 15
    assert steps[-1].terminated
    assert not steps[-1].truncated
    # Pushing towards the side the pole falls to keeps it up for 500 steps.
    observation = environment.reset(1)
    steps = []
    while not steps or not steps[-1].game_over:
        steps.append(environment.step(int(observation[2] + 0.5 * observation[3] + 0.1 * observation[1] > 0)))
        observation = steps[-1].observation
    assert len(steps) == 500
    assert steps[-1].truncated
    assert not steps[-1].terminated


def test_a_game_is_its_seed_and_actions() -> None:
    def observations(environment: GymnasiumEnvironment, seed: int) -> list[Any]:
        return [environment.reset(seed), *(environment.step(action).observation for action in (0, 1, 1, 0, 1))]

    environment = GymnasiumEnvironment("CartPole-v1")
    first = observations(environment, 4)
    other = observations(environment, 5)
    assert_array_equal(observations(environment, 4), first)
    assert_array_equal(observations(GymnasiumEnvironment("CartPole-v1"), 4), first)
    assert (np.stack(other) != np.stack(first)).any()


def test_actions_count_from_the_spaces_start() -> None:
    environment = GymnasiumEnvironment("Offset-v0")
    assert environment.spec.action_names == ("5", "6", "7")
    environment.reset(0)
    assert [environment.step(action).reward for action in range(3)] == [5.0, 6.0, 7.0]


def test_observations_are_copies_of_the_stored_dtype() -> None:
    environment = GymnasiumEnvironment("Offset-v0")
    kept = [environment.reset(0), environment.step(0).observation, environment.step(2).observation]
    assert_array_equal(kept, [[0, 0], [1, 5], [2, 7]])
    assert {observation.dtype for observation in kept} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("env_id", "dtype"),
    [
        ("Offset-v0", np.float32),
        ("Whole-v0", np.float32),
        ("Flags-v0", np.float32),
        ("Bytes-v0", np.uint8),
        ("Planes-v0", np.bool_),
    ],
)
def test_which_dtypes_are_stored(env_id: str, dtype: type) -> None:
    environment = GymnasiumEnvironment(env_id)
    assert environment.spec.observation_dtype == dtype
    observation = environment.reset(0)
    assert (observation.shape, observation.dtype) == (environment.spec.observation_shape, np.dtype(dtype))


def test_pictures_are_made_when_asked_for_and_the_game_goes_on() -> None:
    environment = GymnasiumEnvironment("Whole-v0")
    environment.reset(0)
    for _ in range(3):
        environment.step(1)
    assert_array_equal(environment.render(), np.full((4, 5, 3), 3))
    assert_array_equal(environment.step(0).observation, [4, 0])
    assert_array_equal(environment.render(), np.full((4, 5, 3), 4))


def test_pictures_that_need_a_missing_package_are_one_sentence_and_the_game_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, watched = GymnasiumEnvironment("CartPole-v1"), GymnasiumEnvironment("CartPole-v1")
    assert_array_equal(plain.reset(3), watched.reset(3))
    assert_array_equal(plain.step(1).observation, watched.step(1).observation)
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ConfigError, match="CartPole-v1 cannot be drawn: pygame is not installed"):
        watched.render()
    assert_array_equal(plain.step(0).observation, watched.step(0).observation)


def test_environments_without_pictures_say_so() -> None:
    environment = GymnasiumEnvironment("Blind-v0")
    environment.reset(0)
    with pytest.raises(ConfigError, match="Blind-v0 offers no rgb_array pictures"):
        environment.render()


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("Continuous-v0", "Continuous-v0 has Box actions, but Q-values are for Discrete ones"),
        ("Pendulum-v1", "Pendulum-v1 has Box actions"),
        ("Several-v0", "Several-v0 has MultiDiscrete actions"),
        ("Dictionary-v0", "Dictionary-v0 has Dict observations"),
        ("Numbered-v0", "Numbered-v0 has Discrete observations"),
        ("Scalar-v0", "Scalar-v0 has Box observations of shape ()"),
    ],
)
def test_spaces_that_do_not_fit(env_id: str, sentence: str) -> None:
    assert sentence in refusal(env_id)


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        (
            "CartPol-v1",
            "there is no Gymnasium environment 'CartPol-v1' (nor is it atari/… or minatar/…); did you mean CartPole",
        ),
        ("CartPole-v77", "did you mean CartPole-v1?"),
        ("Pendulum-v0", "did you mean Pendulum-v1?"),
        ("Nowhere/Env-v0", "there is no Gymnasium environment 'Nowhere/Env-v0'"),
        ("no_such_package:Env-v0", "no_such_package:Env-v0 needs a package that is missing"),
        ("json:Env-v77", "there is no Gymnasium environment 'Env-v77'"),
        ("Misplaced-v0", "Misplaced-v0 needs a package that is missing"),
        ("NeedsArguments-v0", "NeedsArguments-v0 could not be made"),
        ("what is this", "what is this could not be made"),
        ("", "'' is no environment; write atari/pong"),
        ("a:b:Env-v0", "'a:b:Env-v0' is no environment"),
        (":Env-v0", "':Env-v0' is no environment"),
        (".a:Env-v0", "'.a:Env-v0' is no environment"),
    ],
)
def test_names_that_lead_nowhere(env_id: str, sentence: str) -> None:
    assert sentence in refusal(env_id)


def test_an_environment_that_breaks_its_own_space_is_named() -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        env = Tiny(VECTOR, spaces.Discrete(2))
        env.observation_space = spaces.Box(-1, 1, shape=(3,))
        return env

    register("Broken-v0", broken)
    with pytest.raises(ConfigError, match=r"Broken-v0 gave an observation of shape \(2,\)"):
        GymnasiumEnvironment("Broken-v0").reset(0)


def test_a_package_is_imported_before_its_environment_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_local_package.py").write_text(
        "import gymnasium\n"
        "cart_pole = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
        "gymnasium.register('Local-v0', entry_point=cart_pole, max_episode_steps=3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environment = GymnasiumEnvironment("a_local_package:Local-v0")
    environment.reset(0)
    assert [environment.step(action).truncated for action in (0, 1, 0)] == [False, False, True]
    sys.modules.pop("a_local_package")


def test_old_versions_are_made_without_a_word() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert GymnasiumEnvironment("CartPole-v0").spec.num_actions == 2
    assert not caught


@pytest.mark.parametrize(
    ("env", "kind"), [("atari/pong", Atari), ("minatar/breakout", MinAtar), ("CartPole-v1", GymnasiumEnvironment)]
)
def test_names_lead_to_their_families(env: str, kind: type) -> None:
    assert isinstance(make_environment(make_config(env)), kind)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("atari/pnog", "did you mean atari/pong"),
        ("minatar/brekout", "did you mean minatar/breakout"),
        ("CartPol-v1", "did you mean CartPole-v1"),
    ],
)
def test_misspelt_names_get_a_suggestion(env: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_environment(make_config(env))


def flickering(env: str) -> RunConfig:
    return override(make_config(env), {"flicker": 0.5})


def test_flicker_wraps_pictures_and_refuses_vectors() -> None:
    assert isinstance(make_environment(flickering("minatar/breakout")), Flicker)
    with pytest.raises(ConfigError, match=r"flicker is 0\.5, but this environment's observations have shape \(4,\)"):
        make_environment(flickering("CartPole-v1"))
