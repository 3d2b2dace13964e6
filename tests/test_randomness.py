"""Named streams of one seed: repeatable, independent, and restored exactly."""

from __future__ import annotations

import json
import random
from itertools import combinations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from lambda_replay.randomness import RandomStreams, make_streams

NAMES = ("explore", "blocks", "batches", "init", "evaluate")


def draw(streams: RandomStreams, count: int = 20) -> dict[str, NDArray[np.int64]]:
    """The next numbers of every stream."""
    generators = {name: getattr(streams, name) for name in NAMES}
    generators |= {f"env {i}": generator for i, generator in enumerate(streams.envs)}
    return {name: generator.integers(2**62, size=count) for name, generator in generators.items()}


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again = draw(make_streams(7, 3)), draw(make_streams(7, 3))
    assert first.keys() == again.keys()
    for name, numbers in first.items():
        assert_array_equal(numbers, again[name])


def test_another_seed_gives_other_numbers_in_every_stream() -> None:
    first, other = draw(make_streams(7, 3)), draw(make_streams(8, 3))
    for name, numbers in first.items():
        assert not np.isin(numbers, other[name]).any()


def test_no_two_streams_share_numbers() -> None:
    for first, second in combinations(draw(make_streams(0, 4), count=200).values(), 2):
        assert not np.isin(first, second).any()
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.4


def test_numbers_do_not_depend_on_how_many_environments_there_are() -> None:
    few, many = draw(make_streams(3, 1)), draw(make_streams(3, 8))
    for name, numbers in few.items():
        assert_array_equal(numbers, many[name])


def test_drawing_from_one_stream_does_not_move_another() -> None:
    busy, quiet = make_streams(5, 2), make_streams(5, 2)
    busy.explore.random(1_000)
    busy.envs[0].random(1_000)
    moved, still = draw(busy), draw(quiet)
    for name, numbers in moved.items():
        assert np.array_equal(numbers, still[name]) == (name not in {"explore", "env 0"})


def test_there_are_as_many_generators_as_environments() -> None:
    for num_envs in (1, 2, 16):
        assert len(make_streams(0, num_envs).envs) == num_envs


def test_the_state_goes_through_json_and_restores_exactly() -> None:
    streams = make_streams(11, 2)
    draw(streams)
    streams.explore.integers(3, dtype=np.uint32)  # leaves half of a 64-bit number behind, which is state too
    text = json.dumps(streams.get_state())
    expected = draw(streams)
    restored = make_streams(999, 2)
    restored.set_state(json.loads(text))
    for name, numbers in draw(restored).items():
        assert_array_equal(numbers, expected[name])
    assert restored.get_state() == streams.get_state()


def test_half_used_numbers_are_restored() -> None:
    streams = make_streams(11, 1)
    streams.blocks.integers(3, dtype=np.uint32)
    state = json.loads(json.dumps(streams.get_state()))
    expected = streams.blocks.integers(1_000, size=5, dtype=np.uint32)
    restored = make_streams(0, 1)
    restored.set_state(state)
    assert_array_equal(restored.blocks.integers(1_000, size=5, dtype=np.uint32), expected)


def test_a_state_is_not_changed_by_drawing_on() -> None:
    streams = make_streams(11, 2)
    state = streams.get_state()
    text = json.dumps(state)
    draw(streams)
    assert json.dumps(state) == text


def test_restoring_wants_as_many_environments() -> None:
    with pytest.raises(ValueError, match="argument"):
        make_streams(0, 3).set_state(make_streams(0, 2).get_state())


def test_the_global_random_state_is_not_touched() -> None:
    before, before_numpy = random.getstate(), repr(np.random.get_state(legacy=True))  # noqa: NPY002
    draw(make_streams(1, 2))
    assert random.getstate() == before
    assert repr(np.random.get_state(legacy=True)) == before_numpy  # noqa: NPY002
