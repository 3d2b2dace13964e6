"""A recorded function: the same effects and results as the function itself, wherever its recording begins.

There is no CUDA here: the recorder of these tests runs the function again on the recording's own inputs, into its own
outputs, which is what a graph does.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.capture import WARM_UP, Captured, Function, Recording
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.networks import MLP


def record_again(function: Function, inputs: tuple[Tensor, ...]) -> Recording:
    own = tuple(torch.full_like(tensor, 0) for tensor in inputs)
    outputs: list[Tensor] = []

    def replay() -> None:
        found = function(*own)
        if not outputs:
            outputs.extend(torch.empty_like(tensor) for tensor in found)
        for place, value in zip(outputs, found, strict=True):
            place.copy_(value)

    return Recording(replay, own, outputs)


def test_results_and_effects_are_those_of_the_function() -> None:
    total = torch.zeros(2)

    def add(numbers: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        total.add_(numbers * factor)
        return total.clone(), numbers - factor

    captured = Captured(add, record_again)
    found = [captured(torch.tensor([float(i), 1.0]), torch.tensor(2.0)) for i in range(WARM_UP + 3)]
    sums = [[2.0 * sum(range(i + 1)), 2.0 * (i + 1)] for i in range(WARM_UP + 3)]
    assert [first.tolist() for first, _ in found] == sums  # kept results are not written over by later ones
    assert [second.tolist() for _, second in found] == [[i - 2.0, -1.0] for i in range(WARM_UP + 3)]


def test_a_learners_step_can_be_recorded() -> None:
    """The same weights after the same minibatches, with and without."""
    learners = []
    for is_recorded in (False, True):
        torch.manual_seed(0)
        learner = Learner(MLP((1, 3), 2, (8,)), OptimizerConfig(max_grad_norm=0.1), torch.device("cpu"))
        if is_recorded:
            learner._step = Captured(learner._update, record_again)
        learners.append(learner)
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for _ in range(WARM_UP + 4):
            states = torch.randn(4, 1, 3, generator=generator)
            actions = torch.randint(2, (4, 1), generator=generator)
            returns = torch.randn(4, generator=generator)
            (plain, _), (recorded, _) = (learner._step(states, actions, returns) for learner in learners)
            assert torch.equal(plain, recorded)
    for one, other in zip(*(learner.weights().values() for learner in learners), strict=True):
        assert torch.equal(one, other)


def test_other_shapes_are_refused() -> None:
    captured = Captured(lambda numbers: (numbers + 1,), record_again)
    for _ in range(WARM_UP + 1):
        captured(torch.zeros(3))
    with pytest.raises(AssertionError):
        captured(torch.zeros(2))
