"""The replay memory: a ring of observations per stream, each stored once; what is learnt from it is decided elsewhere.

Slot t holds o_t, a_t, r_t, μ(a_t|s_t) and whether a_t terminated the episode. Every episode, terminated or truncated,
closes with one more slot that holds its final observation and no action. So the successor of slot t is always slot
t+1, truncation bootstraps from the true final observation, and nothing needs a special case: an episode goes on
after t exactly where it did not terminate and slot t+1 has an action.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lambda_replay.data import NO_ACTION, Booleans, Floats, Integers
from lambda_replay.errors import ConfigError, DamageError

MAX_HISTORY = 255  # the number of frames since the episode began is kept in one byte


class Transitions(NamedTuple):
    """What the memory knows of some slots, beside their states; any shape."""

    actions: Integers  # NO_ACTION where none was taken
    rewards: Floats
    behaviour_probs: Floats  # 1 where no action was taken
    terminated: Booleans


class ReplayMemory:
    """``num_streams`` independent rings that share ``capacity`` slots evenly, in RAM or memory-mapped in ``directory``.

    A stream's window is its newest ``capacity // num_streams`` slots. ``spare`` more slots per stream delay the moment
    in which a slot that left the window is overwritten, so that checkpoints can rely on it a while longer.
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
    ) -> None:
        if not 1 <= history <= MAX_HISTORY:
            raise ConfigError(f"history is {history}; give a number of frames from 1 to {MAX_HISTORY}.")
        if num_streams < 1 or capacity // max(1, num_streams) < history + 1:
            raise ConfigError(
                f"capacity ({capacity}) is too small for {num_streams} streams with a history of {history}; "
                f"give at least {max(1, num_streams) * (history + 1)} slots."
            )
        self.observation_shape = tuple(observation_shape)
        self.history = history
        self.num_streams = num_streams
        self.window = capacity // num_streams  # slots per stream that can be sampled
        self.ring = self.window + spare  # slots per stream that are stored
        slots = num_streams * self.ring
        place = None if directory is None else Path(directory)
        self.observations = _allocate(place, "observations", (slots, *self.observation_shape), observation_dtype)
        self.actions = _allocate(place, "actions", (slots,), np.int32)
        self.rewards = _allocate(place, "rewards", (slots,), np.float32)
        self.behaviour_probs = _allocate(place, "behaviour_probs", (slots,), np.float32)
        self.terminated = _allocate(place, "terminated", (slots,), np.bool_)
        self.frames = _allocate(place, "frames", (slots,), np.uint8)  # of the episode up to here, at most ``history``
        self._written = [0] * num_streams  # slots ever written, per stream
        self._is_open = [False] * num_streams  # whether an episode is going on, per stream

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything stored, by the name of its file; the first axis is the slot."""
        names = ("observations", "actions", "rewards", "behaviour_probs", "terminated", "frames")
        return {name: getattr(self, name) for name in names}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def written(self) -> tuple[int, ...]:
        """How many slots each stream has ever written."""
        return tuple(self._written)

    def begin(self, observation: NDArray[Any], stream: int = 0) -> None:
        """Store the first observation of an episode."""
        if self._is_open[stream]:
            raise ConfigError(f"stream {stream} is in the middle of an episode; end it with append before begin.")
        self._write_observation(observation, stream, frames=1)
        self._is_open[stream] = True

    def append(
        self,
        action: int,
        reward: float,
        next_observation: NDArray[Any],
        terminated: bool = False,
        truncated: bool = False,
        behaviour_prob: float = 1.0,
        stream: int = 0,
    ) -> None:
        """Store what the action in the newest slot did, and the observation that followed in a slot of its own."""
        if not self._is_open[stream]:
            raise ConfigError(f"stream {stream} has no episode; call begin with its first observation.")
        if action < 0 or not math.isfinite(reward) or not 0 < behaviour_prob <= 1:
            raise ConfigError(
                f"append got action {action}, reward {reward}, behaviour_prob {behaviour_prob}; "
                "give an action of 0 or more, a finite reward and a probability above 0 and up to 1."
            )
        slot = self._slot(stream, self._written[stream] - 1)
        self._write_observation(next_observation, stream, frames=min(int(self.frames[slot]) + 1, self.history))
        self.actions[slot] = action
        self.rewards[slot] = reward
        self.behaviour_probs[slot] = behaviour_prob
        self.terminated[slot] = terminated
        self._is_open[stream] = not (terminated or truncated)

    def abandon(self, stream: int = 0) -> None:
        """End the stream's episode where it stands, as if its last action had truncated it."""
        self._is_open[stream] = False

    def _write_observation(self, observation: NDArray[Any], stream: int, frames: int) -> None:
        if np.shape(observation) != self.observation_shape:
            raise ConfigError(
                f"an observation has shape {np.shape(observation)}, but the memory takes {self.observation_shape}."
            )
        slot = self._slot(stream, self._written[stream])
        self.observations[slot] = observation
        self.frames[slot] = frames
        self._clear_action(slot)
        self._written[stream] += 1

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

        ``reserve``: leave out the slots that the next so many steps of each stream will push out of the window.
        """
        starts = [self._starts(stream, length, reserve) for stream in range(self.num_streams)]
        ends = np.cumsum([len(numbers) for numbers in starts])  # [streams]
        if ends[-1] == 0:
            raise ConfigError(
                f"the memory has too few slots for a block of {length} steps (slots written per stream: "
                f"{self._written}, window {self.window}); store more first or take shorter blocks."
            )
        drawn = rng.integers(ends[-1], size=num_blocks)  # [K]
        streams = np.searchsorted(ends, drawn, side="right")
        firsts = np.array([numbers.start for numbers in starts]) - np.concatenate([[0], ends[:-1]])
        numbers = (drawn + firsts[streams])[:, None] + np.arange(length + 1)  # [K, L+1]
        return streams[:, None] * self.ring + numbers % self.ring

    def transitions(self, slots: Integers) -> Transitions:
        """Actions, rewards and terminations of slots of any shape."""
        return Transitions(
            self.actions[slots], self.rewards[slots], self.behaviour_probs[slots], self.terminated[slots]
        )

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

    def flush(self) -> None:
        """Bring what is memory-mapped to the disk."""
        for array in self.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()

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


def _allocate(directory: Path | None, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array in RAM, or one mapped to ``directory/name.bin``, whose content is kept if the file exists."""
    if directory is None:
        return np.zeros(shape, dtype)
    path, wanted = directory / f"{name}.bin", math.prod(shape) * np.dtype(dtype).itemsize
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            # Claim the disk space now: a full disk later would kill the process (SIGBUS) instead of raising an error.
            os.posix_fallocate(file.fileno(), 0, wanted)
    found = path.stat().st_size
    if found != wanted:
        raise DamageError(
            f"{path} has {found} bytes, but this memory needs {wanted}; it is damaged or another memory's."
        )
    return np.memmap(path, mode="r+", dtype=dtype, shape=shape)
