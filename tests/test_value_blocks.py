"""Estimators on values handed over directly, and on several critics at once; rows of Q-values have their own tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blocks import blocks, random_block
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from value_oracles import literal_bounded, literal_lambda, literal_median, literal_n_step, literal_retrace

import lambda_replay as lr
from lambda_replay.replay.data import Block, Evaluation, ValueBlock
from lambda_replay.replay.estimators import explain

# Q*(λ) may say that it contracts only for small λ; its numbers are what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*may diverge:UserWarning")

without_deadline = settings(deadline=None)  # the literal definitions are slow, and so are busy machines

# What needs no row of Q-values, then what needs π(a|s)/μ(a|s), then what needs the row.
OF_VALUES = ["peng:0.8", "nstep:1", "nstep:3", "median", "median/4", "bounded:2.0", "qstar:0.05", "sarsa:0.8"]
OF_RATIOS = ["retrace:0.8"]
OF_ROWS = [
    "watkins:0.8",
    "watkins-published:0.8",
    "watkins-median",
    "watkins-bounded:2.0",
    "tree:0.8",
    "tree:0.8@0.3",
    "sarsa:0.8@0.3",
    "retrace:0.8@0.3",
]


def estimate(spelling: str, block: Evaluation) -> NDArray[Any]:
    return np.asarray(lr.parse_estimator(spelling)(block))


def worked_block(**changes: Any) -> ValueBlock:
    """γ = 0.9, rewards 10, −10, 20 (terminated), V = 100, 200, 300, 8; only the second action has Q(s, a) < V(s)."""
    arrays: dict[str, Any] = {
        "rewards": np.array([[10, -10, 20]], dtype=np.float32),
        "discounts": np.array([[0.9, 0.9, 0]], dtype=np.float32),
        "values": np.array([[100, 200, 300, 8]], dtype=np.float32),
        "action_values": np.array([[100, 150, 300, 0]], dtype=np.float32),
        "continues": np.array([[True, True, False]]),
        "is_step": np.array([[True, True, True, False]]),
    }
    return ValueBlock(**{**arrays, **changes})


def worked_soft_block() -> ValueBlock:
    """The same with an entropy worth 5 in s₁ and 10 in s₂: V = Q(s, ã) + entropy, b = Q(s, ã)."""
    return worked_block(
        values=np.array([[101, 205, 310, 9]], dtype=np.float32),
        baselines=np.array([[100, 200, 300, 8]], dtype=np.float32),
    )


def values_of(block: Block, *, has_ratios: bool = False) -> ValueBlock:
    """What a critic that hides its row of Q-values would say of the same steps."""
    ratios = None
    if has_ratios:
        first = np.ones((len(block.rewards), 1), dtype=np.float32)  # of the first step nobody asks
        ratios = np.concatenate([first, block.next_ratios(0.0)], axis=1)
    return ValueBlock(
        rewards=block.rewards,
        discounts=block.discounts,
        values=block.greedy_values,
        action_values=block.action_values,
        continues=block.continues,
        ratios=ratios,
        is_step=block.is_step,
    )


def soft_block(rng: np.random.Generator, block: Block, leading: tuple[int, ...] = ()) -> ValueBlock:
    """Random values, action values, baselines and ratios for the steps of a block."""
    num_blocks, length = block.rewards.shape
    shape = (*leading, num_blocks, length + 1)
    values, action_values, baselines = (rng.normal(scale=3, size=shape).astype(np.float32) for _ in range(3))
    return ValueBlock(
        rewards=block.rewards,
        discounts=block.discounts,
        values=values,
        action_values=action_values,
        continues=block.continues,
        baselines=baselines,
        ratios=rng.gamma(1.0, size=(num_blocks, length + 1)).astype(np.float32),
        is_step=block.is_step,
    )


def assert_close(actual: NDArray[Any], desired: NDArray[Any], block: ValueBlock) -> None:
    real = block.is_transition
    largest = max(float(np.abs(block.values).max()), float(np.abs(block.rewards).sum()), 1.0)
    assert_allclose(actual[real], desired[real], rtol=0, atol=1e-5 * largest)


# --- golden -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        # As with rows of Q-values: G₁ = −10 + 0.9·(0.2·300 + 0.8·20) = 58.4,
        # G₀ = 10 + 0.9·(0.2·200 + 0.8·58.4) = 88.048
        ("peng:0.8", [88.048, 58.4, 20]),
        ("sarsa:0.8", [88.048, 58.4, 20]),
        # G₀ = 10 + 0.9·(200 + 0.8·(58.4 − 150)) = 124.048
        ("qstar:0.8", [124.048, 58.4, 20]),
        ("nstep:2", [244, 8, 20]),
        ("nstep:3", [17.2, 8, 20]),
        ("median/2", [160.3, 134, 20]),
        ("bounded:1000", [17.2, 8, 20]),  # λ = 1
        ("bounded:0", [190, 260, 20]),  # λ = 0
    ],
)
def test_an_actor_s_values_give_the_worked_example(spelling: str, expected: list[float]) -> None:
    assert_allclose(estimate(spelling, worked_block())[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        # G₂ = 20
        # G₁ = −10 + 0.9·(310 + 0.8·(20 − 300)) = −10 + 0.9·86 = 67.4
        # G₀ = 10 + 0.9·(205 + 0.8·(67.4 − 200)) = 10 + 0.9·98.92 = 99.028,
        # which is 88.048 of the example without entropy + 0.9·5 + 0.9·0.8·0.9·10
        ("peng:0.8", [99.028, 67.4, 20]),
        ("sarsa:0.8", [99.028, 67.4, 20]),
        # λ = 1: the rewards and every entropy on the way, 10 + 0.9·(5 − 10 + 0.9·(10 + 20)) = 29.8
        ("peng:1", [29.8, 17, 20]),
        ("nstep:3", [29.8, 17, 20]),
        ("bounded:1000", [29.8, 17, 20]),
        # 10 + 0.9·(5 − 10 + 0.9·310) = 256.6
        ("nstep:2", [256.6, 17, 20]),
        # 10 + 0.9·205 and −10 + 0.9·310
        ("nstep:1", [194.5, 269, 20]),
        ("bounded:0", [194.5, 269, 20]),
        # λ = ½: G₁ = −10 + 0.9·(310 − ½·280) = 143, G₀ = 10 + 0.9·(205 + ½·(143 − 200)) = 168.85, between the two above
        ("median/2", [168.85, 143, 20]),
        # b = Q(s', a') = 150 and 300: G₁ = 67.4, G₀ = 10 + 0.9·(205 + 0.8·(67.4 − 150)) = 135.028
        ("qstar:0.8", [135.028, 67.4, 20]),
    ],
)
def test_the_entropy_of_every_step_of_a_soft_critic_counts_in_full(spelling: str, expected: list[float]) -> None:
    assert_allclose(estimate(spelling, worked_soft_block())[0], expected, rtol=1e-6)


def test_retrace_with_densities() -> None:
    # Densities may be larger than 1: π/μ of a₁ is 0.5 and of a₂ 2, so c₁ = 0.8·0.5 = 0.4 and c₂ = 0.8·1
    # G₁ = −10 + 0.9·(300 + 0.8·(20 − 300)) = 58.4, G₀ = 10 + 0.9·(200 + 0.4·(58.4 − 150)) = 157.024
    block = worked_block(ratios=np.array([[9, 0.5, 2, 9]], dtype=np.float32))
    assert_allclose(estimate("retrace:0.8", block)[0], [157.024, 58.4, 20], rtol=1e-6)
    # A soft critic's V holds the entropy, and the correction replaces Q(s', a') alone:
    # G₁ = −10 + 0.9·(310 + 0.8·(20 − 300)) = 67.4, G₀ = 10 + 0.9·(205 + 0.4·(67.4 − 150)) = 164.764
    soft = replace(worked_soft_block(), ratios=np.array([[9, 0.5, 2, 9]], dtype=np.float32))
    assert_allclose(estimate("retrace:0.8", soft)[0], [164.764, 67.4, 20], rtol=1e-6)


def test_the_literal_definitions_give_the_worked_examples_too() -> None:
    block = worked_block(ratios=np.array([[9, 0.5, 2, 9]]))
    assert_allclose(literal_retrace(block, 0.8), [[157.024, 58.4, 20]], rtol=1e-6)
    assert_allclose(literal_lambda(worked_soft_block(), 0.8), [[99.028, 67.4, 20]], rtol=1e-6)
    assert_allclose(literal_lambda(worked_soft_block(), 1.0), [[29.8, 17, 20]], rtol=1e-6)
    assert_allclose(literal_lambda(worked_block(), 0.8), [[88.048, 58.4, 20]], rtol=1e-6)
    assert_allclose(literal_n_step(worked_soft_block(), 2), [[256.6, 17, 20]], rtol=1e-6)
    assert_allclose(literal_n_step(worked_block(), 2), [[244, 8, 20]], rtol=1e-6)
    assert_allclose(literal_median(worked_soft_block(), 2), [[168.85, 143, 20]], rtol=1e-6)
    for bound, lambda_ in ((1000, 1.0), (0, 0.0)):
        found = literal_bounded(worked_soft_block(), bound)
        assert found.lambdas == [lambda_]
        assert_allclose(found.returns, literal_lambda(worked_soft_block(), lambda_))


def test_a_truncated_step_bootstraps_with_its_whole_weight() -> None:
    # The last step is truncated in a state worth 8, a soft one in a state worth 9: G₂ = 20 + 0.9·8 = 27.2 or 28.1
    discounts = np.full((1, 3), 0.9, dtype=np.float32)
    assert_allclose(estimate("peng:0.8", worked_block(discounts=discounts))[0, 2], 27.2, rtol=1e-6)
    assert_allclose(estimate("peng:0.8", replace(worked_soft_block(), discounts=discounts))[0, 2], 28.1, rtol=1e-6)
    assert_allclose(estimate("nstep:3", replace(worked_soft_block(), discounts=discounts))[0, 2], 28.1, rtol=1e-6)


# --- identity ---------------------------------------------------------------------------------------------------------


@without_deadline
@given(block=blocks())
@pytest.mark.parametrize("spelling", [*OF_VALUES, *OF_RATIOS])
def test_values_of_rows_give_what_the_rows_give(spelling: str, block: Block) -> None:
    real = block.is_transition
    returns = estimate(spelling, values_of(block, has_ratios=spelling in OF_RATIOS))
    assert_array_equal(returns[real], estimate(spelling, block)[real])


@without_deadline
@given(block=blocks())
@pytest.mark.parametrize("spelling", OF_VALUES)
def test_baselines_that_are_the_values_change_nothing(spelling: str, block: Block) -> None:
    plain = values_of(block)
    assert_array_equal(estimate(spelling, replace(plain, baselines=plain.values)), estimate(spelling, plain))


@without_deadline
@given(block=blocks(), seed=st.integers(0, 2**32 - 1), lambda_=st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_soft_returns_agree_with_their_definition(block: Block, seed: int, lambda_: float) -> None:
    soft = soft_block(np.random.default_rng(seed), block)
    assert_close(estimate(f"peng:{lambda_}", soft), literal_lambda(soft, lambda_), soft)
    assert_close(estimate("nstep:1000", soft), literal_lambda(soft, 1.0), soft)


@without_deadline
@given(block=blocks(), seed=st.integers(0, 2**32 - 1), lambda_=st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_retrace_with_densities_agrees_with_its_definition(block: Block, seed: int, lambda_: float) -> None:
    soft = soft_block(np.random.default_rng(seed), block)
    assert_close(estimate(f"retrace:{lambda_}", soft), literal_retrace(soft, lambda_), soft)


# --- property: several critics ----------------------------------------------------------------------------------------


def assert_each_alone(spelling: str, together: Evaluation, alone: dict[tuple[int, ...], Any]) -> None:
    """Returns, traces and chosen λ of all critics at once are those of each by itself."""
    found = explain(lr.parse_estimator(spelling), together)
    for index, block in alone.items():
        wanted = explain(lr.parse_estimator(spelling), block)
        for name, array, one in zip(found._fields, found, wanted, strict=True):
            assert (array is None) == (one is None), name
            if array is not None and one is not None:
                # What does not depend on the critic need not have its axes.
                assert_array_equal(array[index] if array.ndim > 2 else array, one, err_msg=name)


@pytest.mark.parametrize("leading", [(1,), (3,), (2, 3)])
@pytest.mark.parametrize("spelling", [*OF_VALUES, *OF_RATIOS, *OF_ROWS])
def test_several_rows_of_q_values_equal_each_alone(spelling: str, leading: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    block = random_block(rng, num_blocks=5, length=14)
    q_values = rng.normal(scale=3, size=(*leading, *block.q_values.shape)).astype(np.float32)
    together = replace(block, q_values=q_values)
    assert estimate(spelling, together).shape == (*leading, *block.rewards.shape)
    alone = {index: replace(block, q_values=q_values[index]) for index in np.ndindex(leading)}
    assert_each_alone(spelling, together, alone)


@pytest.mark.parametrize("is_soft", [False, True])
@pytest.mark.parametrize("leading", [(1,), (3,), (2, 3)])
@pytest.mark.parametrize("spelling", [*OF_VALUES, *OF_RATIOS])
def test_several_critics_values_equal_each_alone(spelling: str, leading: tuple[int, ...], is_soft: bool) -> None:
    rng = np.random.default_rng(1)
    together = soft_block(rng, random_block(rng, num_blocks=5, length=14), leading)
    if not is_soft:
        together = replace(together, baselines=None)
    assert estimate(spelling, together).shape == (*leading, *together.rewards.shape)
    alone = {
        index: replace(
            together,
            values=together.values[index],
            action_values=together.action_values[index],
            baselines=None if together.baselines is None else together.baselines[index],
        )
        for index in np.ndindex(leading)
    }
    assert_each_alone(spelling, together, alone)


@pytest.mark.parametrize("spelling", [*OF_VALUES, *OF_RATIOS])
def test_critics_may_share_a_value(spelling: str) -> None:
    """TD3 takes the smaller of two values for V(s). It is one critic then, the smaller: one return, one λ per block."""
    rng = np.random.default_rng(2)
    both = soft_block(rng, random_block(rng, num_blocks=5, length=14), (2,))
    shared = replace(both, values=both.values.min(axis=0), baselines=None)
    found = explain(lr.parse_estimator(spelling), shared)
    wanted = explain(lr.parse_estimator(spelling), replace(shared, action_values=both.action_values.min(axis=0)))
    assert found.returns.shape == both.rewards.shape
    assert_array_equal(found.returns, wanted.returns)
    if wanted.lambdas is not None:
        assert_array_equal(found.lambdas, wanted.lambdas)


@given(seed=st.integers(0, 2**32 - 1), bound=st.floats(0.05, 2))
@settings(max_examples=50, deadline=None)
def test_critics_that_share_a_value_respect_one_bound(seed: int, bound: float) -> None:
    """The mean |G − Q(s, a)| of a block, with the smaller Q, is within the bound unless λ is 0."""
    rng = np.random.default_rng(seed)
    both = soft_block(rng, random_block(rng, num_blocks=4, length=10), (2,))
    shared = replace(both, values=both.values.min(axis=0), baselines=None)
    found = explain(lr.parse_estimator(f"bounded:{bound:g}"), shared)
    assert found.lambdas is not None
    errors = np.abs(found.returns - both.action_values.min(axis=0)[:, :-1])
    for block, (error, taken) in enumerate(zip(errors, both.is_transition, strict=True)):
        (lambda_,) = set(found.lambdas[block].tolist())
        assert lambda_ == 0 or error[taken].mean() <= float(f"{bound:g}") + 1e-5


def test_nothing_is_written_into_a_value_block() -> None:
    rng = np.random.default_rng(3)
    block = soft_block(rng, random_block(rng), (2,))
    arrays = {name: array for name, array in vars(block).items() if isinstance(array, np.ndarray)}
    copies = {name: array.copy() for name, array in arrays.items()}
    for array in arrays.values():
        array.setflags(write=False)
    for spelling in [*OF_VALUES, *OF_RATIOS]:
        returns = estimate(spelling, block)
        assert returns.dtype == np.float32
        for name, array in arrays.items():
            assert_array_equal(array, copies[name])
            assert not np.shares_memory(returns, array)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", OF_ROWS)
def test_what_needs_a_row_of_q_values_is_refused_in_one_sentence(spelling: str) -> None:
    block = worked_block(ratios=np.ones((1, 4)))
    with pytest.raises(lr.ConfigError, match="@ε" if "@" in spelling and "tree" not in spelling else "peng") as caught:
        lr.parse_estimator(spelling)(block)
    assert_one_sentence(caught.value)


def test_retrace_without_densities_is_refused_in_one_sentence() -> None:
    with pytest.raises(lr.ConfigError, match=r"retrace.*use peng") as caught:
        lr.parse_estimator("retrace:0.8")(worked_block())
    assert_one_sentence(caught.value)


def assert_one_sentence(error: Exception) -> None:
    text = str(error)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
