"""Detects that training diverged: numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from lambda_replay.errors import diverged


def require_finite(values: Mapping[str, float]) -> None:
    """Raise DivergenceError for the first number that is not finite, by its name: "the loss is"."""
    for what, value in values.items():
        if not math.isfinite(value):
            raise diverged(what)


def require_all_finite(what: str, tensors: Iterable[Tensor]) -> None:
    """Raise DivergenceError if any number of the tensors is not finite; ``what`` as in "the weights are"."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise diverged(what)
