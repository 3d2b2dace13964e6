"""Where slots lie in the rings of several streams, against counting one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lambda_replay.replay.ring import Ring, count_steps

# --- golden -----------------------------------------------------------------------------------------------------------


def test_slots_of_two_streams_side_by_side() -> None:
    """Rings of 4: stream 0 lies at 0 … 3 and stream 1 at 4 … 7."""
    ring = Ring(4)
    assert [ring.slot(0, number) for number in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [ring.slot(1, number) for number in range(6)] == [4, 5, 6, 7, 4, 5]
    assert_array_equal(ring.slot(np.array([[0], [1]]), np.array([[3, 4, 5], [2, 3, 4]])), [[3, 0, 1], [6, 7, 4]])
    assert_array_equal(ring.stream(np.arange(8)), [0, 0, 0, 0, 1, 1, 1, 1])


def test_what_lies_before_a_slot_stays_in_its_stream() -> None:
    before = Ring(4).before(np.array([0, 5, 4]), np.array([2, 1, 0]))
    assert_array_equal(before, [[2, 3, 0], [7, 4, 5], [6, 7, 4]])


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0, 0), []),
        ((3, 2), []),
        ((0, 3), [(4, 7)]),
        ((1, 4), [(5, 8)]),
        ((3, 6), [(7, 8), (4, 6)]),  # over the ring's end
        ((4, 8), [(4, 8)]),  # the whole ring
        ((6, 10), [(6, 8), (4, 6)]),
    ],
)
def test_spans_of_the_second_of_two_streams(numbers: tuple[int, int], expected: list[tuple[int, int]]) -> None:
    assert list(Ring(4).spans(1, *numbers)) == expected


def test_steps_are_counted_over_the_ring_s_end() -> None:
    is_step = np.array([True] * 4 + [False, True, True, False])
    # Stream 1, numbers 2 … 5 are the slots 6, 7, 4, 5.
    assert count_steps(is_step, Ring(4), 1, range(2, 6)) == 2
    assert count_steps(is_step, Ring(4), 1, range(2, 2)) == 0


# --- property ---------------------------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 9),
    stream=st.integers(0, 3),
    first=st.integers(0, 40),
    length=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_spans_are_the_slots_one_by_one(size: int, stream: int, first: int, length: int, seed: int) -> None:
    ring, last = Ring(size), first + min(length, size)
    spans = list(ring.spans(stream, first, last))
    one_by_one = [stream * size + number % size for number in range(first, last)]
    assert [slot for start, stop in spans for slot in range(start, stop)] == one_by_one
    assert len(spans) <= 2
    assert_array_equal(ring.slot(stream, np.arange(first, last)), one_by_one)
    is_step = np.random.default_rng(seed).random(4 * size) < 0.5
    assert count_steps(is_step, ring, stream, range(first, last)) == sum(bool(is_step[slot]) for slot in one_by_one)


@given(size=st.integers(1, 9), stream=st.integers(0, 3), number=st.integers(9, 40), distance=st.integers(0, 9))
def test_before_is_the_slot_of_a_smaller_number(size: int, stream: int, number: int, distance: int) -> None:
    ring = Ring(size)
    found = ring.before(np.array([ring.slot(stream, number)]), np.array([distance, 0]))
    assert_array_equal(found, [[ring.slot(stream, number - distance), ring.slot(stream, number)]])
    assert_array_equal(ring.stream(found), stream)
