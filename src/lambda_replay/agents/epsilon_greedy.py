"""ε-greedy actions from a row of Q-values, and their probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.agents.protocol import Acted
from lambda_replay.agents.schedules import LinearRamp
from lambda_replay.config import ExplorationConfig
from lambda_replay.replay.data import Floats


def epsilon_greedy(q_values: Floats, epsilon: float, rng: np.random.Generator) -> Acted:
    """Actions [n] and their probabilities μ(a|s) = ε/A + (1−ε)·[a greedy] for Q-values [n, A] (paper, Algorithm 1)."""
    num_states, num_actions = q_values.shape
    if num_states == 1:
        return _epsilon_greedy_once(q_values[0], epsilon, rng)
    chances, choices = rng.random((2, num_states))  # one draw for both: every call counts in small environments
    greedy_actions = q_values.argmax(axis=1)
    actions = np.where(chances < epsilon, (choices * num_actions).astype(np.int64), greedy_actions)
    return Acted(actions, epsilon / num_actions + (1 - epsilon) * (actions == greedy_actions))


def _epsilon_greedy_once(q_values: Floats, epsilon: float, rng: np.random.Generator) -> Acted:
    """The same for the Q-values [A] of one state, with the same random numbers, in a third of the time."""
    chance, choice = rng.random(2).tolist()
    num_actions, greedy_action = len(q_values), int(q_values.argmax())
    action = int(choice * num_actions) if chance < epsilon else greedy_action
    return Acted(np.array([action]), np.array([epsilon / num_actions + (1 - epsilon) * (action == greedy_action)]))


def uniformly_random(num_states: int, num_actions: int, rng: np.random.Generator) -> Acted:
    """Actions [n] of random play, ε = 1, and their probabilities."""
    return Acted(rng.integers(num_actions, size=num_states), np.full(num_states, 1 / num_actions))


class Epsilon:
    """ε at a step: 1 for the first ``start`` steps, then annealed. deviations.md #5 says where the annealing starts."""

    def __init__(self, config: ExplorationConfig, start: int) -> None:
        self._start, self._ramp = start, LinearRamp(config.start, config.end, config.steps)

    def __call__(self, step: int) -> float:
        return 1.0 if step < self._start else self._ramp(step)


class EpsilonGreedy:
    """Acts with the current Q-function; uniformly at random for the first ``start`` steps."""

    def __init__(
        self,
        q_function: Callable[[NDArray[Any]], Floats],
        num_actions: int,
        config: ExplorationConfig,
        start: int,
        rng: np.random.Generator,
    ) -> None:
        self._q_function, self._num_actions, self._rng = q_function, num_actions, rng
        self.epsilon = Epsilon(config, start)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        """Actions [n] for states [n, F, *observation] and their probabilities."""
        epsilon = self.epsilon(step)
        if epsilon == 1:  # no Q-values are needed, which saves time during a long start
            return uniformly_random(len(states), self._num_actions, self._rng)
        return epsilon_greedy(self._q_function(states), epsilon, self._rng)
