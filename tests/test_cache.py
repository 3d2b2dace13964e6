"""Refresh, priorities and minibatches against literal loops and the memory's contents; estimators have their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import stats

import lambda_replay as lr
from lambda_replay.replay.critic import QFunction, promote_slots
from lambda_replay.replay.data import Evaluation

NUM_STATES, NUM_ACTIONS = 50, 3
PENG = lr.parse_estimator("peng:0.7")


def frame(value: int) -> NDArray[np.uint8]:
    """An observation that is one number."""
    return np.array(value, dtype=np.uint8)


def tabular(seed: int = 0, dtype: type[np.floating[Any]] = np.float32) -> tuple[NDArray[Any], QFunction]:
    """A random table [states, A] and the Q-function that looks up the newest frame in it."""
    table = np.random.default_rng(seed).normal(size=(NUM_STATES, NUM_ACTIONS)).astype(dtype)
    return table, lambda states: table[states[:, -1].astype(int)]


def random_memory(steps: int = 300, end_probability: float = 0.1, **settings: Any) -> lr.ReplayMemory:
    """States are numbers 0 … 49; episodes end, by termination or truncation, with ``end_probability`` a step."""
    memory = lr.ReplayMemory(**{"capacity": 1_000, "observation_shape": (), "observation_dtype": np.uint8, **settings})
    rng = np.random.default_rng(5)
    for stream in range(memory.num_streams):
        is_open = False
        for _ in range(steps):
            if not is_open:
                memory.begin(frame(int(rng.integers(NUM_STATES))), stream=stream)
            has_ended, kind = rng.random() < end_probability, rng.random() < 0.5
            memory.append(
                int(rng.integers(NUM_ACTIONS)),
                float(rng.normal()),
                frame(int(rng.integers(NUM_STATES))),
                terminated=bool(has_ended and kind),
                truncated=bool(has_ended and not kind),
                stream=stream,
            )
            is_open = not has_ended
    return memory


def build(
    memory: lr.ReplayMemory, q_function: QFunction, estimator: lr.Estimator | str = PENG, **changes: Any
) -> lr.Cache:
    arguments: dict[str, Any] = {"discount": 0.9, "size": 400, "block_length": 20, "rng": np.random.default_rng(1)}
    return lr.refresh(memory, q_function, estimator, **{**arguments, **changes})


def literal_peng(
    memory: lr.ReplayMemory, table: NDArray[Any], slots: list[int], discount: float, lambda_: float
) -> list[float]:
    """Returns of one block of slots, its last being the successor only; NaN at closing slots."""
    values = [float(max(table[int(memory.observations[slot])])) for slot in slots]
    is_step = [bool(memory.is_step[slot]) for slot in slots]
    returns = [float("nan")] * (len(slots) - 1)
    for t in range(len(slots) - 2, -1, -1):
        if not is_step[t]:
            continue
        reward = float(memory.rewards[slots[t]])
        if memory.terminated[slots[t]]:
            returns[t] = reward
        elif not is_step[t + 1] or t == len(slots) - 2:  # truncated, or the end of the block
            returns[t] = reward + discount * values[t + 1]
        else:
            returns[t] = reward + discount * ((1 - lambda_) * values[t + 1] + lambda_ * returns[t + 1])
    return returns


# --- golden -----------------------------------------------------------------------------------------------------------


def test_a_cache_of_one_worked_episode() -> None:
    """γ = 0.9, λ = 0.8, rewards 10, −10, 20 (terminated), max Q 100, 200, 300: returns 88.048, 58.4, 20."""
    memory = lr.ReplayMemory(4, (), np.uint8)
    memory.begin(frame(0))
    memory.append(0, 10.0, frame(1))
    memory.append(1, -10.0, frame(2))
    memory.append(0, 20.0, frame(3), terminated=True)
    table = np.array([[100, 50], [200, 150], [300, 250], [7, 8]], dtype=np.float32)
    cache = lr.refresh(
        memory,
        lambda states: table[states[:, 0]],
        lr.parse_estimator("peng:0.8"),
        discount=0.9,
        size=3,
        block_length=3,
        rng=np.random.default_rng(0),
    )
    assert len(cache.slots) == 3
    assert_array_equal(cache.slots, [0, 1, 2])
    assert_array_equal(cache.actions, [0, 1, 0])
    assert_allclose(cache.returns, [88.048, 58.4, 20], rtol=1e-6)
    assert_allclose(cache.td_errors, [88.048 - 100, 58.4 - 150, 20 - 300], rtol=1e-5)
    assert_array_equal(cache.is_transition, [True, True, True])


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        # even S, no ties: the median lies between 2 and 3; S·P = 1 + p above, 1 − p below
        ([4, 1, 3, 2], [1.3, 0.7, 1.3, 0.7]),
        # signs do not matter
        ([-4, 1, 3, -2], [1.3, 0.7, 1.3, 0.7]),
        # odd S: the median itself has 1
        ([5, 1, 3, 2, 4], [1.3, 0.7, 1, 0.7, 1.3]),
        # symmetric ties at the median, even and odd: each of them has 1
        ([1, 2, 2, 3], [0.7, 1, 1, 1.3]),
        ([1, 2, -2, 2, 3], [0.7, 1, 1, 1, 1.3]),
        # ties away from the median change nothing
        ([1, 1, 3, 3], [0.7, 0.7, 1.3, 1.3]),
        ([0, 0, 0, 5, 5, 5], [0.7, 0.7, 0.7, 1.3, 1.3, 1.3]),
        # all equal, and one alone
        ([2, 2, 2], [1, 1, 1]),
        ([0, 0, 0, 0], [1, 1, 1, 1]),
        ([9], [1]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_paper_s_probabilities_at_the_median(
    errors: list[float], expected: list[float], dtype: type[np.floating[Any]]
) -> None:
    probabilities = lr.prioritized(np.array(errors, dtype=dtype), priority=0.3)
    assert_allclose(probabilities, np.array(expected) / len(errors), rtol=1e-12)


def test_asymmetric_ties_share_what_is_missing_to_one_half() -> None:
    # Median 1; above it only the 5. Half of the 4 rows is 2, so the three ties share m = 1: P = 0.7/4 + 0.3·m/2.
    probabilities = lr.prioritized(np.array([1.0, 1.0, 1.0, 5.0]), priority=0.3)
    assert_allclose(probabilities, [0.7 / 4 + 0.3 / 6] * 3 + [0.7 / 4 + 0.3 / 2], rtol=1e-12)


@pytest.mark.parametrize(
    ("quantile", "members"),
    [
        (0.0, [1, 1, 1, 1, 1]),  # above the smallest or tied with it: all
        (0.25, [0, 0.75, 1, 1, 1]),  # the quantile is the 2; (1 − 0.25)·5 = 3.75 members, 3 of them above
        (0.75, [0, 0, 0, 0.25, 1]),  # the quantile is the 4; 1.25 members
        (0.9, [0, 0, 0, 0, 1]),  # between 4 and 5
    ],
)
def test_other_quantiles(quantile: float, members: list[float]) -> None:
    probabilities = lr.prioritized(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), priority=0.4, quantile=quantile)
    assert_allclose(probabilities, 0.6 / 5 + 0.4 * np.array(members) / sum(members), rtol=1e-12)


def test_full_priority_draws_nothing_below_the_median() -> None:
    assert_allclose(lr.prioritized(np.array([1.0, 2.0, 3.0, 4.0]), priority=1.0), [0, 0, 0.5, 0.5], rtol=1e-12)


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_streams": 3},
        {"capacity": 150},  # wrapped
        {"capacity": 150, "num_streams": 2, "spare": 17},
        {"history": 4},
    ],
)
def test_refresh_equals_a_literal_loop(settings: dict[str, Any], lambda_: float) -> None:
    memory = random_memory(**settings)
    table, q_function = tabular()
    cache = build(memory, q_function, lr.parse_estimator(f"peng:{lambda_}"), tail=1)
    for start in range(0, 400, 20):
        rows = slice(start, start + 20)
        slots = cache.slots[rows].tolist()
        size, last = memory.ring.size, slots[-1]
        stream = slots[0] // size
        # Two slots follow: the tail's step and its successor.
        following = [stream * size + (last - stream * size + i) % size for i in (1, 2)]
        expected = np.array(literal_peng(memory, table, slots + following, 0.9, lambda_)[:-1])
        is_transition = memory.is_step[slots]
        assert_array_equal(cache.is_transition[rows], is_transition)
        assert_allclose(cache.returns[rows][is_transition], expected[is_transition], rtol=1e-5, atol=1e-5)
        taken = table[memory.observations[slots], memory.actions[slots]]
        errors = cache.td_errors[rows][is_transition]
        assert_allclose(errors, (expected - taken)[is_transition], rtol=1e-5, atol=1e-5)
    assert 0 < np.count_nonzero(~cache.is_transition) < 100  # the blocks did cross ends


def test_without_a_tail_the_last_step_of_a_block_is_one_step() -> None:
    memory = random_memory()
    table, q_function = tabular()
    cache = build(memory, q_function)
    last = cache.slots.reshape(-1, 20)[:, -1]
    is_transition = memory.is_step[last]
    next_values = table[memory.observations[last + 1]].max(axis=1)
    one_step = memory.rewards[last] + np.where(memory.terminated[last], 0, np.float32(0.9) * next_values)
    assert_allclose(cache.returns.reshape(-1, 20)[is_transition, -1], one_step[is_transition], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spelling", ["peng:0.9", "nstep:3", "median"])
def test_a_tail_gives_the_first_returns_of_longer_blocks(spelling: str) -> None:
    memory = random_memory()
    _, q_function = tabular()
    estimator = lr.parse_estimator(spelling)
    with_tail = build(memory, q_function, estimator, size=200, block_length=10, tail=7)
    longer = build(memory, q_function, estimator, size=340, block_length=17)
    for name in ("slots", "actions", "returns", "td_errors"):
        first = getattr(longer, name).reshape(20, 17)[:, :10]
        assert_array_equal(getattr(with_tail, name).reshape(20, 10), first)


def test_chunks_are_bounded_and_do_not_change_the_result() -> None:
    memory = random_memory()
    _, q_function = tabular()
    sizes: list[int] = []

    def recording(states: NDArray[Any]) -> NDArray[Any]:
        sizes.append(len(states))
        return q_function(states)

    whole = build(memory, q_function, chunk_size=1_000_000)
    for chunk_size in (1, 7, 21, 64, 420, 421):
        sizes.clear()
        cache = build(memory, recording, chunk_size=chunk_size)
        assert max(sizes) <= chunk_size
        assert sum(sizes) == 20 * 21  # every state of every block once, successors included
        assert len(sizes) == -(-420 // chunk_size)
        assert_array_equal(cache.returns, whole.returns)


def test_states_reach_the_q_function_as_they_are_stored() -> None:
    memory = random_memory(history=3)
    seen: list[NDArray[Any]] = []

    def recording(states: NDArray[Any]) -> NDArray[Any]:
        seen.append(states.copy())
        return np.zeros((len(states), NUM_ACTIONS), dtype=np.float32)

    cache = build(memory, recording)
    states = np.concatenate(seen)
    assert states.dtype == np.uint8
    assert states.shape == (420, 3)
    in_blocks = states.reshape(20, 21, 3)[:, :20].reshape(400, 3)
    assert_array_equal(in_blocks, memory.states(cache.slots))


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.9])
def test_no_priority_is_uniform(quantile: float) -> None:
    errors = np.random.default_rng(0).normal(size=101)
    assert_allclose(lr.prioritized(errors, 0.0, quantile), np.full(101, 1 / 101), rtol=1e-12)


# --- property ---------------------------------------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6, width=32)


@settings(deadline=None)
@given(
    errors=st.lists(st.one_of(finite, st.sampled_from([0.0, 1.0, -1.0, 2.0])), min_size=1, max_size=40),
    priority=st.floats(0, 1),
    quantile=st.floats(0, 1, exclude_max=True),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_probabilities_sum_to_one_and_rise_with_the_error(
    errors: list[float], priority: float, quantile: float, dtype: type[np.floating[Any]]
) -> None:
    array = np.array(errors, dtype=dtype)
    probabilities = lr.prioritized(array, priority, quantile)
    assert probabilities.shape == array.shape
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert (probabilities >= 0).all()
    in_order = probabilities[np.argsort(np.abs(array), kind="stable")]
    assert (np.diff(in_order) >= -1e-12).all()
    for magnitude in np.unique(np.abs(array)):  # equal errors, equal probabilities
        assert np.ptp(probabilities[np.abs(array) == magnitude]) == 0


@settings(deadline=None)
@given(errors=st.lists(finite, min_size=1, max_size=41, unique_by=abs), priority=st.floats(0, 1))
def test_unique_errors_have_the_paper_s_probabilities(errors: list[float], priority: float) -> None:
    array = np.array(errors, dtype=np.float32)
    size, ranks = len(errors), np.argsort(np.argsort(np.abs(array)))
    middle = (size - 1) / 2
    expected = (1 + priority * np.sign(ranks - middle)) / size
    assert_allclose(lr.prioritized(array, priority), expected, rtol=1e-9, atol=1e-15)


def test_scale_does_not_matter() -> None:
    errors = np.random.default_rng(0).normal(size=64)
    assert_allclose(lr.prioritized(1_000 * errors, 0.4), lr.prioritized(errors, 0.4), rtol=1e-12)


def test_priorities_only_read_the_errors() -> None:
    errors = np.array([-1.0, 2.0, -3.0])
    errors.setflags(write=False)
    lr.prioritized(errors, 0.5)
    assert_array_equal(errors, [-1, 2, -3])


def test_closing_slots_are_never_drawn() -> None:
    memory = random_memory(end_probability=0.5)
    _, q_function = tabular()
    cache = build(memory, q_function)
    assert np.count_nonzero(~cache.is_transition) > 50
    for priority in (0.0, 0.5, 1.0):
        rows = cache.sample_rows(64, 200, priority, rng=np.random.default_rng(0))
        assert rows.shape == (200, 64)
        assert memory.is_step[cache.slots[rows]].all()
        assert cache.is_transition[rows].all()


def test_closing_slots_do_not_move_the_median() -> None:
    """Full priority draws exactly the upper half of the real transitions, however many closing slots there are."""
    memory = random_memory(end_probability=0.5)
    _, q_function = tabular()
    cache = build(memory, q_function)
    real = np.flatnonzero(cache.is_transition)
    median = np.median(np.abs(cache.td_errors[real]))
    drawn = np.unique(cache.sample_rows(100, 500, priority=1.0, rng=np.random.default_rng(0)))
    above = real[np.abs(cache.td_errors[real]) > median]
    assert set(above.tolist()) <= set(drawn.tolist())
    assert (np.abs(cache.td_errors[drawn]) >= median).all()


def test_rows_are_uniform_without_priority() -> None:
    memory = random_memory()
    _, q_function = tabular()
    cache = build(memory, q_function)
    rows = cache.sample_rows(100, 400, rng=np.random.default_rng(3))
    counts = np.bincount(rows.reshape(-1), minlength=len(cache.slots))[cache.is_transition]
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_rows_follow_the_probabilities(quantile: float) -> None:
    memory = random_memory()
    _, q_function = tabular()
    cache = build(memory, q_function)
    rows = cache.sample_rows(100, 400, 0.6, quantile, rng=np.random.default_rng(4))
    counts = np.bincount(rows.reshape(-1), minlength=len(cache.slots))[cache.is_transition]
    probabilities = lr.prioritized(cache.td_errors[cache.is_transition], 0.6, quantile)
    assert stats.chisquare(counts, probabilities * counts.sum()).pvalue > 0.01


@pytest.mark.parametrize("priority", [0.0, 0.6, 1.0])
def test_systematic_rows_follow_the_probabilities(priority: float) -> None:
    cache = build(random_memory(), tabular()[1])
    rows = [cache.sample_rows(10, 7, priority, rng=np.random.default_rng(n), sampling="systematic") for n in range(600)]
    counts = np.bincount(np.concatenate(rows).reshape(-1), minlength=len(cache.slots))[cache.is_transition]
    probabilities = lr.prioritized(cache.td_errors[cache.is_transition], priority)
    drawable = probabilities > 0
    assert counts[~drawable].sum() == 0
    expected = probabilities[drawable] * counts.sum()
    assert np.abs(counts[drawable] - expected).max() < 4.5 * np.sqrt(expected.max())


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), updates=st.integers(1, 40), priority=st.sampled_from([0.0, 0.3, 1.0]))
def test_systematic_rows_are_drawn_as_often_as_expected_to_within_one(seed: int, updates: int, priority: float) -> None:
    """In every pass over the cache, and so at most one too many or too few per pass in all."""
    cache = build(random_memory(), tabular()[1], size=100)
    drawn = cache.sample_rows(16, updates, priority, rng=np.random.default_rng(seed), sampling="systematic").reshape(-1)
    probabilities = lr.prioritized(cache.td_errors[cache.is_transition], priority)
    for start in range(0, len(drawn), len(probabilities)):
        one_pass = drawn[start : start + len(probabilities)]
        counts = np.bincount(one_pass, minlength=len(cache.slots))[cache.is_transition]
        assert (np.abs(counts - probabilities * len(one_pass)) < 1 + 1e-9).all()


def test_systematic_rows_without_priority_are_epochs() -> None:
    """Each pass holds every transition once, in an order of its own; the last one is cut short."""
    cache = build(random_memory(), tabular()[1], size=100)
    transitions = np.flatnonzero(cache.is_transition)
    rows = cache.sample_rows(25, 10, rng=np.random.default_rng(0), sampling="systematic").reshape(-1)
    passes = [rows[start : start + len(transitions)] for start in range(0, len(rows), len(transitions))]
    assert len(passes) >= 3
    for one_pass in passes[:-1]:
        assert_array_equal(np.sort(one_pass), transitions)
    assert len(np.unique(passes[-1])) == len(passes[-1])
    assert not np.array_equal(passes[0], passes[1])


def test_inputs_and_memory_are_only_read() -> None:
    memory = random_memory()
    table, q_function = tabular()
    before, kept = {name: array.copy() for name, array in memory.arrays.items()}, table.copy()
    list(build(memory, q_function).minibatches(8, updates=3, priority=0.5, rng=np.random.default_rng(0)))
    for name, array in memory.arrays.items():
        assert_array_equal(array, before[name])
    assert_array_equal(table, kept)


def test_the_cache_keeps_its_returns_when_the_q_function_learns() -> None:
    memory = random_memory()
    table, q_function = tabular()
    cache = build(memory, q_function)
    returns, errors = cache.returns.copy(), cache.td_errors.copy()
    table += 100
    assert_array_equal(cache.returns, returns)
    assert_array_equal(cache.td_errors, errors)


# --- behaviour --------------------------------------------------------------------------------------------------------


def test_the_same_generator_gives_the_same_cache_and_minibatches() -> None:
    memory = random_memory()
    _, q_function = tabular()
    first, again, other = (build(memory, q_function, rng=np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert_array_equal(first.slots, again.slots)
    assert_array_equal(first.returns, again.returns)
    assert not np.array_equal(first.slots, other.slots)
    rows = [first.sample_rows(16, 5, 0.3, rng=np.random.default_rng(seed)) for seed in (7, 7, 8)]
    assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


@pytest.mark.parametrize("history", [1, 4])
def test_minibatches_say_what_the_memory_holds(history: int) -> None:
    memory = random_memory(history=history)
    _, q_function = tabular()
    cache = build(memory, q_function)
    batches = list(cache.minibatches(32, updates=25, priority=0.2, rng=np.random.default_rng(0)))
    rows = cache.sample_rows(32, 25, priority=0.2, rng=np.random.default_rng(0))
    assert len(batches) == 25
    for batch, wanted in zip(batches, rows, strict=True):
        assert_array_equal(batch.rows, wanted)
        slots = cache.slots[wanted]
        assert batch.states.shape == (32, history)
        assert batch.states.dtype == np.uint8
        assert_array_equal(batch.states, memory.states(slots))
        assert_array_equal(batch.states[:, -1], memory.observations[slots])
        assert_array_equal(batch.actions, memory.actions[slots])
        assert_array_equal(batch.returns, cache.returns[wanted])


def test_a_user_s_own_estimator_is_any_callable() -> None:
    def only_rewards(block: Evaluation) -> NDArray[Any]:
        return 2 * block.rewards

    memory = random_memory()
    table, q_function = tabular()
    cache = build(memory, q_function, only_rewards)
    real = cache.is_transition
    assert_array_equal(cache.returns, 2 * memory.rewards[cache.slots])
    taken = table[memory.observations[cache.slots[real]], cache.actions[real]]
    assert_array_equal(cache.td_errors[real], cache.returns[real] - taken)
    assert_array_equal(cache.td_errors[~real], 0)


def test_what_an_estimator_says_of_closing_slots_is_not_kept() -> None:
    memory = random_memory(end_probability=0.3)
    _, q_function = tabular()
    cache = build(memory, q_function, lambda block: np.where(block.is_transition, 1, np.nan).astype(np.float32))
    assert_array_equal(cache.returns, cache.is_transition.astype(np.float32))
    assert np.isfinite(cache.td_errors).all()


def test_integer_q_values_are_used_as_floats() -> None:
    memory = random_memory()
    table = np.random.default_rng(0).integers(-5, 5, size=(NUM_STATES, NUM_ACTIONS))
    whole = build(memory, lambda states: table[states[:, -1].astype(int)])
    floats = build(memory, lambda states: table[states[:, -1].astype(int)].astype(np.float32))
    assert_array_equal(whole.returns, floats.returns)
    assert_array_equal(whole.td_errors, floats.td_errors)


def test_a_block_says_where_episodes_end() -> None:
    """Slots 0 and 1 of a terminated episode, 2 closes it, 3 of a truncated one, 4 closes it, 5 is the newest."""
    memory = lr.ReplayMemory(10, (), np.uint8)
    memory.begin(frame(0))
    memory.append(0, 1.0, frame(1))
    memory.append(1, 2.0, frame(2), terminated=True)
    memory.begin(frame(3))
    memory.append(2, 3.0, frame(4), truncated=True, behaviour_prob=0.5)
    memory.begin(frame(5))
    table, q_function = tabular()
    slots = np.arange(6)[None]
    block = lr.QCritic(q_function).evaluate(promote_slots(memory, slots, discount=0.9, length=5))
    assert_array_equal(block.rewards, [[1, 2, 0, 3, 0]])
    assert_array_equal(block.discounts, np.array([[0.9, 0, 0, 0.9, 0]], dtype=np.float32))
    assert_array_equal(block.continues, [[True, False, False, False, False]])
    assert_array_equal(block.is_step, [[True, True, False, True, False, False]])
    assert_array_equal(block.actions, [[0, 1, 0, 2, 0, 0]])
    assert_array_equal(block.behaviour_probs, [[1, 1, 1, 0.5, 1, 1]])
    assert_array_equal(block.q_values, table[None, :6])


def test_a_reserve_keeps_the_oldest_slots_out_of_the_cache() -> None:
    memory = random_memory(capacity=100, end_probability=0)
    _, q_function = tabular()
    cache = build(memory, q_function, size=4_000, block_length=5, reserve=30)
    ages = memory.ages(cache.slots)
    assert ages.max() == 100 - 1 - 30
    assert memory.ages(build(memory, q_function, size=4_000, block_length=5).slots).max() == 99


def numbered_memory(
    rng: np.random.Generator, steps: int, **settings: Any
) -> tuple[lr.ReplayMemory, Callable[[], None]]:
    """A memory in which no two observations are the same, after so many steps, and a function that stores one more."""
    memory = lr.ReplayMemory(observation_shape=(), observation_dtype=np.int32, **settings)
    is_open = [False] * memory.num_streams

    def store() -> None:
        stream = int(rng.integers(memory.num_streams))
        observation = np.array(1 + sum(memory.written), dtype=np.int32)
        if is_open[stream]:
            terminated = rng.random() < 0.2
            memory.append(int(rng.integers(NUM_ACTIONS)), 0.0, observation, terminated, stream=stream)
            is_open[stream] = not terminated
        else:
            memory.begin(observation, stream)
            is_open[stream] = True

    for _ in range(steps):
        store()
    return memory, store


def no_values(states: NDArray[Any]) -> NDArray[Any]:
    return np.zeros((len(states), NUM_ACTIONS), dtype=np.float32)


@pytest.mark.parametrize("steps", [30, 60, 200])
@pytest.mark.parametrize("reserve", [0, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": 40},
        {"capacity": 40, "history": 4},
        {"capacity": 40, "spare": 7, "history": 3},
        {"capacity": 80, "num_streams": 2, "history": 4},
        {"capacity": 90, "num_streams": 3, "spare": 2},
    ],
)
def test_a_cache_is_refused_exactly_when_it_would_read_other_states(
    settings: dict[str, Any], reserve: int, steps: int
) -> None:
    memory, store = numbered_memory(np.random.default_rng(steps), steps, **settings)
    cache = build(memory, no_values, size=60, block_length=3, tail=2, reserve=reserve)
    states, written = memory.states(cache.slots), memory.written
    rows = np.flatnonzero(cache.is_transition)[:1]
    while np.array_equal(memory.states(cache.slots), states):
        cache.minibatch(rows)
        store()
    with pytest.raises(lr.ConfigError, match="stale") as caught:
        cache.minibatch(rows)
    assert_one_sentence(caught.value)
    with pytest.raises(lr.ConfigError, match="stale"):
        next(cache.minibatches(4, updates=2, rng=np.random.default_rng(0)))
    assert max(now - then for now, then in zip(memory.written, written, strict=True)) > reserve
    rebuilt = build(memory, no_values, size=60, block_length=3)
    assert rebuilt.minibatch(np.flatnonzero(rebuilt.is_transition)).states.shape[1] == memory.history


def test_a_cache_goes_stale_with_the_first_slot_that_is_written_over() -> None:
    """Ten slots, a block of 9 steps: slot 0 is its first state, and the eleventh slot is stored in its place."""
    memory = lr.ReplayMemory(10, (), np.uint8)
    memory.begin(frame(0))
    for number in range(1, 10):
        memory.append(0, 0.0, frame(number))
    cache = build(memory, no_values, size=9, block_length=9)
    batches = cache.minibatches(4, updates=3, rng=np.random.default_rng(0))
    next(batches)
    memory.append(0, 0.0, frame(10))
    with pytest.raises(lr.ConfigError, match="stream 0 has now written 11 slots"):
        next(batches)


def test_a_stream_that_the_cache_does_not_read_may_write_on() -> None:
    memory = lr.ReplayMemory(20, (), np.uint8, num_streams=2)
    for stream, steps in ((0, 9), (1, 2)):  # the second is too short for a block
        memory.begin(frame(0), stream)
        for number in range(1, steps + 1):
            memory.append(0, 0.0, frame(number), stream=stream)
    cache = build(memory, no_values, size=500, block_length=5)
    for _ in range(50):
        memory.append(0, 0.0, frame(1), stream=1)
    assert cache.minibatch(np.arange(500)).states.max() <= 9
    memory.append(0, 0.0, frame(1), stream=0)
    with pytest.raises(lr.ConfigError, match="stream 0"):
        cache.minibatch(np.arange(500))


def test_80_000_rows_cost_at_most_two_megabytes() -> None:
    memory = random_memory()
    _, q_function = tabular()
    cache = build(memory, q_function, size=80_000, block_length=100)
    assert len(cache.slots) == 80_000
    arrays = (cache.slots, cache.actions, cache.returns, cache.td_errors, cache.is_transition)
    assert cache.nbytes == sum(array.nbytes for array in arrays)
    assert cache.nbytes <= 2_000_000


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_a_cache_is_float32_whatever_the_q_values_are(dtype: type[np.number[Any]]) -> None:
    memory = random_memory()
    table = np.random.default_rng(0).integers(-5, 5, size=(NUM_STATES, NUM_ACTIONS)).astype(dtype)
    cache = build(memory, lambda states: table[states[:, -1].astype(int)])
    assert cache.returns.dtype == np.float32
    assert cache.td_errors.dtype == np.float32
    assert cache.nbytes == 21 * len(cache.slots)
    (batch,) = cache.minibatches(4, updates=1, rng=np.random.default_rng(0))
    assert batch.returns.dtype == np.float32


def test_float64_is_rounded_once_at_the_end() -> None:
    """A TD error of 10⁻⁵ beside values of 1000 survives: float32 numbers there are 6·10⁻⁵ apart."""
    memory = random_memory(end_probability=0)
    cache = build(
        memory, lambda states: np.full((len(states), NUM_ACTIONS), 1e3), lambda b: b.q_values[:, 1:, 0] + 1e-5
    )
    assert_allclose(cache.td_errors, 1e-5, rtol=1e-3)


# --- errors -----------------------------------------------------------------------------------------------------------


def wrong_shape(block: Evaluation) -> NDArray[Any]:
    return np.zeros(block.rewards.shape[0])


def nan_in_one_transition(block: Evaluation) -> NDArray[Any]:
    returns = block.rewards.copy()
    returns[tuple(np.argwhere(block.is_transition)[-1])] = np.nan
    return returns


def q_values_of(num_rows: int, num_actions: int) -> QFunction:
    return lambda states: np.zeros((num_rows * len(states), num_actions), dtype=np.float32)


def no_transitions() -> lr.ReplayMemory:
    """Episodes that were abandoned before their first action."""
    memory = lr.ReplayMemory(10, (), np.uint8)
    for _ in range(5):
        memory.begin(frame(0))
        memory.abandon()
    return memory


@pytest.mark.parametrize(
    ("mistake", "names"),
    [
        (lambda m, q: build(m, q, size=401), "multiple"),
        (lambda m, q: build(m, q, size=0), "size"),
        (lambda m, q: build(m, q, block_length=0), "block_length"),
        (lambda m, q: build(m, q, size=-20), "size"),
        (lambda m, q: build(m, q, discount=1.1), "discount"),
        (lambda m, q: build(m, q, discount=-0.1), "discount"),
        (lambda m, q: build(m, q, discount=float("nan")), "discount"),
        (lambda m, q: build(m, q, wrong_shape), "estimator"),
        (lambda m, q: build(m, q, lambda block: block.rewards[:, 1:]), "estimator"),
        (lambda m, q: build(m, q, lambda block: block.rewards + np.nan), "estimator returned nan"),
        (lambda m, q: build(m, q, lambda block: block.rewards - np.inf), "estimator returned -inf"),
        (lambda m, q: build(m, q, nan_in_one_transition), "estimator returned nan"),
        (lambda m, q: build(m, q, lambda block: np.full(block.rewards.shape, 1e39)), r"estimator returned 1e\+39"),
        (lambda m, q: build(m, q, lambda block: block.rewards * 1j), "estimator.*complex"),
        (lambda m, q: build(m, q, lambda block: block.rewards.astype(str)), "estimator.*dtype"),
        (lambda m, q: build(m, lambda states: q(states) * 1j), "Q-function.*complex"),
        (lambda m, q: build(m, lambda states: q(states).astype(object)), "Q-function.*object"),
        (lambda m, q: build(m, q, block_length=400), "too few"),
        (lambda m, q: build(lr.ReplayMemory(10, (), np.uint8), q), "too few"),
        (lambda m, q: build(m, q).sample_rows(1, 1, 1.1, rng=np.random.default_rng(0)), "priority"),
        (lambda m, q: build(m, q).sample_rows(1, 1, -0.1, rng=np.random.default_rng(0)), "priority"),
        (lambda m, q: build(m, q).sample_rows(1, 1, 0.1, 1.0, rng=np.random.default_rng(0)), "quantile"),
        (
            lambda m, q: build(m, q).sample_rows(1, 1, rng=np.random.default_rng(0), sampling="even"),  # type: ignore[arg-type]
            "systematic",
        ),
        (lambda m, q: build(m, q, newest=True, tail=1), "newest"),
        (lambda m, q: build(random_memory(num_streams=3), q, newest=True, size=40), "60"),
        (lambda m, q: build(random_memory(5), q, newest=True), "21 slots"),
        (lambda m, q: lr.prioritized(np.ones(3), float("nan")), "priority"),
        (lambda m, q: lr.prioritized(np.array([1.0, np.nan]), 0.5), "td_errors"),
        (lambda m, q: lr.prioritized(np.array([1.0, np.inf]), 0.5), "td_errors"),
        (lambda m, q: lr.prioritized(np.array([]), 0.5), "td_errors"),
        pytest.param(lambda m, q: build(m, q, tail=-1), "tail"),
        pytest.param(lambda m, q: build(m, q, reserve=-1), "reserve"),
        pytest.param(lambda m, q: build(m, q, chunk_size=0), "chunk_size"),
        pytest.param(lambda m, q: build(m, q_values_of(2, NUM_ACTIONS)), r"Q-|q_"),  # twice as many rows as states
        pytest.param(lambda m, q: build(m, q_values_of(1, 1)), r"action|Q-|q_"),  # fewer actions than were stored
        pytest.param(lambda m, q: build(m, lambda states: q(states)[:, 0]), r"Q-|q_"),  # [n] instead of [n, A]
        pytest.param(
            lambda m, q: build(m, lambda states: q(states) * np.float32(np.nan)),
            r"NaN|finite|not a number",
        ),
        pytest.param(
            lambda m, q: build(no_transitions(), q, size=2, block_length=1).sample_rows(
                1, 1, rng=np.random.default_rng(0)
            ),
            "transition",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(
    mistake: Callable[[lr.ReplayMemory, QFunction], object], names: str
) -> None:
    _, q_function = tabular()
    with pytest.raises(lr.ConfigError, match=names) as caught:
        mistake(random_memory(), q_function)
    assert_one_sentence(caught.value)


def assert_one_sentence(error: Exception) -> None:
    text = str(error)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text


# --- wrong input of the library's users -------------------------------------------------------------------------------


def test_a_critic_that_takes_closing_slots_for_steps_is_refused() -> None:
    """Else the final states of truncated episodes would learn the value 0."""

    class Forgetful:
        def evaluate(self, blocks: lr.Promoted) -> lr.ValueBlock:
            values = np.zeros(blocks.slots.shape, dtype=np.float32)
            return lr.ValueBlock(blocks.rewards, blocks.discounts, values, values, blocks.continues)

    with pytest.raises(lr.ConfigError, match=r"give is_step=blocks\.transitions\.is_step") as caught:
        build(random_memory(), Forgetful())  # type: ignore[arg-type]
    assert_one_sentence(caught.value)


def test_candidates_are_no_critics() -> None:
    """A leading axis means several critics, of which the smallest return counts; here there is only one."""

    def candidates(block: Evaluation) -> NDArray[Any]:
        returns = PENG(block)
        return np.stack([returns, returns - 1_000])

    _, q_function = tabular()
    with pytest.raises(lr.ConfigError, match=r"returned shape \(2, 20, 20\) for blocks of \(20, 20\)"):
        build(random_memory(), q_function, candidates)


def test_a_minibatch_of_closing_slots_is_refused() -> None:
    _, q_function = tabular()
    cache = build(random_memory(), q_function)
    closing = np.flatnonzero(~cache.is_transition)
    assert len(closing) > 5
    with pytest.raises(lr.ConfigError, match=r"draw from np\.flatnonzero\(cache\.is_transition\)"):
        cache.minibatch(closing[:3])


def test_an_estimator_may_be_given_by_its_name() -> None:
    _, q_function = tabular()
    memory = random_memory()
    assert_array_equal(build(memory, q_function, "peng:0.7").returns, build(memory, q_function).returns)
    with pytest.raises(lr.ConfigError, match=r"the estimator is of type float; give a name such as peng:0\.7"):
        build(memory, q_function, 0.7)  # type: ignore[arg-type]
    with pytest.raises(lr.ConfigError, match=r"an estimator's name is text such as peng:0\.75, not Peng"):
        lr.parse_estimator(PENG)  # type: ignore[arg-type]


def test_a_q_function_is_a_critic_for_build_cache_too() -> None:
    _, q_function = tabular()
    memory = random_memory()
    blocks = lr.promote(memory, discount=0.9, size=400, block_length=20, rng=np.random.default_rng(1))
    assert_array_equal(lr.build_cache(blocks, q_function, PENG).returns, build(memory, q_function).returns)


def test_a_model_with_an_evaluate_of_its_own_is_told_what_to_do() -> None:
    class Model:
        def __call__(self, states: NDArray[Any]) -> NDArray[Any]:
            return no_values(states)

        def evaluate(self, anything: Any) -> float:
            return 0.5

    with pytest.raises(lr.ConfigError, match=r"returned float; it must return a Block or a ValueBlock.*lambda states"):
        build(random_memory(), Model())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 400.0}, "size is 400.0; give a whole number, 1 or more."),
        ({"block_length": 0}, "block_length is 0; give a whole number, 1 or more."),
        ({"block_length": 30}, "size (400) must be a multiple of block_length (30); 390 is the nearest."),
        ({"tail": -1}, "tail is -1; give a whole number, 0 or more."),
        ({"chunk_size": 10.5}, "chunk_size is 10.5; give a whole number, 1 or more."),
    ],
)
def test_counts_are_whole_numbers(changes: dict[str, Any], sentence: str) -> None:
    _, q_function = tabular()
    with pytest.raises(lr.ConfigError) as caught:
        build(random_memory(), q_function, **changes)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("batch_size", "updates", "name"),
    [(4.0, 1, "batch_size"), (0, 1, "batch_size"), (-1, 1, "batch_size"), (4, 0, "updates")],
)
@pytest.mark.parametrize("sampling", ["independent", "systematic"])
def test_so_are_those_of_minibatches(batch_size: Any, updates: int, name: str, sampling: Any) -> None:
    _, q_function = tabular()
    with pytest.raises(lr.ConfigError, match=rf"{name} is .*; give a whole number, 1 or more\."):
        next(
            build(random_memory(), q_function).minibatches(
                batch_size, updates, rng=np.random.default_rng(0), sampling=sampling
            )
        )


def test_a_memory_s_sizes_are_whole_numbers() -> None:
    wrong: list[dict[str, Any]] = [{"capacity": 1e3}, {"history": 4.0}, {"num_streams": 0}, {"spare": -1}]
    for sizes in wrong:
        with pytest.raises(lr.ConfigError, match=rf"{next(iter(sizes))} is .*; give a whole number"):
            random_memory(steps=0, **sizes)


@pytest.mark.parametrize("errors", [np.ones((2, 3)), np.ones((6, 1)), np.ones(4) * 1j])
def test_priorities_are_those_of_a_row_of_real_errors(errors: NDArray[Any]) -> None:
    with pytest.raises(lr.ConfigError, match="td_errors has"):
        lr.prioritized(errors, 0.1)


def test_retrace_needs_probabilities_above_0() -> None:
    zeros = np.zeros((1, 3), dtype=np.float32)
    block = lr.Block(zeros[:, :2], zeros[:, :2], np.zeros((1, 3, 2)), zeros.astype(np.int64), zeros, zeros[:, :2] == 0)
    assert lr.parse_estimator("peng:0.5")(block).shape == (1, 2)  # which does not read them
    with pytest.raises(lr.ConfigError, match=r"Block\.behaviour_probs has values that are not above 0 and up to 1"):
        lr.parse_estimator("retrace:0.5")(block)


@pytest.mark.parametrize(("reward", "terminated"), [("1.5", False), (1.5, "False"), (1.5, b"")])
def test_text_is_no_number_and_no_flag(reward: Any, terminated: Any) -> None:
    """As read from a file: every text but the empty one would be True."""
    memory = lr.ReplayMemory(100, (), np.uint8)
    memory.begin(frame(0))
    with pytest.raises(lr.ConfigError, match="True or False for the last two"):
        memory.append(0, reward, frame(1), terminated=terminated)


@pytest.mark.parametrize("state", [{}, {"written": [3, 4], "is_open": [1, 1]}, {"written": [3]}])
def test_the_state_of_another_memory_is_refused(state: dict[str, list[int]]) -> None:
    with pytest.raises(lr.ConfigError, match="not that of a memory with 1 streams; give what get_state returned"):
        lr.ReplayMemory(100, (), np.uint8).set_state(state)
