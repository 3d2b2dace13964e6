"""ε-greedy choices and the probabilities they are stored with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import stats

from lambda_replay.agents.epsilon_greedy import EpsilonGreedy, epsilon_greedy
from lambda_replay.config import ExplorationConfig

Q_VALUES = np.array([[0, 3, 1, 2], [9, 3, 1, 2], [-4, -3, -2, -1]], dtype=np.float32)  # greedy: 1, 0, 3
STATES = np.zeros((3, 1, 2), dtype=np.uint8)


def make_actor(start: int = 0, seed: int = 0, **exploration: Any) -> EpsilonGreedy:
    config = ExplorationConfig(**{"start": 1.0, "end": 0.2, "steps": 100, **exploration})
    return EpsilonGreedy(lambda _states: Q_VALUES, 4, config, start, np.random.default_rng(seed))


def no_q_values(_states: NDArray[Any]) -> NDArray[Any]:
    raise AssertionError("Q-values were asked for")


# --- golden -----------------------------------------------------------------------------------------------------------


def test_without_epsilon_every_action_is_greedy_and_certain() -> None:
    actions, probabilities, _ = epsilon_greedy(Q_VALUES, 0.0, np.random.default_rng(0))
    assert_array_equal(actions, [1, 0, 3])
    assert_array_equal(probabilities, [1, 1, 1])


def test_probabilities_are_those_of_the_action_taken() -> None:
    """ε = 0.4 and 4 actions: 0.1 each, and 0.6 more for the greedy one, also when chance picked it."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        actions, probabilities, _ = epsilon_greedy(Q_VALUES, 0.4, rng)
        assert_allclose(probabilities, np.where(actions == [1, 0, 3], 0.7, 0.1), rtol=1e-12)


@pytest.mark.parametrize(("step", "epsilon"), [(0, 1.0), (49, 1.0), (50, 0.6), (75, 0.4), (100, 0.2), (5_000, 0.2)])
def test_epsilon_is_one_at_the_start_then_on_the_ramp(step: int, epsilon: float) -> None:
    assert make_actor(start=50).epsilon(step) == pytest.approx(epsilon)


# --- property ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_actions_come_as_often_as_their_probability_says(epsilon: float) -> None:
    q_values = np.tile(Q_VALUES[:1], (20_000, 1))
    actions, probabilities, _ = epsilon_greedy(q_values, epsilon, np.random.default_rng(1))
    expected = epsilon / 4 + (1 - epsilon) * (np.arange(4) == 1)
    assert_allclose(probabilities, expected[actions], rtol=1e-12)
    assert stats.chisquare(np.bincount(actions, minlength=4), 20_000 * expected).pvalue > 0.01


def test_states_are_explored_independently_of_each_other() -> None:
    rng = np.random.default_rng(2)
    is_greedy = np.array([epsilon_greedy(Q_VALUES, 0.5, rng)[0] == [1, 0, 3] for _ in range(4_000)])
    assert (np.abs(np.corrcoef(is_greedy.T) - np.eye(3)) < 0.06).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("num_actions", [1, 2, 3, 18])
def test_probabilities_are_probabilities(epsilon: float, num_actions: int) -> None:
    q_values = np.random.default_rng(0).normal(size=(100, num_actions)).astype(np.float32)
    actions, probabilities, _ = epsilon_greedy(q_values, epsilon, np.random.default_rng(0))
    assert actions.shape == probabilities.shape == (100,)
    assert ((actions >= 0) & (actions < num_actions)).all()
    assert ((probabilities > 0) & (probabilities <= 1)).all()  # what the memory accepts


def test_tied_actions_have_one_greedy_one() -> None:
    """Σ_a μ(a|s) = 1 only if exactly one of the tied actions counts as greedy."""
    tied = np.zeros((5_000, 3), dtype=np.float32)
    actions, probabilities, _ = epsilon_greedy(tied, 0.3, np.random.default_rng(0))
    by_action = [set(probabilities[actions == action].tolist()) for action in range(3)]
    assert all(len(values) == 1 for values in by_action)
    assert sum(values.pop() for values in by_action) == pytest.approx(1)


def test_q_values_are_only_read() -> None:
    q_values = Q_VALUES.copy()
    q_values.setflags(write=False)
    epsilon_greedy(q_values, 0.5, np.random.default_rng(0))
    assert_array_equal(q_values, Q_VALUES)


# --- behaviour --------------------------------------------------------------------------------------------------------


def test_the_start_is_uniform_and_asks_for_no_q_values() -> None:
    config = ExplorationConfig(start=0.5, end=0.1, steps=100)
    actor = EpsilonGreedy(no_q_values, 4, config, 1_000, np.random.default_rng(0))
    taken = []
    for step in range(1_000):
        actions, probabilities, _ = actor.act(STATES, step)
        assert_array_equal(probabilities, [0.25, 0.25, 0.25])
        taken.append(actions)
    assert stats.chisquare(np.bincount(np.concatenate(taken), minlength=4)).pvalue > 0.01
    with pytest.raises(AssertionError, match="Q-values"):
        actor.act(STATES, 1_000)


def test_an_actor_acts_on_its_states_with_the_epsilon_of_the_step() -> None:
    seen = []

    def recording(states: NDArray[Any]) -> NDArray[Any]:
        seen.append(states)
        return Q_VALUES

    actor = EpsilonGreedy(recording, 4, ExplorationConfig(start=1.0, end=0.2, steps=100), 0, np.random.default_rng(3))
    for step in (50, 100):
        epsilon = actor.epsilon(step)
        actions, probabilities, _ = actor.act(STATES, step)
        expected = epsilon / 4 + (1 - epsilon) * (actions == [1, 0, 3])
        assert_allclose(probabilities, expected, rtol=1e-12)
    assert len(seen) == 2  # one batched call for all environments
    assert seen[0] is STATES


def test_the_same_generator_gives_the_same_actions() -> None:
    def play(seed: int) -> list[int]:
        actor = make_actor(start=20, seed=seed)
        return [int(action) for step in range(150) for action in actor.act(STATES, step)[0]]

    assert play(1) == play(1)
    assert play(1) != play(2)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_one_state_is_treated_like_several(epsilon: float) -> None:
    """Alone, a state takes a path of its own: first the chance of exploring, then the choice, as for several."""
    rng, same = np.random.default_rng(5), np.random.default_rng(5)
    for q_values in np.random.default_rng(6).normal(size=(300, 3)).astype(np.float32):
        chance, choice = same.random(2)
        action, probability, _ = epsilon_greedy(q_values[None], epsilon, rng)
        expected = int(choice * 3) if chance < epsilon else int(np.argmax(q_values))
        assert_array_equal(action, [expected])
        assert action.dtype == np.int64
        assert probability.dtype == np.float64
        assert probability[0] == epsilon / 3 + (1 - epsilon) * (expected == np.argmax(q_values))
