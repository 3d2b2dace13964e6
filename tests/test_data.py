"""What a Block takes, converts and refuses; what is computed from it is tested with the estimators."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.data import NO_ACTION, Block

NUMBERS = ("rewards", "discounts", "q_values", "behaviour_probs")


def small_block(**changes: Any) -> Block:
    """One block of two steps with two actions; the last slot has none."""
    arrays: dict[str, NDArray[Any]] = {
        "rewards": np.array([[1, 0]], dtype=np.float32),
        "discounts": np.array([[1, 0]], dtype=np.float32),
        "q_values": np.array([[[1, 2], [3, 4], [5, 6]]], dtype=np.float32),
        "actions": np.array([[0, 1, NO_ACTION]]),
        "behaviour_probs": np.ones((1, 3), dtype=np.float32),
        "continues": np.array([[True, False]]),
    }
    return Block(**{**arrays, **changes})


# --- golden -----------------------------------------------------------------------------------------------------------


def test_the_values_of_a_small_block() -> None:
    block = small_block()
    assert_array_equal(block.is_transition, [[True, True]])
    assert_array_equal(block.action_values, [[1, 4, 0]])
    assert_array_equal(block.greedy_values, [[2, 4, 6]])


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
        assert_array_equal(small_block(actions=given).action_values, [[1, 4, 5]])


def test_plain_lists_are_arrays_too() -> None:
    block = small_block()
    lists = Block(**{field.name: getattr(block, field.name).tolist() for field in fields(block)})
    for field in fields(block):
        assert_array_equal(getattr(lists, field.name), getattr(block, field.name))


def test_a_block_with_something_replaced_is_checked_again() -> None:
    assert replace(small_block(), q_values=np.ones((1, 3, 2), dtype=int)).q_values.dtype == np.float32


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
        ({"actions": np.array([[0, 2, NO_ACTION]])}, "actions.* to 2.*from 0 to 1"),
        ({"actions": np.array([[0, -2, NO_ACTION]])}, "actions.*from -2"),
        ({"rewards": np.zeros(2)}, r"rewards \[K, L\]"),
        ({"rewards": np.zeros((1, 0))}, "no step"),
        ({"actions": np.array([[0, 1]])}, "actions has shape"),
        ({"continues": np.array([[True]])}, "continues has shape"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(lr.ConfigError, match=names) as caught:
        small_block(**changes)
    text = str(caught.value)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
