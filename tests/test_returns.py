"""The two recursions against hand-worked numbers, each other and forward sums; their inputs are tested elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blocks import blocks, random_block
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from lambda_replay.replay.data import Block
from lambda_replay.replay.returns import backward_returns, nstep_returns

without_deadline = settings(deadline=None)
lambda_values = st.sampled_from([0.0, 0.3, 0.75, 1.0])


def greedy_next_values(block: Block) -> NDArray[Any]:  # [K, L]
    return np.asarray(block.q_values[:, 1:].max(axis=-1))


def peng_traces(block: Block, lambda_: float) -> NDArray[Any]:  # [K, L]
    return np.where(block.continues, np.float32(lambda_), np.float32(0))


def peng_returns(block: Block, lambda_: float) -> NDArray[Any]:
    values = greedy_next_values(block)
    return np.asarray(backward_returns(block.rewards, block.discounts, values, values, peng_traces(block, lambda_)))


def nstep_of(block: Block, n: int) -> NDArray[Any]:
    return np.asarray(nstep_returns(block.rewards, block.discounts, greedy_next_values(block), block.continues, n))


def forward_sum(
    rewards: NDArray[Any], discounts: NDArray[Any], values: NDArray[Any], baselines: NDArray[Any], traces: NDArray[Any]
) -> NDArray[np.float64]:
    """G_t = r_t + γ_t·V_{t+1} + Σ_{j>t} (Π_{i=t}^{j−1} γ_i·c_{i+1})·(r_j + γ_j·V_{j+1} − b_j), without recursion."""
    num_blocks, length = rewards.shape
    r, g, v, b, c = (array.astype(np.float64).tolist() for array in (rewards, discounts, values, baselines, traces))
    returns = np.empty((num_blocks, length))
    for k in range(num_blocks):
        for t in range(length):
            total, weight = r[k][t] + g[k][t] * v[k][t], 1.0
            for j in range(t + 1, length):
                weight *= g[k][j - 1] * c[k][j - 1]
                total += weight * (r[k][j] + g[k][j] * v[k][j] - b[k][j - 1])
            returns[k, t] = total
    return returns


def walk_n_steps(block: Block, values: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Rewards added up one step after the other until n are taken or the episode or the block ends; then V."""
    num_blocks, length = block.rewards.shape
    returns = np.empty((num_blocks, length))
    for k in range(num_blocks):
        for start in range(length):
            total, weight, t = 0.0, 1.0, start
            while True:
                total += weight * float(block.rewards[k, t])
                weight *= float(block.discounts[k, t])
                if t - start + 1 == n or t == length - 1 or not block.continues[k, t]:
                    break
                t += 1
            returns[k, start] = total + weight * float(values[k, t])
    return returns


def walk_n_steps_with_bonuses(
    block: Block, values: NDArray[Any], bonuses: NDArray[Any], n: int
) -> NDArray[np.float64]:  # [K, L]
    """Σ_{i<m} γⁱ·r_{t+i} + Σ_{0<i<m} γⁱ·e_{t+i} + γᵐ·V(s_{t+m}), with m ≤ n steps to the end of episode or block."""
    num_blocks, length = block.rewards.shape
    returns = np.empty((num_blocks, length))
    for k in range(num_blocks):
        for start in range(length):
            m = 1
            while m < n and start + m < length and block.continues[k, start + m - 1]:
                m += 1
            weights = [float(np.prod(block.discounts[k, start : start + i].astype(np.float64))) for i in range(m + 1)]
            rewards = sum(weights[i] * float(block.rewards[k, start + i]) for i in range(m))
            on_the_way = sum(weights[i] * float(bonuses[k, start + i - 1]) for i in range(1, m))
            returns[k, start] = rewards + on_the_way + weights[m] * float(values[k, start + m - 1])
    return returns


def assert_near(actual: NDArray[Any], desired: NDArray[Any], *sources: NDArray[Any]) -> None:
    """Equal to 1e-5 of the largest number involved."""
    largest = max(1.0, float(np.abs(desired).max()), *(float(np.abs(source).sum()) for source in sources))
    assert_allclose(actual, desired, rtol=0, atol=1e-5 * largest)


def perturbed_after(block: Block, values: NDArray[Any], k: int, t: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rewards and next values, all changed after the end at t of block k but the final observation's value."""
    rewards, changed = block.rewards.copy(), values.copy()
    rewards[k, t + 1 :] += 1e6
    changed[k, t + 1 :] -= 1e6
    if block.discounts[k, t] == 0:  # a terminated step does not even read the value of its final observation
        changed[k, t] = 1e6
    return rewards, changed


# --- golden -----------------------------------------------------------------------------------------------------------

# γ = 0.9, rewards 10, −10, 20 (terminated); values of the second and third state 200 and 300, of the final one 7.
REWARDS = np.array([[10, -10, 20]], dtype=np.float32)
DISCOUNTS = np.array([[0.9, 0.9, 0]], dtype=np.float32)
NEXT_VALUES = np.array([[200, 300, 7]], dtype=np.float32)
CONTINUES = np.array([[True, True, False]])


def test_lambda_returns_of_the_worked_example() -> None:
    # G₂ = 20, G₁ = −10 + 0.9·(0.2·300 + 0.8·20) = 58.4, G₀ = 10 + 0.9·(0.2·200 + 0.8·58.4) = 88.048
    traces = np.array([[0.8, 0.8, 0]], dtype=np.float32)
    returns = backward_returns(REWARDS, DISCOUNTS, NEXT_VALUES, NEXT_VALUES, traces)
    assert_allclose(returns, [[88.048, 58.4, 20]], rtol=1e-6)


def test_a_baseline_that_is_not_the_value_is_subtracted() -> None:
    # b₁ = 150, b₂ = 300: G₁ = −10 + 0.9·(300 + 0.8·(20 − 300)) = 58.4, G₀ = 10 + 0.9·(200 + 0.8·(58.4 − 150)) = 124.048
    traces = np.array([[0.8, 0.8, 0]], dtype=np.float32)
    baselines = np.array([[150, 300, 7]], dtype=np.float32)
    returns = backward_returns(REWARDS, DISCOUNTS, NEXT_VALUES, baselines, traces)
    assert_allclose(returns, [[124.048, 58.4, 20]], rtol=1e-6)


def test_a_trace_belongs_to_the_step_it_leads_to() -> None:
    # c₁ = 0 and c₂ = 0.8: G₁ = 58.4 as before, G₀ = 10 + 0.9·200 = 190
    traces = np.array([[0, 0.8, 0]], dtype=np.float32)
    returns = backward_returns(REWARDS, DISCOUNTS, NEXT_VALUES, NEXT_VALUES, traces)
    assert_allclose(returns, [[190, 58.4, 20]], rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [190, 260, 20]),  # 10 + 0.9·200, −10 + 0.9·300, 20
        (2, [244, 8, 20]),  # 10 − 9 + 0.81·300, −10 + 0.9·20, 20
        (3, [17.2, 8, 20]),  # 10 − 9 + 0.81·20, ...
        (4, [17.2, 8, 20]),  # longer than the block: the same
        (1000, [17.2, 8, 20]),
    ],
)
def test_n_step_returns_of_the_worked_example(n: int, expected: list[float]) -> None:
    assert_allclose(nstep_returns(REWARDS, DISCOUNTS, NEXT_VALUES, CONTINUES, n), [expected], rtol=1e-6)


def test_a_truncated_step_bootstraps_with_its_whole_weight() -> None:
    # The middle step is truncated: G₁ = −10 + 0.9·300 = 260 for any n and λ;
    # G₀ with n ≥ 2 or λ = 1 is 10 + 0.9·260 = 244
    discounts = np.full((1, 3), 0.9, dtype=np.float32)
    continues = np.array([[True, False, True]])
    traces = continues.astype(np.float32)
    expected = [[244, 260, 20 + 0.9 * 7]]
    assert_allclose(nstep_returns(REWARDS, discounts, NEXT_VALUES, continues, 3), expected, rtol=1e-6)
    assert_allclose(backward_returns(REWARDS, discounts, NEXT_VALUES, NEXT_VALUES, traces), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [190, 260, 20]),  # no step lies on the way: as without bonuses
        (2, [248.5, 17, 20]),  # 10 + 0.9·(5 − 10 + 0.9·300), −10 + 0.9·(10 + 20), 20
        (3, [29.8, 17, 20]),  # 10 + 0.9·(5 + 17)
        (1000, [29.8, 17, 20]),
    ],
)
def test_bonuses_of_the_steps_on_the_way_count_in_full(n: int, expected: list[float]) -> None:
    bonuses = np.array([[5, 10, 1_000]], dtype=np.float32)  # e of s₁, of s₂, and of a state without a step
    returns = nstep_returns(REWARDS, DISCOUNTS, NEXT_VALUES, CONTINUES, n, next_bonuses=bonuses)
    assert_allclose(returns, [expected], rtol=1e-6)


def test_the_last_step_of_a_block_ignores_its_trace_and_baseline() -> None:
    # r + γ·V = 2 + 0.5·8 = 6, whatever c and b are: no return of the successor is known
    one = np.ones((1, 1), dtype=np.float32)
    assert_array_equal(backward_returns(2 * one, 0.5 * one, 8 * one, 1e9 * one, one), [[6]])


# --- identity ---------------------------------------------------------------------------------------------------------


@without_deadline
@given(block=blocks())
def test_lambda_zero_and_n_one_are_the_one_step_return(block: Block) -> None:
    one_step = block.rewards + block.discounts * greedy_next_values(block)
    assert_array_equal(peng_returns(block, 0.0), one_step)
    assert_array_equal(nstep_of(block, 1), one_step)


@without_deadline
@given(block=blocks())
def test_lambda_one_is_the_return_of_n_no_shorter_than_the_block(block: Block) -> None:
    longest = nstep_of(block, block.rewards.shape[1])
    assert_near(peng_returns(block, 1.0), longest, block.q_values, block.rewards)
    assert_array_equal(nstep_of(block, block.rewards.shape[1] + 3), longest)


@without_deadline
@given(block=blocks(), lambda_=lambda_values)
def test_the_lambda_return_is_the_weighted_average_of_n_step_returns(block: Block, lambda_: float) -> None:
    """(1−λ)·Σ_{n<L} λⁿ⁻¹·R⁽ⁿ⁾ + λᴸ⁻¹·R⁽ᴸ⁾, also over ends, where all longer n-step returns are the same."""
    length = block.rewards.shape[1]
    average = np.zeros(block.rewards.shape)
    for n in range(1, length + 1):
        weight = (1 - lambda_) * lambda_ ** (n - 1) if n < length else lambda_ ** (length - 1)
        average += weight * nstep_of(block, n).astype(np.float64)
    assert_near(peng_returns(block, lambda_), average, block.q_values, block.rewards)


def test_lambda_one_to_a_termination_is_monte_carlo() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(5, 20))
    discounts = np.full((5, 20), 0.97)
    discounts[:, -1] = 0
    traces = np.ones((5, 20))
    traces[:, -1] = 0
    values = rng.normal(size=(5, 20))
    monte_carlo = np.array([[np.sum(row[t:] * 0.97 ** np.arange(20 - t)) for t in range(20)] for row in rewards])
    assert_allclose(backward_returns(rewards, discounts, values, values, traces), monte_carlo, rtol=1e-10)
    continues = np.ones((5, 20), dtype=bool)
    continues[:, -1] = False
    assert_allclose(nstep_returns(rewards, discounts, values, continues, 20), monte_carlo, rtol=1e-10)


@without_deadline
@given(block=blocks(), seed=st.integers(0, 2**32 - 1))
def test_any_baselines_and_traces_agree_with_the_forward_sum(block: Block, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = greedy_next_values(block)
    baselines = (values + rng.normal(size=values.shape)).astype(np.float32)
    traces = np.where(block.continues, rng.random(values.shape), 0).astype(np.float32)
    returns = np.asarray(backward_returns(block.rewards, block.discounts, values, baselines, traces))
    literal = forward_sum(block.rewards, block.discounts, values, baselines, traces)
    assert_near(returns, literal, block.q_values, block.rewards)


@without_deadline
@given(block=blocks(), n=st.integers(1, 12))
def test_n_step_returns_agree_with_walking_step_by_step(block: Block, n: int) -> None:
    literal = walk_n_steps(block, greedy_next_values(block), n)
    assert_near(nstep_of(block, n), literal, block.q_values, block.rewards)


@without_deadline
@given(block=blocks(), n=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_n_step_returns_with_bonuses_agree_with_walking_step_by_step(block: Block, n: int, seed: int) -> None:
    values = greedy_next_values(block)
    bonuses = np.random.default_rng(seed).normal(size=values.shape).astype(np.float32)
    returns = nstep_returns(block.rewards, block.discounts, values, block.continues, n, next_bonuses=bonuses)
    literal = walk_n_steps_with_bonuses(block, values, bonuses, n)
    assert_near(np.asarray(returns), literal, block.q_values, block.rewards, bonuses)


@without_deadline
@given(block=blocks(), lambda_=lambda_values, seed=st.integers(0, 2**32 - 1))
def test_the_lambda_return_is_the_average_of_n_step_returns_with_bonuses_too(
    block: Block, lambda_: float, seed: int
) -> None:
    """A baseline b that is not V is an n-step bonus of V − b."""
    length, values = block.rewards.shape[1], greedy_next_values(block)
    bonuses = np.random.default_rng(seed).normal(size=values.shape).astype(np.float32)
    average = np.zeros(block.rewards.shape)
    for n in range(1, length + 1):
        weight = (1 - lambda_) * lambda_ ** (n - 1) if n < length else lambda_ ** (length - 1)
        average += weight * walk_n_steps_with_bonuses(block, values, bonuses, n)
    returns = backward_returns(block.rewards, block.discounts, values, values - bonuses, peng_traces(block, lambda_))
    assert_near(np.asarray(returns), average, block.q_values, block.rewards, bonuses)


# --- property ---------------------------------------------------------------------------------------------------------


@without_deadline
@given(block=blocks(), lambda_=lambda_values, n=st.integers(1, 12))
def test_nothing_leaks_back_over_an_end(block: Block, lambda_: float, n: int) -> None:
    values, traces = greedy_next_values(block), peng_traces(block, lambda_)
    before = np.asarray(backward_returns(block.rewards, block.discounts, values, values, traces))
    before_nstep = nstep_of(block, n)
    for k, t in np.argwhere(~block.continues & block.is_transition):
        rewards, changed = perturbed_after(block, values, k, t)
        after = np.asarray(backward_returns(rewards, block.discounts, changed, changed, traces))
        after_nstep = np.asarray(nstep_returns(rewards, block.discounts, changed, block.continues, n))
        assert_array_equal(after[k, : t + 1], before[k, : t + 1])
        assert_array_equal(after_nstep[k, : t + 1], before_nstep[k, : t + 1])
        others = np.arange(len(before)) != k
        assert_array_equal(after[others], before[others])
        assert_array_equal(after_nstep[others], before_nstep[others])


def test_candidates_on_a_leading_axis_equal_one_by_one() -> None:
    block = random_block(np.random.default_rng(1), num_blocks=5, length=17)
    values = greedy_next_values(block)
    traces = np.stack([peng_traces(block, i / 20) for i in range(21)])  # [21, K, L]
    together = backward_returns(block.rewards, block.discounts, values, values, traces)
    assert together.shape == (21, 5, 17)
    for i in range(21):
        assert_array_equal(together[i], peng_returns(block, i / 20))


def test_two_leading_axes_broadcast_critics_against_candidates() -> None:
    rng = np.random.default_rng(2)
    block = random_block(rng, num_blocks=4, length=9)
    critics = rng.normal(size=(2, 1, 4, 9)).astype(np.float32)
    traces = np.stack([peng_traces(block, lambda_) for lambda_ in (0.1, 0.5, 1.0)])  # [3, K, L]
    together = backward_returns(block.rewards, block.discounts, critics, critics, traces)
    assert together.shape == (2, 3, 4, 9)
    for i in range(2):
        for j in range(3):
            alone = backward_returns(block.rewards, block.discounts, critics[i, 0], critics[i, 0], traces[j])
            assert_array_equal(together[i, j], alone)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_n_step_returns_of_several_critics_equal_one_by_one(n: int) -> None:
    rng = np.random.default_rng(7)
    block = random_block(rng, num_blocks=4, length=9)
    values = rng.normal(size=(2, 3, 4, 9)).astype(np.float32)
    bonuses = rng.normal(size=(2, 3, 4, 9)).astype(np.float32)
    plain = nstep_returns(block.rewards, block.discounts, values, block.continues, n)
    softly = nstep_returns(block.rewards, block.discounts, values, block.continues, n, next_bonuses=bonuses)
    shared = nstep_returns(block.rewards, block.discounts, values[0, 0], block.continues, n, next_bonuses=bonuses)
    assert plain.shape == softly.shape == shared.shape == (2, 3, 4, 9)
    for i, j in np.ndindex(2, 3):
        arguments = (block.rewards, block.discounts, values[i, j], block.continues, n)
        assert_array_equal(plain[i, j], nstep_returns(*arguments))
        assert_array_equal(softly[i, j], nstep_returns(*arguments, next_bonuses=bonuses[i, j]))
        alone = nstep_returns(
            block.rewards, block.discounts, values[0, 0], block.continues, n, next_bonuses=bonuses[i, j]
        )
        assert_array_equal(shared[i, j], alone)


def test_one_candidate_per_block_and_one_trace_for_all_broadcast() -> None:
    block = random_block(np.random.default_rng(3), num_blocks=3, length=8, end_probability=0)
    values = greedy_next_values(block)
    lambdas = np.array([[0.2], [0.6], [1.0]], dtype=np.float32)  # [K, 1]
    per_block = backward_returns(block.rewards, block.discounts, values, values, lambdas)
    candidates = backward_returns(block.rewards, block.discounts, values, values, lambdas[:, :, None])  # [3, 1, 1]
    assert per_block.shape == (3, 8)
    assert candidates.shape == (3, 3, 8)
    for k, lambda_ in enumerate((0.2, 0.6, 1.0)):
        alone = peng_returns(block, lambda_)
        assert_array_equal(per_block[k], alone[k])
        assert_array_equal(candidates[k], alone)


def test_candidate_discounts_on_a_leading_axis_equal_one_by_one() -> None:
    block = random_block(np.random.default_rng(4), num_blocks=3, length=8)
    values, traces = greedy_next_values(block), peng_traces(block, 0.7)
    discounts = np.stack([block.discounts, block.discounts / 2])  # [2, K, L]
    together = backward_returns(block.rewards, discounts, values, values, traces)
    assert together.shape == (2, 3, 8)
    for i in range(2):
        assert_array_equal(together[i], backward_returns(block.rewards, discounts[i], values, values, traces))


@without_deadline
@given(block=blocks(), n=st.integers(1, 12))
def test_inputs_are_only_read(block: Block, n: int) -> None:
    values, traces = greedy_next_values(block), peng_traces(block, 0.7)
    inputs = [block.rewards, block.discounts, values, traces, block.continues]
    copies = [array.copy() for array in inputs]
    for array in inputs:
        array.setflags(write=False)
    backward_returns(block.rewards, block.discounts, values, values, traces)
    nstep_returns(block.rewards, block.discounts, values, block.continues, n)
    for array, copy in zip(inputs, copies, strict=True):
        assert_array_equal(array, copy)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_of_the_inputs_is_kept(dtype: type[np.floating[Any]]) -> None:
    ones = np.ones((2, 5), dtype=dtype)
    assert backward_returns(ones, ones, ones, ones, ones).dtype == dtype
    assert nstep_returns(ones, ones, ones, ones.astype(bool), 3).dtype == dtype


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8])
def test_integers_are_computed_as_floats(dtype: type[np.integer[Any]]) -> None:
    """With V = 1, γ = 0.9 and rewards of 1: G₁ = 1.9, G₀ = 1 + 0.9·(1 + 0.5·0.9) = 2.305, or 1 + 0.9·1.9 = 2.71."""
    ones = np.ones((1, 2), dtype=dtype)
    discounts, halves = np.full((1, 2), 0.9, np.float32), np.full((1, 2), 0.5, np.float32)
    returns = backward_returns(ones, discounts, ones, ones, halves)
    assert returns.dtype == np.float32
    assert_allclose(returns, [[2.305, 1.9]], rtol=1e-6)
    returns = nstep_returns(ones, discounts, ones, np.ones((1, 2), dtype=bool), 2)
    assert returns.dtype == np.float32
    assert_allclose(returns, [[2.71, 1.9]], rtol=1e-6)
    # All integers: undiscounted, and a trace of 1 is the whole return.
    assert_array_equal(backward_returns(ones, ones, ones, ones, ones), [[3, 2]])


def test_the_wider_of_rewards_and_values_is_the_dtype_of_both() -> None:
    narrow, wide = np.ones((1, 2), dtype=np.float16), np.full((1, 2), 1 / 3)
    for rewards, values in ((narrow, wide), (wide, narrow)):
        by_traces = backward_returns(rewards, wide, values, values, wide)
        by_steps = nstep_returns(rewards, wide, values, np.ones((1, 2), dtype=bool), 1)
        assert by_traces.dtype == by_steps.dtype == np.float64
        assert_array_equal(by_steps, rewards + wide * values)


def test_inputs_need_not_be_contiguous() -> None:
    block = random_block(np.random.default_rng(5), num_blocks=6, length=10)
    values, traces = greedy_next_values(block), peng_traces(block, 0.7)
    arrays = [block.rewards, block.discounts, values, values, traces]
    slices = [np.asfortranarray(np.repeat(array, 2, axis=1))[:, ::2] for array in arrays]
    assert_array_equal(backward_returns(*slices), backward_returns(*arrays))


def test_blocks_do_not_depend_on_each_other() -> None:
    block = random_block(np.random.default_rng(6), num_blocks=7, length=11)
    values, traces = greedy_next_values(block), peng_traces(block, 0.9)
    together = np.asarray(backward_returns(block.rewards, block.discounts, values, values, traces))
    for k in range(7):
        one = slice(k, k + 1)
        alone = backward_returns(block.rewards[one], block.discounts[one], values[one], values[one], traces[one])
        assert_array_equal(together[one], alone)
