"""SAC(λ)'s own critic evaluates a fixed policy to its exact soft values; two common mistakes miss them as theory says.

Two states and one number as the action. Rewards, and the chance that state 1 is next, are linear in the action, so that
Q(s, ·) is a line in either state, which a small ReLU network holds without error:

r(s, a) = ρ_s + w_s·a,   P(1|s, a) = p_s + d_s·a,
Q(s, a) = r(s, a) + γ·Σ P(s'|s, a)·V(s'),   V(s) = E[Q(s, ã)] + α·H(s),

with ã ~ π(·|s), a squashed Gaussian of entropy H(s).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy import integrate, stats

import lambda_replay as lr
from lambda_replay.agents.continuous import Minimum
from lambda_replay.agents.sac_lambda import SAC, EntropyConfig, SACLambdaConfig
from lambda_replay.learning.actor_critic import ActorCritic, make_ensembles
from lambda_replay.replay.critic import promote_slots
from lambda_replay.replay.data import ValueBlock

Array = NDArray[np.float64]

DISCOUNT, ALPHA, BLOCK = 0.6, 0.7, 3  # a block's length in steps
REWARDS, REWARD_SLOPES = np.array([1.0, -2.0]), np.array([0.5, 3.0])  # ρ, w
CHANCES, CHANCE_SLOPES = np.array([0.4, 0.7]), np.array([0.3, -0.2])  # p, d
MEANS, LOG_STDS = np.array([0.4, -0.8]), np.array([-1.6, -3.0])
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(10)  # for the mean over a standard Gaussian


def log_density(state: int, action: float) -> float:
    """log π(a|s) = log N(atanh a; μ, σ) − log(1 − a²)."""
    of_latent = stats.norm.logpdf(np.arctanh(action), MEANS[state], np.exp(LOG_STDS[state]))
    return float(of_latent - np.log(1 - action**2))


def mean_of(state: int, function: Any) -> float:
    """∫ π(a|s)·f(a) da."""
    density = stats.norm(MEANS[state], np.exp(LOG_STDS[state])).pdf
    found: float = integrate.quad(lambda latent: density(latent) * function(np.tanh(latent)), -8, 8, epsabs=1e-10)[0]
    return found


FIRST = np.array([mean_of(state, lambda a: a) for state in range(2)])  # E a
SPREAD = np.array([mean_of(s, lambda a, m=m: (a - m) ** 2) for s, m in enumerate(FIRST)]) ** 0.5  # its deviation
ENTROPY = np.array([-mean_of(s, lambda a, s=s: log_density(s, a)) for s in range(2)])


def next_chances(state: int, action: float) -> Array:
    """P(·|s, a) [2]."""
    one = CHANCES[state] + CHANCE_SLOPES[state] * action
    return np.array([1 - one, one])


def reward(state: int, action: float) -> float:
    return float(REWARDS[state] + REWARD_SLOPES[state] * action)


MOVES = np.array([next_chances(state, FIRST[state]) for state in range(2)])  # [2, 2]  under the policy


# --- what theory says -------------------------------------------------------------------------------------------------


def values_with(bonuses: Array) -> Array:
    """Q(s, a) [2, 2] at the two actions of each state if every state passed is worth a bonus: V = r + bonus + γ·P·V."""
    own = np.array([reward(state, FIRST[state]) for state in range(2)])
    values = np.linalg.solve(np.eye(2) - DISCOUNT * MOVES, own + bonuses)
    return np.array(
        [[reward(s, a) + DISCOUNT * next_chances(s, a) @ values for a in both] for s, both in enumerate(two_actions())]
    )


def kept_entropy(weights: dict[int, float]) -> Array:
    """What Q(s, a) [2, 2] has of the entropy if a return counts that of its last state alone.

    With n-step returns mixed by weights w_n: e(s, a) = Σ_n w_n·γⁿ·E[ α·H + Σ_a π·e ](s_{t+n}).
    """
    ahead = sum((w * DISCOUNT**n * np.linalg.matrix_power(MOVES, n - 1) for n, w in weights.items()), np.zeros((2, 2)))
    own = np.linalg.solve(np.eye(2) - MOVES @ ahead, ALPHA * ENTROPY)  # [2]  α·H + Σ_a π·e
    return np.array([[next_chances(s, a) @ ahead @ own for a in both] for s, both in enumerate(two_actions())])


def lambda_weights(lambda_: float) -> dict[int, float]:
    """Those of the n-step returns in a λ-return of a whole block, whose last state always counts."""
    return {n: (1 - lambda_) * lambda_ ** (n - 1) for n in range(1, BLOCK)} | {BLOCK: lambda_ ** (BLOCK - 1)}


# --- what the critic says ---------------------------------------------------------------------------------------------


def two_actions() -> Array:
    """Two actions [2, 2] per state with the policy's mean and deviation.

    A path's weight times its rewards is quadratic in each of its actions, so a mean over these two is one over π.
    """
    return np.stack([FIRST - SPREAD, FIRST + SPREAD], axis=1)


class Paths(NamedTuple):
    """Every path of a block's length, once for each noise."""

    blocks: lr.Promoted
    starts: NDArray[np.int64]  # [K]  2·(the first state) + which of its two actions
    weights: Array  # [K]  probability given the start
    noise: NDArray[np.float32]  # [K·(L+1), 1]


@cache
def all_paths(share: float = 0.5) -> Paths:
    """Paths of a behaviour that takes the first of a state's two actions with a probability; a half is the policy.

    By linearity, the mean over the draws of ã in each state may be taken with the same noise in all states of a path.
    """
    actions, chances = two_actions(), np.array([share, 1 - share])
    memory, starts, weights = lr.ReplayMemory(2_000, (2,), np.float32, action_shape=(1,)), [], []
    for *pairs, last in itertools.product(*[range(4)] * BLOCK, range(2)):
        steps, weight = [divmod(pair, 2) for pair in pairs], 1.0
        states = [*(state for state, _ in steps), last]
        memory.begin(np.eye(2, dtype=np.float32)[states[0]])
        for t, (state, choice) in enumerate(steps):
            action, following = float(actions[state, choice]), states[t + 1]
            weight *= (chances[choice] if t > 0 else 1.0) * float(next_chances(state, action)[following])
            log_prob = log_density(state, action) + float(np.log(2 * chances[choice]))
            observation, is_last = np.eye(2, dtype=np.float32)[following], t == BLOCK - 1
            stored = np.array([action], dtype=np.float32)
            memory.append(stored, reward(state, action), observation, False, is_last, log_prob)
        starts.append(pairs[0])
        weights.append(weight)
    slots = np.arange(len(starts) * (BLOCK + 1)).reshape(-1, BLOCK + 1)
    of_noise = NODE_WEIGHTS / NODE_WEIGHTS.sum()
    return Paths(
        promote_slots(memory, np.tile(slots, (len(NODES), 1)), discount=DISCOUNT, length=BLOCK),
        np.tile(starts, len(NODES)),
        np.outer(of_noise, weights).reshape(-1),
        np.repeat(NODES, slots.size).astype(np.float32)[:, None],
    )


def make_networks() -> ActorCritic:
    """The policy. Hidden units of the critics are s₀, s₁, s₀·(1 + a) and s₁·(1 + a) for s one-hot and |a| ≤ 1."""
    networks = ActorCritic(
        *make_ensembles(
            2, 1, policy_outputs=2, num_critics=2, hidden=(4,), layer_norm=False, policy_bound=None, seed=0
        ),
        torch.device("cpu"),
    )
    policy, critics = networks.modules["policy"], networks.modules["critics"]
    with torch.no_grad():
        for parameter in (*policy.parameters(), *critics.parameters()):
            parameter.zero_()
        policy.weights[0][0, :, :2] = torch.eye(2)
        policy.weights[1][0, :2] = torch.from_numpy(np.stack([MEANS, LOG_STDS], axis=1))
        critics.weights[0][:] = torch.tensor([[1.0, 0, 2, 0], [0, 1, 0, 2], [0, 0, 1, 1]])
        critics.biases[0][:] = torch.tensor([0.0, 0, -1, -1])
    return networks


def set_values(networks: ActorCritic, q_values: Array) -> None:
    """The first critic has these values [2, 2] at the two actions of each state, the second is larger by 1."""
    actions = two_actions()
    slopes = (q_values[:, 1] - q_values[:, 0]) / (actions[:, 1] - actions[:, 0])
    constants = q_values[:, 0] - slopes * (1 + actions[:, 0])
    critics = networks.modules["critics"]
    with torch.no_grad():
        critics.weights[1][:, :, 0] = torch.from_numpy(np.concatenate([constants, slopes]))
        critics.biases[1][1] = 1


class Given:
    """In the place of a random generator: a refresh draws this noise."""

    def __init__(self, noise: NDArray[np.float32]) -> None:
        self._noise = noise

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> NDArray[np.float32]:
        assert shape == self._noise.shape
        return self._noise


@dataclass(frozen=True)
class Forgetful:
    """A critic whose V(s) is replaced by a return as a whole, as in other libraries: so the entropy is lost."""

    critic: lr.Critic

    def evaluate(self, blocks: lr.Promoted) -> ValueBlock:
        return replace(cast(ValueBlock, self.critic.evaluate(blocks)), baselines=None)


def evaluate_policy(
    spelling: str, *, is_forgetful: bool = False, minimum: Minimum = "step", share: float = 0.5
) -> Array:
    """Repeat Q(s, a) ← the exact mean of the cached returns of all paths that begin with (s, a); [2, 2]."""
    paths, networks = all_paths(share), make_networks()
    agent = SAC(SACLambdaConfig(entropy=EntropyConfig(alpha=ALPHA), minimum=minimum), networks, 1)
    critic: lr.Critic = agent.critic(cast(Any, Given(paths.noise)))
    estimator, q_values = lr.parse_estimator(spelling), np.zeros((2, 2))
    totals = np.bincount(paths.starts, paths.weights)
    for _ in range(30):
        set_values(networks, q_values)
        cached = lr.build_cache(paths.blocks, Forgetful(critic) if is_forgetful else critic, estimator)
        first = cached.returns.reshape(-1, BLOCK)[:, 0]
        q_values = (np.bincount(paths.starts, paths.weights * first) / totals).reshape(2, 2)
    return q_values


# --- the three of them ------------------------------------------------------------------------------------------------


def test_the_problem_is_what_it_says() -> None:
    """Means over noise and over two actions are means over the policy; a critic holds the values that it is given."""
    for state, std in enumerate(np.exp(LOG_STDS)):
        drawn, weights = np.tanh(MEANS[state] + std * NODES), NODE_WEIGHTS / NODE_WEIGHTS.sum()
        assert mean_of(state, lambda a: 1.0) == pytest.approx(1, abs=1e-9)
        assert weights @ drawn == pytest.approx(FIRST[state], abs=1e-6)
        log_probs = [log_density(state, action) for action in drawn]
        assert -(weights @ log_probs) == pytest.approx(ENTROPY[state], abs=1e-6)
        assert (two_actions()[state] ** 2).mean() == pytest.approx(mean_of(state, lambda a: a**2), abs=1e-9)
    assert_allclose(np.bincount(all_paths().starts, all_paths().weights), 1)
    networks, wanted = make_networks(), np.array([[1.0, -2.0], [3.0, 0.5]])
    set_values(networks, wanted)
    states, actions = (
        torch.from_numpy(array.astype(np.float32)) for array in (np.repeat(np.eye(2), 2, axis=0), two_actions())
    )
    found = networks.values(states, actions.reshape(-1, 1)).detach()
    assert_allclose(found, np.stack([wanted.reshape(-1), wanted.reshape(-1) + 1]), atol=1e-5)


@pytest.mark.parametrize("minimum", ["step", "return"])
@pytest.mark.parametrize(
    "spelling", ["peng:0", "peng:0.3", "peng:0.7", "peng:1", "nstep:1", "nstep:2", "nstep:3", "retrace:0.7"]
)
def test_the_critic_finds_the_exact_soft_values_whatever_lambda_is(spelling: str, minimum: Minimum) -> None:
    assert_allclose(evaluate_policy(spelling, minimum=minimum), values_with(ALPHA * ENTROPY), rtol=1e-5, atol=1e-5)


def test_retrace_finds_them_on_another_policy_s_data() -> None:
    """μ takes one of the two actions with probability 0.8, so π/μ is 0.625 or 2.5; without ratios it would matter."""
    exact = values_with(ALPHA * ENTROPY)
    assert_allclose(evaluate_policy("retrace:0.7", share=0.8), exact, rtol=1e-5, atol=1e-5)
    assert np.abs(evaluate_policy("peng:0.7", share=0.8) - exact).max() > 0.02


@pytest.mark.parametrize("lambda_", [0.3, 0.7, 1.0])
def test_lambda_returns_that_replace_the_entropy_keep_a_share_of_it(lambda_: float) -> None:
    """The mistake b = V. In blocks without end the share would be 1 − λ; a block's last state counts in full."""
    found, hard, soft = evaluate_policy(f"peng:{lambda_}", is_forgetful=True), *map(values_with, entropies())
    assert_allclose(found - hard, kept_entropy(lambda_weights(lambda_)), rtol=1e-4, atol=1e-5)
    shares = (found - hard) / (soft - hard)
    assert (shares > 1 - lambda_).all()
    assert (shares < 1 - 0.75 * lambda_).all()
    assert (np.abs(found - soft) > 0.3).all()


@pytest.mark.parametrize("n", [2, 3])
def test_n_step_returns_without_the_entropies_between_keep_every_nth_only(n: int) -> None:
    """The other mistake: bootstrap from a soft value after n steps, and forget the entropies passed."""
    found, hard, soft = evaluate_policy(f"nstep:{n}", is_forgetful=True), *map(values_with, entropies())
    assert_allclose(found - hard, kept_entropy({n: 1.0}), rtol=1e-4, atol=1e-5)
    assert (np.abs(found - soft) > 0.3).all()


def entropies() -> tuple[Array, Array]:
    """None, and the policy's."""
    return np.zeros(2), ALPHA * ENTROPY
