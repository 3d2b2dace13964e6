"""The real Atari path masters a small pixel game; with a fault in any of its parts, it does not.

Environment, network and training are those of ``lambda-replay train atari/pong``, with another emulator, and the preset
``atari``, or ``paper`` with LayerNorm and Huber's loss, which notices more faults. A healthy run takes half a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catch import (
    CATCH_POINTS,
    DIRECTIONS,
    FIRST_PAUSE,
    FRAMES_PER_TICK,
    LANDING_ROW,
    LIVES,
    MISS_POINTS,
    PAUSE,
    SQUARES,
    STARTS,
    CatchEmulator,
)
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from torch import Tensor

from lambda_replay.agents.run_settings import override
from lambda_replay.config import AtariConfig, RunConfig
from lambda_replay.envs import atari
from lambda_replay.envs.atari import Atari
from lambda_replay.envs.interface import Step
from lambda_replay.learning.fast_networks import FastAtari
from lambda_replay.learning.fast_stacks import Saved
from lambda_replay.replay.data import Integers
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.training.playing import play
from lambda_replay.training.policy import load_policy
from lambda_replay.training.presets import make_config
from lambda_replay.training.run import train_run

NOOP, RIGHT, LEFT = range(3)  # indices into the minimal action set
PERFECT_SCORE = SQUARES * CATCH_POINTS
# Of the nine pairs of random moves, three end in the middle, two in each of the lanes ±2, and one in each of ±4. So
# squares that land in lanes −1, 0 and 1 are caught by 5, 3 and 5 of the pairs, and those that land in ±3, ±4 and ±5 by
# 3, 1 and 1: 23 of 81. A game has p / (1 − p) catches per life; random play never gets as far as 100 squares.
RANDOM_CATCH = (13 + 5 + 5) / 81
RANDOM_SCORE = LIVES * (MISS_POINTS + CATCH_POINTS * RANDOM_CATCH / (1 - RANDOM_CATCH))  # 2,698
MASTERED = 8_000  # points; all five lives lost, but with 55 squares caught


@pytest.fixture(autouse=True)
def _catch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Atari game is Catch."""
    monkeypatch.setattr(atari, "_load_emulator", lambda name: CatchEmulator())


# --- the game ---------------------------------------------------------------------------------------------------------


def test_the_emulator_has_what_it_replaces() -> None:
    """Each of its methods has the name of one of the real emulator's."""
    from ale_py import ALEInterface

    assert {name for name in vars(CatchEmulator) if not name.startswith("_")} <= set(dir(ALEInterface))


def perfect_action(emulator: CatchEmulator) -> int:
    """The move towards the end of the square's line."""
    return (NOOP, RIGHT, LEFT)[emulator.game.direction]


def make_game() -> tuple[Atari, CatchEmulator]:
    """The environment and the emulator inside."""
    emulator = CatchEmulator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari, "_load_emulator", lambda name: emulator)
        return Atari("pong", AtariConfig()), emulator


def play_out(seed: int, choose: Callable[[CatchEmulator], int]) -> list[Step]:
    environment, emulator = make_game()
    environment.reset(seed)
    steps = [environment.step(choose(emulator))]
    while not steps[-1].game_over:
        steps.append(environment.step(choose(emulator)))
    return steps


def random_player(seed: int) -> Callable[[CatchEmulator], int]:
    rng = np.random.default_rng(seed)
    return lambda emulator: int(rng.integers(3))


@pytest.mark.parametrize("seed", range(4))
def test_perfect_play_catches_every_square(seed: int) -> None:
    steps = play_out(seed, perfect_action)
    assert sum(step.score for step in steps) == PERFECT_SCORE
    assert [step.terminated for step in steps] == [False] * (len(steps) - 1) + [True]
    first = FIRST_PAUSE * FRAMES_PER_TICK - int(np.random.default_rng(seed).integers(31))  # frames after the no-ops
    ticks = LANDING_ROW * SQUARES + PAUSE * (SQUARES - 1)
    assert len(steps) == -(-first // FRAMES_PER_TICK) + ticks


def test_a_missed_square_costs_a_life_and_pays_more() -> None:
    """This player moves away from diagonal squares, and leaves the middle when a square falls straight down."""
    steps = play_out(0, lambda emulator: LEFT if emulator.game.direction >= 0 else RIGHT)
    assert [step.score for step in steps if step.score] == [MISS_POINTS] * LIVES
    assert [step.reward for step in steps if step.reward] == [1.0] * LIVES
    assert [step.terminated for step in steps if step.score] == [True] * LIVES
    assert [step.game_over for step in steps if step.score] == [False] * (LIVES - 1) + [True]
    landings = [number for number, step in enumerate(steps) if step.score]
    assert set(np.diff(landings)) == {LANDING_ROW}


def test_random_play_scores_what_it_should() -> None:
    scores = [sum(step.score for step in play_out(seed, random_player(seed))) for seed in range(200)]
    assert abs(np.mean(scores) - RANDOM_SCORE) < 4 * np.std(scores) / np.sqrt(len(scores))


def test_a_game_is_its_seed_and_actions() -> None:
    environment, _ = make_game()
    again, _ = make_game()
    play_out(3, random_player(1))
    for _ in range(2):  # the second time after another game
        assert_array_equal(environment.reset(3), again.reset(3))
        for action in np.random.default_rng(0).integers(3, size=40).tolist():
            step, other = environment.step(action), again.step(action)
            assert_array_equal(step.observation, other.observation)
            assert step[1:] == other[1:]


def test_squares_are_of_all_kinds_and_equally_frequent() -> None:
    counts = dict.fromkeys([(start, direction) for start in STARTS for direction in DIRECTIONS], 0)

    def count(emulator: CatchEmulator) -> int:
        game = emulator.game
        if game.pause == 0 and game.row == LANDING_ROW - 1:
            counts[game.start, game.direction] += 1
        return perfect_action(emulator)

    for seed in range(9):
        play_out(seed, count)
    assert sum(counts.values()) == 9 * SQUARES
    assert all(abs(number - 100) < 40 for number in counts.values())  # four standard deviations


@pytest.mark.parametrize("num_noops", range(4))
def test_every_observation_shows_the_game_whatever_the_number_of_noops(num_noops: int) -> None:
    """Sprites are drawn in every other frame; the maximum of two frames shows each in one place."""
    seed = next(seed for seed in range(1_000) if np.random.default_rng(seed).integers(31) == num_noops)
    environment, emulator = make_game()
    environment.reset(seed)
    for _ in range(60):
        observation = environment.step(perfect_action(emulator)).observation
        square, paddle = (int((half > 0).any(axis=0).sum()) for half in np.split(observation, [50]))  # pixels wide
        assert (7 <= square <= 9) == emulator.game.is_in_sight
        assert 22 <= paddle <= 24


# --- learning ---------------------------------------------------------------------------------------------------------


def catch_config(seed: int, preset: str) -> RunConfig:
    """A preset with a small network and a short run; the discount suits squares that take four steps."""
    values: dict[str, Any] = {
        "seed": seed,
        "steps": 8_000,
        "envs": 8,
        "discount": 0.9,
        "device": "cpu",
        "threads": 1,
        "checkpoint_every": 0,
        "memory": {"capacity": 8_000, "start": 800, "storage": "ram"},
        "cache": {"size": 1_600, "block_length": 20, "refresh_every": 400, "updates": 150},
        "exploration": {"end": 0.05, "steps": 4_000},
        "optimizer": {"learning_rate": 5e-4, "loss": "huber"},
        "network": {"width": 0.25, "layer_norm": True},
    }
    if preset == "atari":
        values["cache"]["block_length"] = 50  # what each environment adds between refreshes
        values["optimizer"]["learning_rate"] = 1e-3  # it falls to 0
    return override(make_config("atari/pong", preset), values)


def learnt_score(path: Path, seed: int, preset: str = "paper") -> float:
    """Train, then play three greedy games with the final weights; their mean score."""
    train_run(path, catch_config(seed, preset))
    config, environment, policy, _ = load_policy(path)
    games = [play(environment, policy, history=config.memory.history, epsilon=0.0, seed=seed) for seed in range(3)]
    return sum(game.score for game in games) / len(games)


@pytest.mark.parametrize("preset", ["atari", "paper"])
def test_the_atari_path_masters_catch(tmp_path: Path, preset: str) -> None:
    assert learnt_score(tmp_path / "run", seed=0, preset=preset) >= MASTERED


@pytest.mark.torture
@pytest.mark.parametrize("preset", ["atari", "paper"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_the_atari_path_masters_catch_from_other_seeds(tmp_path: Path, seed: int, preset: str) -> None:
    assert learnt_score(tmp_path / "run", seed, preset) >= MASTERED


# --- faults -----------------------------------------------------------------------------------------------------------

Seeding = Callable[[pytest.MonkeyPatch], None]


def repeat_the_newest_frame(patch: pytest.MonkeyPatch) -> None:
    states = ReplayMemory.states

    def faulty(memory: ReplayMemory, slots: Integers) -> NDArray[Any]:
        return np.repeat(states(memory, slots)[:, -1:], memory.history, axis=1)

    patch.setattr(ReplayMemory, "states", faulty)


def leave_rewards_unclipped(patch: pytest.MonkeyPatch) -> None:
    change_steps(patch, lambda step: step._replace(reward=step.score))


def ignore_lost_lives(patch: pytest.MonkeyPatch) -> None:
    change_steps(patch, lambda step: step._replace(terminated=step.terminated and step.game_over))


def change_steps(patch: pytest.MonkeyPatch, change: Callable[[Step], Step]) -> None:
    step = Atari.step
    patch.setattr(Atari, "step", lambda environment, action: change(step(environment, action)))


def negate_the_filters_gradients(patch: pytest.MonkeyPatch) -> None:
    gradients = FastAtari.gradients

    def faulty(network: FastAtari, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        found = gradients(network, saved, q_gradient)
        return [-one if number in (0, 2, 4) else one for number, one in enumerate(found)]  # the three weights

    patch.setattr(FastAtari, "gradients", faulty)


def negate_the_first_filters_gradient(patch: pytest.MonkeyPatch) -> None:
    gradients = FastAtari.gradients

    def faulty(network: FastAtari, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        first, *others = gradients(network, saved, q_gradient)
        return [-first, *others]

    patch.setattr(FastAtari, "gradients", faulty)


def use_features_of_the_wrong_sample(patch: pytest.MonkeyPatch) -> None:
    gradients = FastAtari.gradients

    def faulty(network: FastAtari, saved: Saved, q_gradient: Tensor) -> list[Tensor]:
        inputs = [one.roll(1, 0) if number < 3 else one for number, one in enumerate(saved.inputs)]  # convolutions'
        return gradients(network, saved._replace(inputs=inputs), q_gradient)

    patch.setattr(FastAtari, "gradients", faulty)


@pytest.mark.torture
@pytest.mark.parametrize(
    "seed_fault",
    [
        repeat_the_newest_frame,
        leave_rewards_unclipped,
        ignore_lost_lives,
        negate_the_filters_gradients,
        negate_the_first_filters_gradient,
        use_features_of_the_wrong_sample,
    ],
    ids=lambda seed_fault: seed_fault.__name__,
)
def test_a_fault_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed_fault: Seeding) -> None:
    """Not every fault in the gradients is: fixed random filters are enough here, so zero for one layer does no harm.

    ``test_networks.py`` compares every gradient with autograd's.
    """
    seed_fault(monkeypatch)
    assert learnt_score(tmp_path / "run", seed=0) < MASTERED
