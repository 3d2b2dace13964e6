"""Minibatches of sequences: the rows of a cache in order, each sequence after a burn-in, for networks that remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.config import Sampling
from lambda_replay.errors import ConfigError
from lambda_replay.replay.cache import Cache, draw, prioritized
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Before, Booleans, Floats, Integers


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """B sequences of T steps, each after H slots that only bring the network into its state.

    The network continues from ``hidden``, the state in which it left the first of the H slots, which is not computed
    again. Without a burn-in it starts from zero, and the first of the T slots counts as a start.
    """

    states: NDArray[Any]  # [B, H+T, F, *observation]
    before: Before  # [B, H+T] each
    hidden: Floats  # [B, size]
    actions: Integers  # [B, T]
    returns: Floats  # [B, T]
    is_transition: Booleans  # [B, T]  False in closing slots, which are not trained on

    @property
    def burn_in(self) -> int:
        """H."""
        return self.before.is_start.shape[1] - self.actions.shape[1]


class Sequences:
    """The cache's rows as sequences of T consecutive steps; sequence i holds rows i·T up to (i+1)·T.

    Its burn-in are the H slots before it: those before its block, or the steps of the block that precede it.
    """

    def __init__(self, cache: Cache, blocks: Promoted, length: int, hidden: Floats) -> None:
        """``length`` is T, which must divide the blocks' length; ``hidden`` are the states [K, L/T, size] of a refresh.

        They are those in which the network left the first slot of each sequence's burn-in.
        """
        if length < 1 or blocks.length % length:
            raise ConfigError(f"blocks of {blocks.length} steps cannot be cut into sequences of {length}.")
        self._cache, self._length = cache, length
        num_blocks, per_block, size = hidden.shape
        self._hidden = hidden.reshape(num_blocks * per_block, size)  # [S/T, size]
        burn_in = 0 if blocks.burn_in is None else blocks.burn_in.slots.shape[1]
        firsts = np.arange(0, blocks.length, length)  # [L/T]  where each sequence of a block begins to unroll
        columns = firsts[:, None] + np.arange(burn_in + length)  # [L/T, H+T]
        shape = (-1, burn_in + length)
        self._slots: Integers = blocks.unrolled_slots[:, columns].reshape(shape)  # [S/T, H+T]
        is_start, actions, rewards = blocks.before.at(np.s_[:, columns])  # [K, L/T, H+T] each
        is_start[..., 0], actions[..., 0], rewards[..., 0] = True, 0, 0
        self._before = Before(is_start.reshape(shape), actions.reshape(shape), rewards.reshape(shape))
        self._is_transition = cache.is_transition.reshape(-1, length)  # [S/T, T]

    def sample(
        self,
        batch_size: int,
        updates: int,
        priority: float = 0.0,
        priority_quantile: float = 0.5,
        *,
        rng: np.random.Generator,
        sampling: Sampling = "independent",
    ) -> Integers:
        """Numbers [updates, B] of the sequences of all minibatches, drawn as ``prioritized`` draws rows.

        The error of a sequence is the mean |TD error| of its transitions; one without any is never drawn.
        """
        counts = self._is_transition.sum(axis=1)  # [S/T]
        numbers = np.flatnonzero(counts)
        if len(numbers) == 0:
            raise ConfigError("the cache holds no transition; store some in the memory before a refresh.")
        sums = np.abs(self._cache.td_errors).reshape(self._is_transition.shape).sum(axis=1)  # 0 in closing slots
        errors = sums[numbers] / counts[numbers]
        probabilities = prioritized(errors, priority, priority_quantile)
        return numbers[draw(probabilities, (updates, batch_size), sampling, rng=rng)]

    def rows(self, numbers: Integers) -> Integers:
        """The cache's rows [..., T] of sequences with these numbers."""
        return numbers[..., None] * self._length + np.arange(self._length)

    def minibatch(self, numbers: Integers) -> SequenceBatch:
        """The sequences with these numbers [B], and their states gathered from memory."""
        slots, rows = self._slots[numbers], self.rows(numbers)  # [B, H+T], [B, T]
        states = self._cache.states(slots.reshape(-1))
        return SequenceBatch(
            states.reshape(*slots.shape, *states.shape[1:]),
            self._before.at(numbers),
            self._hidden[numbers],
            self._cache.actions[rows],
            self._cache.returns[rows],
            self._is_transition[numbers],
        )
