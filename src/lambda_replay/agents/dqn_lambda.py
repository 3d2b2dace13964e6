"""DQN(λ): the paper's Algorithm 1 as a composition of memory, cache and learner; the loop around it is the runner's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lambda_replay.agents.epsilon_greedy import Actor
from lambda_replay.agents.schedules import LinearRamp
from lambda_replay.config import RunConfig
from lambda_replay.learning.learner import Learner
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.cache import Cache, make_block
from lambda_replay.replay.data import Integers, Transitions
from lambda_replay.replay.diagnostics import Metrics, describe_refresh, describe_samples
from lambda_replay.replay.estimators import Estimator, explain
from lambda_replay.replay.memory import ReplayMemory


class Window(NamedTuple):
    """What a refresh takes from the memory at the moment it is due; the states are read later, slots do not change."""

    slots: Integers  # [K, L+1]
    transitions: Transitions  # [K, L+1] each
    ages: Integers  # [K, L+1]
    priority: float


class DQNLambda:
    """Every F steps refreshes the cache with the present network and trains on its frozen returns."""

    def __init__(
        self,
        config: RunConfig,
        *,
        memory: ReplayMemory,
        learner: Learner,
        actor: Actor,
        estimator: Estimator,
        streams: RandomStreams,
    ) -> None:
        assert config.cache is not None
        self.memory, self.learner, self.actor = memory, learner, actor
        self._config, self._cache_config = config, config.cache
        self._estimator, self._streams = estimator, streams
        self._priority = LinearRamp(config.cache.priority, 0.0, config.steps)

    def steps_to_boundary(self, step: int) -> int:
        """Steps until the next refresh, 0 meaning now; the first is due when the memory has its start size."""
        start = self._config.memory.start
        return start - step if step < start else (start - step) % self._cache_config.refresh_every

    def settle(self) -> Metrics | None:
        """Nothing: between two calls of ``learn`` no work is under way."""
        return None

    def learn(self, step: int) -> Metrics | None:
        """If a refresh is due: build the cache, then train on it (Algorithm 1, "if t ≡ 0 mod F")."""
        return self.train(self.open_window(step)) if self.steps_to_boundary(step) == 0 else None

    def open_window(self, step: int, reserve: int = 0) -> Window:
        """Promote random blocks of the memory (Algorithm 1, "Sample block … from D")."""
        config = self._cache_config
        length = config.block_length + config.tail
        slots = self.memory.sample_blocks(config.num_blocks, length, self._streams.blocks, reserve)
        return Window(slots, self.memory.transitions(slots), self.memory.ages(slots), self._priority(step))

    @np.errstate(over="ignore", invalid="ignore")  # what overflows reaches the loss or the metrics, which are checked
    def train(self, window: Window) -> Metrics:
        """BUILD-CACHE for all blocks at once, then the minibatches and gradient steps of Algorithm 1."""
        length, discount = self._cache_config.block_length, self._config.discount
        q_values, chunk_size = self.learner.q_values, self.learner.chunk_size
        block = make_block(
            self.memory, window.slots, window.transitions, q_values, discount=discount, chunk_size=chunk_size
        )
        explanation = explain(self._estimator, block)
        cache = Cache(self.memory, window.slots[:, :length], block, explanation)
        rows = cache.sample_rows(
            self._config.optimizer.batch_size,
            self._cache_config.updates_per_refresh,
            window.priority,
            self._cache_config.priority_quantile,
            rng=self._streams.batches,
        )  # [updates, B]
        return {
            "loss": self.learner.train(cache.minibatch(batch) for batch in rows).loss,
            **describe_refresh(cache, block, explanation),
            **describe_samples(cache, rows, window.ages[:, :length]),
            "priority": window.priority,
        }

    def stop(self) -> None:
        """Nothing is under way that would have to stop."""

    def get_state(self) -> dict[str, float]:
        """Nothing: at a boundary, all that this agent knows is in the rooms it is made of."""
        return {}

    def set_state(self, state: dict[str, float]) -> None:
        assert not state
