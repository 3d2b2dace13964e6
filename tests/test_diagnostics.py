"""Every metric of a refresh and of its samples by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.cache import Cache
from lambda_replay.replay.critic import promote_slots
from lambda_replay.replay.data import Block, Explanation
from lambda_replay.replay.diagnostics import Metrics, describe_refresh, describe_samples
from lambda_replay.replay.estimators import explain

# State i has Q-values TABLE[i]; their maxima are 4, 2, 8, 6, 10, 0.
TABLE = np.array([[4, 1], [2, 0], [3, 8], [6, 5], [10, 10], [0, -1]], dtype=np.float32)
TABULAR = lr.QCritic(lambda states: TABLE[states[:, 0]])


def frame(value: int) -> NDArray[np.uint8]:
    """An observation that is one number."""
    return np.array(value, dtype=np.uint8)


def worked_memory() -> lr.ReplayMemory:
    """States 0, 1 (terminated into 2), then 3, 4 and 5, in which no action has been taken yet.

    slot     0   1   2   3   4   5
    action   0   1   –   1   0   –
    reward   1   2       3   4
    """
    memory = lr.ReplayMemory(10, (), np.uint8)
    memory.begin(frame(0))
    memory.append(0, 1.0, frame(1))
    memory.append(1, 2.0, frame(2), terminated=True)
    memory.begin(frame(3))
    memory.append(1, 3.0, frame(4))
    memory.append(0, 4.0, frame(5))
    return memory


def worked(spelling: str, slots: NDArray[np.int64], tail: int = 0) -> tuple[Cache, Block, Explanation]:
    memory = worked_memory()
    blocks = promote_slots(memory, slots, discount=0.5, length=slots.shape[1] - 1 - tail)
    block = TABULAR.evaluate(blocks)
    explanation = explain(lr.parse_estimator(spelling), block)
    return Cache(blocks, block, explanation), block, explanation


def describe(spelling: str, slots: NDArray[np.int64], tail: int = 0) -> Metrics:
    cache, _, _ = worked(spelling, slots, tail)
    return cache.metrics


ALL_SLOTS = np.array([[0, 1, 2, 3, 4, 5]])  # one block of five steps, of which the third is a closing slot


def test_errors_and_returns_of_one_step_returns() -> None:
    # returns  1 + 0.5·2 = 2,   2,   3 + 0.5·10 = 8,   4 + 0.5·0 = 4
    # Q(s, a)  4,               0,   5,                10
    # errors   −2,              2,   3,                −6;   sorted magnitudes 2, 2, 3, 6
    metrics = describe("nstep:1", ALL_SLOTS)
    assert metrics == pytest.approx(
        {
            "td_error_abs_mean": 13 / 4,
            "td_error_abs_q10": 2.0,  # position 0.3 of 2, 2, 3, 6
            "td_error_abs_q50": 2.5,  # position 1.5
            "td_error_abs_q90": 5.1,  # position 2.7: 3 + 0.7·3
            "return_mean": 16 / 4,
            "q_mean": 19 / 4,
            "return_minus_q_mean": -3 / 4,
            # Means over the actions 2.5, 1, 5.5, 5.5, 10, −0.5: their mean is 4, their variance 72/6.
            "q_std_states": 12**0.5,
            "q_std_actions": 1.0,  # half the differences: 1.5, 1, 2.5, 0.5, 0, 0.5
        },
        rel=1e-6,
    )


def test_traces_of_peng() -> None:
    # Steps may go on from slot 0 to 1 and from 3 to 4; 1 terminates, 2 closes, 4 is the block's last.
    # c = 0.8 on both, none is cut. Steps looked ahead: 2, 1, 2, 1.
    # Returns: slot 4: 4; slot 3: 3 + 0.5·(10 + 0.8·(4 − 10)) = 5.6; slot 1: 2; slot 0: 1 + 0.5·(2 + 0.8·(2 − 2)) = 2.
    metrics = describe("peng:0.8", ALL_SLOTS)
    assert metrics["return_mean"] == pytest.approx((2 + 2 + 5.6 + 4) / 4)
    assert metrics["trace_mean"] == pytest.approx(0.8)
    assert metrics["trace_cut_share"] == 0
    assert metrics["trace_length_mean"] == pytest.approx(6 / 4)
    assert "lambda_mean" not in metrics


def test_traces_of_watkins() -> None:
    # The action of slot 1 is not greedy (0 < 2): the trace from slot 0 is cut. That of slot 4 is a tie, so greedy.
    # Traces 0 and 0.8; steps looked ahead: 1, 1, 2, 1.
    metrics = describe("watkins:0.8", ALL_SLOTS)
    assert metrics["trace_mean"] == pytest.approx(0.4)
    assert metrics["trace_cut_share"] == pytest.approx(0.5)
    assert metrics["trace_length_mean"] == pytest.approx(5 / 4)


def test_several_critics_count_alike() -> None:
    # The second critic has the columns of TABLE swapped: to it the action of slot 1 is greedy.
    # Traces 0, 0.8 and 0.8, 0.8; steps looked ahead 1, 1, 2, 1 and 2, 1, 2, 1.
    _, block, _ = worked("watkins:0.8", ALL_SLOTS)
    both = replace(block, q_values=np.stack([block.q_values, block.q_values[..., ::-1]]))
    blocks = promote_slots(worked_memory(), ALL_SLOTS, discount=0.5, length=5)
    metrics = Cache(blocks, both, explain(lr.parse_estimator("watkins:0.8"), both)).metrics
    assert metrics["trace_mean"] == pytest.approx(0.6)
    assert metrics["trace_cut_share"] == pytest.approx(1 / 4)
    assert metrics["trace_length_mean"] == pytest.approx(11 / 8)
    # Q(s, a) of the second: 1, 2, 6, 10; the mean of both in slots 0, 1, 3, 4: 2.5, 1, 5.5, 10
    assert metrics["q_mean"] == pytest.approx(19 / 4)
    lambdas = Cache(blocks, both, explain(lr.parse_estimator("bounded:1000"), both)).metrics
    assert (lambdas["lambda_mean"], lambdas["lambda_share_1"]) == (1, 1)


def test_a_cache_without_a_transition_has_nothing_to_say() -> None:
    assert describe("peng:0.8", np.array([[2, 3]])) == {}


def test_traces_of_a_lambda_of_zero_are_all_cut() -> None:
    metrics = describe("peng:0", ALL_SLOTS)
    assert metrics["trace_mean"] == 0
    assert metrics["trace_cut_share"] == 1
    assert metrics["trace_length_mean"] == 1


def test_blocks_in_which_nothing_can_go_on_have_no_trace_to_cut() -> None:
    metrics = describe("peng:0.8", np.array([[1, 2], [3, 4]]))  # blocks of one step
    assert metrics["trace_mean"] == 0
    assert metrics["trace_cut_share"] == 0
    assert metrics["trace_length_mean"] == 1


def test_lambdas_are_counted_at_transitions_only() -> None:
    # λ by slot: 0, 0.5, (1 at the closing slot), 1, 1
    cache, block, explanation = worked("median", ALL_SLOTS)
    lambdas = np.array([[0, 0.5, 1, 1, 1]], dtype=np.float32)
    real = cache.is_transition
    metrics = describe_refresh(cache.returns[real], cache.td_errors[real], block, explanation._replace(lambdas=lambdas))
    assert metrics["lambda_mean"] == pytest.approx(2.5 / 4)
    assert metrics["lambda_q10"] == pytest.approx(0.15)  # position 0.3 of 0, 0.5, 1, 1
    assert metrics["lambda_q50"] == pytest.approx(0.75)  # position 1.5
    assert metrics["lambda_q90"] == pytest.approx(1)
    assert metrics["lambda_share_0"] == pytest.approx(1 / 4)
    assert metrics["lambda_share_1"] == pytest.approx(2 / 4)


def test_an_estimator_that_chooses_lambda_says_so_and_one_that_does_not_stays_silent() -> None:
    chosen = {"lambda_mean", "lambda_q10", "lambda_q50", "lambda_q90", "lambda_share_0", "lambda_share_1"}
    traced = {"trace_mean", "trace_cut_share", "trace_length_mean"}
    assert chosen <= describe("median", ALL_SLOTS).keys()
    assert not chosen & describe("peng:0.5", ALL_SLOTS).keys()
    assert not (chosen | traced) & describe("nstep:3", ALL_SLOTS).keys()


def test_a_huge_bound_lets_every_lambda_be_one_and_a_zero_bound_none() -> None:
    assert describe("bounded:1000", ALL_SLOTS)["lambda_share_1"] == 1
    metrics = describe("bounded:0", ALL_SLOTS)
    assert metrics["lambda_share_0"] == 1
    assert metrics["lambda_mean"] == 0


def test_metrics_are_plain_numbers() -> None:
    for spelling in ("peng:0.8", "median", "nstep:2"):
        assert all(type(value) is float for value in describe(spelling, ALL_SLOTS).values())


def test_a_tail_is_no_row_of_the_cache() -> None:
    """Blocks of three steps with a tail of two: the errors are those of slots 0 and 1 alone."""
    metrics = describe("nstep:1", ALL_SLOTS, tail=2)
    assert metrics["td_error_abs_mean"] == pytest.approx((2 + 2) / 2)
    assert metrics["return_mean"] == pytest.approx((2 + 2) / 2)


def test_repeats_and_ages_of_samples() -> None:
    # Rows 0, 0, 1, 4 are slots 0, 0, 1, 4; the newest is 5: ages 5, 5, 4, 1. Three of four are different.
    cache, _, _ = worked("nstep:1", ALL_SLOTS)
    slots = cache.slots[[0, 0, 1, 4]]
    metrics = describe_samples(slots, worked_memory().ages(slots))
    assert metrics == pytest.approx({"sample_repeated_share": 1 / 4, "sample_age_mean": 15 / 4})


def test_a_transition_in_two_blocks_is_repeated() -> None:
    slots = np.array([[0, 1, 2], [0, 1, 2]])
    cache, _, _ = worked("nstep:1", slots)
    drawn = cache.slots[[0, 2]]  # both are slot 0
    metrics = describe_samples(drawn, worked_memory().ages(drawn))
    assert metrics == pytest.approx({"sample_repeated_share": 1 / 2, "sample_age_mean": 5})


def test_ages_are_counted_in_the_slot_s_own_stream_also_when_its_ring_has_wrapped() -> None:
    # Streams of 4 slots. Stream 0 has written 6: slots hold numbers 4, 5, 2, 3. Stream 1 has written 2: 0, 1, –, –.
    memory = lr.ReplayMemory(8, (), np.uint8, num_streams=2)
    for stream, steps in ((0, 5), (1, 1)):
        memory.begin(frame(0), stream=stream)
        for _ in range(steps):
            memory.append(0, 0.0, frame(0), stream=stream)
    blocks = promote_slots(memory, np.array([[2, 3], [0, 1], [4, 5]]), discount=0.5, length=1)
    cache = lr.build_cache(blocks, TABULAR, lr.parse_estimator("nstep:1"))
    # numbers 2, 4 of stream 0 (newest 5) and 0 of stream 1 (newest 1): ages 3, 1, 1
    metrics = describe_samples(cache.slots, blocks.ages[:, :1].reshape(-1))
    assert metrics == pytest.approx({"sample_repeated_share": 0, "sample_age_mean": 5 / 3})
