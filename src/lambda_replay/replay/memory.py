"""The replay memory: a ring of observations per stream, each stored once.

Slot t holds o_t, a_t, r_t, μ(a_t|s_t) and whether a_t terminated the episode. Every episode, terminated or truncated,
closes with one more slot that holds its final observation and no action. So the successor of slot t is always t+1,
truncation bootstraps from the final observation, and an episode continues after t if slot t+1 is a step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Before, Integers, Transitions
from lambda_replay.replay.ring import Ring, count_steps
from lambda_replay.replay.saved_memory import Settings, read_memory, write_memory
from lambda_replay.replay.storable import check_sizes, shown, storable_array, storable_columns, storable_step
from lambda_replay.replay.storage import OWN_ARRAYS, Columns, allocate, flush, memory_layout

STATE = ("written", "is_open")  # of a memory, besides its arrays; a number for each stream


class ReplayMemory:
    """``num_streams`` independent rings that share ``capacity`` slots evenly, in RAM or memory-mapped in ``directory``.

    A stream's window is its newest ``capacity // num_streams`` slots; ``spare`` more per stream delay overwriting.
    A directory that already holds a memory is rejected unless ``reopen`` is true; ``set_state`` then restores the ring
    positions. Actions are integers or, with an ``action_shape``, float32 vectors, whose ``behaviour_prob`` is the
    logarithm of the density, or of the probability. ``columns`` are additional values of each step, by name.
    """

    def __init__(
        self,
        capacity: int,
        observation_shape: tuple[int, ...],
        observation_dtype: DTypeLike,
        history: int = 1,
        num_streams: int = 1,
        *,
        action_shape: tuple[int, ...] = (),
        columns: Columns | None = None,
        spare: int = 0,
        directory: str | os.PathLike[str] | None = None,
        reopen: bool = False,
    ) -> None:
        check_sizes(capacity, history, num_streams, spare)
        self.observation_shape, self.action_shape = tuple(observation_shape), tuple(action_shape)
        self.columns = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in (columns or {}).items()}
        self.history, self.num_streams = history, num_streams
        self.window = capacity // num_streams  # slots per stream that can be sampled
        self.ring = Ring(self.window + spare)
        layout = memory_layout(
            num_streams * self.ring.size, self.observation_shape, observation_dtype, self.action_shape, self.columns
        )
        # Everything stored, by the name of its file; the first axis is the slot.
        self.arrays = allocate(None if directory is None else Path(directory), layout, reopen=reopen)
        self.observations, self.actions, self.rewards = (self.arrays[name] for name in OWN_ARRAYS[:3])
        self.behaviour_probs, self.terminated, self.is_step, self.frames = (self.arrays[n] for n in OWN_ARRAYS[3:])
        self._written = [0] * num_streams  # slots ever written, per stream
        self._is_open = [False] * num_streams  # whether an episode is in progress, per stream
        self._num_steps = [0] * num_streams  # steps that can be sampled, per stream

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def written(self) -> tuple[int, ...]:
        """How many slots each stream has ever written."""
        return tuple(self._written)

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return sum(self._num_steps)

    def begin(self, observation: NDArray[Any], stream: int = 0) -> None:
        """Store the first observation of an episode; a rejected call leaves the memory unchanged."""
        stream = self._checked(stream)
        if self._is_open[stream]:
            raise ConfigError(
                f"stream {stream} is in the middle of an episode; end it with append before calling begin."
            )
        storable = storable_array("an observation", observation, self.observation_shape, self.observations.dtype)
        self._write_observation(storable, stream, frames=1, has_step=False)
        self._is_open[stream] = True

    def append(
        self,
        action: Any,
        reward: float,
        next_observation: NDArray[Any],
        terminated: bool | np.bool_ = False,
        truncated: bool | np.bool_ = False,
        behaviour_prob: float = 1.0,
        stream: int = 0,
        **columns: Any,
    ) -> None:
        """Store the action taken in the newest slot and its outcome, and the next observation in a new slot.

        A rejected call leaves the memory unchanged.
        """
        stream = self._checked(stream)
        if not self._is_open[stream]:
            raise ConfigError(f"stream {stream} has no open episode; call begin with its first observation.")
        is_vector = bool(self.action_shape)
        number, amount, prob, is_terminated, is_truncated = storable_step(
            action, reward, behaviour_prob, terminated, truncated, is_vector=is_vector
        )
        if is_vector:
            number = storable_array("an action", action, self.action_shape, self.actions.dtype)
        extras = storable_columns(columns, self.columns) if columns or self.columns else {}
        storable = storable_array("an observation", next_observation, self.observation_shape, self.observations.dtype)
        # Everything has been checked: nothing below can fail and leave a step half written.
        slot = self.ring.slot(stream, self._written[stream] - 1)
        self.actions[slot], self.rewards[slot], self.behaviour_probs[slot] = number, amount, prob
        self.terminated[slot], self.is_step[slot] = is_terminated, True
        for name, value in extras.items():
            self.arrays[name][slot] = value
        self._write_observation(storable, stream, frames=min(int(self.frames[slot]) + 1, self.history), has_step=True)
        self._is_open[stream] = not (is_terminated or is_truncated)

    def abandon(self, stream: int = 0) -> None:
        """End the stream's episode now, as if its last action had truncated it."""
        self._is_open[self._checked(stream)] = False

    def _checked(self, stream: object) -> int:
        if not isinstance(stream, (int, np.integer)) or not 0 <= stream < self.num_streams:
            raise ConfigError(f"there is no stream {shown(stream)}; streams run from 0 to {self.num_streams - 1}.")
        return int(stream)

    def _write_observation(self, observation: NDArray[Any], stream: int, frames: int, *, has_step: bool) -> None:
        """Fill the stream's next slot; ``has_step``: whether the slot before it now holds a step."""
        written = self._written[stream]
        self._recount(stream, written, has_step=has_step)  # before anything is written over
        slot = self.ring.slot(stream, written)
        self.observations[slot] = observation
        self.frames[slot] = frames
        self._clear_action(slot)
        self._written[stream] = written + 1

    def _recount(self, stream: int, written: int, *, has_step: bool) -> None:
        """Count the steps that can be sampled once slot ``written`` is there, in constant time."""
        next_first = self._first(written + 1)
        # These leave, one at a time once the window is full.
        for number in range(self._first(written), min(next_first, written - 1)) if next_first else ():
            self._num_steps[stream] -= bool(self.is_step[self.ring.slot(stream, number)])
        self._num_steps[stream] += has_step and written > next_first

    def _clear_action(self, slot: int) -> None:
        self.actions[slot] = 0
        self.rewards[slot] = 0.0
        self.behaviour_probs[slot] = 0.0 if self.action_shape else 1.0
        self.terminated[slot] = self.is_step[slot] = False
        for name in self.columns:
            self.arrays[name][slot] = 0

    def _first(self, written: int) -> int:
        """The oldest slot that can be sampled: its state needs no frame that left the window."""
        oldest = written - self.window
        return oldest + self.history - 1 if oldest > 0 else 0

    def _starts(self, stream: int, length: int, reserve: int) -> range:
        """Numbers of the slots at which a block may start; its last successor is at most the newest slot."""
        written = self._written[stream]
        first = self._first(written + reserve)
        return range(first, max(first, written - length))

    def sample_blocks(self, num_blocks: int, length: int, rng: np.random.Generator, reserve: int = 0) -> Integers:
        """Slots [K, L+1] of blocks that start uniformly at random; blocks may overlap and repeat.

        ``reserve``: skip the oldest slots, which this many new ones per stream would push out of the window.
        """
        if length < 1 or reserve < 0:
            raise ConfigError(f"length is {length} and reserve is {reserve}; give 1 or more, and 0 or more.")
        starts = [self._starts(stream, length, reserve) for stream in range(self.num_streams)]
        ends = list(accumulate(len(numbers) for numbers in starts))  # [streams]
        if ends[-1] == 0:
            raise ConfigError(
                f"the memory has too few slots for a block of {length} steps (slots written per stream: "
                f"{self._written}, window {self.window}, reserve {reserve}); store more first, or use shorter blocks "
                "or a smaller reserve."
            )
        drawn = rng.integers(ends[-1], size=num_blocks)  # [K]
        streams = np.searchsorted(ends, drawn, side="right")
        firsts = np.array([numbers.stop - end for numbers, end in zip(starts, ends, strict=True)])
        numbers = (drawn + firsts[streams])[:, None] + np.arange(length + 1)  # [K, L+1]
        slots: Integers = self.ring.slot(streams[:, None], numbers)
        return slots

    def transitions(self, slots: Integers) -> Transitions:
        """Actions, rewards, terminations and columns of slots of any shape."""
        return Transitions(
            self.actions[slots],
            self.rewards[slots],
            self.behaviour_probs[slots],
            self.terminated[slots],
            self.is_step[slots],
            {name: self.arrays[name][slots] for name in self.columns},
        )

    def states(self, slots: Integers) -> NDArray[Any]:
        """States [n, F, *observation] of slots [n]; frames before the start of the episode are zero."""
        if self.history == 1:
            return self.observations[slots][:, None]
        ages = np.arange(self.history - 1, -1, -1)  # [F]  how long ago each frame was
        states = self.observations[self.ring.before(slots, ages)]
        states[ages >= self.frames[slots][:, None]] = 0
        return states

    def newest_states(self) -> NDArray[Any]:
        """The state [streams, F, *observation] in which each stream must act next."""
        return self.states(self.newest_slots())

    def newest_slots(self) -> Integers:
        """The slot [streams] of each stream's newest observation."""
        return np.array([self.ring.slot(stream, written - 1) for stream, written in enumerate(self._written)])

    def newest_blocks(self, length: int) -> Integers:
        """Slots [streams, L+1] of the block of each stream that ends with its newest slot."""
        starts = [self._starts(stream, length, reserve=0) for stream in range(self.num_streams)]
        if length < 1 or not all(starts):
            raise ConfigError(
                f"a newest block of {length} steps needs {length + 1} slots in every stream (slots written: "
                f"{self._written}, window {self.window}); store more first, or use shorter blocks."
            )
        numbers = np.array([start[-1] for start in starts])[:, None] + np.arange(length + 1)  # [streams, L+1]
        slots: Integers = self.ring.slot(np.arange(self.num_streams)[:, None], numbers)
        return slots

    def before_newest(self) -> Before:
        """What led to each stream's newest observation [streams]; the slot before an episode's first is not a step."""
        slots = self.ring.before(self.newest_slots(), np.ones(1, dtype=np.int64))[:, 0]
        has_before = self.is_step[slots] & (np.array(self._written) > 1)
        actions, rewards = self.actions[slots], self.rewards[slots]
        return Before(~has_before, np.where(has_before, actions, 0), np.where(has_before, rewards, np.float32(0)))

    def newest_steps(self, count: int) -> Integers:
        """Slots [streams, L+1] of each stream's last ``count`` steps, in order, with the slots that close episodes.

        A row ends with its stream's newest slot, which is repeated where the row would be shorter than the others: a
        slot without a step, like the one that closes an episode, so it ends the row's returns and is never sampled.
        """
        if count < 1:
            raise ConfigError(f"count is {count}; give 1 or more.")
        firsts = [self._newest_steps_start(stream, count) for stream in range(self.num_streams)]
        newest = np.array(self._written) - 1  # [streams]
        length = max(last - first for first, last in zip(firsts, newest.tolist(), strict=True))
        numbers = np.minimum(np.array(firsts)[:, None] + np.arange(length + 1), newest[:, None])
        slots: Integers = self.ring.slot(np.arange(self.num_streams)[:, None], numbers)
        return slots

    def _newest_steps_start(self, stream: int, count: int) -> int:
        """The number of the first of the stream's last ``count`` steps."""
        written = self._written[stream]
        oldest = max(self._first(written), written - 1 - 2 * count)  # a step takes at most two slots
        numbers = np.arange(oldest, written)
        steps = numbers[self.is_step[self.ring.slot(stream, numbers)]]
        if count > len(steps):
            raise ConfigError(
                f"stream {stream} holds {len(steps)} steps, so its last {count} cannot be given; store more first."
            )
        return int(steps[-count])

    def steps_left(self, slots: Integers) -> Integers:
        """How many steps were taken in each slot's episode from that slot on; 0 for the slot that closes it."""
        left = np.zeros_like(slots)
        streams, numbers = (
            self.ring.stream(slots),
            np.array(self._written)[self.ring.stream(slots)] - 1 - self.ages(slots),
        )
        for stream in np.unique(streams).tolist():
            is_here = streams == stream
            first = int(numbers[is_here].min())
            spans = self.ring.spans(stream, first, self._written[stream])
            is_step = np.concatenate([self.is_step[start:stop] for start, stop in spans])  # from the first one on
            closings = np.flatnonzero(~is_step)  # the newest slot is one of them
            here = numbers[is_here] - first
            left[is_here] = closings[np.searchsorted(closings, here)] - here
        return left

    def ages(self, slots: Integers) -> Integers:
        """How many newer slots each slot has in its stream."""
        return (self.newest_slots()[self.ring.stream(slots)] - slots) % self.ring.size

    def lifetimes(self, slots: Integers) -> dict[int, int]:
        """Per stream of slots [n]: how many slots it may have written while all their states are still stored.

        A state needs its episode's last ``history`` frames; the oldest of them is overwritten one ring later.
        """
        streams = self.ring.stream(slots)
        numbers = np.array(self._written)[streams] - 1 - self.ages(slots)  # counted from the stream's first slot
        lasts = numbers - (self.frames[slots].astype(np.int64) - 1) + self.ring.size
        return {int(stream): int(lasts[streams == stream].min()) for stream in np.unique(streams)}

    def shows(self, observation: NDArray[Any], stream: int, number: int) -> bool:
        """Whether the stream's slot with that number holds the observation, or has left the window."""
        written = self._written[stream]
        if not written - self.window <= number < written:
            return number < written
        stored = self.observations[self.ring.slot(stream, number)]
        return np.array_equal(np.asarray(observation, dtype=stored.dtype), stored)

    def flush(self) -> None:
        """Write memory-mapped arrays to disk."""
        for array in self.arrays.values():
            flush(array)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that is stored to one file, whole or not at all; ``load`` reads it."""
        settings = Settings(
            window=self.window,
            spare=self.ring.size - self.window,
            history=self.history,
            num_streams=self.num_streams,
            observation_shape=self.observation_shape,
            observation_dtype=self.observations.dtype,
            action_shape=self.action_shape,
            columns=self.columns,
            **self.get_state(),
        )
        write_memory(Path(path), settings, self.arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, directory: str | os.PathLike[str] | None = None) -> ReplayMemory:
        """The memory that ``save`` wrote, in RAM or in new memory-mapped files in ``directory``.

        An episode that was open is still open: append to it, or end it with ``abandon``.
        """
        settings, arrays = read_memory(Path(path))
        memory = cls(
            settings.window * settings.num_streams,
            settings.observation_shape,
            settings.observation_dtype,
            settings.history,
            settings.num_streams,
            action_shape=settings.action_shape,
            columns=settings.columns,
            spare=settings.spare,
            directory=directory,
        )
        for name, array in arrays.items():
            memory.arrays[name][settings.slots] = array
        memory.set_state({"written": settings.written, "is_open": settings.is_open})
        return memory

    def get_state(self) -> dict[str, list[int]]:
        """The ring positions, which the arrays do not hold."""
        return {"written": list(self._written), "is_open": [int(is_open) for is_open in self._is_open]}

    def set_state(self, state: Mapping[str, list[int]]) -> None:
        """Restore the ring positions; anything written later is forgotten."""
        if {name: len(state.get(name, ())) for name in STATE} != dict.fromkeys(STATE, self.num_streams):
            raise ConfigError(
                f"the state is not that of a memory with {self.num_streams} streams; give what get_state returned."
            )
        self._written = list(state["written"])
        self._is_open = [bool(is_open) for is_open in state["is_open"]]
        for stream, written in enumerate(self._written):
            if written > 0:
                self._clear_action(self.ring.slot(stream, written - 1))
            numbers = self._starts(stream, length=1, reserve=0)
            self._num_steps[stream] = count_steps(self.is_step, self.ring, stream, numbers)
