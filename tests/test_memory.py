"""The ring against a plain list of everything ever stored, in RAM and on disk; learning is tested elsewhere."""

from __future__ import annotations

import copy
import json
import os
import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from scipy import stats

import lambda_replay as lr
from lambda_replay.errors import DamageError
from lambda_replay.replay.critic import promote_slots

# A memory of vector actions and further columns, whose values the model below says.
COLUMNS = {"goal": ((2,), np.int16), "noise": ((), np.float32)}
WIDER: dict[str, Any] = {"action_shape": (3,), "columns": COLUMNS}
OBSERVATION_SHAPE = (2,)  # (stream + 1, number + 1): never zero, and no two slots ever written are the same


def observation_of(stream: int, number: int) -> NDArray[np.int32]:
    return np.array([stream + 1, number + 1], dtype=np.int32)


@dataclass
class Slot:
    """What one slot should say."""

    frames: int  # of its episode, up to and with it
    action: Any = 0
    is_step: bool = False
    reward: float = 0.0
    behaviour_prob: float = 1.0
    terminated: bool = False
    goal: tuple[int, int] = (0, 0)  # of memories with COLUMNS
    noise: float = 0.0


@dataclass
class Stream:
    """Every slot a stream has ever written, oldest first."""

    slots: list[Slot] = field(default_factory=list)
    is_open: bool = False

    def state(self, stream: int, number: int, history: int) -> NDArray[np.int32]:
        """The last ``history`` observations of the slot's episode, zero before its start."""
        frames = np.zeros((history, *OBSERVATION_SHAPE), dtype=np.int32)
        for age in range(min(history, self.slots[number].frames)):
            frames[history - 1 - age] = observation_of(stream, number - age)
        return frames


class Model:
    """Says what a memory must hold, by remembering everything for ever; feeds the memories it is compared to."""

    def __init__(self, memory: lr.ReplayMemory, window: int) -> None:
        self.streams = [Stream() for _ in range(memory.num_streams)]
        self.history, self.window = memory.history, window
        self.action_shape, self.columns = memory.action_shape, memory.columns

    def slot(self, frames: int) -> Slot:
        """A slot in which nothing has been done yet; of a vector action, log μ is 0."""
        if not self.action_shape:
            return Slot(frames)
        return Slot(frames, action=np.zeros(self.action_shape), behaviour_prob=0.0)

    def begin(self, stream: int, *memories: lr.ReplayMemory) -> None:
        one = self.streams[stream]
        for memory in memories:
            memory.begin(observation_of(stream, len(one.slots)), stream=stream)
        one.slots.append(self.slot(frames=1))
        one.is_open = True

    def append(
        self, stream: int, *memories: lr.ReplayMemory, terminated: bool = False, truncated: bool = False
    ) -> None:
        one = self.streams[stream]
        number = len(one.slots)
        newest = one.slots[-1]
        newest.action, newest.reward, newest.is_step = number % 5, number / 4, True
        newest.behaviour_prob, newest.terminated = 1 / (1 + number % 8), terminated
        if self.action_shape:  # log μ of a density may be anything
            newest.action, newest.behaviour_prob = np.full(self.action_shape, number / 8), number / 2 - 3
        if self.columns:
            newest.goal, newest.noise = (number % 100, -stream - 1), number / 16 + 1
        columns = {name: getattr(newest, name) for name in self.columns}
        for memory in memories:
            memory.append(
                newest.action,
                newest.reward,
                observation_of(stream, number),
                terminated=terminated,
                truncated=truncated,
                behaviour_prob=newest.behaviour_prob,
                stream=stream,
                **columns,
            )
        one.slots.append(self.slot(frames=newest.frames + 1))
        one.is_open = not (terminated or truncated)

    def abandon(self, stream: int, *memories: lr.ReplayMemory) -> None:
        for memory in memories:
            memory.abandon(stream=stream)
        self.streams[stream].is_open = False

    def run(self, rng: np.random.Generator, steps: int, end_probability: float, *memories: lr.ReplayMemory) -> None:
        """Steps in random streams with random ends."""
        for _ in range(steps):
            stream = int(rng.integers(len(self.streams)))
            if not self.streams[stream].is_open:
                self.begin(stream, *memories)
            has_ended, kind = rng.random() < end_probability, rng.random() < 0.5
            self.append(stream, *memories, terminated=has_ended and kind, truncated=has_ended and not kind)

    def oldest(self, stream: int, reserve: int) -> int:
        return max(0, len(self.streams[stream].slots) + reserve - self.window)

    def must_start(self, length: int, reserve: int) -> set[tuple[int, int]]:
        """Blocks (stream, number) that must be possible: whole history in the window, no step after the newest."""
        starts = set()
        for stream, one in enumerate(self.streams):
            oldest = self.oldest(stream, reserve)
            first = oldest + self.history - 1 if oldest > 0 else 0
            starts |= {(stream, number) for number in range(first, len(one.slots) - length)}
        return starts

    def check_block(self, memory: lr.ReplayMemory, slots: NDArray[Any], reserve: int) -> tuple[int, int]:
        """(stream, number) of the start of a block that is contiguous, in the window and says what was stored."""
        states = memory.states(slots)  # [L+1, F, 2]
        stream, first = int(states[0, -1, 0]) - 1, int(states[0, -1, 1]) - 1
        one = self.streams[stream]
        numbers = range(first, first + len(slots))
        assert numbers[-1] < len(one.slots), "the block goes beyond the newest slot"
        first_frame = first - min(self.history, one.slots[first].frames) + 1
        assert first_frame >= self.oldest(stream, reserve), "the block needs a frame that left the window"
        assert_array_equal(states, [one.state(stream, number, self.history) for number in numbers])
        actual = memory.transitions(slots)
        expected = [one.slots[number] for number in numbers]
        assert_array_equal(actual.actions, [slot.action for slot in expected])
        assert_array_equal(actual.rewards, np.array([slot.reward for slot in expected], dtype=np.float32))
        assert_array_equal(actual.behaviour_probs, np.array([slot.behaviour_prob for slot in expected], np.float32))
        assert_array_equal(actual.terminated, [slot.terminated for slot in expected])
        assert_array_equal(actual.is_step, [slot.is_step for slot in expected])
        assert actual.columns.keys() == self.columns.keys()
        for name, column in actual.columns.items():
            assert_array_equal(column, [getattr(slot, name) for slot in expected])
        assert_array_equal(memory.ages(slots), [len(one.slots) - 1 - number for number in numbers])
        return stream, first

    def check_blocks(self, memory: lr.ReplayMemory, length: int, reserve: int, seed: int) -> None:
        """Every block that can be drawn is right, and every one that should be possible is drawn."""
        wanted = self.must_start(length, reserve)
        rng = np.random.default_rng(seed)
        num_blocks = 40 * max(1, len(wanted))  # one block is missed with a probability of e⁻⁴⁰
        if not wanted:
            with pytest.raises(lr.ConfigError):
                memory.sample_blocks(num_blocks, length, rng, reserve)
            return
        slots = memory.sample_blocks(num_blocks, length, rng, reserve)
        assert slots.shape == (num_blocks, length + 1)
        assert {self.check_block(memory, block, reserve) for block in np.unique(slots, axis=0)} >= wanted


class AgainstTheModel(RuleBasedStateMachine):
    """Two memories, one in RAM and one in files, do what the list says, whatever happens in whatever order."""

    @initialize(
        history=st.integers(1, 4),
        num_streams=st.integers(1, 3),
        extra=st.integers(0, 6),
        rest=st.integers(0, 2),
        spare=st.sampled_from([0, 0, 1, 5]),
        is_wider=st.booleans(),
    )
    def make(self, history: int, num_streams: int, extra: int, rest: int, *, spare: int, is_wider: bool) -> None:
        window = history + 1 + extra
        capacity = window * num_streams + min(rest, num_streams - 1)  # what does not divide evenly is not used
        self.directory = tempfile.TemporaryDirectory()
        self.settings: dict[str, Any] = {
            "capacity": capacity,
            "observation_shape": OBSERVATION_SHAPE,
            "observation_dtype": np.int32,
            "history": history,
            "num_streams": num_streams,
            "spare": spare,
            **(WIDER if is_wider else {}),
        }
        self.in_ram = lr.ReplayMemory(**self.settings)
        self.in_files = lr.ReplayMemory(**self.settings, directory=self.directory.name)
        self.model = Model(self.in_ram, window)
        self.spare = spare
        self.save()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            del self.in_files
            self.directory.cleanup()

    @rule(
        stream=st.integers(0, 2), how=st.sampled_from(["on", "on", "on", "terminated", "truncated", "both", "abandon"])
    )
    def step(self, stream: int, how: str) -> None:
        stream %= len(self.model.streams)
        if not self.model.streams[stream].is_open:
            self.model.begin(stream, self.in_ram, self.in_files)
        elif how == "abandon":
            self.model.abandon(stream, self.in_ram, self.in_files)
        else:
            terminated, truncated = how in {"terminated", "both"}, how in {"truncated", "both"}
            self.model.append(stream, self.in_ram, self.in_files, terminated=terminated, truncated=truncated)

    @rule(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 30), end_probability=st.sampled_from([0.0, 0.1, 0.5]))
    def many_steps(self, seed: int, steps: int, end_probability: float) -> None:
        self.model.run(np.random.default_rng(seed), steps, end_probability, self.in_ram, self.in_files)

    @rule()
    def save(self) -> None:
        self.saved = copy.deepcopy(self.in_files.get_state()), copy.deepcopy(self.model.streams)

    def written_since_saved(self) -> int:
        pairs = zip(self.model.streams, self.saved[1], strict=True)
        return max(len(now.slots) - len(then.slots) for now, then in pairs)

    @precondition(lambda self: self.written_since_saved() <= self.spare)
    @rule()
    def restore(self) -> None:
        state, streams = copy.deepcopy(self.saved)
        self.in_files = lr.ReplayMemory(**self.settings, directory=self.directory.name, reopen=True)
        self.in_files.set_state(state)
        self.in_ram.set_state(state)
        self.model.streams = streams

    @rule(length=st.integers(1, 6), reserve=st.sampled_from([0, 0, 1, 3, 50]), seed=st.integers(0, 2**32 - 1))
    def sample(self, length: int, reserve: int, seed: int) -> None:
        self.model.check_blocks(self.in_ram, length, reserve, seed)
        self.model.check_blocks(self.in_files, length, reserve, seed)

    @invariant()
    def both_agree_with_the_model(self) -> None:
        streams = self.model.streams
        transitions = [
            (stream, number)
            for stream, number in self.model.must_start(length=1, reserve=0)
            if streams[stream].slots[number].is_step
        ]
        for memory in (self.in_ram, self.in_files):
            assert memory.written == tuple(len(one.slots) for one in streams)
            assert len(memory) == len(transitions)
            if all(one.slots for one in streams):
                newest = [one.state(i, len(one.slots) - 1, memory.history) for i, one in enumerate(streams)]
                assert_array_equal(memory.newest_states(), newest)
        for name, array in self.in_ram.arrays.items():
            assert_array_equal(self.in_files.arrays[name], array)


AgainstTheModel.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestAgainstTheModel = AgainstTheModel.TestCase


def frame(value: int) -> NDArray[np.uint8]:
    """An observation that is one number."""
    return np.array(value, dtype=np.uint8)


def simple_memory(capacity: int = 8, **settings: Any) -> lr.ReplayMemory:
    return lr.ReplayMemory(capacity, (), np.uint8, **settings)


def filled(memory: lr.ReplayMemory, steps: int, end_probability: float = 0.0, seed: int = 0) -> Model:
    """A model and a memory that has made so many steps."""
    model = Model(memory, memory.window)
    model.run(np.random.default_rng(seed), steps, end_probability, memory)
    return model


def pair_memory(capacity: int, **settings: Any) -> lr.ReplayMemory:
    return lr.ReplayMemory(capacity, OBSERVATION_SHAPE, np.int32, **settings)


# --- golden -----------------------------------------------------------------------------------------------------------


def test_two_episodes_slot_by_slot() -> None:
    """Observations 10, 11, 12 (terminated), then 20, 21 (truncated): five slots, of which two close an episode."""
    memory = simple_memory()
    memory.begin(frame(10))
    memory.append(3, 0.5, frame(11), behaviour_prob=0.25)
    memory.append(1, -1.0, frame(12), terminated=True)
    memory.begin(frame(20))
    memory.append(2, 2.0, frame(21), truncated=True)
    slots = np.arange(5)
    assert memory.written == (5,)
    assert_array_equal(memory.states(slots), [[10], [11], [12], [20], [21]])
    transitions = memory.transitions(slots)
    assert_array_equal(transitions.actions, [3, 1, 0, 2, 0])
    assert_array_equal(transitions.is_step, [True, True, False, True, False])
    assert_array_equal(transitions.rewards, [0.5, -1, 0, 2, 0])
    assert_array_equal(transitions.behaviour_probs, [0.25, 1, 1, 1, 1])
    assert_array_equal(transitions.terminated, [False, True, False, False, False])
    assert len(memory) == 3
    assert_array_equal(memory.ages(slots), [4, 3, 2, 1, 0])


def test_vector_actions_and_columns_slot_by_slot() -> None:
    """Observations 10, 11 (terminated), then 20: three slots, of which the last two have no action."""
    columns = {"goal": ((2,), np.int16), "is_expert": ((), np.bool_)}
    memory = simple_memory(action_shape=(3,), columns=columns)
    memory.begin(frame(10))
    memory.append([0.5, -1, 2], 1.5, frame(11), True, behaviour_prob=-0.25, goal=[7, -8], is_expert=True)
    memory.begin(frame(20))
    actions, rewards, log_densities, terminated, is_step, found = memory.transitions(np.arange(3))
    assert_array_equal(actions, [[0.5, -1, 2], [0, 0, 0], [0, 0, 0]])
    assert actions.dtype == np.float32
    assert_array_equal(rewards, [1.5, 0, 0])
    assert_array_equal(log_densities, [-0.25, 0, 0])
    assert_array_equal(terminated, [True, False, False])
    assert_array_equal(is_step, [True, False, False])
    assert_array_equal(found["goal"], [[7, -8], [0, 0], [0, 0]])
    assert_array_equal(found["is_expert"], [True, False, False])
    assert found["goal"].dtype == np.int16
    assert (memory.action_shape, memory.columns["goal"]) == ((3,), ((2,), np.dtype(np.int16)))


def test_a_slot_that_is_written_over_keeps_nothing_of_its_old_action_and_columns() -> None:
    memory = simple_memory(capacity=3, action_shape=(2,), columns={"goal": ((), np.int32)})
    memory.begin(frame(0))
    for number in range(1, 6):
        memory.append([number, number], 1.0, frame(number), behaviour_prob=2.5, goal=number)
    (newest,) = memory.newest_slots()
    actions, rewards, log_densities, _, is_step, columns = memory.transitions(np.arange(3))
    assert (newest, memory.observations[newest]) == (2, 5)
    assert_array_equal(actions[newest], [0, 0])
    assert (rewards[newest], log_densities[newest], is_step[newest], columns["goal"][newest]) == (0, 0, False, 0)
    assert_array_equal(columns["goal"], [4, 5, 0])


def test_blocks_of_several_shapes_read_columns_back() -> None:
    memory = pair_memory(40, num_streams=2, **WIDER)
    filled(memory, 120, end_probability=0.2)
    slots = memory.sample_blocks(6, 4, np.random.default_rng(0))
    transitions = memory.transitions(slots)
    assert transitions.actions.shape == (6, 5, 3)
    assert transitions.columns["goal"].shape == (6, 5, 2)
    assert transitions.columns["noise"].shape == (6, 5)
    promoted = lr.promote(memory, discount=0.9, size=24, block_length=4, rng=np.random.default_rng(0))
    assert_array_equal(promoted.slots, slots)
    for name, column in promoted.transitions.columns.items():
        assert_array_equal(column, transitions.columns[name])


def test_history_is_zero_before_the_episode_and_never_reads_the_one_before() -> None:
    memory = simple_memory(history=3)
    memory.begin(frame(10))
    memory.append(0, 0.0, frame(11), terminated=True)
    memory.begin(frame(20))
    memory.append(0, 0.0, frame(21))
    memory.append(0, 0.0, frame(22))
    memory.append(0, 0.0, frame(23))
    assert_array_equal(
        memory.states(np.arange(6)),
        [[0, 0, 10], [0, 10, 11], [0, 0, 20], [0, 20, 21], [20, 21, 22], [21, 22, 23]],
    )
    assert_array_equal(memory.newest_states(), [[21, 22, 23]])


def test_history_of_one_stream_never_reads_its_neighbour() -> None:
    """Each stream's ring of 4 wraps: its first slot's history continues at its own last one."""
    memory = simple_memory(capacity=8, history=3, num_streams=2)
    for stream in (0, 1):
        memory.begin(frame(100 * stream), stream=stream)
        for number in range(1, 6):
            memory.append(0, 0.0, frame(100 * stream + number), stream=stream)
    assert_array_equal(memory.newest_states(), [[3, 4, 5], [103, 104, 105]])
    # Slots 2 … 5 of each are left; a whole history of 3 and a successor leave slot 4 alone to start from.
    assert len(memory) == 2
    slots = memory.sample_blocks(50, 1, np.random.default_rng(0))
    states = memory.states(slots[:, 0])
    assert_array_equal(np.unique(states, axis=0), [[2, 3, 4], [102, 103, 104]])


def test_a_truncated_step_bootstraps_from_its_true_final_observation() -> None:
    memory = simple_memory()
    memory.begin(frame(1))
    memory.append(0, 5.0, frame(9), truncated=True)  # the final observation is 9
    memory.begin(frame(2))  # the next episode starts elsewhere
    memory.append(0, 7.0, frame(3), terminated=True)

    def state_as_value(states: NDArray[Any]) -> NDArray[Any]:
        return states.astype(np.float32)  # [n, 1]

    slots = np.array([[0, 1, 2, 3]])
    block = lr.QCritic(state_as_value).evaluate(promote_slots(memory, slots, discount=0.5, length=3))
    assert_array_equal(block.continues, [[False, False, False]])
    assert_array_equal(block.discounts, [[0.5, 0, 0]])  # truncated, closing, terminated
    returns = lr.parse_estimator("peng:1")(block)
    assert returns[0, 0] == 5 + 0.5 * 9
    assert returns[0, 2] == 7


def test_a_step_that_is_terminated_and_truncated_is_terminated() -> None:
    memory = simple_memory()
    memory.begin(frame(1))
    memory.append(0, 5.0, frame(9), terminated=True, truncated=True)
    assert_array_equal(memory.transitions(np.array([0, 1])).terminated, [True, False])


def test_abandoning_is_a_truncation_by_the_last_action() -> None:
    abandoned, truncated = simple_memory(), simple_memory()
    for memory in (abandoned, truncated):
        memory.begin(frame(1))
        memory.append(0, 1.0, frame(2))
        memory.append(1, 2.0, frame(3), truncated=memory is truncated)
    abandoned.abandon()
    for memory in (abandoned, truncated):
        memory.begin(frame(4))
        memory.append(0, 3.0, frame(5))
    for name, array in abandoned.arrays.items():
        assert_array_equal(array, truncated.arrays[name])
    assert abandoned.get_state() == truncated.get_state()
    assert len(abandoned) == 3


def test_an_abandoned_first_observation_is_no_transition() -> None:
    memory = simple_memory()
    memory.begin(frame(1))
    memory.abandon()
    memory.begin(frame(2))
    memory.append(0, 1.0, frame(3))
    assert len(memory) == 1
    assert_array_equal(memory.transitions(np.arange(3)).is_step, [False, True, False])


def test_len_counts_transitions_while_the_ring_fills_and_wraps() -> None:
    memory = simple_memory(capacity=6, history=2)
    assert len(memory) == 0
    memory.begin(frame(0))
    lengths = []
    for number in range(1, 10):
        memory.append(0, 0.0, frame(number))
        lengths.append(len(memory))
    # Full with 6 slots = 5 transitions; once one is overwritten, the oldest slot left has lost a frame of its history.
    assert lengths == [1, 2, 3, 4, 5, 4, 4, 4, 4]


def test_len_is_counted_as_it_goes_and_not_again_from_what_is_stored() -> None:
    memory = simple_memory(capacity=6)
    filled_length = []
    memory.begin(frame(0))
    for number in range(1, 9):
        memory.append(0, 0.0, frame(number), terminated=number == 4)
        if number == 4:
            memory.begin(frame(0))
        filled_length.append(len(memory))
    # Six slots: the closing slot of number 4 takes one place until it leaves.
    assert filled_length == [1, 2, 3, 4, 4, 4, 4, 4]
    memory.is_step[:] = False  # in constant time nobody looks
    assert len(memory) == 4


@settings(deadline=None)
@given(
    history=st.integers(1, 4),
    num_streams=st.integers(1, 3),
    extra=st.integers(0, 6),
    spare=st.integers(0, 4),
    steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("aaaaatxbs")), max_size=80),
)
def test_len_is_what_a_literal_count_says_at_every_moment(
    history: int, num_streams: int, extra: int, spare: int, steps: list[tuple[int, str]]
) -> None:
    """a: append, t: terminated, x: abandoned, b: begin after abandoning, s: back to the state saved last."""
    memory = simple_memory((history + 1 + extra) * num_streams, history=history, num_streams=num_streams, spare=spare)
    state = memory.get_state()
    for wanted_stream, how in steps:
        stream = wanted_stream % num_streams
        is_open = memory.get_state()["is_open"][stream]
        if how == "s":
            since = [now - then for now, then in zip(memory.written, state["written"], strict=True)]
            if max(since) <= spare:
                memory.set_state(state)
            state = memory.get_state()
        elif how == "x" or (how == "b" and is_open):
            memory.abandon(stream)
        elif not is_open:
            memory.begin(frame(1), stream)
        else:
            memory.append(0, 0.0, frame(1), terminated=how == "t", stream=stream)
        assert len(memory) == literal_length(memory)


def literal_length(memory: lr.ReplayMemory) -> int:
    """Steps that have a successor and whose whole history lies in the window, one by one."""
    count = 0
    for stream, written in enumerate(memory.written):
        oldest = max(0, written - memory.window)
        for number in range(written - 1):
            slot = stream * memory.ring.size + number % memory.ring.size
            has_history = oldest == 0 or number - (memory.history - 1) >= oldest
            count += number >= oldest and has_history and bool(memory.is_step[slot])
    return count


def test_a_million_atari_frames_cost_at_most_7_point_2_gigabytes() -> None:
    memory = lr.ReplayMemory(1_000, (84, 84), np.uint8, history=4)
    assert memory.nbytes == sum(array.nbytes for array in memory.arrays.values())
    assert memory.nbytes * 1_000 <= 7.2e9


def test_spare_slots_cost_memory_but_are_not_sampled() -> None:
    memory = pair_memory(5, spare=20)
    model = filled(memory, 19)
    assert len(memory) == 4
    model.check_blocks(memory, length=1, reserve=0, seed=0)
    assert memory.nbytes == 5 * pair_memory(5).nbytes


def test_shows_tells_whether_a_slot_holds_an_observation_or_has_left_the_window() -> None:
    memory = simple_memory(capacity=8, num_streams=2, spare=2)  # windows of 4 slots in rings of 6
    memory.begin(frame(10), stream=1)
    for number in range(1, 7):
        memory.append(0, 0.0, frame(10 + number), stream=1)
    assert [memory.shows(frame(10 + number), 1, number) for number in range(7)] == [True] * 7
    assert [memory.shows(frame(99), 1, number) for number in range(7)] == [True] * 3 + [False] * 4
    assert not memory.shows(frame(17), 1, 7)  # not yet written
    assert not memory.shows(frame(10), 0, 0)


# --- property ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [1, 2, 4])
@pytest.mark.parametrize("spare", [0, 3])
def test_no_block_crosses_the_write_position_in_any_state_of_the_ring(history: int, spare: int) -> None:
    memory = pair_memory(24, history=history, num_streams=2, spare=spare)
    model = Model(memory, window=12)
    rng = np.random.default_rng(history)
    for _ in range(60):  # one step at a time, until each ring has gone round more than once
        model.run(rng, 1, 0.15, memory)
        for length, reserve in ((1, 0), (5, 0), (11 - history, 2)):
            model.check_blocks(memory, length, reserve, seed=0)


def test_a_block_as_long_as_the_memory_allows_has_one_start() -> None:
    memory = pair_memory(10)
    model = filled(memory, 25)
    model.check_blocks(memory, length=9, reserve=0, seed=0)
    assert len(np.unique(memory.sample_blocks(30, 9, np.random.default_rng(0)), axis=0)) == 1
    with pytest.raises(lr.ConfigError, match="block of 10 steps"):
        memory.sample_blocks(1, 10, np.random.default_rng(0))


def test_streams_too_short_for_a_block_are_left_out() -> None:
    memory = pair_memory(40, num_streams=4)
    model = Model(memory, window=10)
    for stream, steps in ((0, 2), (2, 9)):  # streams 1 and 3 are empty
        model.begin(stream, memory)
        for _ in range(steps):
            model.append(stream, memory)
    model.check_blocks(memory, length=1, reserve=0, seed=0)
    model.check_blocks(memory, length=4, reserve=0, seed=0)
    starts = memory.states(memory.sample_blocks(200, 4, np.random.default_rng(0))[:, 0])
    assert set(starts[:, 0, 0].tolist()) == {3}  # stream 2 alone


def test_block_starts_are_uniform_over_all_streams() -> None:
    """One stream has wrapped, one is half full: every start is as likely as any other."""
    memory = pair_memory(40, num_streams=2)
    model = Model(memory, window=20)
    for stream, steps in ((0, 33), (1, 9)):
        model.begin(stream, memory)
        for _ in range(steps):
            model.append(stream, memory)
    wanted = model.must_start(length=3, reserve=0)
    assert len(wanted) == 17 + 7
    slots = memory.sample_blocks(24_000, 3, np.random.default_rng(7))
    starts, counts = np.unique(memory.states(slots[:, 0])[:, 0], axis=0, return_counts=True)
    assert {(int(stream) - 1, int(number) - 1) for stream, number in starts} == wanted
    assert stats.chisquare(counts).pvalue > 0.01


def test_what_was_sampled_with_a_reserve_survives_so_many_new_slots() -> None:
    memory = pair_memory(30, history=3, num_streams=2)
    model = filled(memory, 70, end_probability=0.1)
    slots = memory.sample_blocks(100, 4, np.random.default_rng(0), reserve=6)
    states, transitions = memory.states(slots.reshape(-1)), memory.transitions(slots[:, :-1])
    for stream, written in enumerate(memory.written):
        if not model.streams[stream].is_open:
            model.begin(stream, memory)
        while memory.written[stream] < written + 6:
            model.append(stream, memory)
    assert_array_equal(memory.states(slots.reshape(-1)), states)
    for now, then in zip(memory.transitions(slots[:, :-1]), transitions, strict=True):
        assert_array_equal(now, then)


def test_sampling_reads_only_the_generator_it_is_given() -> None:
    memory = pair_memory(30)
    filled(memory, 50)
    first = memory.sample_blocks(20, 3, np.random.default_rng(1))
    assert_array_equal(memory.sample_blocks(20, 3, np.random.default_rng(1)), first)
    assert not np.array_equal(memory.sample_blocks(20, 3, np.random.default_rng(2)), first)


def test_states_are_copies() -> None:
    for history in (1, 3):
        memory = pair_memory(10, history=history)
        filled(memory, 5)
        before = memory.observations.copy()
        memory.states(np.array([1, 2, 3]))[:] = 99
        assert_array_equal(memory.observations, before)


def test_what_is_stored_does_not_change_with_the_caller_s_array() -> None:
    memory = pair_memory(10)
    observation = np.array([1, 2], dtype=np.int32)
    memory.begin(observation)
    observation[:] = 7
    assert_array_equal(memory.newest_states(), [[[1, 2]]])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_any_observation_shape_and_dtype_comes_back(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(0)
    observations = (rng.random((5, *shape)) * 2).astype(dtype)
    memory = lr.ReplayMemory(10, shape, dtype, history=2)
    memory.begin(observations[0])
    for observation in observations[1:]:
        memory.append(0, 0.0, observation)
    states = memory.states(np.arange(5))
    assert states.dtype == dtype
    assert_array_equal(states[:, 1], observations)
    assert_array_equal(states[1:, 0], observations[:-1])


# --- behaviour: files -------------------------------------------------------------------------------------------------


def test_reopened_files_go_on_as_if_never_closed(tmp_path: Path) -> None:
    """Saved in mid-episode, written on within the spare slots, reopened, and fed the same steps again."""
    settings: dict[str, Any] = {"history": 3, "num_streams": 2, "spare": 6}
    memory = pair_memory(20, **settings, directory=tmp_path)
    model = filled(memory, 53, end_probability=0.2)
    state = memory.get_state()
    then = copy.deepcopy(model.streams)
    model.run(np.random.default_rng(1), 4, 0.2, memory)
    after = {name: array.copy() for name, array in memory.arrays.items()}
    del memory

    reopened = pair_memory(20, **settings, directory=tmp_path, reopen=True)
    reopened.set_state(state)
    model.streams = then
    assert reopened.get_state() == state
    for length in (1, 3):
        model.check_blocks(reopened, length, reserve=0, seed=0)
    model.run(np.random.default_rng(1), 4, 0.2, reopened)
    for name, array in reopened.arrays.items():
        assert_array_equal(array, after[name])
    model.check_blocks(reopened, length=2, reserve=0, seed=0)


def test_the_state_is_plain_and_its_own(tmp_path: Path) -> None:
    memory = pair_memory(10, directory=tmp_path)
    model = filled(memory, 3)
    state = memory.get_state()
    assert json.loads(json.dumps(state)) == state
    kept = copy.deepcopy(state)
    model.append(0, memory)
    assert state == kept  # writing on does not change what was given out
    memory.set_state(state)
    state["written"][0] = 1
    assert memory.get_state() == kept


def test_files_have_their_full_size_from_the_start(tmp_path: Path) -> None:
    memory = pair_memory(1_000, directory=tmp_path)
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == sorted(f"{name}.bin" for name in memory.arrays)
    assert sum(path.stat().st_size for path in paths) >= memory.nbytes
    assert sum(path.stat().st_blocks * 512 for path in paths) >= memory.nbytes  # claimed, not sparse


def test_columns_are_files_too(tmp_path: Path) -> None:
    memory = pair_memory(20, **WIDER, directory=tmp_path)
    model = filled(memory, 33, end_probability=0.2)
    state = memory.get_state()
    memory.flush()
    del memory
    assert {"goal.bin", "noise.bin"} <= {path.name for path in tmp_path.iterdir()}
    reopened = pair_memory(20, **WIDER, directory=tmp_path, reopen=True)
    reopened.set_state(state)
    model.check_blocks(reopened, length=3, reserve=0, seed=0)
    with pytest.raises(DamageError, match="bytes"):
        pair_memory(20, action_shape=(2,), columns=COLUMNS, directory=tmp_path, reopen=True)
    with pytest.raises(DamageError, match=r"other.bin is missing"):
        pair_memory(20, action_shape=(3,), columns={"other": ((), np.int8)}, directory=tmp_path, reopen=True)


def test_going_back_forgets_the_action_and_the_columns_of_the_newest_slot() -> None:
    memory = pair_memory(20, spare=2, **WIDER)
    model = filled(memory, 7)
    state, (newest,) = memory.get_state(), memory.newest_slots()
    model.append(0, memory)
    assert memory.is_step[newest]
    memory.set_state(state)
    assert not memory.is_step[newest]
    for name in ("actions", "rewards", "behaviour_probs", "terminated", "goal", "noise"):
        assert not memory.arrays[name][newest].any()


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    memory = pair_memory(4, directory=tmp_path / "run" / "memory")
    filled(memory, 2)
    assert (tmp_path / "run" / "memory" / "observations.bin").exists()


# --- errors -----------------------------------------------------------------------------------------------------------


def begun(**settings: Any) -> lr.ReplayMemory:
    memory = pair_memory(8, **settings)
    memory.begin(OBSERVATION)
    return memory


OBSERVATION = np.ones(2, dtype=np.int32)


@pytest.mark.parametrize(
    ("mistake", "names"),
    [
        (lambda: lr.ReplayMemory(8, (2,), complex), "observation_dtype.*complex"),
        (lambda: lr.ReplayMemory(8, (2,), object), "observation_dtype.*object"),
        (lambda: lr.ReplayMemory(8, (2,), "U3"), "observation_dtype.*U3"),
        (lambda: pair_memory(1), "capacity"),
        (lambda: pair_memory(4, history=4), "capacity"),
        (lambda: pair_memory(9, history=4, num_streams=2), "capacity"),
        (lambda: pair_memory(10, num_streams=0), "streams"),
        (lambda: pair_memory(-5), "capacity"),
        (lambda: pair_memory(10, history=0), "history"),
        (lambda: pair_memory(1_000, history=256), "history"),
        pytest.param(lambda: pair_memory(10, spare=-1), "spare"),
        (lambda: pair_memory(8).append(0, 0.0, OBSERVATION), "begin"),
        (lambda: begun().begin(OBSERVATION), "begin"),
        (lambda: begun().append(0, 0.0, np.zeros(3)), "shape"),
        (lambda: begun().append(0, 0.0, np.zeros((1, 2))), "shape"),
        (lambda: pair_memory(8).begin(np.array(1)), "shape"),
        (lambda: begun().append(0, float("nan"), OBSERVATION), "reward"),
        (lambda: begun().append(0, float("inf"), OBSERVATION), "reward"),
        pytest.param(lambda: begun().append(0, 1e39, OBSERVATION), "reward"),  # infinite as float32
        (lambda: begun().append(-1, 0.0, OBSERVATION), "action"),
        pytest.param(lambda: begun().append(2**31, 0.0, OBSERVATION), "action"),
        *[
            (lambda name=name: pair_memory(8, columns={name: ((), np.float32)}), f"column.*{name}")
            for name in (
                "rewards",
                "is_step",
                "frames",
                "reward",
                "action",
                "stream",
                "truncated",
                "two words",
                "",
                "1st",
            )
        ],
        (lambda: pair_memory(8, columns={"goal": ((2,), object)}), "column goal.*object"),
        (lambda: pair_memory(8, columns={"goal": ((2,), "U3")}), "column goal.*U3"),
        (lambda: begun().append(0, 0.0, OBSERVATION, goal=1), "goal.*none"),
        (lambda: begun(columns=COLUMNS).append(0, 0.0, OBSERVATION), "none.*goal, noise"),
        (lambda: begun(columns=COLUMNS).append(0, 0.0, OBSERVATION, goal=[1, 2]), "goal.*goal, noise"),
        (lambda: begun(columns=COLUMNS).append(0, 0.0, OBSERVATION, goal=[1], noise=0), "column goal.*shape"),
        (lambda: begun(action_shape=(3,)).append(0, 0.0, OBSERVATION), "an action.*shape"),
        (lambda: begun().append(0, 0.0, OBSERVATION, behaviour_prob=0.0), "prob"),
        (lambda: begun().append(0, 0.0, OBSERVATION, behaviour_prob=-0.5), "prob"),
        (lambda: begun().append(0, 0.0, OBSERVATION, behaviour_prob=1.5), "prob"),
        (lambda: begun().append(0, 0.0, OBSERVATION, behaviour_prob=float("nan")), "prob"),
        pytest.param(lambda: begun().append(0, 0.0, OBSERVATION, behaviour_prob=1e-60), "prob"),  # zero as float32
        pytest.param(lambda: begun().begin(OBSERVATION, stream=1), "stream"),
        pytest.param(lambda: begun().append(0, 0.0, OBSERVATION, stream=1), "stream"),
        (lambda: begun().sample_blocks(1, 1, np.random.default_rng(0)), "block"),
        (lambda: pair_memory(8).sample_blocks(1, 1, np.random.default_rng(0)), "block"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(mistake: Callable[[], object], names: str) -> None:
    with pytest.raises(lr.ConfigError, match=names) as caught:
        mistake()
    assert_one_sentence(caught.value)


def assert_one_sentence(error: Exception) -> None:
    text = str(error)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text


def kept(memory: lr.ReplayMemory) -> tuple[dict[str, bytes], dict[str, list[int]], int]:
    """Everything that a refused call must leave as it was."""
    return {name: array.tobytes() for name, array in memory.arrays.items()}, memory.get_state(), len(memory)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("num_steps", [3, 20])  # the ring is full after 8: the next slot holds an old one
@pytest.mark.parametrize(
    "mistake",
    [
        {"next_observation": np.zeros(3, dtype=np.int32)},
        {"next_observation": np.ones(2, dtype=complex)},
        {"next_observation": np.array(["1", "2"])},
        {"next_observation": None},
        {"next_observation": [[1], [1, 2]]},
        {"next_observation": np.array([1, 2**40 + 1])},
        {"reward": float("nan")},
        {"reward": None},
        {"reward": 1j},
        {"reward": 10**400},
        {"reward": "much"},
        {"reward": np.ones(2)},
        {"reward": np.ones((30, 30))},
        {"action": -1},
        {"action": 2**31},
        {"action": 1.7},
        {"action": 1.0},
        {"action": np.float32(1)},
        {"action": None},
        {"action": np.array([1])},
        {"behaviour_prob": 0.0},
        {"behaviour_prob": float("nan")},
        {"behaviour_prob": None},
        {"terminated": np.array([True, False])},
        {"truncated": np.array([True, False])},
        {"stream": 1},
        {"stream": -1},
        {"stream": 0.5},
        {"stream": None},
    ],
)
def test_a_refused_step_leaves_no_trace(mistake: dict[str, Any], num_steps: int, dtype: type[np.number[Any]]) -> None:
    memory = lr.ReplayMemory(8, OBSERVATION_SHAPE, dtype)
    filled(memory, num_steps)
    before = kept(memory)
    arguments: dict[str, Any] = {"action": 0, "reward": 0.0, "next_observation": OBSERVATION}
    with pytest.raises(lr.ConfigError) as caught:
        memory.append(**{**arguments, **mistake})
    assert_one_sentence(caught.value)
    assert kept(memory) == before


@pytest.mark.parametrize("num_steps", [3, 20])
@pytest.mark.parametrize(
    "mistake",
    [
        {"action": 1},
        {"action": [1.0, 2.0]},
        {"action": np.ones((3, 1))},
        {"action": [0, 0, np.nan]},
        {"action": [0, 0, 1e39]},  # infinite as float32
        {"action": ["a", "b", "c"]},
        {"action": [[1], [1, 2], 3]},
        {"action": np.array([1, 2, 2**24 + 1])},  # float32 does not hold it
        {"action": None},
        {"behaviour_prob": float("-inf")},
        {"behaviour_prob": float("nan")},
        {"behaviour_prob": None},
        {"reward": float("nan")},
        {"next_observation": np.zeros(3, dtype=np.int32)},
        {"terminated": np.array([True, False])},
        {"goal": [1, 2, 3]},
        {"goal": [0.5, 1.5]},
        {"goal": [0, 2**15]},
        {"goal": None},
        {"noise": [1.0]},
        {"noise": np.inf},
        {"noise": 1e39},
        {"noise": "loud"},
        {"wind": 1.0},
        {"stream": 1},
    ],
)
def test_a_refused_step_of_vectors_and_columns_leaves_no_trace(mistake: dict[str, Any], num_steps: int) -> None:
    memory = pair_memory(8, **WIDER)
    filled(memory, num_steps)
    before = kept(memory)
    arguments: dict[str, Any] = {
        "action": [0.5, 1, 2],
        "reward": 0.0,
        "next_observation": OBSERVATION,
        "goal": [1, 2],
        "noise": 0.5,
    }
    with pytest.raises(lr.ConfigError) as caught:
        memory.append(**{**arguments, **mistake})
    assert_one_sentence(caught.value)
    assert kept(memory) == before
    memory.append(**arguments)  # and the next one is taken
    assert memory.written == (before[1]["written"][0] + 1,)


@pytest.mark.parametrize(
    "observation",
    [np.zeros(3), np.array([0, np.nan]), np.array([0, -np.inf]), np.array([0, 1e39]), None, [[1], [1, 2]]],
)
def test_a_refused_beginning_leaves_no_trace(observation: Any) -> None:
    memory = lr.ReplayMemory(8, OBSERVATION_SHAPE, np.float32)
    filled(memory, 20)
    memory.abandon()
    before = kept(memory)
    with pytest.raises(lr.ConfigError) as caught:
        memory.begin(observation)
    assert_one_sentence(caught.value)
    assert kept(memory) == before
    memory.begin(OBSERVATION)  # and the next one is taken
    assert memory.written == (before[1]["written"][0] + 1,)


@pytest.mark.parametrize("stream", [1, -1, 0.0, None])
def test_only_a_stream_that_exists_can_be_abandoned(stream: Any) -> None:
    memory = begun()
    with pytest.raises(lr.ConfigError, match="stream") as caught:
        memory.abandon(stream)
    assert_one_sentence(caught.value)
    assert memory.get_state()["is_open"] == [1]


@pytest.mark.parametrize("stream", [True, np.int64(1), np.uint8(1)])
def test_any_integer_is_a_stream(stream: Any) -> None:
    memory = pair_memory(1_000, num_streams=2)
    memory.begin(OBSERVATION, stream=stream)
    memory.append(0, 0.0, OBSERVATION, stream=stream)
    memory.abandon(stream)
    assert memory.get_state() == {"written": [0, 2], "is_open": [0, 0]}


@pytest.mark.parametrize("action", [True, np.True_, np.int64(1), np.uint8(1), np.array(1)])
def test_any_integer_is_an_action(action: Any) -> None:
    memory = begun()
    memory.append(action, np.float64(0.5), OBSERVATION, terminated=np.False_, behaviour_prob=np.float64(0.5))
    actions, rewards, probs, terminated, is_step, _ = memory.transitions(np.array([0]))
    assert (int(actions[0]), float(rewards[0]), float(probs[0]), bool(terminated[0])) == (1, 0.5, 0.5, False)
    assert is_step[0]


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (np.uint8, np.array([0, 255], dtype=np.uint16)),
        (np.uint8, np.array([0, 255])),
        (np.uint8, np.array([True, False])),
        (np.int32, np.array([-(2**31), 2**31 - 1])),
        (np.bool_, np.array([0, 1])),
        (np.float32, np.array([2**24, -(2**24)])),
        (np.float32, np.array([0.1, 1e-60])),  # float64: rounded as every float is
        (np.float32, np.array([3, 4], dtype=np.uint8)),
        (np.float64, np.array([0.1, 0.2], dtype=np.float32)),
        (np.float32, np.array([1.5, 2.5], dtype=">f4")),
        (np.float16, np.array([65504.0, 1.0])),
    ],
)
def test_what_the_dtype_holds_is_converted(stored: type[np.generic], given: NDArray[Any]) -> None:
    memory = lr.ReplayMemory(8, (2,), stored)
    memory.begin(given)
    memory.append(0, 0.0, given)
    assert_array_equal(memory.states(np.arange(2)), np.broadcast_to(given.astype(stored), (2, 1, 2)))


@pytest.mark.parametrize(
    ("stored", "given", "names"),
    [
        # Pixels scaled to [0, 1] would all be stored as 0 in a memory of uint8.
        (np.uint8, np.array([0.5, 0.25]), "float64.*uint8"),
        (np.uint8, np.array([0.0, 1.0]), "float64.*uint8"),
        (np.uint8, np.array([0, 300], dtype=np.uint16), "uint16.*0 to 300.*uint8"),  # would be 44
        (np.uint8, np.array([-1, 0], dtype=np.int8), "int8.*-1 to 0.*uint8"),
        (np.uint64, np.array([-1, 0]), "int64.*-1 to 0.*uint64"),
        (np.int32, np.array([0, 2**31]), "int64.*int32"),
        (np.bool_, np.array([0, 2]), "int64.*bool"),
        (np.float32, np.array([0, 2**24 + 1]), "int64.*float32"),
        (np.float32, np.array([0, 2**63 - 1]), "int64.*float32"),
        (np.float32, np.array([0, np.nan], dtype=np.float32), "finite"),
        (np.float32, np.array([np.inf, 0]), "finite"),
        (np.float32, np.array([0, 1e39]), "finite as float32"),
        (np.float16, np.array([0, 1e5], dtype=np.float32), "finite as float16"),
        (np.float32, np.array([1j, 0]), "complex"),
        (np.float32, np.array([None, 0]), "object"),
    ],
)
def test_what_the_dtype_cannot_hold_is_refused(stored: type[np.generic], given: NDArray[Any], names: str) -> None:
    memory = lr.ReplayMemory(8, (2,), stored)
    memory.begin(np.zeros(2, dtype=stored))
    before = kept(memory)
    with pytest.raises(lr.ConfigError, match=names) as caught:
        memory.append(0, 0.0, given)
    assert_one_sentence(caught.value)
    assert kept(memory) == before


@pytest.mark.parametrize(
    "other",
    [
        {"capacity": 11},
        {"spare": 1},
        {"num_streams": 3},
        {"observation_shape": (3,)},
        {"observation_dtype": np.uint8},
    ],
)
def test_files_of_another_size_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"capacity": 10, "observation_shape": (2,), "observation_dtype": np.int32}
    filled(lr.ReplayMemory(**settings, directory=tmp_path), 5)
    with pytest.raises(DamageError, match="bytes") as caught:
        lr.ReplayMemory(**{**settings, **other}, directory=tmp_path, reopen=True)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("name", ["observations", "actions", "frames"])
@pytest.mark.parametrize("content", [b"", b"hello", bytes(10_000)])
def test_files_of_something_else_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    filled(pair_memory(10, directory=tmp_path), 5)
    (tmp_path / f"{name}.bin").write_bytes(content)
    with pytest.raises(DamageError, match=name) as caught:
        pair_memory(10, directory=tmp_path, reopen=True)
    assert_one_sentence(caught.value)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    """Mapping it would fill the missing end with zeros."""
    filled(pair_memory(1_000, directory=tmp_path), 999)
    path = tmp_path / "observations.bin"
    os.truncate(path, 500)
    with pytest.raises(DamageError, match="observations") as caught:
        pair_memory(1_000, directory=tmp_path, reopen=True)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("name", ["observations", "rewards", "frames"])
def test_a_missing_file_is_not_replaced_by_zeros(tmp_path: Path, name: str) -> None:
    filled(pair_memory(10, directory=tmp_path), 5)
    (tmp_path / f"{name}.bin").unlink()
    with pytest.raises(DamageError, match=f"{name}.bin is missing") as caught:
        pair_memory(10, directory=tmp_path, reopen=True)
    assert_one_sentence(caught.value)
    assert not (tmp_path / f"{name}.bin").exists()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_memory_in_files_is_not_overwritten_by_a_new_one(tmp_path: Path) -> None:
    filled(pair_memory(10, directory=tmp_path), 5)
    before = contents(tmp_path)
    with pytest.raises(lr.ConfigError, match="reopen=True") as caught:
        pair_memory(10, directory=tmp_path)
    assert_one_sentence(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["observations", "frames"])  # the first file and the last
def test_one_file_of_a_memory_is_enough_to_refuse_a_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.bin").write_bytes(b"something of value")
    with pytest.raises(lr.ConfigError, match=name) as caught:
        pair_memory(10, directory=tmp_path)
    assert_one_sentence(caught.value)
    assert contents(tmp_path) == {f"{name}.bin": b"something of value"}


def test_other_files_in_the_directory_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    filled(pair_memory(10, directory=tmp_path), 5)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_memory_that_does_not_fit_leaves_no_file_behind(tmp_path: Path) -> None:
    """The first file of 300 bytes is written, the second, of 1,200, is refused; another try finds an empty place."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            lr.ReplayMemory(300, (), np.uint8, directory=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path) == {}
    lr.ReplayMemory(300, (), np.uint8, directory=tmp_path)


def test_reopening_needs_a_directory() -> None:
    with pytest.raises(lr.ConfigError, match="directory") as caught:
        pair_memory(10, reopen=True)
    assert_one_sentence(caught.value)
