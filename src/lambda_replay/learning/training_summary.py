"""What a learner reports about its minibatches, and that they are finite."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lambda_replay.learning.divergence import require_finite
from lambda_replay.replay.data import Floats

NORM_EVERY = 32  # gradient steps between two whose norm is measured: measuring all of them would cost a few percent


class TrainingSummary(NamedTuple):
    """Means over the samples of one call to ``train``, each measured before its own gradient step."""

    loss: float
    td_error_abs: float
    q_value: float
    gradient_norm: float  # before clipping; mean over those that were measured, 0 if none was


@np.errstate(over="ignore", invalid="ignore")  # an overflow is reported
def summarise(errors: Floats, values: Floats, norms: list[Tensor], *, is_huber: bool) -> TrainingSummary:
    """The summary of errors and values of any shape; raises DivergenceError if they are not finite."""
    sizes = np.abs(errors)
    losses = np.where(sizes < 1, errors**2 / 2, sizes - 0.5) if is_huber else errors**2
    norm = float(torch.stack(norms).mean()) if norms else 0.0
    summary = TrainingSummary(float(losses.mean()), float(sizes.mean()), float(values.mean()), norm)
    require_finite(
        {"the Q-values are": summary.q_value, "the TD errors are": summary.td_error_abs, "the loss is": summary.loss}
    )
    return summary
