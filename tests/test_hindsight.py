"""Blocks with goals chosen in hindsight: rewards, ends, returns and states are those of a literal recomputation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.critic import promote_slots
from lambda_replay.replay.goals import Goals, Outcomes, Relabelled
from lambda_replay.replay.hindsight import goal_slots, relabel

DISCOUNT, LAMBDA = 0.9, 0.7
NEAR = 1.0  # how far an achieved goal may be from the desired one


def near(achieved: Any, desired: Any) -> Outcomes:
    """0 and an end within ``NEAR`` of the goal, −1 elsewhere."""
    is_reached = np.abs(achieved - desired)[:, 0] <= NEAR
    return Outcomes(np.where(is_reached, 0, -1).astype(np.float32), is_reached)


def endless(achieved: Any, desired: Any) -> Outcomes:
    return near(achieved, desired)._replace(terminated=None)


def make_goals(*, has_ends: bool = True) -> Goals:
    """Observations are (achieved, desired, episode)."""
    return Goals(slice(0, 1), slice(1, 2), near if has_ends else endless, lambda: (np.zeros((1, 1)),) * 2)


@dataclass
class Slot:
    """What was written, in plain values."""

    observation: list[float]
    episode: int
    reward: float = 0.0
    terminated: bool = False
    is_step: bool = False


@dataclass
class Diary:
    """A memory, and everything that was ever written to it; the achieved goal is different in every slot."""

    memory: lr.ReplayMemory
    slots: list[list[Slot]] = field(default_factory=list)
    count: int = 0

    def observe(self, stream: int, *, is_first: bool) -> NDArray[np.float32]:
        self.count += 1
        episode = self.slots[stream][-1].episode if self.slots[stream] and not is_first else self.count
        observation = [float(self.count), -1.0 - episode, float(episode)]
        self.slots[stream].append(Slot(observation, episode))
        return np.array(observation, dtype=np.float32)

    def number_of(self, slot: int) -> tuple[int, int]:
        """The stream and the number of a stored slot: the achieved goal in it was written once."""
        achieved = self.memory.observations[slot][0]
        return next(
            (stream, number)
            for stream, slots in enumerate(self.slots)
            for number, one in enumerate(slots)
            if one.observation[0] == achieved
        )


def play(letters: str, *, capacity: int, history: int, num_streams: int) -> Diary:
    """One letter per step of each stream in turn: "." goes on, "T" terminates, "U" truncates."""
    memory = lr.ReplayMemory(capacity, (3,), np.float32, history, num_streams)
    diary = Diary(memory, [[] for _ in range(num_streams)])
    is_open = [False] * num_streams
    for turn, letter in enumerate(letters):
        stream = turn % num_streams
        if not is_open[stream]:
            memory.begin(diary.observe(stream, is_first=True), stream)
        last = diary.slots[stream][-1]
        last.is_step, last.terminated, last.reward = True, letter == "T", float(turn % 5)
        observation = diary.observe(stream, is_first=False)
        memory.append(turn % 2, last.reward, observation, letter == "T", letter == "U", 0.5, stream)
        is_open[stream] = letter == "."
    return diary


def q_function(states: NDArray[Any]) -> NDArray[np.float32]:
    """Values that depend on every number of a state [n, F, 3]."""
    flat = states.reshape(len(states), -1).astype(np.float64)
    weights = np.arange(1, flat.shape[1] + 1) / 7
    return np.stack([np.sin(flat @ weights), np.cos(flat @ weights)], axis=1).astype(np.float32)


# --- the literal recomputation ----------------------------------------------------------------------------------------


def literal_state(diary: Diary, stream: int, number: int, goal: float | None) -> NDArray[np.float32]:
    """The episode's last frames, all of which show the goal; zeros before its first."""
    slots, history = diary.slots[stream], diary.memory.history
    state = np.zeros((history, 3), dtype=np.float32)
    for age in range(history):
        if number - age >= 0 and slots[number - age].episode == slots[number].episode:
            state[history - 1 - age] = slots[number - age].observation
            if goal is not None:
                state[history - 1 - age, 1] = goal
    return state


def literal_returns(
    diary: Diary, stream: int, first: int, goals: list[float | None], *, has_ends: bool
) -> list[tuple[float, bool, float]]:
    """Rewards, ends and Peng's returns of a block of len(goals) − 1 steps, one step at a time from the back."""
    results: list[tuple[float, bool, float]] = []
    later = 0.0
    for place in range(len(goals) - 2, -1, -1):
        slot, next_slot = diary.slots[stream][first + place], diary.slots[stream][first + place + 1]
        reward, terminated, goal = slot.reward, slot.terminated, goals[place]
        if goal is not None and slot.is_step:
            is_reached = abs(next_slot.observation[0] - goal) <= NEAR
            reward, terminated = (0.0 if is_reached else -1.0), (is_reached if has_ends else terminated)
        value = float(q_function(literal_state(diary, stream, first + place + 1, goals[place + 1])[None]).max())
        if terminated:
            found = reward
        elif place == len(goals) - 2 or not next_slot.is_step:
            found = reward + DISCOUNT * value
        else:
            found = reward + DISCOUNT * ((1 - LAMBDA) * value + LAMBDA * later)
        later = found
        results.append((reward, terminated, found))
    return results[::-1]


def check_goals_of_pieces(diary: Diary, stream: int, first: int, goals: list[float], strategy: str) -> None:
    """One goal for each piece of an episode, achieved in that episode and not before the piece ended."""
    place, slots = 0, diary.slots[stream]
    while place < len(goals):
        last = place
        while last + 1 < len(goals) and slots[first + last].is_step:
            last += 1
        own = slots[first + place].episode
        achieved = [slot.observation[0] for slot in slots[first + last :] if slot.episode == own]
        assert len(set(goals[place : last + 1])) == 1
        assert goals[place] in achieved
        if strategy == "final":
            assert goals[place] == achieved[-1]
        place = last + 1


@settings(max_examples=120, deadline=None)
@given(
    letters=st.text("....TU", min_size=30, max_size=70),
    history=st.integers(1, 3),
    num_streams=st.integers(1, 2),
    window=st.integers(15, 30),
    length=st.integers(1, 8),
    tail=st.integers(0, 2),
    share=st.sampled_from([0.3, 0.8, 1.0]),
    strategy=st.sampled_from(["future", "final"]),
    has_ends=st.booleans(),
    seed=st.integers(0, 99),
)
def test_relabelled_blocks_are_those_of_a_literal_recomputation(
    *, letters: str, history: int, num_streams: int, window: int, length: int, tail: int, share: float,
    strategy: Literal["future", "final"], has_ends: bool, seed: int,
) -> None:  # fmt: skip
    """Ends anywhere, open episodes, rings that wrap, several streams, stacked frames, a tail."""
    diary = play(letters, capacity=num_streams * window, history=history, num_streams=num_streams)
    rng, num_blocks = np.random.default_rng(seed), 6
    plain = lr.promote(
        diary.memory, discount=DISCOUNT, size=num_blocks * length, block_length=length, rng=rng, tail=tail
    )
    before = [array.copy() for array in (*diary.memory.arrays.values(), plain.transitions.rewards)]
    goals = make_goals(has_ends=has_ends)
    blocks = relabel(plain, goals, share=share, strategy=strategy, rng=rng)
    after = [*diary.memory.arrays.values(), plain.transitions.rewards]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))  # inputs are not written to
    assert blocks.relabelled is not None
    count, width = round(share * num_blocks), length + tail + 1
    shown = blocks.relabelled.goals.reshape(count, width)
    cache = lr.build_cache(blocks, lr.QCritic(q_function, chunk_size=7), lr.parse_estimator(f"peng:{LAMBDA}"))
    rows = np.flatnonzero(cache.is_transition)
    states = dict(zip(rows.tolist(), cache.minibatch(rows).states, strict=True))
    for block in range(num_blocks):
        stream, first = diary.number_of(blocks.slots[block, 0])
        own: list[Any] = [None] * width
        if block < count:
            own = shown[block].tolist()
            check_goals_of_pieces(diary, stream, first, own, strategy)
        expected = literal_returns(diary, stream, first, own, has_ends=has_ends)
        for place, (reward, terminated, found) in enumerate(expected):
            if not diary.slots[stream][first + place].is_step:
                continue
            assert blocks.rewards[block, place] == reward
            assert blocks.transitions.terminated[block, place] == terminated
            if place < length:
                row = block * length + place
                assert cache.returns[row] == pytest.approx(found, abs=1e-5)
                assert np.array_equal(states[row], literal_state(diary, stream, first + place, own[place]))


# --- golden -----------------------------------------------------------------------------------------------------------


def test_a_piece_that_ends_with_its_episode_has_its_final_goal() -> None:
    """Episodes of slots 1 2 3(T) 4 | 5 6 7(open): achieved goals are 1, 2, ...; a block of six steps from the first.

    The first piece can only have goal 4, which its third step reaches; within 1 of it is also the second step's 3. The
    second piece, whose slots 5, 6, 7 are all that the episode has, ends in the block at 7.
    """
    diary = play("..T..", capacity=20, history=1, num_streams=1)
    slots = np.arange(7)[None]
    blocks = promote_slots(diary.memory, slots, discount=DISCOUNT, length=6)
    other = relabel(blocks, make_goals(), share=1.0, strategy="future", rng=np.random.default_rng(0))
    assert other.relabelled is not None
    assert other.relabelled.goals[:, 0].tolist() == [4, 4, 4, 4, 7, 7, 7]
    assert other.rewards[0].tolist() == [-1, 0, 0, 0, 0, 0]  # the fourth slot is no step
    assert other.transitions.terminated[0, :6].tolist() == [False, True, True, False, True, True]
    assert blocks.rewards[0].tolist() == [0, 1, 2, 0, 3, 4]


def test_future_draws_uniformly_from_what_the_memory_still_holds() -> None:
    """A block of two steps at the start of an episode of eight: goals 3 to 9, each as often as any other."""
    diary = play("........", capacity=20, history=1, num_streams=1)
    slots = np.repeat(np.arange(3)[None], 7_000, axis=0)
    drawn = goal_slots(
        diary.memory, slots, np.ones(slots.shape, np.bool_), strategy="future", rng=np.random.default_rng(1)
    )
    assert (drawn == drawn[:, :1]).all()
    counts = np.bincount(drawn[:, 0], minlength=9)
    assert counts[:2].tolist() == [0, 0]
    assert (np.abs(counts[2:] - 1_000) < 4 * 30).all()  # four standard deviations


def test_steps_left_reach_over_the_ring_s_end_but_not_over_an_episode_s() -> None:
    """Window 6, slots numbered 0 … 9: 0 1 2(U) 3 | 4 5 6(T) 7 | 8 9, of which 4 … 9 are left, 6 and on at places 0 …"""
    memory = play("..U..T.", capacity=6, history=1, num_streams=1).memory
    numbers = np.arange(4, 10)
    assert memory.written == (10,)
    assert memory.steps_left(memory.ring.slot(0, numbers)).tolist() == [3, 2, 1, 0, 1, 0]
    assert memory.ring.after(np.array([4, 5]), np.array([1, 2])).tolist() == [5, 1]


# --- identity ---------------------------------------------------------------------------------------------------------


def test_nothing_is_relabelled_or_drawn_where_the_share_is_zero() -> None:
    diary = play("...T" * 5, capacity=40, history=1, num_streams=1)
    blocks = lr.promote(diary.memory, discount=0.9, size=20, block_length=4, rng=np.random.default_rng(0))
    rng = np.random.default_rng(3)
    assert relabel(blocks, make_goals(), share=0.0, strategy="future", rng=rng) is blocks
    assert rng.bit_generator.state == np.random.default_rng(3).bit_generator.state


def test_states_that_show_their_own_goals_are_unchanged() -> None:
    diary = play("...T..U...", capacity=40, history=3, num_streams=1)
    slots = np.array([0, 1, 2, 5, 6, 9])
    states = diary.memory.states(slots)
    own = Relabelled(diary.memory.observations[slots][:, 1:2], slice(1, 2))
    shown = own.show(states.copy(), np.arange(6), diary.memory.frames[slots])
    assert np.array_equal(shown, states)
    assert (states[0, :2] == 0).all()  # frames before the first stay zero


def test_a_cache_counts_its_goals_and_describes_their_returns() -> None:
    diary = play("...T" * 5, capacity=40, history=1, num_streams=1)
    rng = np.random.default_rng(0)
    blocks = lr.promote(diary.memory, discount=0.9, size=20, block_length=4, rng=rng)
    estimator = lr.parse_estimator("peng:0.5")
    plain = lr.build_cache(blocks, lr.QCritic(q_function), estimator)
    other = lr.build_cache(
        relabel(blocks, make_goals(), share=0.6, strategy="final", rng=rng), lr.QCritic(q_function), estimator
    )
    assert other.nbytes == plain.nbytes + 3 * 4 * 4  # three blocks of four goals, a float32 each
    drawn = other.is_transition
    assert other.metrics["relabelled_share"] == drawn[:12].sum() / drawn.sum()
    assert other.metrics["relabelled_return_mean"] == pytest.approx(other.returns[:12][drawn[:12]].mean())
    assert "relabelled_share" not in plain.metrics
