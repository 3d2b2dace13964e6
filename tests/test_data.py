"""What blocks take, convert, refuse and know of a critic; what is computed from them is tested with the estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.data import Block, Evaluation, ValueBlock

NUMBERS = ("rewards", "discounts", "q_values", "behaviour_probs")


def small_block(**changes: Any) -> Block:
    """One block of two steps with two actions; the last slot has none."""
    arrays: dict[str, NDArray[Any]] = {
        "rewards": np.array([[1, 0]], dtype=np.float32),
        "discounts": np.array([[1, 0]], dtype=np.float32),
        "q_values": np.array([[[1, 2], [3, 4], [5, 6]]], dtype=np.float32),
        "actions": np.array([[0, 1, 0]]),
        "behaviour_probs": np.ones((1, 3), dtype=np.float32),
        "continues": np.array([[True, False]]),
        "is_step": np.array([[True, True, False]]),
    }
    return Block(**{**arrays, **changes})


def small_value_block(**changes: Any) -> ValueBlock:
    """The same steps, whose critic knows V(s) = 2, 4, 6 and Q(s, a) = 1, 4, and says 9 where no action was."""
    arrays: dict[str, NDArray[Any]] = {
        "rewards": np.array([[1, 0]], dtype=np.float32),
        "discounts": np.array([[1, 0]], dtype=np.float32),
        "values": np.array([[2, 4, 6]], dtype=np.float32),
        "action_values": np.array([[1, 4, 9]], dtype=np.float32),
        "continues": np.array([[True, False]]),
        "is_step": np.array([[True, True, False]]),
    }
    return ValueBlock(**{**arrays, **changes})


# --- golden -----------------------------------------------------------------------------------------------------------


def test_the_values_of_a_small_block() -> None:
    block = small_block()
    assert_array_equal(block.is_transition, [[True, True]])
    assert_array_equal(block.action_values, [[1, 4, 0]])
    assert_array_equal(block.greedy_values, [[2, 4, 6]])
    assert_array_equal(block.is_greedy, [[False, True, False]])
    assert_array_equal(block.next_values(), [[4, 6]])
    assert_array_equal(block.next_values(0.5), [[3.75, 5.75]])  # ½·4 + ½·3.5, ½·6 + ½·5.5
    assert block.next_baselines() is None


def test_what_a_small_block_knows_of_the_target_policy() -> None:
    # a₁ is greedy: π = ½/2 + ½ = 0.75, and with μ = ½ the ratio is 1.5.
    block = small_block(behaviour_probs=np.array([[1, 0.5, 0]], dtype=np.float32))
    assert block.next_probs(0.5)[0, 0] == 0.75
    assert block.next_ratios(0.5)[0, 0] == 1.5
    # Both actions of s₁ are tied: each takes half of the greedy mass.
    tied = small_block(q_values=np.array([[[1, 2], [4, 4], [5, 6]]], dtype=np.float32))
    assert tied.next_probs(0.0)[0, 0] == 0.5
    # a₁ is not greedy: only the exploring part is left.
    exploring = small_block(actions=np.array([[0, 0, 0]]))
    assert_allclose(exploring.next_probs(0.2)[0, 0], 0.1, rtol=1e-6)
    assert exploring.next_probs(0.0)[0, 0] == 0


def test_the_values_of_a_small_value_block() -> None:
    block = small_value_block()
    assert_array_equal(block.is_transition, [[True, True]])
    assert_array_equal(block.action_values, [[1, 4, 0]])  # nothing where no action was taken
    assert_array_equal(block.next_values(), [[4, 6]])
    assert block.next_baselines() is None
    soft = small_value_block(baselines=np.array([[1, 3, 5]], dtype=np.float32), ratios=np.array([[1, 2, 3]]))
    assert_array_equal(soft.next_baselines(), [[3, 5]])
    assert_array_equal(soft.next_ratios(0.0), [[2, 3]])


def test_without_a_word_about_steps_every_slot_is_one() -> None:
    assert_array_equal(small_block(is_step=None).is_step, [[True, True, True]])
    assert_array_equal(small_block(is_step=None).action_values, [[1, 4, 5]])
    assert_array_equal(small_value_block(is_step=None).is_step, [[True, True, True]])
    assert_array_equal(small_value_block(is_step=None).action_values, [[1, 4, 9]])


def test_several_critics_are_leading_axes() -> None:
    one = small_block()
    both = small_block(q_values=np.stack([one.q_values, -one.q_values]))
    assert_array_equal(both.is_transition, [[True, True]])
    assert_array_equal(both.action_values, [[[1, 4, 0]], [[-1, -4, 0]]])
    assert_array_equal(both.greedy_values, [[[2, 4, 6]], [[-1, -3, -5]]])
    assert_array_equal(both.is_greedy, [[[False, True, False]], [[True, False, False]]])
    assert_array_equal(both.next_values(), [[[4, 6]], [[-3, -5]]])
    grid = small_block(q_values=np.stack([np.stack([one.q_values] * 3)] * 2))
    assert grid.action_values.shape == (2, 3, 1, 3)


# --- property ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_stay_as_they_are(name: str, dtype: type[np.floating[Any]]) -> None:
    given = getattr(small_block(), name).astype(dtype)
    assert getattr(small_block(**{name: given}), name) is given


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.bool_])
def test_integers_and_booleans_become_float32(name: str, dtype: type[np.generic]) -> None:
    given = getattr(small_block(), name).astype(dtype)
    kept = given.copy()
    found = getattr(small_block(**{name: given}), name)
    assert found.dtype == np.float32
    assert_array_equal(found, given.astype(np.float32))
    assert given.dtype == dtype
    assert_array_equal(given, kept)


def test_any_integers_are_actions() -> None:
    for dtype in (np.int8, np.int32, np.int64, np.uint8):
        given = np.array([[0, 1, 0]], dtype=dtype)
        assert_array_equal(small_block(actions=given, is_step=None).action_values, [[1, 4, 5]])


def test_plain_lists_are_arrays_too() -> None:
    block = small_block()
    lists = Block(**{field.name: getattr(block, field.name).tolist() for field in fields(block)})
    for field in fields(block):
        assert_array_equal(getattr(lists, field.name), getattr(block, field.name))


def test_a_block_with_something_replaced_is_checked_again() -> None:
    assert replace(small_block(), q_values=np.ones((1, 3, 2), dtype=int)).q_values.dtype == np.float32
    assert replace(small_value_block(), values=np.ones((1, 3), dtype=int)).values.dtype == np.float32


def test_what_stands_in_a_slot_without_an_action_is_not_read() -> None:
    for action in (-1, 2, 1_000):
        assert_array_equal(small_block(actions=np.array([[0, 1, action]])).action_values, [[1, 4, 0]])
    assert_array_equal(small_value_block(action_values=np.array([[1, 4, np.nan]])).action_values, [[1, 4, 0]])


def test_value_blocks_take_plain_lists_and_integers() -> None:
    lists = ValueBlock([[1, 0]], [[1, 0]], [[2, 4, 6]], [[1, 4, 9]], [[True, False]], [[1, 3, 5]], [[1, 2, 3]])  # type: ignore[arg-type]
    for name in ("rewards", "discounts", "values", "action_values", "baselines", "ratios"):
        assert getattr(lists, name).dtype == np.float32
    assert_array_equal(lists.continues, [[True, False]])
    given = np.ones((1, 3))
    assert small_value_block(values=given).values is given


def test_a_value_block_leaves_what_it_is_given() -> None:
    given = np.array([[1, 4, 9]], dtype=np.float32)
    small_value_block(action_values=given)
    assert_array_equal(given, [[1, 4, 9]])


def test_both_kinds_of_blocks_are_evaluations() -> None:
    evaluations: list[Evaluation] = [small_block(), small_value_block()]
    for evaluation in evaluations:
        assert_array_equal(evaluation.next_values(), [[4, 6]])


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        *[({name: np.ones((1, 3), dtype=complex)}, f"{name}.*complex128") for name in NUMBERS],
        ({"rewards": np.array([["1", "0"]])}, "rewards.*<U1"),
        ({"q_values": np.ones((1, 3, 2), dtype=object)}, "q_values.*object"),
        ({"actions": np.array([[0.0, 1.0, -1.0]])}, "actions.*float64"),
        ({"actions": np.array([[True, False, True]])}, "actions.*bool"),
        ({"continues": np.array([[1, 0]])}, "continues.*int64"),  # a 2 or a −1 would count as true
        ({"continues": np.array([[1.0, 0.0]])}, "continues.*float64"),
        ({"actions": np.array([[0, 2, 0]])}, "actions.* to 2.*from 0 to 1"),
        ({"actions": np.array([[0, -2, 0]])}, "actions.*from -2"),
        ({"rewards": np.zeros(2)}, r"rewards \[K, L\]"),
        ({"rewards": np.zeros((1, 0))}, "no step"),
        ({"actions": np.array([[0, 1]])}, "actions has shape"),
        ({"continues": np.array([[True]])}, "continues has shape"),
        ({"is_step": np.array([[1, 1, 0]])}, "is_step.*int64"),
        ({"is_step": np.array([[True, True]])}, "is_step has shape"),
        ({"q_values": np.ones((3, 2))}, "q_values"),
        ({"q_values": np.ones((2, 1, 2, 2))}, "q_values has shape"),
        ({"actions": np.array([[0, 1, 2]]), "is_step": None}, "actions.* to 2.*from 0 to 1.*is_step"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(lr.ConfigError, match=names) as caught:
        small_block(**changes)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        *[
            ({name: np.ones((1, 3), dtype=complex)}, f"ValueBlock.{name}.*complex128")
            for name in ("rewards", "discounts", "values", "action_values", "baselines", "ratios")
        ],
        ({"rewards": np.zeros(2)}, r"rewards \[K, L\]"),
        ({"rewards": np.zeros((1, 0))}, "no step"),
        ({"values": np.ones((1, 2))}, "values has shape"),
        ({"values": np.ones((2, 1, 2))}, "values has shape"),
        ({"action_values": np.ones((2, 3))}, "action_values has shape"),
        ({"baselines": np.ones((1, 2))}, "baselines has shape"),
        ({"ratios": np.ones((1, 2))}, "ratios has shape"),
        ({"discounts": np.ones((1, 3))}, "discounts has shape"),
        ({"continues": np.array([[True]])}, "continues has shape"),
        ({"continues": np.array([[1, 0]])}, "continues.*int64"),
        ({"is_step": np.array([[1, 1, 0]])}, "is_step.*int64"),
        ({"is_step": np.array([[True, True]])}, "is_step has shape"),
    ],
)
def test_a_mistake_with_values_is_answered_in_one_sentence(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(lr.ConfigError, match=names) as caught:
        small_value_block(**changes)
    assert_one_sentence(caught.value)


def test_what_a_critic_without_a_row_of_q_values_cannot_know_it_refuses_in_one_sentence() -> None:
    block = small_value_block()
    questions: list[tuple[Callable[[], object], str]] = [
        (lambda: block.is_greedy, "greedy.*peng"),
        (lambda: block.next_values(0.1), "@ε"),
        (lambda: block.next_probs(0.0), "probabilities.*peng"),
        (lambda: block.next_ratios(0.0), "π.*peng"),
        (lambda: small_value_block(ratios=np.ones((1, 3))).next_ratios(0.1), "@ε"),
    ]
    for ask, names in questions:
        with pytest.raises(lr.ConfigError, match=names) as caught:
            ask()
        assert_one_sentence(caught.value)


def assert_one_sentence(error: Exception) -> None:
    text = str(error)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
