"""Where the slots of a stream are stored: one ring per stream, side by side in the same arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lambda_replay.replay.data import Booleans, Integers


class Ring(NamedTuple):
    """A stream numbers its slots from 0; slot ``number`` is stored at ``slot(stream, number)``."""

    size: int  # slots per stream that are stored

    def slot(self, stream: Any, number: Any) -> Any:
        """Where slots with these numbers are stored; integers or arrays."""
        return stream * self.size + number % self.size

    def stream(self, slots: Integers) -> Integers:
        """The stream of each slot."""
        return slots // self.size

    def before(self, slots: Integers, distances: Integers) -> Integers:
        """The slots [n, d] at these distances before each slot [n] in its stream."""
        positions = slots % self.size
        return (slots - positions)[:, None] + (positions[:, None] - distances) % self.size

    def after(self, slots: Integers, distances: Integers) -> Integers:
        """The slots at these distances after slots of the same shape, each in its stream."""
        positions = slots % self.size
        return slots - positions + (positions + distances) % self.size

    def spans(self, stream: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Slots numbered ``first`` up to ``last`` as one range, or two if they wrap around the ring's end."""
        while first < last:
            place = first % self.size
            length = min(last - first, self.size - place)
            yield stream * self.size + place, stream * self.size + place + length
            first += length


def count_steps(is_step: Booleans, ring: Ring, stream: int, numbers: range) -> int:
    """How many of a stream's slots with these numbers are steps."""
    spans = ring.spans(stream, numbers.start, numbers.stop)
    return sum(int(np.count_nonzero(is_step[first:last])) for first, last in spans)
