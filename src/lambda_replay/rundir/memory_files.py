"""The replay memory's files as bytes: which slots a checkpoint relies on, and which observations games can give back.

Nothing here knows an environment: a slot is so many bytes in each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lambda_replay.replay.ring import Ring
from lambda_replay.replay.storage import Layout, allocate
from lambda_replay.rundir.checkpoints import ring_of, saved_config, window_of
from lambda_replay.rundir.memory_checksums import relied_on

OBSERVATIONS = "observations"  # the array that games can give back

Bytes = NDArray[np.uint8]
Arrays = dict[str, Bytes]  # by name: [streams · ring, bytes of a slot]
Span = tuple[int, int]  # rows of an array, from one up to another


class PackedGame(NamedTuple):
    """A game whose observations follow from its seed and actions; it fills slots ``first`` up to ``last``."""

    stream: int
    seed: int
    first: int
    last: int


class SlotMap(NamedTuple):
    """Where the memory's files hold what a checkpoint relies on."""

    ring: Ring
    window: int
    written: list[int]  # slots, by stream
    slot_bytes: dict[str, int]  # by array

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return len(self.written) * self.ring.size * sum(self.slot_bytes.values())

    def numbers(self, array: str, stream: int) -> range:
        """Numbers of a stream's slots."""
        return relied_on(array, self.written[stream], self.window)

    def spans(self, array: str, games: Iterable[PackedGame] = ()) -> Iterator[Span]:
        """All slots of all streams in their order; without the observations of ``games``, which are sorted."""
        left_out: dict[int, list[PackedGame]] = {}
        for game in games if array == OBSERVATIONS else ():
            left_out.setdefault(game.stream, []).append(game)
        for stream in range(len(self.written)):
            numbers = self.numbers(array, stream)
            place = numbers.start
            for game in left_out.get(stream, []):
                yield from self.ring.spans(stream, place, game.first)
                place = game.last
            yield from self.ring.spans(stream, place, numbers.stop)

    def rows(self, array: str, games: Iterable[PackedGame] = ()) -> int:
        return sum(last - first for first, last in self.spans(array, games))

    def holds(self, game: PackedGame) -> bool:
        """Whether a game lies within the slots; only one that is still open may begin before them."""
        if not 0 <= game.stream < len(self.written):
            return False
        numbers = self.numbers(OBSERVATIONS, game.stream)
        return 0 <= game.first < game.last <= numbers.stop and (
            game.first >= numbers.start or game.last == numbers.stop
        )

    def _layout(self) -> Layout:
        slots = len(self.written) * self.ring.size
        return {name: ((slots, size), np.uint8) for name, size in self.slot_bytes.items()}

    def create(self, directory: Path) -> Arrays:
        """New files of zeros, as a run makes them."""
        return allocate(directory, self._layout(), reopen=False)

    def open(self, directory: Path) -> Arrays:
        """Existing files, whose sizes have been checked, to be read only."""
        return {
            name: np.memmap(directory / f"{name}.bin", mode="r", dtype=dtype, shape=shape).view(np.ndarray)
            for name, (shape, dtype) in self._layout().items()
        }


def are_apart(games: Sequence[PackedGame]) -> bool:
    """Whether games are sorted and no slot belongs to two of them."""
    return all(
        one.stream < other.stream or (one.stream == other.stream and one.last <= other.first)
        for one, other in pairwise(games)
    )


def slot_map(state: Mapping[str, Any]) -> SlotMap:
    """Where the memory's files hold what the checkpoint with these plain values relies on."""
    config = saved_config(state)
    return SlotMap(ring_of(config), window_of(config), list(state["memory"]["written"]), dict(state["slot_bytes"]))
