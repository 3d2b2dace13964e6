"""DQN(λ): the paper's Algorithm 1 as a composition of memory, cache and learner; the loop around it is the runner's."""

from __future__ import annotations

from lambda_replay.actor import Actor
from lambda_replay.cache import Cache, make_block
from lambda_replay.config import RunConfig
from lambda_replay.diagnostics import Metrics, describe_refresh, describe_samples
from lambda_replay.estimators import Estimator, explain
from lambda_replay.learner import Learner
from lambda_replay.memory import ReplayMemory
from lambda_replay.randomness import RandomStreams
from lambda_replay.schedules import LinearRamp


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

    def learn(self, step: int) -> Metrics | None:
        """If a refresh is due: build the cache, then train on it (Algorithm 1, "if t ≡ 0 mod F")."""
        if self.steps_to_boundary(step) > 0:
            return None
        cache, refresh_metrics = self.build_cache()
        rows = cache.sample_rows(
            self._config.optimizer.batch_size,
            self._cache_config.updates_per_refresh,
            self._priority(step),
            self._cache_config.priority_quantile,
            rng=self._streams.batches,
        )  # [updates, B]
        summary = self.learner.train(cache.minibatch(batch) for batch in rows)
        sample_metrics = describe_samples(self.memory, cache, rows)
        return {"loss": summary.loss, **refresh_metrics, **sample_metrics, "priority": self._priority(step)}

    def build_cache(self) -> tuple[Cache, Metrics]:
        """BUILD-CACHE of Algorithm 1, all blocks at once, with a description of what came out."""
        config = self._cache_config
        slots = self.memory.sample_blocks(config.num_blocks, config.block_length + config.tail, self._streams.blocks)
        q_values, chunk_size = self.learner.q_values, self.learner.chunk_size
        block = make_block(self.memory, slots, q_values, discount=self._config.discount, chunk_size=chunk_size)
        explanation = explain(self._estimator, block)
        cache = Cache(self.memory, slots[:, : config.block_length], block, explanation)
        return cache, describe_refresh(cache, block, explanation)

    def get_state(self) -> dict[str, float]:
        """Nothing: at a boundary, all that this agent knows is in the rooms it is made of."""
        return {}

    def set_state(self, state: dict[str, float]) -> None:
        assert not state
