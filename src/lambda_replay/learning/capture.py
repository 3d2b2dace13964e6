"""Recording a function on CUDA and playing it again: for small batches, launching kernels costs more than running them.

What is recorded is the learner's business. Nothing here runs on other devices but its tests, with a recorder of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]
WARM_UP = 3  # calls as usual before the recording, in which libraries choose their kernels and reserve memory


class Recording(NamedTuple):
    """``replay`` computes the outputs, where they lie, from the inputs, where they lie."""

    replay: Callable[[], None]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def record_graph(function: Function, inputs: tuple[Tensor, ...]) -> Recording:
    """The kernels that the function launches for inputs of these shapes, as one CUDA graph; nothing is computed yet."""
    own = tuple(tensor.clone() for tensor in inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*own)
    return Recording(graph.replay, own, outputs)


class Captured:
    """A function of tensors with effects of its own: called as usual at first, then recorded once and played again.

    The shapes of the inputs must stay as they are, and what else the function reads must stay where it is.
    """

    def __init__(
        self, function: Function, record: Callable[[Function, tuple[Tensor, ...]], Recording] = record_graph
    ) -> None:
        self._function, self._record = function, record
        self._num_calls = 0
        self._recording: Recording | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self._num_calls < WARM_UP:
            self._num_calls += 1
            return self._function(*inputs)
        if self._recording is None:
            self._recording = self._record(self._function, inputs)
        for place, given in zip(self._recording.inputs, inputs, strict=True):
            assert place.shape == given.shape
            place.copy_(given)
        self._recording.replay()
        return tuple(output.clone() for output in self._recording.outputs)  # the next replay writes over them
