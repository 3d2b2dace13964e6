"""MinAtar against the package's own environment, and Flicker, which wraps it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import minatar
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lambda_replay.config import MinAtarConfig
from lambda_replay.envs.flicker import Flicker
from lambda_replay.envs.interface import Environment, Step
from lambda_replay.envs.minatar import GAMES, MinAtar
from lambda_replay.errors import ConfigError, EnvironmentFault

NUM_CHANNELS = {"asterix": 4, "breakout": 4, "freeway": 7, "seaquest": 10, "space_invaders": 6}
NUM_ACTIONS = {"asterix": 5, "breakout": 3, "freeway": 3, "seaquest": 6, "space_invaders": 4}


def random_actions(environment: Environment, count: int, seed: int = 0) -> list[int]:
    return [int(action) for action in np.random.default_rng(seed).integers(environment.spec.num_actions, size=count)]


def play(environment: Environment, seeds: Iterable[int], actions: Iterable[int]) -> list[Step]:
    """All steps of the actions, game after game."""
    next_seed = iter(seeds)
    environment.reset(next(next_seed))
    steps = []
    for action in actions:
        steps.append(environment.step(action))
        if steps[-1].game_over:
            environment.reset(next(next_seed))
    return steps


def assert_same(steps: list[Step], others: list[Step]) -> None:
    assert [(step.reward, step.terminated) for step in steps] == [(step.reward, step.terminated) for step in others]
    assert_array_equal([step.observation for step in steps], [step.observation for step in others])


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("config", [MinAtarConfig(), MinAtarConfig(sticky=0.4, ramping=False, all_actions=True)])
def test_a_game_is_the_packages_own(game: str, config: MinAtarConfig) -> None:
    environment = MinAtar(game, config)
    theirs = minatar.Environment(game, sticky_action_prob=config.sticky, difficulty_ramping=config.ramping)
    numbers = list(range(6)) if config.all_actions else theirs.minimal_action_set()
    for seed in range(5):
        theirs.random = theirs.env.random = np.random.RandomState(np.random.PCG64(seed))
        theirs.last_action = 0
        theirs.reset()
        assert_array_equal(environment.reset(seed), theirs.state())
        for action in random_actions(environment, 400, seed):
            step = environment.step(action)
            reward, terminal = theirs.act(numbers[action])
            assert (step.reward, step.score, step.terminated, step.game_over) == (reward, reward, terminal, terminal)
            assert not step.truncated
            assert_array_equal(step.observation, theirs.state())
            if terminal:
                break


@pytest.mark.parametrize("game", GAMES)
def test_what_is_known_beforehand(game: str) -> None:
    environment = MinAtar(game, MinAtarConfig())
    assert environment.spec.observation_shape == (10, 10, NUM_CHANNELS[game])
    assert environment.spec.observation_dtype == np.bool_
    assert environment.spec.num_actions == NUM_ACTIONS[game]
    assert MinAtar(game, MinAtarConfig(all_actions=True)).spec.num_actions == 6
    observation = environment.reset(0)
    assert (observation.shape, observation.dtype) == (environment.spec.observation_shape, np.dtype(np.bool_))


def test_action_names_and_spellings() -> None:
    assert MinAtar("breakout", MinAtarConfig()).spec.action_names == ("noop", "left", "right")
    assert MinAtar("space-invaders", MinAtarConfig()).spec.action_names == ("noop", "left", "right", "fire")


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_its_seed_and_actions(game: str) -> None:
    config = MinAtarConfig(sticky=0.5)  # so that a last action left over from the game before would show
    environment = MinAtar(game, config)
    actions = random_actions(environment, 300)
    seeds = range(100, 400)
    first = play(environment, seeds, actions)
    play(environment, range(1_000, 2_000), [environment.spec.num_actions - 1] * 100)
    assert_same(first, play(environment, seeds, actions))
    assert_same(first, play(MinAtar(game, config), seeds, actions))
    other = play(environment, range(500, 900), actions)
    assert any((one.observation != two.observation).any() for one, two in zip(first, other, strict=True))


def test_an_entirely_sticky_game_begins_with_noop_whatever_came_before() -> None:
    environment = MinAtar("space_invaders", MinAtarConfig(sticky=1.0))
    cannon = environment.reset(0)[..., 0]
    for action in random_actions(environment, 10):  # before the first alien bullet arrives
        assert_array_equal(environment.step(action).observation[..., 0], cannon)


def test_seeds_of_any_size() -> None:
    environment = MinAtar("freeway", MinAtarConfig())
    assert (environment.reset(2**63) != environment.reset(2**63 + 1)).any()


def test_observations_are_the_callers_to_keep() -> None:
    environment = MinAtar("asterix", MinAtarConfig())
    kept = environment.reset(0)
    copy = kept.copy()
    environment.step(1)
    environment.reset(1)
    assert_array_equal(kept, copy)


@pytest.mark.parametrize("game", GAMES)
def test_the_picture_shows_each_thing_in_its_own_colour(game: str) -> None:
    environment = MinAtar(game, MinAtarConfig())
    observation = environment.reset(0)
    picture = environment.render()
    assert (picture.shape, picture.dtype) == ((320, 320, 3), np.dtype(np.uint8))
    middles = picture[16::32, 16::32]  # [10, 10, 3]
    shown = np.where(observation.any(axis=-1), observation.argmax(axis=-1), -1)
    for channel in np.unique(shown):
        assert len(np.unique(middles[shown == channel], axis=0)) == 1
    assert len(np.unique(middles.reshape(100, 3), axis=0)) == len(np.unique(shown))


@pytest.mark.parametrize(
    ("game", "sentence"),
    [
        ("brekout", "there is no MinAtar game 'brekout'; did you mean minatar/breakout?"),
        (
            "chess",
            "there is no MinAtar game 'chess'; the games are asterix, breakout, freeway, seaquest, space_invaders.",
        ),
    ],
)
def test_unknown_games(game: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MinAtar(game, MinAtarConfig())
    assert str(caught.value) == sentence


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(ConfigError) as caught:
        MinAtar("breakout", MinAtarConfig())
    remedy = "install it with: pip install 'lambda-replay[minatar]'."
    assert str(caught.value) == f"minatar/breakout needs minatar, which is not installed; {remedy}"


def test_playing_needs_no_plotting_library() -> None:
    code = """
import sys
from lambda_replay.config import MinAtarConfig
from lambda_replay.envs.minatar import MinAtar
MinAtar("breakout", MinAtarConfig()).reset(0)
print(sorted({"matplotlib", "seaborn", "logging", "gymnasium"} & set(sys.modules)))
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_flicker_blanks_its_share_and_nothing_else() -> None:
    plain, flickering = MinAtar("freeway", MinAtarConfig()), Flicker(MinAtar("freeway", MinAtarConfig()), 0.3)
    assert flickering.spec == plain.spec
    actions = random_actions(plain, 1_000)
    blank = 0
    for clear, step in zip(play(plain, range(9), actions), play(flickering, range(9), actions), strict=True):
        assert (step.reward, step.terminated, step.game_over) == (clear.reward, clear.terminated, clear.game_over)
        if step.observation.any():
            assert_array_equal(step.observation, clear.observation)
        else:
            assert step.observation.shape == clear.observation.shape
            blank += 1
    assert abs(blank / 1_000 - 0.3) < 0.06  # four standard deviations


def test_flicker_blanks_first_observations_too_and_repeats_with_the_seed() -> None:
    environment = Flicker(MinAtar("freeway", MinAtarConfig()), 0.5)
    first = [bool(environment.reset(seed).any()) for seed in range(50)]
    assert 10 < sum(first) < 40
    assert [bool(environment.reset(seed).any()) for seed in range(50)] == first


def test_flicker_leaves_the_picture_for_people_alone() -> None:
    environment = Flicker(MinAtar("breakout", MinAtarConfig()), 1.0)
    assert not environment.reset(0).any()
    assert len(np.unique(environment.render().reshape(-1, 3), axis=0)) > 2


def test_flicker_wants_a_probability() -> None:
    with pytest.raises(ConfigError, match=r"flicker is 1\.5; give a number from 0 to 1"):
        Flicker(MinAtar("breakout", MinAtarConfig()), 1.5)


def test_what_a_game_raises_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the same name, whose only game fails at its first step."""
    file = tmp_path / "minatar" / "environments" / "breakout.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "minatar" / "__init__.py").touch()
    original = Path(minatar.__file__).parent / "environments" / "breakout.py"
    file.write_text(original.read_text() + "\n\ndef act(self, action):\n    raise OSError('no board')\nEnv.act = act\n")
    monkeypatch.delitem(sys.modules, "minatar")
    monkeypatch.syspath_prepend(tmp_path)
    environment = MinAtar("breakout", MinAtarConfig())
    environment.reset(0)
    with pytest.raises(
        EnvironmentFault, match=r"minatar/breakout raised OSError: no board \(.*breakout\.py:\d+\); fix"
    ):
        environment.step(0)
