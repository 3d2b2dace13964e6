"""Gymnasium environments, tiny ones registered here among them, and the way from a name to an environment."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal
from small_runs import small_config, train_to_end

from lambda_replay.agents.run_settings import override
from lambda_replay.config import RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.envs.atari import Atari
from lambda_replay.envs.flicker import Flicker
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.envs.minatar import MinAtar
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.training.presets import make_config


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
    "Several-v0": (VECTOR, spaces.MultiDiscrete([2, 3])),
    "Text-v0": (spaces.Text(5), spaces.Discrete(2)),
    "Sequence-v0": (spaces.Sequence(spaces.Discrete(3)), spaces.Discrete(2)),
    "Graph-v0": (spaces.Graph(VECTOR, None), spaces.Discrete(2)),
    "Empty-v0": (spaces.Box(-1, 1, shape=(0,)), spaces.Discrete(2)),
    "EmptyDict-v0": (spaces.Dict({}), spaces.Discrete(2)),
    "Letter-v0": (spaces.Dict({"a": VECTOR, "b": spaces.Tuple([spaces.Text(5)])}), spaces.Discrete(2)),
}


class Telling(gymnasium.Env[Any, Any]):
    """Observes what it is told to, and rewards with it too, whatever its space says; or raises it."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space = spaces.Discrete(2)

    def __init__(
        self,
        space: spaces.Space[Any] = VECTOR,
        observation: Any = (0.0, 0.0),
        reward: Any = 0.0,
        raised: tuple[str, BaseException] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space, self._observation, self._reward = space, observation, reward
        self._raised, self.render_mode = raised, render_mode
        self._raise_in("constructor")

    def _raise_in(self, place: str) -> None:
        if self._raised is not None and self._raised[0] == place:
            raise self._raised[1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._raise_in("reset")
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._raise_in("step")
        return self._observation, self._reward, False, False, {}

    def render(self) -> Any:
        self._raise_in("render")
        return None

    def close(self) -> None:
        self._raise_in("close")


class OldReset(Telling):
    def reset(self) -> Any:  # type: ignore[override]
        return self._observation


class ResetOfOne(Telling):
    def reset(self, **options: Any) -> Any:
        return self._observation  # without an info; two numbers, which would pass as a pair


class StepOfFour(Telling):
    def step(self, action: Any) -> Any:
        return self._observation, 0.0, False, {}


class Creaking(gymnasium.Env[Any, Any]):
    """Its constructor raises a TypeError of its own."""

    def __init__(self, size: int = 1) -> None:
        len(size)  # type: ignore[arg-type]


class Hiding(gymnasium.Env[Any, Any]):
    """Passes all its arguments on."""

    def __init__(self, **arguments: Any) -> None:
        Creaking(**arguments)


def register(name: str, creator: Any, max_episode_steps: int | None = None, **arguments: Any) -> None:
    gymnasium.register(name, entry_point=creator, max_episode_steps=max_episode_steps, kwargs=arguments)


@pytest.fixture(autouse=True)
def tiny_environments() -> Iterator[None]:
    before = dict(gymnasium.registry)
    for name, (observations, actions) in SPACES.items():
        register(name, Tiny, observations=observations, actions=actions)
    register("Blind-v0", TinyWithoutPictures, observations=VECTOR, actions=spaces.Discrete(2))
    register("NeedsArguments-v0", NeedsArguments)
    register("Misplaced-v0", "a_package_nobody_has:Env")
    register("OldReset-v0", OldReset)
    register("ResetOfOne-v0", ResetOfOne, observation=np.zeros(2))
    register("StepOfFour-v0", StepOfFour)
    register("StepOfFourInTime-v0", StepOfFour, max_episode_steps=10)
    register("Creaking-v0", Creaking)
    register("Hiding-v0", Hiding)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def refusal(env_id: str, arguments: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        GymnasiumEnvironment(env_id, arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def telling(**arguments: Any) -> GymnasiumEnvironment:
    register("Telling-v0", Telling, **arguments)
    return GymnasiumEnvironment("Telling-v0")


def play_one_step(environment: GymnasiumEnvironment) -> float:
    environment.reset(0)
    return environment.step(1).reward


def fault_of(action: Callable[[], Any]) -> EnvironmentFault:
    """The fault of an environment, which is one sentence."""
    with pytest.raises(EnvironmentFault) as caught:
        action()
    assert "\n" not in str(caught.value)
    return caught.value


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
    with pytest.raises(ConfigError) as caught:
        watched.render()
    remedy = "install it with: pip install 'lambda-replay[classic]'."
    assert str(caught.value) == f"rendering CartPole-v1 needs pygame, which is not installed; {remedy}"
    assert_array_equal(plain.step(0).observation, watched.step(0).observation)


def test_environments_without_pictures_say_so() -> None:
    environment = GymnasiumEnvironment("Blind-v0")
    environment.reset(0)
    with pytest.raises(ConfigError, match="Blind-v0 has no rgb_array render mode"):
        environment.render()


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("Several-v0", "Several-v0 has MultiDiscrete actions"),
        ("Text-v0", "Text-v0 has Text observations, but Text cannot become a vector"),
        ("Sequence-v0", "Sequence-v0 has Sequence observations"),
        ("Graph-v0", "Graph-v0 has Graph observations"),
        ("Empty-v0", "Empty-v0 has observations without any numbers (Box([], [], (0,), float32)); register a wrapper"),
        ("EmptyDict-v0", "EmptyDict-v0 has observations without any numbers (Dict()); register a wrapper"),
        ("Letter-v0", "Letter-v0 has Dict observations, but Text cannot become a vector"),
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
        ("NeedsArguments-v0", "NeedsArguments-v0 could not be created"),
        ("what is this", "what is this could not be created"),
        ("", "'' is not an environment; write atari/pong"),
        ("a:b:Env-v0", "'a:b:Env-v0' is not an environment"),
        (":Env-v0", "':Env-v0' is not an environment"),
        (".a:Env-v0", "'.a:Env-v0' is not an environment"),
    ],
)
def test_names_that_lead_nowhere(env_id: str, sentence: str) -> None:
    assert sentence in refusal(env_id)


# --- observations that are no arrays ----------------------------------------------------------------------------------

NUMBER = spaces.Box(-9, 9, shape=())


@pytest.mark.parametrize(
    ("space", "observation", "stored"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1]), [1, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (NUMBER, 2.5, [2.5]),
        (spaces.Tuple([spaces.Discrete(2), NUMBER]), (1, -3.0), [0, 1, -3]),
        (spaces.Dict({"b": spaces.Discrete(2), "a": VECTOR}), {"b": 0, "a": [7.0, 8.0]}, [7, 8, 1, 0]),  # by name
        (spaces.Dict({"a": spaces.Tuple([NUMBER, NUMBER])}), {"a": (1, 2)}, [1, 2]),
    ],
    ids=str,
)
def test_observations_are_flattened(space: spaces.Space[Any], observation: Any, stored: list[float]) -> None:
    environment = telling(space=space, observation=observation)
    assert environment.spec.observation_shape == (len(stored),)
    assert environment.spec.observation_dtype == np.float32
    assert not environment.spec.has_pixels
    first = environment.reset(0)
    assert first.dtype == np.float32
    assert_array_equal(first, stored)
    assert_array_equal(environment.step(0).observation, stored)


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (VECTOR, np.zeros(3), "an observation of shape (3,), but its space has shape (2,)"),
        (VECTOR, None, "an observation of shape ()"),
        (VECTOR, np.array([0, np.nan]), "an observation that is not finite"),
        (NUMBER, np.inf, "an observation that is not finite"),
        (spaces.Discrete(4), 4, "the observation 4, which is not in its space Discrete(4)"),
        (spaces.Discrete(4), -1, "the observation -1"),  # else the one-hot code of 3
        (spaces.Tuple([spaces.Discrete(2), NUMBER]), (1,), "the observation (1,)"),
        (spaces.Dict({"a": NUMBER}), {"b": 1.0}, "the observation {'b': 1.0}"),
        (spaces.Dict({"a": VECTOR}), {"a": 1.0}, "the observation {'a': 1.0}"),
        (
            spaces.Box(0, 255, shape=(2, 2), dtype=np.uint8),
            np.full((2, 2), 300),
            "an observation of int64 numbers that do not fit in uint8",
        ),
    ],
    ids=str,
)
def test_an_observation_outside_of_its_space_is_a_fault(space: spaces.Space[Any], observation: Any, words: str) -> None:
    environment = telling(space=space, observation=observation)
    assert f"Telling-v0 returned {words}" in str(fault_of(lambda: environment.reset(0)))


@pytest.mark.parametrize("name", ["FrozenLake", "Blackjack", "Taxi", "CliffWalking"])
def test_gymnasiums_own_games_of_whole_numbers_are_trained(name: str, tmp_path: Path) -> None:
    env = max(key for key in gymnasium.registry if re.fullmatch(rf"{name}-v\d+", key))
    config = small_config(env, steps=240)
    train_to_end(tmp_path / "run", config)
    sizes = {"FrozenLake": 16, "Blackjack": 32 + 11 + 2, "Taxi": 500, "CliffWalking": 48}
    assert make_environment(config).spec.observation_shape == (sizes[name],)


# --- what an environment does wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("it fell over\nand broke"), "RuntimeError: it fell over ("),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device ("),
        (SystemExit(0), "SystemExit: 0 ("),
        (AssertionError(), "AssertionError ("),
        (ValueError("x" * 1_000), f"ValueError: {'x' * 200}… ("),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("place", ["constructor", "reset", "step", "render", "close"])
def test_whatever_an_environment_raises_is_a_fault(place: str, error: BaseException, words: str) -> None:
    def use() -> None:
        environment = telling(raised=(place, error))
        play_one_step(environment)
        if place == "render":
            environment.render()
        environment.close()

    fault = fault_of(use)
    assert f"Telling-v0 raised {words}" in str(fault)
    line = inspect.getsourcelines(Telling._raise_in)[1] + 2
    assert f"({__file__}:{line}); fix the environment" in str(fault)
    assert type(fault.__cause__) is type(error)
    assert fault.__cause__ is not None
    assert (
        traceback.extract_tb(fault.__cause__.__traceback__)[0].filename == __file__
    )  # no frame of ours, nor any other


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("place", ["constructor", "reset", "step"])
def test_what_is_not_the_environments_passes(place: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        play_one_step(telling(raised=(place, error)))


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("OldReset-v0", r"OldReset-v0 failed with TypeError: .*'seed'; fix the environment: reset\(seed=…\) must"),
        ("ResetOfOne-v0", r"ResetOfOne-v0 returned one value \(ndarray\) from reset; .*: reset\(seed=…\) must return"),
        (
            "StepOfFour-v0",
            r"StepOfFour-v0 returned 4 values from step; .*: step\(action\) must return observation, rew",
        ),
        ("StepOfFourInTime-v0", r"failed with ValueError: not enough values .*, and step\(action\) must return"),
    ],
)
def test_an_old_interface_is_a_fault_that_names_the_new_one(env_id: str, sentence: str) -> None:
    fault = fault_of(lambda: play_one_step(GymnasiumEnvironment(env_id)))
    assert re.search(sentence, str(fault))
    assert fault.__cause__ is None  # none of the environment's code was running


@pytest.mark.parametrize("reward", [None, "1", b"1", np.nan, -np.inf, [1.0, 2.0], np.array([1.0, 2.0]), 1j, 10**400])
def test_a_reward_that_is_no_number_is_a_fault_that_shows_it(reward: Any) -> None:
    fault = fault_of(lambda: play_one_step(telling(reward=reward)))
    assert f"Telling-v0 returned the reward {reward!r}" in str(fault)


@pytest.mark.parametrize("reward", [1, 1.0, True, np.float32(1), np.array(1), np.array([1.0]), np.array([[1]])])
def test_a_reward_of_one_number_is_that_number(reward: Any) -> None:
    number = play_one_step(telling(reward=reward))
    assert (number, type(number)) == (1.0, float)


def test_a_picture_that_is_none_is_a_fault() -> None:
    environment = telling()
    environment.reset(0)
    assert "Telling-v0 returned NoneType from render" in str(fault_of(environment.render))


MODULES = [
    ("raise RuntimeError('no licence')\n", "raised RuntimeError: no licence ({file}:1)"),
    ("import sys\nsys.exit()\n", "raised SystemExit ({file}:2)"),
    ("from json import nothing\n", "raised ImportError: cannot import name 'nothing' from 'json'"),
    ("def f(:\n", "failed with SyntaxError: invalid syntax (a_wrong_module.py, line 1); fix the environment."),
]


@pytest.mark.parametrize(("text", "words"), MODULES, ids=[text for text, _ in MODULES])
def test_what_a_module_raises_on_import_is_a_fault(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a_wrong_module.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    fault = fault_of(lambda: GymnasiumEnvironment("a_wrong_module:Env-v0"))
    assert f"a_wrong_module:Env-v0 {words.format(file=file)}" in str(fault)


def test_a_package_that_a_module_misses_is_the_users_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_needy_module.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "needs a package that is missing (No module named 'a_package_nobody_has'" in refusal("a_needy_module:E-v0")


# --- arguments --------------------------------------------------------------------------------------------------------


def test_arguments_reach_the_environment_and_the_one_that_draws() -> None:
    environment = GymnasiumEnvironment("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False})
    assert environment.spec.observation_shape == (64,)
    environment.reset(0)
    environment.step(2)  # to the right, without slipping
    environment.render()
    assert_array_equal(environment.step(2).observation.nonzero()[0], [2])


def test_arguments_of_the_config_reach_the_environment() -> None:
    config = override(make_config("CartPole-v1"), {"env_args": ["sutton_barto_reward=true", "max_episode_steps=3"]})
    environment = make_environment(config)
    environment.reset(0)
    steps = [environment.step(action) for action in (0, 1, 0)]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0]  # Sutton & Barto pay −1 at the end alone
    assert [step.truncated for step in steps] == [False, False, True]


@pytest.mark.parametrize(
    ("env_id", "arguments", "words"),
    [
        (
            "CartPole-v1",
            {"length": 2},
            "could not be created: CartPoleEnv.__init__() got an unexpected keyword argument",
        ),
        ("NeedsArguments-v0", {}, "'size'; pass what it needs as env_args."),
        ("Hiding-v0", {"colour": 2}, "unexpected keyword argument 'colour'; give env_args that it accepts."),
    ],
)
def test_arguments_that_an_environment_does_not_take(env_id: str, arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(env_id, arguments)


def test_a_constructors_own_type_error_is_a_fault() -> None:
    plain = fault_of(lambda: GymnasiumEnvironment("Creaking-v0"))
    assert "Creaking-v0 raised TypeError: object of type 'int' has no len()" in str(plain)
    assert str(plain).endswith("; fix the environment.")
    given = fault_of(lambda: GymnasiumEnvironment("Creaking-v0", {"size": 2}))
    assert str(given).endswith("; fix the environment, or give it other env_args.")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("ALE/Pong-v5", "ALE/Pong-v5 is called atari/pong here; it has 84×84 images, 4 frames per step and no st"),
        ("PongNoFrameskip-v4", "atari/pong"),
        ("Pong-v4", "atari/pong"),
        ("ALE/Pong-ram-v5", "atari/pong"),
        ("SpaceInvadersDeterministic-v0", "atari/space_invaders"),
        ("MsPacman-ramNoFrameskip-v4", "atari/ms_pacman"),
        ("MinAtar/Breakout-v1", "MinAtar/Breakout-v1 is called minatar/breakout here; it has sticky actions"),
        ("MinAtar/SpaceInvaders-v0", "minatar/space_invaders"),
        ("ALE/Pnog-v5", "did you mean atari/pong?"),
        ("Blackjack-v0", "did you mean Blackjack-v1?"),  # a game of Atari too
    ],
)
@pytest.mark.parametrize("is_imported", [False, True])
def test_other_peoples_names_of_our_games_lead_to_ours(
    monkeypatch: pytest.MonkeyPatch, env_id: str, words: str, is_imported: bool
) -> None:
    """Whether or not somebody has imported ale-py, which registers its names."""
    others = {name: spec for name, spec in gymnasium.registry.items() if "Pong" not in name}
    monkeypatch.setattr("gymnasium.envs.registration.registry", others)
    monkeypatch.setattr(gymnasium, "registry", others)
    if is_imported:
        gymnasium.register("ALE/Pong-v5", "ale_py.env:AtariEnv")
        gymnasium.register("Pong-v4", "ale_py.env:AtariEnv")
    assert words in refusal(env_id)


def test_a_game_of_the_users_own_may_have_such_a_name() -> None:
    register("Pong-v9", Tiny, observations=VECTOR, actions=spaces.Discrete(2))
    assert GymnasiumEnvironment("Pong-v9").spec.num_actions == 2


def test_a_module_beside_the_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_module_here.py").write_text(
        "import gymnasium\ngymnasium.register('Here-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    path = [place for place in sys.path if place not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", list(path))
    GymnasiumEnvironment("CartPole-v1")
    assert sys.path == path  # nothing is added for an id without a module
    assert GymnasiumEnvironment("a_module_here:Here-v0").spec.num_actions == 2
    sys.modules.pop("a_module_here")


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
