"""What the estimators learn from another policy's data on a small known problem; exact answers by linear algebra."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.data import Block

Array = NDArray[np.float64]

NUM_STATES, NUM_ACTIONS, DISCOUNT, LAMBDA = 5, 3, 0.9, 0.9
NUM_BLOCKS, KEPT_STEPS, TAIL_STEPS = 6_000, 25, 25
TRUNCATION_PROBABILITY = 0.02  # per step, by no doing of the agent's
TRACE = LAMBDA * (1 - TRUNCATION_PROBABILITY)  # a truncated step bootstraps with the whole weight: λ = 0 there
EVALUATION_TOLERANCE, CONTROL_TOLERANCE = 0.1, 0.2  # sampling errors; a maximum is noisier than an average


@dataclass(frozen=True)
class Problem:
    """A Markov decision process with a fixed behaviour policy."""

    transitions: Array  # [S, A, S]; what is missing to a sum of 1 is the probability to terminate
    rewards: Array  # [S, A]
    behaviour: Array  # [S, A]  μ(a|s)

    def values_of(self, policy: Array) -> Array:  # [S, A]
        """Q^π = (I − γ·P·π)⁻¹·r, exactly."""
        size = NUM_STATES * NUM_ACTIONS
        next_pairs = (self.transitions[:, :, :, None] * policy).reshape(size, size)
        solved = np.linalg.solve(np.eye(size) - DISCOUNT * next_pairs, self.rewards.ravel())
        return np.asarray(solved.reshape(NUM_STATES, NUM_ACTIONS))

    def greedy_values(self, exploring: float) -> Array:  # [S, A]
        """Q of the policy that acts as μ with probability ``exploring`` and greedily otherwise; 0 gives Q*.

        Iterated to its fixed point: Q = r + γ·P·[(1−x)·max Q + x·Σμ·Q].
        """
        q = np.zeros((NUM_STATES, NUM_ACTIONS))
        for _ in range(500):
            values = (1 - exploring) * q.max(axis=1) + exploring * (self.behaviour * q).sum(axis=1)
            q = self.rewards + DISCOUNT * self.transitions @ values
        return q


@dataclass(frozen=True)
class Data:
    """Slots of K streams, as a replay memory keeps them: an ended episode closes with a slot of its final state."""

    states: NDArray[np.int64]  # [K, L+1]
    actions: NDArray[np.int64]  # [K, L+1]
    rewards: NDArray[np.float32]  # [K, L]
    terminated: NDArray[np.bool_]  # [K, L]
    truncated: NDArray[np.bool_]  # [K, L]
    behaviour_probs: NDArray[np.float32]  # [K, L+1]
    is_step: NDArray[np.bool_]  # [K, L+1]

    def block(self, q: Array) -> Block:
        is_transition = self.is_step[:, :-1]
        return Block(
            rewards=self.rewards,
            discounts=np.where(is_transition & ~self.terminated, DISCOUNT, 0).astype(np.float32),
            q_values=q.astype(np.float32)[self.states],
            actions=self.actions,
            behaviour_probs=self.behaviour_probs,
            continues=is_transition & ~self.terminated & ~self.truncated,
            is_step=self.is_step,
        )


@cache
def problem() -> Problem:
    rng = np.random.default_rng(20)
    transitions = rng.dirichlet(np.full(NUM_STATES, 0.5), size=(NUM_STATES, NUM_ACTIONS))
    transitions[-1] *= 0.8  # the last state terminates one time in five
    return Problem(
        transitions=transitions,
        rewards=rng.uniform(-1, 1, size=(NUM_STATES, NUM_ACTIONS)),
        behaviour=0.1 / NUM_ACTIONS + 0.9 * rng.dirichlet(np.full(NUM_ACTIONS, 0.5), size=NUM_STATES),
    )


def sample(rng: np.random.Generator, probabilities: Array) -> NDArray[np.int64]:
    """One index per row of [K, n]; n where the row's remainder to 1 is drawn."""
    return (rng.random((len(probabilities), 1)) >= probabilities.cumsum(axis=1)).sum(axis=1)


@cache
def data() -> Data:
    """All streams stepped together under μ."""
    rng, mdp, length = np.random.default_rng(21), problem(), KEPT_STEPS + TAIL_STEPS
    shape = (NUM_BLOCKS, length + 1)
    states, actions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    rewards, probs = np.zeros(shape, dtype=np.float32), np.ones(shape, dtype=np.float32)
    terminated, truncated, is_step = (np.zeros(shape, dtype=bool) for _ in range(3))
    states[:, 0] = rng.integers(NUM_STATES, size=NUM_BLOCKS)
    closes = np.zeros(NUM_BLOCKS, dtype=bool)
    for t in range(length + 1):
        state = states[:, t]
        action = np.minimum(sample(rng, mdp.behaviour[state]), NUM_ACTIONS - 1)
        next_state = sample(rng, mdp.transitions[state, action])
        is_step[:, t] = ~closes
        actions[:, t] = np.where(closes, 0, action)
        rewards[:, t] = np.where(closes, 0, mdp.rewards[state, action])
        probs[:, t] = np.where(closes, 1, mdp.behaviour[state, action])
        terminated[:, t] = ~closes & (next_state == NUM_STATES)
        truncated[:, t] = ~closes & ~terminated[:, t] & (rng.random(NUM_BLOCKS) < TRUNCATION_PROBABILITY)
        restart = closes | terminated[:, t]  # a closed stream starts anew; a terminal state's number is never read
        if t < length:
            states[:, t + 1] = np.where(restart, rng.integers(NUM_STATES, size=NUM_BLOCKS), next_state)
        closes = terminated[:, t] | truncated[:, t]
    return Data(states, actions, rewards[:, :-1], terminated[:, :-1], truncated[:, :-1], probs, is_step)


def learn(spelling: str, iterations: int = 40) -> Array:
    """Q ← mean return of each (s, a), repeated. Returns of the last steps, cut short by the block, are left out."""
    estimator, experience = lr.parse_estimator(spelling), data()
    kept = experience.actions[:, :KEPT_STEPS]
    real = experience.is_step[:, :KEPT_STEPS]
    pairs = (experience.states[:, :KEPT_STEPS] * NUM_ACTIONS + kept)[real]
    counts = np.bincount(pairs, minlength=NUM_STATES * NUM_ACTIONS)
    assert counts.min() > 200
    q = np.zeros((NUM_STATES, NUM_ACTIONS))
    for _ in range(iterations):
        returns = np.asarray(estimator(experience.block(q)))[:, :KEPT_STEPS][real]
        q = (np.bincount(pairs, weights=returns, minlength=counts.size) / counts).reshape(q.shape)
    return q


def gap(learnt: Array, exact: Array) -> float:
    return float(np.abs(learnt - exact).max())


UNIFORM = np.full((NUM_STATES, NUM_ACTIONS), 1 / NUM_ACTIONS)  # the ε-greedy policy with ε = 1, whatever Q


def test_retrace_evaluates_the_target_policy_on_other_data() -> None:
    assert gap(learn(f"retrace:{LAMBDA}@1"), problem().values_of(UNIFORM)) < EVALUATION_TOLERANCE


def test_tree_backup_evaluates_the_target_policy_on_other_data() -> None:
    assert gap(learn(f"tree:{LAMBDA}@1"), problem().values_of(UNIFORM)) < EVALUATION_TOLERANCE


def test_uncorrected_expected_sarsa_evaluates_a_mixture_of_policies() -> None:
    """Its fixed point Q = r + γ·P·[(1−λ)·Σπ·Q + λ·Σμ·Q] is the value of (1−λ)·π + λ·μ, far from that of π."""
    mixture = problem().values_of((1 - TRACE) * UNIFORM + TRACE * problem().behaviour)
    learnt = learn(f"sarsa:{LAMBDA}@1")
    assert gap(learnt, mixture) < EVALUATION_TOLERANCE
    assert gap(learnt, problem().values_of(UNIFORM)) > 5 * EVALUATION_TOLERANCE


def test_watkins_finds_the_optimal_values_on_exploratory_data() -> None:
    assert gap(learn(f"watkins:{LAMBDA}"), problem().greedy_values(exploring=0)) < CONTROL_TOLERANCE


def test_peng_with_a_fixed_exploratory_policy_stays_away_from_the_optimal_values() -> None:
    """Its fixed point Q = r + γ·P·[(1−λ)·max Q + λ·Σμ·Q] is that of acting as μ with probability λ."""
    learnt = learn(f"peng:{LAMBDA}")
    assert gap(learnt, problem().greedy_values(exploring=TRACE)) < CONTROL_TOLERANCE
    assert gap(learnt, problem().greedy_values(exploring=0)) > 10 * CONTROL_TOLERANCE
