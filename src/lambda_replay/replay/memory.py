"""The replay memory: a ring of observations per stream, each stored once; what is learnt from it is decided elsewhere.

Slot t holds o_t, a_t, r_t, μ(a_t|s_t) and whether a_t terminated the episode. Every episode, terminated or truncated,
closes with one more slot that holds its final observation and no action. So the successor of slot t is always t+1,
truncation bootstraps from the final observation, and an episode goes on after t where slot t+1 has an action.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import NO_ACTION, Integers, Transitions
from lambda_replay.replay.storage import Layout, allocate, flush

MAX_HISTORY = 255  # the number of frames since the episode began is kept in one byte
MAX_ACTION, MAX_REWARD = int(np.iinfo(np.int32).max), float(np.finfo(np.float32).max)  # what a slot can hold
MIN_PROB = float(np.finfo(np.float32).tiny)


class ReplayMemory:
    """``num_streams`` independent rings that share ``capacity`` slots evenly, in RAM or memory-mapped in ``directory``.

    A stream's window is its newest ``capacity // num_streams`` slots; ``spare`` more per stream are overwritten later.
    A directory that holds a memory's files is refused unless ``reopen`` is true; ``set_state`` then says where the
    rings stand.
    """

    def __init__(
        self,
        capacity: int,
        observation_shape: tuple[int, ...],
        observation_dtype: DTypeLike,
        history: int = 1,
        num_streams: int = 1,
        *,
        spare: int = 0,
        directory: str | os.PathLike[str] | None = None,
        reopen: bool = False,
    ) -> None:
        if np.dtype(observation_dtype).kind not in "fiub":
            raise ConfigError(
                f"observation_dtype is {np.dtype(observation_dtype)}; give one of floats, integers or booleans."
            )
        if not 1 <= history <= MAX_HISTORY:
            raise ConfigError(f"history is {history}; give a number of frames from 1 to {MAX_HISTORY}.")
        if num_streams < 1 or spare < 0 or capacity // max(1, num_streams) < history + 1:
            raise ConfigError(
                f"capacity ({capacity}, spare {spare}) is too small for {num_streams} streams with a history of "
                f"{history}; give 1 stream or more, and each of them {history + 1} slots or more."
            )
        self.observation_shape = tuple(observation_shape)
        self.history = history
        self.num_streams = num_streams
        self.window = capacity // num_streams  # slots per stream that can be sampled
        self.ring = self.window + spare  # slots per stream that are stored
        slots = num_streams * self.ring
        layout: Layout = {
            "observations": ((slots, *self.observation_shape), observation_dtype),
            "actions": ((slots,), np.int32),
            "rewards": ((slots,), np.float32),
            "behaviour_probs": ((slots,), np.float32),
            "terminated": ((slots,), np.bool_),
            "frames": ((slots,), np.uint8),
        }
        # Everything stored, by the name of its file; the first axis is the slot.
        self.arrays = allocate(None if directory is None else Path(directory), layout, reopen=reopen)
        self.observations = self.arrays["observations"]
        self.actions = self.arrays["actions"]
        self.rewards = self.arrays["rewards"]
        self.behaviour_probs = self.arrays["behaviour_probs"]
        self.terminated = self.arrays["terminated"]
        self.frames = self.arrays["frames"]  # of the episode up to here, at most ``history``
        self._written = [0] * num_streams  # slots ever written, per stream
        self._is_open = [False] * num_streams  # whether an episode is going on, per stream

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def written(self) -> tuple[int, ...]:
        """How many slots each stream has ever written."""
        return tuple(self._written)

    def begin(self, observation: NDArray[Any], stream: int = 0) -> None:
        """Store the first observation of an episode; a call that is refused leaves the memory as it was."""
        stream = self._checked(stream)
        if self._is_open[stream]:
            raise ConfigError(f"stream {stream} is in the middle of an episode; end it with append before begin.")
        self._write_observation(self._storable(observation), stream, frames=1)
        self._written[stream] += 1
        self._is_open[stream] = True

    def append(
        self,
        action: SupportsIndex | np.bool_,
        reward: float,
        next_observation: NDArray[Any],
        terminated: bool | np.bool_ = False,
        truncated: bool | np.bool_ = False,
        behaviour_prob: float = 1.0,
        stream: int = 0,
    ) -> None:
        """Store what the action in the newest slot did, and the observation that followed in a slot of its own.

        A call that is refused leaves the memory as it was.
        """
        stream = self._checked(stream)
        if not self._is_open[stream]:
            raise ConfigError(f"stream {stream} has no episode; call begin with its first observation.")
        try:
            number = int(action) if isinstance(action, np.bool_) else operator.index(action)
            amount, prob = float(reward), float(behaviour_prob)
            is_terminated, is_truncated = bool(terminated), bool(truncated)
            is_sound = 0 <= number <= MAX_ACTION and abs(amount) <= MAX_REWARD and MIN_PROB <= prob <= 1
        except (TypeError, ValueError, OverflowError):
            is_sound = False
        if not is_sound:
            raise ConfigError(
                f"append got action {_shown(action)}, reward {_shown(reward)}, behaviour_prob "
                f"{_shown(behaviour_prob)}, terminated {_shown(terminated)}, truncated {_shown(truncated)}; give an "
                f"integer action up to {MAX_ACTION}, a finite 32-bit reward, a probability from {MIN_PROB:.0e} to 1, "
                "and True or False for the last two."
            )
        storable = self._storable(next_observation)
        # Everything has been checked: nothing below can fail and leave a step half written.
        slot = self._slot(stream, self._written[stream] - 1)
        self._write_observation(storable, stream, frames=min(int(self.frames[slot]) + 1, self.history))
        self.actions[slot] = number
        self.rewards[slot] = amount
        self.behaviour_probs[slot] = prob
        self.terminated[slot] = is_terminated
        self._written[stream] += 1
        self._is_open[stream] = not (is_terminated or is_truncated)

    def abandon(self, stream: int = 0) -> None:
        """End the stream's episode where it stands, as if its last action had truncated it."""
        self._is_open[self._checked(stream)] = False

    def _storable(self, observation: NDArray[Any]) -> NDArray[Any]:
        """The observation in the memory's dtype, or a sentence about what would be lost."""
        stored = self.observations.dtype
        is_float = stored.kind == "f"
        try:
            given = np.asarray(observation)
        except ValueError:  # lists of different lengths
            raise ConfigError(
                f"an observation is not an array; give {stored} of shape {self.observation_shape}."
            ) from None
        if given.shape != self.observation_shape or given.dtype.kind not in ("fiub" if is_float else "iub"):
            raise ConfigError(
                f"an observation is {given.dtype} of shape {given.shape}, but the memory takes {stored} of "
                f"shape {self.observation_shape}; convert it, or make the memory for it."
            )
        # Without a conversion there is nothing to lose, so that pictures are not scanned.
        converted = given if given.dtype == stored else _converted(given, stored)
        if is_float and np.count_nonzero(np.isfinite(converted)) != converted.size:
            raise ConfigError(
                f"an observation holds a value that is not finite as {stored}; repair or clip it before it is stored."
            )
        return converted

    def _write_observation(self, observation: NDArray[Any], stream: int, frames: int) -> None:
        """Fill the stream's next slot, which is not yet counted as written."""
        slot = self._slot(stream, self._written[stream])
        self.observations[slot] = observation
        self.frames[slot] = frames
        self._clear_action(slot)

    def _checked(self, stream: object) -> int:
        if not isinstance(stream, (int, np.integer)) or not 0 <= stream < self.num_streams:
            raise ConfigError(
                f"there is no stream {_shown(stream)}; this memory has {self.num_streams}, counted from 0."
            )
        return int(stream)

    def _clear_action(self, slot: int) -> None:
        self.actions[slot] = NO_ACTION
        self.rewards[slot] = 0.0
        self.behaviour_probs[slot] = 1.0
        self.terminated[slot] = False

    def _slot(self, stream: int, number: int) -> int:
        """Where the stream's ``number``-th slot (counted from its first ever) is stored."""
        return stream * self.ring + number % self.ring

    def _starts(self, stream: int, length: int, reserve: int) -> range:
        """Numbers of the slots at which a block of ``length`` steps may start.

        Its last successor is at most the newest slot, and its first state needs no frame that left the window.
        """
        written = self._written[stream]
        oldest = max(0, written + reserve - self.window)
        first = oldest + (self.history - 1 if oldest > 0 else 0)
        return range(first, max(first, written - length))

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        total = 0
        for stream in range(self.num_streams):
            numbers = self._starts(stream, length=1, reserve=0)
            slots = stream * self.ring + np.arange(numbers.start, numbers.stop) % self.ring
            total += int(np.count_nonzero(self.actions[slots] != NO_ACTION))
        return total

    def sample_blocks(self, num_blocks: int, length: int, rng: np.random.Generator, reserve: int = 0) -> Integers:
        """Slots [K, L+1] of blocks that start uniformly at random; overlaps allowed, with replacement.

        ``reserve``: leave out the oldest slots, which so many new ones in each stream would push out of the window.
        """
        if length < 1 or reserve < 0:
            raise ConfigError(
                f"a block has {length} steps and the reserve is {reserve}; give 1 or more, and 0 or more."
            )
        starts = [self._starts(stream, length, reserve) for stream in range(self.num_streams)]
        ends = np.cumsum([len(numbers) for numbers in starts])  # [streams]
        if ends[-1] == 0:
            raise ConfigError(
                f"the memory has too few slots for a block of {length} steps (slots written per stream: "
                f"{self._written}, window {self.window}, reserve {reserve}); store more first, take shorter blocks or "
                "a smaller reserve."
            )
        drawn = rng.integers(ends[-1], size=num_blocks)  # [K]
        streams = np.searchsorted(ends, drawn, side="right")
        firsts = np.array([numbers.start for numbers in starts]) - np.concatenate([[0], ends[:-1]])
        numbers = (drawn + firsts[streams])[:, None] + np.arange(length + 1)  # [K, L+1]
        return streams[:, None] * self.ring + numbers % self.ring

    def transitions(self, slots: Integers) -> Transitions:
        """Actions, rewards and terminations of slots of any shape."""
        stored = (self.actions, self.rewards, self.behaviour_probs, self.terminated)
        return Transitions(*(array[slots] for array in stored))

    def states(self, slots: Integers) -> NDArray[Any]:
        """States [n, F, *observation] of slots [n]; frames before the start of the episode are zero."""
        if self.history == 1:
            return self.observations[slots][:, None]
        ages = np.arange(self.history - 1, -1, -1)  # [F]  how long ago each frame was
        positions = slots % self.ring
        sources = (slots - positions)[:, None] + (positions[:, None] - ages) % self.ring  # [n, F]
        states = self.observations[sources]
        states[ages >= self.frames[slots][:, None]] = 0
        return states

    def newest_states(self) -> NDArray[Any]:
        """The state [streams, F, *observation] in which each stream must act next."""
        return self.states(self.newest_slots())

    def newest_slots(self) -> Integers:
        """The slot [streams] of each stream's newest observation."""
        return np.array([self._slot(stream, written - 1) for stream, written in enumerate(self._written)])

    def ages(self, slots: Integers) -> Integers:
        """How many slots of its own stream came after each slot."""
        return (self.newest_slots()[slots // self.ring] - slots) % self.ring

    def lifetimes(self, slots: Integers) -> dict[int, int]:
        """Per stream of slots [n]: the most it may ever have written while the states of all of them are still stored.

        A state needs its episode's last ``history`` frames; the oldest of them is overwritten ``ring`` slots later.
        """
        written = np.array(self._written)  # read once: another thread may be storing steps
        streams, positions = slots // self.ring, slots % self.ring
        newest = written[streams] - 1
        numbers = newest - (newest - positions) % self.ring  # counted from the stream's first slot ever
        lasts = numbers - (self.frames[slots].astype(np.int64) - 1) + self.ring
        return {int(stream): int(lasts[streams == stream].min()) for stream in np.unique(streams)}

    def flush(self) -> None:
        """Bring what is memory-mapped to the disk."""
        for array in self.arrays.values():
            flush(array)

    def get_state(self) -> dict[str, list[int]]:
        """What the arrays do not say: where each ring stands."""
        return {"written": list(self._written), "is_open": [int(is_open) for is_open in self._is_open]}

    def set_state(self, state: dict[str, list[int]]) -> None:
        """Go back to where the rings stood; what was written after that is forgotten."""
        assert len(state["written"]) == len(state["is_open"]) == self.num_streams
        self._written = list(state["written"])
        self._is_open = [bool(is_open) for is_open in state["is_open"]]
        for stream, written in enumerate(self._written):
            if written > 0:
                self._clear_action(self._slot(stream, written - 1))


def _converted(observation: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The observation in another dtype: floats are rounded, integers and booleans must keep their values."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinite floats and integers that wrap are refused by value
        converted = observation.astype(dtype)
        is_exact = (
            observation.dtype.kind == "f"
            or np.can_cast(observation.dtype, dtype)
            # The comparison alone is blind to what float64 rounds, the way back alone to a change of sign.
            or (
                np.array_equal(converted, observation)
                and np.array_equal(converted.astype(observation.dtype), observation)
            )
        )
    if not is_exact:
        raise ConfigError(
            f"an observation is {observation.dtype} with values from {observation.min()} to {observation.max()}, which "
            f"{dtype} does not hold exactly; convert it, or make the memory for it."
        )
    return converted


def _shown(value: object) -> str:
    """A value for a sentence: itself if it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"of type {type(value).__name__}"
