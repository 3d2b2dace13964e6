"""The conformance kit: its answers are right, right functions pass, and wrong ones are told what they do wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any, cast

import numpy as np
import oracles
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import lambda_replay as lr
from benchmarks import peers_returns
from lambda_replay import testing
from lambda_replay.replay.data import Block
from lambda_replay.testing.cases import spread_returns
from lambda_replay.testing.exact import Steps, fixed_returns, mean_error, right_returns
from lambda_replay.testing.stories import batch_of, sequences
from lambda_replay.testing.trap import Trap
from lambda_replay.testing.traps import TRAPS, traps, wrong_returns

# Q*(λ) may say that it contracts only for small λ; its numbers are what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*may diverge:UserWarning")

Array = NDArray[Any]
Function = Callable[[testing.Case], Array]


def case_of(estimator: str, name: str) -> testing.Case:
    (case,) = [case for case in testing.cases(estimator) if case.name == name]
    return case


def message_of(function: Function, estimator: str, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        testing.check(function, estimator, **options)
    return str(caught.value)


def sentence_of(estimator: str, name: str) -> str:
    (trap,) = [trap for trap in TRAPS if trap.name == name and estimator in trap.estimators]
    return trap.sentence


# γ = 1/2, λ = 3/4, rewards 1 −2 4 3 5, max Q of the six states 8 10 12 14 16 20, of a final observation 40.
@pytest.mark.parametrize(
    ("estimator", "name", "returns"),
    [
        # 5 + 20/2, 3 + (16/4 + 15·3/4)/2; before the end: 4, −2 + (12/4 + 4·3/4)/2, 1 + (10/4 + 1·3/4)/2
        ("peng", "terminated inside", [2.625, 1, 4, 10.625, 15]),
        # the same, but 4 + 40/2 = 24 at the limit: −2 + (12/4 + 24·3/4)/2 = 8.5
        ("peng", "truncated inside", [5.4375, 8.5, 24, 10.625, 15]),
        # 4 + (14/4 + 10.625·3/4)/2; step 1 takes the whole of V(s₂), because a₂ explores: −2 + 12/2
        ("watkins", "explores inside", [3.75, 4, 9.734375, 10.625, 15]),
        # 1 − 2/2 + 4/4 + 14/8, −2 + 4/2 + 3/4 + 16/8, 4 + 3/2 + 5/4 + 20/8, 3 + 5/2 + 20/4, 5 + 20/2
        ("nstep", "no end", [2.75, 2.75, 9.25, 10.5, 15]),
        # one step, Q = 4, 10 with π = 1/4, 3/4: 1 + 8.5/2
        ("sarsa", "one step", [5.25]),
        # V: 8.5 9.5 12 13 17.5; c = λπ: 9/16 3/16 9/16 3/16; b: 10 2 14 4. 5 + 17.5/2, 3 + (13 + 3/16·9.75)/2,
        # 4 + (12 + 9/16·(10.4140625 − 14))/2, −2 + (9.5 + 3/16·6.991455078125)/2, 1 + (8.5 − 9/16·6.59455108…)/2
        ("tree", "no end", [3.395282506942749, 3.40544891357421875, 8.991455078125, 10.4140625, 13.75]),
        # ratios 3 1/2 3/4 2, so c = 3/4 3/8 9/16 3/4. 3 + (13 + 3/4·9.75)/2, 4 + (12 + 9/16·(13.15625 − 14))/2,
        # −2 + (9.5 + 3/8·7.7626953125)/2, 1 + (8.5 − 3/4·5.79449462890625)/2
        ("retrace", "no end", [3.07706451416015625, 4.20550537109375, 9.7626953125, 13.15625, 13.75]),
        # Q: 4 12 6 16 10, entropies 3 1/2 −1 5/2 3/2: 5 + 11.5/2; 3 + (5/2 + 16/4 + 10.75·3/4)/2
        ("soft", "terminated inside", [3.46875, 1.25, 4, 10.28125, 10.75]),
        # 1 + (3 − 2)/2 + (1/2 + 4)/4 + (−1 + 6)/8
        ("soft-nstep", "no end", [3.25, 3.0625, 8.3125, 9.625, 10.75]),
        # the smaller critic: 4 2 6 4 10: 5 + 10/2; 3 + (4/4 + 10·3/4)/2; before the end 4; −2 + (2/4 + 3)/2
        ("twin", "terminated inside", [1.40625, -0.25, 4, 7.25, 10]),
        # critic 1: 3 + (16/4 + 10·3/4)/2 = 8.75, critic 2: 3 + (4/4 + 15·3/4)/2 = 9.125
        ("twin-return", "terminated inside", [1.875, -0.25, 4, 8.75, 10]),
        # rewards 2 14 6 10 −4. λ = 0: 7 20 13 18 6; λ = 1/2: 9.5859375 20.34375 13.375 15.5 6; λ = 1: 12.125 20.25
        # 12.5 13 6. The middle ones:
        ("median", "k 2", [9.5859375, 20.25, 13, 15.5, 6]),
        # rewards 1 −2 4 3 5, λ = 1/2: 5 + 20/2, 3 + (16 + 15)/4, 4 + (14 + 10.75)/4, −2 + (12 + 10.1875)/4, …
        ("median", "falling", [4.38671875, 3.546875, 10.1875, 10.75, 15]),
        # 14 + 12/2, because a₂ explores; 2 + ((1−λ)·10 + λ·20)/2 rises; 10 + ((1−λ)·16 + λ·6)/2 = 18 − 5λ falls, so
        # the return of step 2 is 13 + 2λ − 2.5λ²: 10 of 21 are below that of λ = 3/20 and 13/20, 13 + 0.3 − 9/160
        ("watkins-median", "explores inside", [9.5, 20, 13.24375, 15.5, 6]),
        # λ = 1: 5 + 20/2, 3 + 15/2, 4 + 10.5/2, −2 + 9.25/2, 1 + 2.625/2
        ("bounded", "within the bound", [2.3125, 2.625, 9.25, 10.5, 15]),
        # λ = 0: 1 + 10/2, −2 + 12/2, 4 + 14/2, 3 + 16/2, 5 + 20/2; errors against 8 10 12 14 16 are 2 6 1 3 1, mean 2.6
        ("bounded", "beyond the bound", [6, 4, 11, 11, 15]),
        ("watkins-bounded", "barely within the bound", [6, 4, 11, 11, 15]),
        # λ = 1/4: 5.25 + 20/2, 5.75 + (12 + 15.25/4)/2, 4.75 + (10.5 + 13.65625/4)/2, 3 + (9 + …)/2, 2.5 + (7.5 + …)/2;
        # errors against 8 10 11.5 14 16: 0.6296 1.0366 0.2070 0.3438 0.75, mean 0.5934 ≤ 19/32 = 0.59375
        ("bounded", "small errors", [7.37042236328125, 8.96337890625, 11.70703125, 13.65625, 15.25]),
    ],
)
def test_hand_worked_answers(estimator: str, name: str, returns: list[float]) -> None:
    assert case_of(estimator, name).returns.tolist() == returns


ORACLES: dict[str, Callable[[Block, testing.Case], Array]] = {
    "peng": lambda block, case: oracles.peng(block, case.lambda_),
    "watkins": lambda block, case: oracles.watkins(block, case.lambda_),
    "nstep": lambda block, case: oracles.nstep(block, case.n),
    "sarsa": lambda block, case: oracles.sarsa(block, case.lambda_, case.epsilon),
    "tree": lambda block, case: oracles.tree(block, case.lambda_, case.epsilon),
    "retrace": lambda block, case: oracles.retrace(block, case.lambda_, case.epsilon),
    "qstar": lambda block, case: oracles.qstar(block, case.lambda_),
    "median": lambda block, case: oracles.median(block, case.k),
    "watkins-median": lambda block, case: oracles.median(block, case.k, oracles.watkins),
    "bounded": lambda block, case: oracles.bounded(block, case.bound),
    "watkins-bounded": lambda block, case: oracles.bounded(block, case.bound, oracles.watkins),
}


@pytest.mark.parametrize("estimator", ORACLES)
def test_the_answers_agree_with_the_literal_definitions(estimator: str) -> None:
    def by_oracle(case: testing.Case) -> Array:
        return testing.on_block(lambda block: ORACLES[estimator](block, case), case)

    testing.check(by_oracle, estimator, dtype=np.float64, tolerance=1e-12)


def forward_return(case: testing.Case, values: Array, entropies: Array, start: int, *, n: int | None) -> float:
    """The n-step return from a start, or the λ-average of all of them: sums over the steps, no recursion.

    R⁽ᵐ⁾ = Σ_{i<m} γⁱ·r_{t+i} + Σ_{0<i≤m} γⁱ·e_{t+i} + γᵐ·Q_{t+m}: the entropy of every state on the way counts.
    """
    left = 1
    while case.continues[start + left - 1] and start + left < len(case.rewards):
        left += 1
    returns = []
    for m in range(1, left + 1):
        steps = range(start, start + m)
        total = sum(case.gamma ** (t - start) * (case.rewards[t] + case.gamma * entropies[t]) for t in steps)
        returns.append(total + case.gamma**m * values[start + m - 1])
        if case.terminated[start + m - 1]:
            last = start + m - 1
            returns[-1] -= case.gamma**m * (values[last] + entropies[last])
    if n is not None:
        return float(returns[min(n, left) - 1])
    return oracles.lambda_average([float(value) for value in returns], case.lambda_)


def forward(case: testing.Case, values: Array, entropies: Array) -> Array:
    n = case.n if case.estimator.endswith("nstep") else None
    return np.array([forward_return(case, values, entropies, t, n=n) for t in range(len(case.rewards))])


FORWARD: dict[str, Function] = {
    "soft": lambda case: forward(case, case.next_critic_values[0], case.next_entropies),
    "soft-nstep": lambda case: forward(case, case.next_critic_values[0], case.next_entropies),
    "twin": lambda case: forward(case, case.next_critic_values.min(axis=0), 0 * case.rewards),
    "twin-return": lambda case: np.minimum(
        forward(case, case.next_critic_values[0], 0 * case.rewards),
        forward(case, case.next_critic_values[1], 0 * case.rewards),
    ),
}


@pytest.mark.parametrize("estimator", FORWARD)
def test_the_answers_of_actors_agree_with_sums_over_steps(estimator: str) -> None:
    testing.check(FORWARD[estimator], estimator, dtype=np.float64, tolerance=1e-12)


def test_every_estimator_has_a_second_derivation() -> None:
    assert {*ORACLES, *FORWARD} == set(testing.ESTIMATORS)


@pytest.mark.parametrize("estimator", testing.ESTIMATORS)
def test_float32_holds_every_number_exactly(estimator: str) -> None:
    """So a difference is a mistake, not rounding. Only the median's λ = i/20 makes answers that must be rounded."""
    singles, doubles = testing.cases(estimator), testing.cases(estimator, dtype=np.float64)
    for single, double in zip(singles, doubles, strict=True):
        for name, value in vars(double).items():
            if isinstance(value, np.ndarray):
                assert_array_equal(getattr(single, name), value, err_msg=f"{single} {name}")
        exact = right_returns(single.story.steps, estimator)
        assert single.returns.tolist() == [float(value) for value in exact]
        if not estimator.endswith("median"):
            assert [Fraction(value) for value in single.returns.tolist()] == exact


@pytest.mark.parametrize("estimator", ["bounded", "watkins-bounded"])
def test_a_bound_leaves_one_answer(estimator: str) -> None:
    """The largest λ of the grid of 1/2⁷ is what any search finds, and no comparison is a matter of rounding."""

    def errors(steps: Steps) -> list[Fraction]:
        grid = [Fraction(i, 128) for i in range(129)]
        return [mean_error(fixed_returns(steps.with_lambda(lambda_), estimator), steps) for lambda_ in grid]

    chosen = set()
    for case in testing.cases(estimator):
        for steps in batch_of(case.story.steps):
            found = errors(steps)
            satisfying = [i for i, error in enumerate(found) if error <= steps.bound]
            assert satisfying in (list(range(len(satisfying))), list(range(129 - len(satisfying), 129))), case
            best = Fraction(max(satisfying, default=0), 128)
            assert right_returns(steps, estimator) == fixed_returns(steps.with_lambda(best), estimator)
            assert min(abs(error / steps.bound - 1) for error in found) > Fraction(1, 10_000), case
            chosen.add(best)
    assert {Fraction(0), Fraction(1), Fraction(17, 32), Fraction(87, 128)} <= chosen  # the last try fails, or succeeds


SPELLINGS: dict[str, Callable[[testing.Case], str]] = {
    "peng": lambda case: f"peng:{case.lambda_}",
    "watkins": lambda case: f"watkins:{case.lambda_}",
    "nstep": lambda case: f"nstep:{case.n}",
    "sarsa": lambda case: f"sarsa:{case.lambda_}@{case.epsilon}",
    "tree": lambda case: f"tree:{case.lambda_}@{case.epsilon}",
    "retrace": lambda case: f"retrace:{case.lambda_}@{case.epsilon}",
    "qstar": lambda case: f"qstar:{case.lambda_}",
    "soft": lambda case: f"peng:{case.lambda_}",
    "soft-nstep": lambda case: f"nstep:{case.n}",
    "twin": lambda case: f"peng:{case.lambda_}",
    "twin-return": lambda case: f"peng:{case.lambda_}",
    "median": lambda case: f"median/{case.k}",
    "watkins-median": lambda case: f"watkins-median/{case.k}",
    "bounded": lambda case: f"bounded:{case.bound}",
    "watkins-bounded": lambda case: f"watkins-bounded:{case.bound}",
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("estimator", testing.ESTIMATORS)
def test_our_estimators_pass(estimator: str, dtype: Any) -> None:
    testing.check(
        lambda case: testing.on_block(lr.parse_estimator(SPELLINGS[estimator](case)), case), estimator, dtype=dtype
    )


def test_the_cut_of_the_released_code_is_recognised() -> None:
    message = message_of(
        lambda case: testing.on_block(lr.parse_estimator(f"watkins-published:{case.lambda_}"), case), "watkins"
    )
    assert message.startswith("watkins: 3 of 19 cases are wrong. This cuts the trace one step early: ")
    assert 'case "explores inside" (γ = 0.5, λ = 0.75): the action of step 2 is not greedy' in message
    assert "\n  expected [3.75, 4, 9.734375, 10.625, 15]\n  given    [" in message


def along_time(case: testing.Case, axis: int) -> Array:
    """Peng's return in either layout of a batch."""
    arrays = [case.rewards, case.discounts, case.next_values, case.lambdas]
    rewards, discounts, next_values, lambdas = (np.moveaxis(array, axis, 0) for array in arrays)
    returns, following = np.zeros_like(rewards), next_values[-1]
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discounts[t] * ((1 - lambdas[t]) * next_values[t] + lambdas[t] * following)
        returns[t] = following
    return np.moveaxis(returns, 0, axis)


def on_ring(case: testing.Case) -> Array:
    """Peng's return of the wanted slots, read from storage."""
    returns = np.zeros(len(case.slots))
    following = case.next_values[case.slots[-1]]
    for t, slot in reversed(list(enumerate(case.slots))):
        value, trace = case.next_values[slot], case.lambdas[slot]
        following = case.rewards[slot] + case.discounts[slot] * ((1 - trace) * value + trace * following)
        returns[t] = following
    return returns


@pytest.mark.parametrize(
    ("layout", "function"),
    [
        ("sequence", lambda case: along_time(case, 0)),
        ("batch", lambda case: along_time(case, 1)),
        ("time-first", lambda case: along_time(case, 0)),
        ("ring", on_ring),
    ],
)
def test_a_right_function_passes_in_its_layout(layout: str, function: Function) -> None:
    testing.check(function, "peng", layout=layout)
    if layout == "batch":
        assert "shape" in message_of(lambda case: function(case).T, "peng", layout=layout)
        message_of(lambda case: along_time(case, 0), "peng", layout=layout)


def test_a_ring_holds_the_steps_in_order_from_its_slots() -> None:
    flat, ring = case_of("peng", "no end"), testing.cases("peng", layout="ring")[0]
    assert ring.slots.tolist() == [5, 6, 0, 1, 2]
    assert_array_equal(ring.rewards[ring.slots], flat.rewards)
    assert_array_equal(ring.next_q_values[ring.slots], flat.next_q_values)
    assert ring.rewards[[3, 4]].tolist() == [64, 128]  # older steps


def test_a_batch_holds_multiples_of_the_sequence() -> None:
    flat, batch = case_of("soft", "no end"), testing.cases("soft", layout="batch")[0]
    for k in range(3):
        assert_array_equal(batch.rewards[k], (k + 1) * flat.rewards)
        assert_array_equal(batch.next_entropies[k], (k + 1) * flat.next_entropies)
        assert_array_equal(batch.next_critic_values[:, k], (k + 1) * flat.next_critic_values)
        assert_array_equal(batch.returns[k], (k + 1) * flat.returns)
        assert_array_equal(batch.continues[k], flat.continues)


def test_each_sequence_of_a_batch_has_its_own_lambda() -> None:
    (case,) = [case for case in testing.cases("bounded", layout="batch") if case.name == "within the bound"]
    # δ = 6: λ = 1 for the first, whose mean error is then 4.0625; λ = 0 for the third, 3 · 2.6 = 7.8 even so
    assert case.returns[0].tolist() == [2.3125, 2.625, 9.25, 10.5, 15]
    assert case.returns[2].tolist() == [18, 12, 33, 33, 45]
    # the second: 2 · 2.6 = 5.2 with λ = 0, 2 · 3.2258 = 6.45 with λ = 1/2
    assert case.returns[1, 3] == 2 * (3 + ((1 - 21 / 64) * 16 + 21 / 64 * 15) / 2)


# In a batch, only a bound on each sequence can be got wrong in a way of its own.
PLACES = [(estimator, layout) for estimator in testing.ESTIMATORS for layout in ("sequence", "ring")]
PLACES += [("bounded", "batch"), ("watkins-bounded", "batch")]


@pytest.mark.parametrize(("estimator", "layout"), PLACES)
def test_every_trap_is_found_and_named(estimator: str, layout: str) -> None:
    for trap in traps(estimator, layout):

        def fall_into(case: testing.Case, trap: Trap = trap) -> Array:
            return spread_returns(case.story, layout, lambda steps: wrong_returns(trap, steps, estimator))

        first_line = message_of(fall_into, estimator, layout=layout).split("\n")[0]
        assert f"This {trap.sentence}. That explains every wrong number." in first_line, trap.name


@pytest.mark.parametrize(("estimator", "layout"), PLACES)
def test_no_two_traps_give_the_same_numbers(estimator: str, layout: str) -> None:
    known = traps(estimator, layout)
    steps = [each for case in testing.cases(estimator) for each in sequences(case.story.steps, layout)]
    numbers = {trap.name: [wrong_returns(trap, each, estimator) for each in steps] for trap in known}
    for one, other in combinations(known, 2):
        assert numbers[one.name] != numbers[other.name], f"{one.name} and {other.name} cannot be told apart"


# Wrong functions as people write them: plain loops that share nothing with the kit.


def lambda_loop(case: testing.Case, start: float | None = None, **changed: Array) -> Array:
    """G ← r + γ_t·((1 − λ_t)·V + λ_t·G), with any of its arrays replaced, and the G that it starts from."""
    arrays = {
        "rewards": case.rewards,
        "discounts": case.discounts,
        "next_values": case.next_values,
        "lambdas": case.lambdas,
    } | changed
    returns, following = np.zeros(len(case.rewards)), arrays["next_values"][-1] if start is None else start
    for t in reversed(range(len(returns))):
        target = (1 - arrays["lambdas"][t]) * arrays["next_values"][t] + arrays["lambdas"][t] * following
        following = returns[t] = arrays["rewards"][t] + arrays["discounts"][t] * target
    return returns


def watkins_loop(case: testing.Case, keeps: Array) -> Array:
    return lambda_loop(case, lambdas=case.lambdas * keeps)


def taken_values(case: testing.Case) -> Array:
    return case.q_values[np.arange(len(case.actions)), case.actions]


def corrected_loop(case: testing.Case, traces: Array, baselines: Array | None = None) -> Array:
    """G ← r + γ_t·(V + c_t·(G − b)), as for Retrace and Tree Backup."""
    baselines = case.next_action_values if baselines is None else baselines
    returns, following = np.zeros(len(case.rewards)), 0.0
    for t in reversed(range(len(returns))):
        correction = 0.0
        if t + 1 < len(returns) and case.continues[t]:
            correction = traces[t] * (following - baselines[t])
        following = returns[t] = case.rewards[t] + case.discounts[t] * (case.next_values[t] + correction)
    return returns


def nstep_loop(
    case: testing.Case,
    *,
    ends: Array | None = None,
    terminal: Array | None = None,
    fixed_power: bool = False,
    n: int | None = None,
) -> Array:
    """Sum n rewards, stop at an end, bootstrap from the state reached."""
    ends = ~case.continues if ends is None else ends
    terminal = case.terminated if terminal is None else terminal
    wanted = n or case.n
    returns = np.zeros(len(case.rewards))
    for start in range(len(returns)):
        for i in range(wanted):
            t = start + i
            returns[start] += case.gamma**i * case.rewards[t]
            if ends[t] or i == wanted - 1 or t == len(returns) - 1:
                power = wanted if fixed_power else i + 1
                returns[start] += case.gamma**power * (not terminal[t]) * case.next_values[t]
                break
    return returns


def generalized_advantages(case: testing.Case, next_values: Array, nonterminal: Array) -> Array:
    """Advantages as on-policy scripts compute them: one mask for bootstrap and trace."""
    advantages, last = np.zeros(len(case.rewards)), 0.0
    for t in reversed(range(len(advantages))):
        delta = case.rewards[t] + case.gamma * next_values[t] * nonterminal[t] - case.values[t]
        last = advantages[t] = delta + case.gamma * case.lambda_ * nonterminal[t] * last
    return advantages


def is_greedy(case: testing.Case) -> Array:
    return taken_values(case) == case.q_values.max(axis=-1)


def next_is_greedy(case: testing.Case) -> Array:
    return case.next_action_values == case.next_q_values.max(axis=-1)


def following_rows(case: testing.Case) -> Array:
    """V(s_{t+1}) read from the next row, whatever episode that belongs to."""
    return np.append(case.values[1:], case.next_values[-1])


def full(case: testing.Case, value: float) -> Array:
    return np.full(len(case.rewards), value)


def shifted(array: Array, by: int) -> Array:
    """The array with every flag ``by`` steps later, False where none comes."""
    moved = np.roll(array, by)
    moved[:by] = False
    return moved


def candidates(case: testing.Case, lambdas: Any, keeps: Array | float = 1) -> Array:  # [len(lambdas), T]
    return np.stack([lambda_loop(case, lambdas=lambda_ * case.continues * keeps) for lambda_ in lambdas])


def median_loop(case: testing.Case, keeps: Array | float = 1) -> Array:
    return np.median(candidates(case, np.arange(case.k + 1) / case.k, keeps), axis=0)


def block_median(case: testing.Case) -> Array:
    """The candidate whose mean over the block is the median."""
    found = candidates(case, np.arange(case.k + 1) / case.k)
    return found[np.argsort(found.mean(axis=1))[case.k // 2]]


def running_median(case: testing.Case) -> Array:
    """The median inside the recursion, of candidates that share the return they build on."""
    returns, following = np.zeros(len(case.rewards)), case.next_values[-1]
    for t in reversed(range(len(returns))):
        lambdas = np.arange(case.k + 1) / case.k * case.continues[t]
        targets = (1 - lambdas) * case.next_values[t] + lambdas * following
        following = returns[t] = np.median(case.rewards[t] + case.discounts[t] * targets)
    return returns


Measure = Callable[[testing.Case, Array], float]
Search = Callable[[Callable[[float], bool]], float]


def mean_absolute(case: testing.Case, returns: Array) -> float:
    return float(np.abs(returns - taken_values(case)).mean())


def halving(satisfies: Callable[[float], bool]) -> float:
    """λ = 1 if it will do, 0 if even that will not, else what a binary search finds between them."""
    if satisfies(1.0):
        return 1.0
    return between(satisfies) if satisfies(0.0) else 0.0


def between(satisfies: Callable[[float], bool]) -> float:
    """A binary search with steps of 1/2, 1/4, …, 1/128."""
    found = 0.0
    for i in range(7):
        found += satisfies(found + 1 / 2 ** (i + 1)) / 2 ** (i + 1)
    return found


def scanning(satisfies: Callable[[float], bool]) -> float:
    """The largest of all multiples of 1/128."""
    return max((i / 128 for i in range(129) if satisfies(i / 128)), default=0.0)


def released(satisfies: Callable[[float], bool]) -> float:
    """Steps up or down from 1/2, and the last λ tried where none would do."""
    if satisfies(1.0) or not satisfies(0.0):
        return float(satisfies(1.0))
    tried, found = 0.5, 0.0
    for i in range(7):
        is_fine = satisfies(tried)
        found, last = tried if is_fine else found, tried
        tried += (1 if is_fine else -1) / 2 ** (i + 2)
    return found or last


def last_of(case: testing.Case, low: float, high: float) -> float:
    """λ where a careless search stops: in the middle of the last interval, whatever was found there."""
    for _ in range(7):
        middle = (low + high) / 2
        is_fine = mean_absolute(case, candidates(case, [middle])[0]) <= case.bound
        low, high = (middle, high) if is_fine else (low, middle)
    return middle


def bounded_loop(
    case: testing.Case, measure: Measure = mean_absolute, search: Search = halving, keeps: Array | float = 1
) -> Array:
    def with_lambda(lambda_: float) -> Array:
        returns: Array = candidates(case, [lambda_], keeps)[0]
        return returns

    return with_lambda(search(lambda lambda_: measure(case, with_lambda(lambda_)) <= case.bound))


def square_from_maximum(case: testing.Case, returns: Array) -> float:
    return float(np.square(returns - case.values).mean())


def lambda_of_each_step(case: testing.Case) -> Array:
    def at(t: int) -> Measure:
        return lambda case, returns: abs(float(returns[t] - taken_values(case)[t]))

    return np.array([bounded_loop(case, at(t))[t] for t in range(len(case.rewards))])


def careless_search(case: testing.Case) -> Array:
    """The λ of the last try in place of the best one."""
    return bounded_loop(
        case,
        search=lambda satisfies: last_of(case, 0, 1) if satisfies(0.0) and not satisfies(1.0) else halving(satisfies),
    )


def over_slots(case: testing.Case) -> Array:
    """On blocks of this library, with a mean over every slot of the block."""

    def estimator(block: Block) -> Array:
        def errors(lambda_: float) -> float:
            returns = lr.parse_estimator(f"peng:{lambda_}")(block)
            return float(np.abs(returns - block.action_values[:, :-1]).mean())

        return lr.parse_estimator(f"peng:{halving(lambda lambda_: errors(lambda_) <= case.bound)}")(block)

    return testing.on_block(cast(Any, estimator), case)


SEEDED: list[tuple[str, str, Function]] = [
    ("peng", "bootstrap at a terminal state", lambda c: lambda_loop(c, discounts=full(c, c.gamma))),
    ("peng", "ends ignored", lambda c: lambda_loop(c, discounts=full(c, c.gamma), lambdas=full(c, c.lambda_))),
    ("peng", "over the time limit", lambda c: lambda_loop(c, lambdas=full(c, c.lambda_))),
    ("peng", "time limit as termination", lambda c: lambda_loop(c, discounts=c.gamma * c.continues)),
    (
        "peng",
        "time limit as termination",
        lambda c: generalized_advantages(c, following_rows(c), c.continues) + c.values,
    ),
    ("peng", "first state of the next episode", lambda c: lambda_loop(c, next_values=following_rows(c))),
    (
        "peng",
        "advantages",
        lambda c: lambda_loop(c) - c.values,
    ),
    ("watkins", "TD errors", lambda c: watkins_loop(c, next_is_greedy(c)) - taken_values(c)),
    (
        "peng",
        "ends one step late",
        lambda c: lambda_loop(
            c, discounts=c.gamma * ~shifted(c.terminated, 1), lambdas=c.lambda_ * ~shifted(~c.continues, 1)
        ),
    ),
    ("peng", "lambda upside down", lambda c: lambda_loop(c, lambdas=(1 - c.lambda_) * c.continues)),
    ("peng", "starts from zero", lambda c: lambda_loop(c, start=0.0)),
    ("peng", "cuts like Watkins", lambda c: watkins_loop(c, next_is_greedy(c))),
    ("watkins", "cut one step early", lambda c: watkins_loop(c, is_greedy(c))),
    ("watkins", "no cut", lambda_loop),
    ("watkins", "tie by index", lambda c: watkins_loop(c, c.next_actions == c.next_q_values.argmax(axis=-1))),
    ("tree", "trace without pi", lambda c: corrected_loop(c, full(c, c.lambda_))),
    ("tree", "baseline V", lambda c: corrected_loop(c, c.lambda_ * c.next_probs, c.next_values)),
    ("retrace", "ratio not clipped", lambda c: corrected_loop(c, c.lambda_ * c.next_probs / c.next_behaviour_probs)),
    (
        "retrace",
        "lambda inside the minimum",
        lambda c: corrected_loop(c, np.minimum(c.lambda_, c.next_probs / c.next_behaviour_probs)),
    ),
    ("retrace", "mu ignored", lambda c: corrected_loop(c, c.lambda_ * c.next_probs)),
    (
        "retrace",
        "ratio one step early",
        lambda c: corrected_loop(
            c,
            c.lambda_ * np.minimum(1, np.take_along_axis(c.policy, c.actions[:, None], -1)[:, 0] / c.behaviour_probs),
        ),
    ),
    ("nstep", "gamma to the n for fewer rewards", lambda c: nstep_loop(c, fixed_power=True)),
    ("nstep", "time limit as termination", lambda c: nstep_loop(c, terminal=~c.continues)),
    ("nstep", "over the time limit", lambda c: nstep_loop(c, ends=c.terminated)),
    ("nstep", "bootstrap at a terminal state", lambda c: nstep_loop(c, terminal=full(c, 0))),
    ("nstep", "one step too many", lambda c: nstep_loop(c, n=c.n + 1)),
    ("soft", "share of the entropies", lambda_loop),
    ("soft", "no entropy", lambda c: lambda_loop(c, next_values=c.next_baselines)),
    ("soft-nstep", "intermediate entropies dropped", nstep_loop),
    ("twin", "first critic alone", lambda c: lambda_loop(c, next_values=c.next_critic_values[0])),
    ("twin", "mean of the critics", lambda c: lambda_loop(c, next_values=c.next_critic_values.mean(axis=0))),
    (
        "twin",
        "minimum of the returns",
        lambda c: np.minimum(*(lambda_loop(c, next_values=values) for values in c.next_critic_values)),
    ),
    (
        "twin-return",
        "minimum of each step",
        lambda c: lambda_loop(c, next_values=c.next_critic_values.min(axis=0)),
    ),
    ("median", "mean for median", lambda c: candidates(c, np.arange(c.k + 1) / c.k).mean(axis=0)),
    ("median", "one lambda per block", block_median),
    ("median", "lambda one half", lambda c: lambda_loop(c, lambdas=c.continues / 2)),
    ("median", "lambda one half", running_median),
    ("median", "one candidate too few", lambda c: np.median(candidates(c, np.linspace(0, 1, c.k)), axis=0)),
    ("median", "cuts like Watkins", lambda c: median_loop(c, next_is_greedy(c))),
    ("median", "over the time limit", lambda c: median_loop(replace(c, truncated=c.truncated & False))),
    ("median", "TD errors", lambda c: median_loop(c) - taken_values(c)),
    ("watkins-median", "no cut", median_loop),
    ("watkins-median", "cut one step early", lambda c: median_loop(c, is_greedy(c))),
    (
        "watkins-median",
        "tie by index",
        lambda c: median_loop(c, c.next_actions == c.next_q_values.argmax(axis=-1)),
    ),
    (
        "watkins-median",
        "mean for median",
        lambda c: candidates(c, np.arange(c.k + 1) / c.k, next_is_greedy(c)).mean(axis=0),
    ),
    ("bounded", "squared error against the maximum", lambda c: bounded_loop(c, square_from_maximum, released)),
    ("bounded", "squared error against the maximum", lambda c: bounded_loop(c, square_from_maximum)),
    ("bounded", "squared error", lambda c: bounded_loop(c, lambda c, g: np.square(g - taken_values(c)).mean())),
    ("bounded", "error against the maximum", lambda c: bounded_loop(c, lambda c, g: np.abs(g - c.values).mean())),
    ("bounded", "sum of the errors", lambda c: bounded_loop(c, lambda c, g: np.abs(g - taken_values(c)).sum())),
    ("bounded", "largest error", lambda c: bounded_loop(c, lambda c, g: np.abs(g - taken_values(c)).max())),
    ("bounded", "errors cancel", lambda c: bounded_loop(c, lambda c, g: abs((g - taken_values(c)).mean()))),
    ("bounded", "closing slots counted", over_slots),
    ("bounded", "last lambda tried", careless_search),
    ("bounded", "no lambda found", lambda c: bounded_loop(c, search=released)),
    (
        "bounded",
        "upper end of the search",
        lambda c: bounded_loop(c, search=lambda fine: halving(fine) + (fine(0.0) and not fine(1.0)) / 128),
    ),
    ("bounded", "lambda 1 not tried", lambda c: bounded_loop(c, search=between)),
    ("bounded", "lambda 0 tried first", lambda c: bounded_loop(c, search=lambda fine: halving(fine) * fine(0.0))),
    (
        "bounded",
        "one halving too many",
        lambda c: bounded_loop(c, search=lambda fine: max((i / 256 for i in range(257) if fine(i / 256)), default=0)),
    ),
    (
        "bounded",
        "one halving too few",
        lambda c: bounded_loop(c, search=lambda fine: max((i / 64 for i in range(65) if fine(i / 64)), default=0)),
    ),
    ("bounded", "a lambda for each step", lambda_of_each_step),
    ("bounded", "cuts like Watkins", lambda c: bounded_loop(c, keeps=next_is_greedy(c))),
    ("bounded", "over the time limit", lambda c: bounded_loop(replace(c, truncated=c.truncated & False))),
    ("watkins-bounded", "no cut", bounded_loop),
    ("watkins-bounded", "cut one step early", lambda c: bounded_loop(c, keeps=is_greedy(c))),
    (
        "watkins-bounded",
        "squared error against the maximum",
        lambda c: bounded_loop(c, square_from_maximum, released, next_is_greedy(c)),
    ),
]


@pytest.mark.parametrize(
    ("estimator", "name", "function"), SEEDED, ids=[f"{one}-{name}"[:60] for one, name, _ in SEEDED]
)
def test_wrong_functions_are_told_their_mistake(estimator: str, name: str, function: Function) -> None:
    first_line = message_of(function, estimator).split("\n")[0]
    assert f"This {sentence_of(estimator, name)}. That explains every wrong number." in first_line


def test_the_same_functions_without_a_mistake_pass() -> None:
    testing.check(lambda_loop, "peng")
    testing.check(lambda_loop, "sarsa")
    testing.check(lambda_loop, "twin")
    testing.check(lambda case: watkins_loop(case, next_is_greedy(case)), "watkins")
    testing.check(lambda case: corrected_loop(case, case.lambda_ * case.next_probs), "tree")
    testing.check(lambda case: corrected_loop(case, full(case, case.lambda_), case.next_baselines), "soft")
    testing.check(nstep_loop, "nstep")
    testing.check(median_loop, "median")
    testing.check(lambda case: median_loop(case, next_is_greedy(case)), "watkins-median")


@pytest.mark.parametrize("search", [halving, scanning])
def test_any_search_for_lambda_passes(search: Search) -> None:
    testing.check(lambda case: bounded_loop(case, search=search), "bounded")
    testing.check(lambda case: bounded_loop(case, search=search, keeps=next_is_greedy(case)), "watkins-bounded")


def of_batch(case: testing.Case, axis: int, choose: Callable[[list[testing.Case]], list[Array]]) -> Array:
    """A function of the sequences of a batch, each as a case of its own."""

    def sequence(k: int) -> testing.Case:
        arrays = {name: array for name, array in vars(case).items() if isinstance(array, np.ndarray)}
        for name in ("slots", "next_critic_values"):  # which have other axes, and are not needed
            del arrays[name]
        alone: dict[str, Any] = {name: array.take(k, axis=1 - axis) for name, array in arrays.items()}
        return replace(case, **alone)

    return np.stack(choose([sequence(k) for k in range(3)]), axis=1 - axis)


@pytest.mark.parametrize(("layout", "axis"), [("batch", 1), ("time-first", 0)])
def test_the_bound_is_kept_in_every_block(layout: str, axis: int) -> None:
    def over_all_blocks(blocks: list[testing.Case]) -> list[Array]:
        def satisfies(lambda_: float) -> bool:
            errors = [mean_absolute(each, candidates(each, [lambda_])[0]) for each in blocks]
            return bool(np.mean(errors) <= blocks[0].bound)

        return [bounded_loop(each, search=lambda _: halving(satisfies)) for each in blocks]

    def in_each(case: testing.Case) -> Array:
        return of_batch(case, axis, lambda blocks: [bounded_loop(each) for each in blocks])

    testing.check(in_each, "bounded", layout=layout)
    message = message_of(lambda case: of_batch(case, axis, over_all_blocks), "bounded", layout=layout)
    sentence = sentence_of("bounded", "bound over all blocks")
    assert f"This {sentence}. That explains every wrong number." in message.split("\n")[0]
    assert 'case "within the bound" (γ = 0.5, δ = 6): λ = 1 satisfies the bound' in message


@pytest.mark.parametrize(("layout", "axis"), [("batch", 1), ("time-first", 0)])
def test_mistakes_are_recognised_in_batches(layout: str, axis: int) -> None:
    def without_limits(case: testing.Case) -> Array:
        return along_time(replace(case, truncated=case.truncated & False), axis)

    first_line = message_of(without_limits, "peng", layout=layout).split("\n")[0]
    assert f"This {sentence_of('peng', 'over the time limit')}." in first_line


def test_mistakes_are_recognised_in_a_ring() -> None:
    def past_the_newest(case: testing.Case) -> Array:
        size, newest = len(case.rewards), case.slots[-1]
        onward = replace(case, slots=np.append(case.slots, [(newest + 1) % size, (newest + 2) % size]))
        return on_ring(onward)[:-2]

    first_line = message_of(past_the_newest, "peng", layout="ring").split("\n")[0]
    assert f"This {sentence_of('peng', 'past the newest step')}." in first_line


def test_two_mistakes_are_named_case_by_case() -> None:
    """Final observations are lost, and ties are broken by index."""

    def twice_wrong(case: testing.Case) -> Array:
        keeps = case.next_actions == case.next_q_values.argmax(axis=-1)
        return lambda_loop(case, next_values=following_rows(case), lambdas=case.lambdas * keeps)

    head, *details = message_of(twice_wrong, "watkins").split("\n\n")
    words = {detail.split('"')[1]: detail.split("\n")[-1].strip() for detail in details}
    assert head == f"watkins: {len(details)} of 19 cases are wrong."
    assert words["truncated inside"] == f"This {sentence_of('watkins', 'first state of the next episode')}."
    assert words["tie"] == f"This {sentence_of('watkins', 'tie by index')}."


def test_an_unknown_mistake_is_reported_as_such() -> None:
    message = message_of(lambda case: lambda_loop(case) + 1, "peng")
    assert message.count("No known mistake gives these numbers.") == 19
    assert "given    [nan" in message_of(lambda case: lambda_loop(case) * np.nan, "peng")


@pytest.mark.parametrize("case", testing.cases("nstep"), ids=str)
def test_a_case_can_be_checked_alone(case: testing.Case) -> None:
    testing.check_returns(case, nstep_loop(case))
    wrong = nstep_loop(case, n=case.n + 1)
    if not np.array_equal(wrong, case.returns):
        with pytest.raises(AssertionError, match=r"nstep: 1 of 1 cases are wrong\.\n\ncase \"(.|\n)* This "):
            testing.check_returns(case, wrong)


def test_tolerance_is_relative_to_the_answer() -> None:
    testing.check(lambda case: lambda_loop(case) * (1 + 5e-6), "peng")
    message_of(lambda case: lambda_loop(case) * (1 + 5e-6), "peng", tolerance=1e-6)


def test_writing_into_the_arrays_is_found() -> None:
    def careless(case: testing.Case) -> Array:
        returns = lambda_loop(case)
        case.rewards[:] = returns
        return returns

    assert "writes into case.rewards; work on a copy." in message_of(careless, "peng")


def test_a_wrong_shape_is_named() -> None:
    assert "the result has shape (5, 1); one return per step has (5,)." in message_of(
        lambda case: lambda_loop(case)[:, None], "peng"
    )


def test_an_error_says_in_which_case_it_happened() -> None:
    def refuses_limits(case: testing.Case) -> Array:
        if case.truncated.any():
            raise RuntimeError("no truncation")
        return lambda_loop(case)

    with pytest.raises(RuntimeError, match="no truncation") as caught:
        testing.check(refuses_limits, "peng")
    assert caught.value.__notes__ == [
        'This happened in the case "peng: truncated inside": a time limit ends the episode at step 2, and another '
        "one follows."
    ]


def test_cases_that_a_function_cannot_express_are_skipped() -> None:
    limits = [case.name for case in testing.cases("nstep") if (case.truncated & ~case.terminated).any()]
    assert limits == ["truncated inside", "truncated last", "two borders", "ends in a row", "n 9, truncated inside"]
    testing.check(lambda case: nstep_loop(case, terminal=~case.continues), "nstep", skip=limits)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"estimator": "pong"}, "there are no cases for 'pong'; choose one of peng, watkins, nstep"),
        ({"layout": "KT"}, "layout 'KT' is unknown; choose one of sequence, batch, time-first, ring"),
        ({"skip": ["no ends"]}, "skip names 'no ends', which is not a case of peng; choose from: no end; terminated"),
        ({"skip": "tie"}, r"skip is the text 'tie'; give a list of names, such as \['tie'\]"),
        ({"dtype": int}, "dtype is int64, which cannot hold the numbers; give a float such as float32"),
    ],
)
def test_mistakes_of_the_caller_are_explained(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(lr.ConfigError, match=sentence):
        testing.check(lambda_loop, options.pop("estimator", "peng"), **options)


def test_blocks_are_made_of_sequences_only() -> None:
    with pytest.raises(lr.ConfigError, match="on_block needs the layout 'sequence', not 'ring'"):
        testing.on_block(lr.parse_estimator("peng:0.5"), testing.cases("peng", layout="ring")[0])


RECORD = json.loads(peers_returns.RECORDED.read_text(encoding="utf-8"))
PAGE = peers_returns.PAGE.read_text(encoding="utf-8")
AS_MEANT = [peer for peer in peers_returns.PEERS if peer.package == "rlax" and "one λ" not in peer.call]


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of packages that rlax imports
def test_rlax_passes() -> None:
    for peer in AS_MEANT:
        testing.check(peer.function, peer.estimator)


def test_the_recorded_numbers_of_rlax_are_right() -> None:
    calls = {(peer.call, peer.estimator) for peer in AS_MEANT}
    recorded = [
        peer for peer in RECORD["peers"] if peer["package"] == "rlax" and (peer["call"], peer["estimator"]) in calls
    ]
    assert {peer["estimator"] for peer in recorded} == {"peng", "nstep", "soft", "watkins", "retrace", "tree", "qstar"}
    for peer in recorded:
        assert set(peers_returns.verdicts(peer).values()) == {"right"}, peer["call"]


def test_the_record_has_every_function_and_every_case() -> None:
    listed = [(peer.package, peer.call, peer.estimator, peer.layout) for peer in peers_returns.PEERS]
    recorded = [(peer["package"], peer["call"], peer["estimator"], peer["layout"]) for peer in RECORD["peers"]]
    assert recorded == listed
    for peer in RECORD["peers"]:
        assert list(peer["cases"]) == [case.name for case in testing.cases(peer["estimator"])]


def test_the_tables_of_the_page_are_those_of_the_record() -> None:
    assert peers_returns.renewed(PAGE, RECORD) == PAGE
    assert PAGE.count("begin -->") == 3


def test_the_example_of_the_page_runs_and_its_message_is_real() -> None:
    example, message = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "testing.md", "exec"), names)
    names["test_my_returns"]()

    def with_one_lambda(case: testing.Case) -> Array:
        lambdas = full(case, case.lambda_)
        returns: Array = names["my_returns"](case.rewards, case.discounts, case.next_values, lambdas)
        return returns

    shown = message.removeprefix("AssertionError: ").removesuffix("...\n").split()
    assert message_of(with_one_lambda, "peng").split()[: len(shown)] == shown
