"""Atari against a second emulator driven frame by frame, the slow and literal way."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode, roms
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from lambda_replay.config import AtariConfig
from lambda_replay.envs.atari import Atari
from lambda_replay.envs.interface import Step
from lambda_replay.errors import ConfigError, EnvironmentFault


def new_emulator(game: str) -> ALEInterface:
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(str(roms.get_rom_path(game)))
    ale.reset_game()
    return ale


def small(frames: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(np.max(frames, axis=0), (84, 84), interpolation=cv2.INTER_AREA), dtype=np.uint8)


@dataclass
class LiteralGame:
    """What a game should be by definition: every frame's screen is read and kept, nothing is saved or reused."""

    steps: list[Step]
    num_noops: int
    frames_played: int
    sticky_frames: int


def literal_game(game: str, config: AtariConfig, seed: int, actions: Iterable[int]) -> LiteralGame:
    ale = new_emulator(game)
    rng = np.random.default_rng(seed)
    result = LiteralGame(
        steps=[], num_noops=int(rng.integers(0, config.noop_max + 1)), frames_played=0, sticky_frames=0
    )
    for _ in range(result.num_noops):
        ale.act(0)
        result.frames_played += 1
    screens = [ale.getScreenGrayscale()]
    lives, held = ale.lives(), 0
    for action in actions:
        score, played = 0, 0
        while played < config.frame_skip and result.frames_played < config.max_frames and not ale.game_over():
            if rng.random() < config.sticky:
                result.sticky_frames += 1
            else:
                held = ale.getMinimalActionSet()[action].value
            score += ale.act(held)
            screens.append(ale.getScreenGrayscale())
            played += 1
            result.frames_played += 1
        is_life_lost, lives = ale.lives() < lives, ale.lives()
        out_of_time = result.frames_played >= config.max_frames
        step = Step(
            observation=small(screens[-2:]),
            reward=float(np.sign(score)) if config.clip_rewards else float(score),
            terminated=ale.game_over() or (config.life_loss_terminal and is_life_lost),
            truncated=out_of_time,
            game_over=ale.game_over() or out_of_time,
            score=float(score),
        )
        result.steps.append(step)
        if step.game_over:
            break
    return result


def random_actions(environment: Atari, count: int, seed: int = 0) -> list[int]:
    return [int(action) for action in np.random.default_rng(seed).integers(environment.spec.num_actions, size=count)]


def play(environment: Atari, seed: int, actions: Iterable[int]) -> list[Step]:
    """The steps of a game until it is over or the actions are used up."""
    environment.reset(seed)
    steps = []
    for action in actions:
        steps.append(environment.step(action))
        if steps[-1].game_over:
            break
    return steps


def assert_same_step(step: Step, other: Step) -> None:
    facts = [(one.reward, one.terminated, one.truncated, one.game_over, one.score) for one in (step, other)]
    assert facts[0] == facts[1]
    # A game that ends inside the skip has no defined last picture, see Atari._play_frames; nothing is learnt from it.
    if not step.game_over or step.truncated:
        assert_array_equal(step.observation, other.observation)


def assert_same_game(steps: list[Step], others: list[Step]) -> None:
    assert len(steps) == len(others)
    for step, other in zip(steps, others, strict=True):
        assert_same_step(step, other)


CASES = {
    "pong": AtariConfig(),
    "breakout": AtariConfig(clip_rewards=False),
    "qbert": AtariConfig(),
    "seaquest": AtariConfig(life_loss_terminal=False, sticky=0.25),
    "space_invaders": AtariConfig(frame_skip=3, noop_max=7, max_frames=500),
    "beam_rider": AtariConfig(frame_skip=1, noop_max=0, max_frames=401),
}


@pytest.mark.parametrize(("game", "config"), CASES.items(), ids=CASES)
def test_a_game_is_what_its_literal_definition_says(game: str, config: AtariConfig) -> None:
    environment = Atari(game, config)
    actions = random_actions(environment, 420)
    literal = literal_game(game, config, 3, actions)
    assert_same_game(play(environment, 3, actions), literal.steps)


def test_breakout_loses_five_lives_in_one_game() -> None:
    # Five lives: four losses are terminal for learning only, the fifth ends the game.
    steps = play(Atari("breakout", AtariConfig()), 0, random_actions(Atari("breakout", AtariConfig()), 3_000))
    assert [step.game_over for step in steps if step.terminated] == [False] * 4 + [True]
    assert not any(step.truncated for step in steps)


def test_rewards_are_clipped_and_scores_are_not() -> None:
    environment = Atari("qbert", AtariConfig())  # a cube is worth 25
    steps = play(environment, 1, random_actions(environment, 300))
    assert {step.reward for step in steps} == {0.0, 1.0}
    assert {step.score for step in steps} >= {0.0, 25.0}


def test_lost_points_are_minus_one() -> None:
    environment = Atari("pong", AtariConfig())
    assert -1.0 in {step.reward for step in play(environment, 0, [0] * 200)}


def test_the_first_observation_is_one_frame_after_the_noops() -> None:
    # River Raid scrolls from the first frame on, so that every number of no-ops has its own picture.
    ale = new_emulator("riverraid")
    pictures = [small([ale.getScreenGrayscale()])]
    for _ in range(5):
        ale.act(0)
        pictures.append(small([ale.getScreenGrayscale()]))
    environment = Atari("riverraid", AtariConfig(noop_max=5))
    counts = []
    for seed in range(60):
        observation = environment.reset(seed)
        counts.append([count for count, picture in enumerate(pictures) if (picture == observation).all()])
    assert counts == [[int(np.random.default_rng(seed).integers(0, 6))] for seed in range(60)]
    assert {count for (count,) in counts} == set(range(6))


def test_the_frame_limit_is_exact_and_is_truncation() -> None:
    # 22 frames: five steps of four frames, then one of two.
    steps = play(Atari("pong", AtariConfig(noop_max=0, max_frames=22)), 0, [0] * 100)
    assert [step.truncated for step in steps] == [False] * 5 + [True]
    assert [step.game_over for step in steps] == [False] * 5 + [True]
    assert not any(step.terminated for step in steps)


def test_sticky_frames_come_with_their_probability() -> None:
    # Breakout shows a FIRE in the very frame it is pressed in, so the picture after one frame tells whether it stuck.
    environment = Atari("breakout", AtariConfig(frame_skip=1, noop_max=0, sticky=0.25))
    fire, noop = environment.spec.action_names.index("fire"), environment.spec.action_names.index("noop")
    plain = Atari("breakout", AtariConfig(frame_skip=1, noop_max=0))
    plain.reset(0)
    plain.step(noop)
    stuck = 0
    for seed in range(160):
        environment.reset(seed)
        environment.step(fire)
        stuck += bool((environment.render() == plain.render()).all())
    assert abs(stuck / 160 - 0.25) < 0.14  # four standard deviations


def test_stickiness_is_drawn_for_every_frame_and_holds_the_action_before() -> None:
    config = AtariConfig(sticky=0.5)
    actions = random_actions(Atari("pong", config), 150)
    literal = literal_game("pong", config, 0, actions)
    assert abs(literal.sticky_frames / (4 * 150) - 0.5) < 0.1
    assert_same_game(play(Atari("pong", config), 0, actions), literal.steps)


def test_entirely_sticky_means_nothing_but_noops() -> None:
    noops = play(Atari("pong", AtariConfig(noop_max=0)), 0, [0] * 100)
    environment = Atari("pong", AtariConfig(noop_max=0, sticky=1.0))
    assert_same_game(play(environment, 0, random_actions(environment, 100)), noops)


@pytest.mark.parametrize("game", ["beam_rider", "assault", "qbert", "breakout"])  # the first two leak in reset_game()
def test_a_game_is_its_seed_and_actions(game: str) -> None:
    config = AtariConfig(sticky=0.1)
    environment = Atari(game, config)
    actions = random_actions(environment, 150)
    first = play(environment, 5, actions)
    for other_seed in (6, 7):
        play(environment, other_seed, random_actions(environment, 200, seed=other_seed))
    again = play(environment, 5, actions)
    assert_same_game(first, again)
    assert_same_game(first, play(Atari(game, config), 5, actions))
    other = play(environment, 6, actions)
    assert not all((one.observation == two.observation).all() for one, two in zip(first, other, strict=False))


def test_observations_are_the_callers_to_keep() -> None:
    environment = Atari("pong", AtariConfig())
    kept = [environment.reset(0)]
    copies = [kept[0].copy()]
    for action in random_actions(environment, 50):
        kept.append(environment.step(action).observation)
        copies.append(kept[-1].copy())
    assert_array_equal(np.stack(kept), np.stack(copies))


def test_fire_starts_games_that_wait_for_it_and_touches_no_other() -> None:
    def lives_lost(config: AtariConfig) -> int:
        return sum(step.terminated for step in play(Atari("breakout", config), 0, [0] * 60))

    assert lives_lost(AtariConfig()) == 0  # the ball never comes
    assert lives_lost(AtariConfig(fire_on_reset=True)) == 1
    without, with_fire = (play(Atari("pong", AtariConfig(fire_on_reset=fire)), 0, [0] * 30) for fire in (False, True))
    assert_same_game(without, with_fire)


def test_a_game_lost_in_the_noops_starts_afresh() -> None:
    # Of so many no-ops nearly every start loses the game, which then is played from its first frame on.
    environment = Atari("pong", AtariConfig(noop_max=60_000))
    beginning = Atari("pong", AtariConfig(noop_max=0)).reset(0)
    seed = next(seed for seed in range(100) if np.random.default_rng(seed).integers(60_001) > 20_000)
    assert_array_equal(environment.reset(seed), beginning)
    assert not environment.step(0).game_over


@pytest.mark.parametrize("game", ["pong", "space-invaders", "space_invaders", "Qbert", "journey_escape", "air_raid"])
def test_games_of_every_screen_height(game: str) -> None:
    environment = Atari(game, AtariConfig())
    observation = environment.reset(0)
    assert (observation.shape, observation.dtype) == ((84, 84), np.dtype(np.uint8))
    assert (environment.spec.observation_shape, environment.spec.observation_dtype) == ((84, 84), np.dtype(np.uint8))
    picture = environment.render()
    assert picture.shape[1:] == (160, 3)
    assert picture.dtype == np.uint8


def test_action_sets() -> None:
    assert Atari("breakout", AtariConfig()).spec.action_names == ("noop", "fire", "right", "left")
    assert Atari("breakout", AtariConfig(all_actions=True)).spec.num_actions == 18


@pytest.mark.parametrize(
    ("game", "sentence"),
    [
        ("pnog", "there is no Atari game 'pnog'; did you mean atari/pong"),
        ("spaceinvaders", "did you mean atari/space_invaders"),
        ("zzzzzz", "there is no Atari game 'zzzzzz'; try atari/pong"),
        ("", "there is no Atari game ''"),
        ("combat", "the Atari game 'combat' needs two players"),
    ],
)
def test_unknown_games(game: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Atari(game, AtariConfig())


def test_a_limit_shorter_than_the_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"atari\.max_frames is 30, but starting a game takes up to 30 frames"):
        Atari("pong", AtariConfig(max_frames=30))


@pytest.mark.parametrize("package", ["ale_py", "cv2"])
def test_a_missing_package_is_one_sentence(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        Atari("pong", AtariConfig())
    remedy = "install it with: pip install 'lambda-replay[atari]'."
    assert str(caught.value) == f"atari/pong needs {package}, which is not installed; {remedy}"


def test_what_the_emulator_raises_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise cv2.error("no memory for a matrix")

    environment = Atari("pong", AtariConfig())
    environment.reset(0)
    monkeypatch.setattr(cv2, "resize", fail)
    with pytest.raises(EnvironmentFault, match="atari/pong raised error: no memory for a matrix"):
        environment.step(0)
