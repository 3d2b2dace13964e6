"""Estimators of studies/choices/minatar-choice.toml, no part of the product: traces cut partly, and a λ that falls.

A trace is c_t = λ·g(s_{t+1}, a_{t+1}) with a gate g that is 1 for the greedy action. Otherwise Watkins's gate is 0, and
Peng's 1.
"""

from __future__ import annotations

import numpy as np

from lambda_replay.replay.data import Block, Floats
from lambda_replay.replay.estimators import peng

LAMBDA = 0.65  # the preset's
FIRST, LAST = 0.9, 0.4  # of the λ that falls
REFRESHES = 124  # in 500,000 steps: one every 4,000 after the first 5,000


def gated(block: Block) -> Floats:
    """Half of the trace survives an action that is not greedy."""
    gates = np.where(block.is_greedy[..., 1:], np.float32(1), np.float32(0.5))
    return peng(block, np.float32(LAMBDA) * gates).returns


def soft(block: Block) -> Floats:
    """The trace survives where max Q(s',·) − Q(s',a') ≤ |max Q(s',·)| / 10. Soft Watkins: Kapturowski et al. 2023"""
    greatest = block.q_values.max(axis=-1)  # [K, L+1]
    survives = greatest - block.action_values <= np.abs(greatest) / 10
    return peng(block, np.float32(LAMBDA) * survives[..., 1:]).returns


class Falling:
    """Peng's return with a λ that falls linearly over a run. It counts refreshes, so such a run cannot be resumed."""

    def __init__(self) -> None:
        self._refreshes = 0

    def __call__(self, block: Block) -> Floats:
        lambda_ = np.float32(FIRST + (LAST - FIRST) * min(1.0, self._refreshes / REFRESHES))
        self._refreshes += 1
        return peng(block, np.full(block.rewards.shape, lambda_)).returns


falling = Falling()
