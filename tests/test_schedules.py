"""The linear ramp at its ends, in between and beyond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambda_replay.agents.schedules import LinearRamp


@pytest.mark.parametrize(
    ("step", "expected"),
    # from 1 to 0.1 in 10 steps: 0.09 a step
    [(0, 1.0), (1, 0.91), (5, 0.55), (9, 0.19), (10, 0.1), (11, 0.1), (1_000_000, 0.1)],
)
def test_falling(step: int, expected: float) -> None:
    assert LinearRamp(1.0, 0.1, 10)(step) == pytest.approx(expected)


def test_rising_and_level() -> None:
    assert [LinearRamp(0.0, 1.0, 4)(step) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert [LinearRamp(0.3, 0.3, 4)(step) for step in range(6)] == [0.3] * 6


def test_the_ends_are_exact() -> None:
    ramp = LinearRamp(0.9, 0.1, 7)
    assert ramp(0) == 0.9
    assert ramp(7) == 0.1


def test_no_steps_at_all_is_the_end() -> None:
    assert LinearRamp(1.0, 0.1, 0)(0) == 0.1


@given(
    start=st.floats(0, 1),
    end=st.floats(0, 1),
    steps=st.integers(1, 10_000_000),
    at=st.lists(st.integers(0, 20_000_000), min_size=2, max_size=2),
)
def test_never_outside_its_ends_and_never_backwards(start: float, end: float, steps: int, at: list[int]) -> None:
    ramp = LinearRamp(start, end, steps)
    earlier, later = (ramp(step) for step in sorted(at))
    for value in (earlier, later):
        assert min(start, end) - 1e-12 <= value <= max(start, end) + 1e-12
    assert (later - earlier) * (end - start) >= -1e-12


def test_equal_ramps_are_equal() -> None:
    assert LinearRamp(1.0, 0.1, 10) == LinearRamp(1.0, 0.1, 10)
