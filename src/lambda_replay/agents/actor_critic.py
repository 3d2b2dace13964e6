"""The agent behind every actor-critic with cached returns; the methods themselves have files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.agents.cached import Promote, promote_due
from lambda_replay.agents.continuous import describe_training, random_actions
from lambda_replay.agents.protocol import Acted, KeepsGoing, Tensors, Work
from lambda_replay.agents.schedules import LinearRamp
from lambda_replay.config import CacheConfig, RunConfig
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.network_health import NUM_STATES, is_look_due
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.cache import build_cache
from lambda_replay.replay.critic import Critic, Promoted
from lambda_replay.replay.data import Minibatch
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory

PlayRandomly = Callable[[NDArray[Any], np.random.Generator], Acted]  # states [n, F, *observation] -> random actions


class Networks(Protocol):
    """The networks of a method."""

    def copy(self) -> Any:
        """Others with the same weights."""
        ...

    def copy_weights_to(self, other: Any) -> None: ...


class Method(Protocol):
    """What tells one algorithm from another: SAC, TD3, DDPG, NAF, SDQN."""

    @property
    def networks(self) -> Networks:
        """The networks that are trained."""
        ...

    def explore(self, networks: Any, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        """Actions of the behaviour policy for states [n, F, *observation], by networks like its own."""
        ...

    def critic(self, rng: np.random.Generator) -> Critic:
        """Its current values, for a refresh."""
        ...

    def train(
        self, minibatches: Iterable[Minibatch], shape: tuple[int, int], rng: np.random.Generator
    ) -> tuple[CriticSummary, Metrics]:
        """One update per minibatch, of which there are at most ``shape`` [updates, B]; and the method's own metrics."""
        ...

    def describe(self, batch: Minibatch) -> Metrics:
        """The health of its critics on a minibatch: dead units, and the norm of their weights."""
        ...

    def get_tensors(self) -> dict[str, Tensors]:
        """Everything learnt, by file name: "weights" and "optimizer"; and "noise", where it has a state."""
        ...

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None: ...

    def check_finite(self) -> None:
        """Raise DivergenceError if anything learnt is not finite."""
        ...


@final
class CachedActorCritic:
    """Every F steps, refreshes the cache with the method's current values, and trains on its fixed returns."""

    def __init__(
        self,
        run: RunConfig,
        cache: CacheConfig,
        *,
        batch_size: int,
        method: Method,
        estimator: Estimator,
        memory: ReplayMemory,
        streams: RandomStreams,
        promote: Promote = promote_due,
        play_randomly: PlayRandomly | None = None,
    ) -> None:
        """``promote`` takes the blocks of a refresh from the memory.

        ``play_randomly`` chooses the actions before learning starts; None: uniformly from −1 to 1.
        """
        self._run, self._cache, self._batch_size, self._promote = run, cache, batch_size, promote
        self._method, self._estimator, self._memory, self._streams = method, estimator, memory, streams
        # Networks that train alongside acting must not be those that act.
        self._acting = method.networks if cache.schedule == "burst" else method.networks.copy()
        self._play_randomly = play_randomly or self._play_uniformly
        self._priority = LinearRamp(cache.priority, 0.0, run.steps)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        rng = self._streams.explore
        if step < self._run.memory.start:
            return self._play_randomly(states, rng)
        return self._method.explore(self._acting, states, rng)

    def _play_uniformly(self, states: NDArray[Any], rng: np.random.Generator) -> Acted:
        return random_actions(len(states), self._memory.action_shape[0], rng)

    def describe(self, step: int) -> Metrics:
        return {}

    def learn(self, step: int) -> Work | None:
        """If a refresh is due, promote random blocks of the memory."""
        if not self._run.is_boundary(step):
            return None
        blocks = self._promote(self._run, self._cache, self._memory, self._streams.blocks)
        priority = self._priority(step)
        looks = is_look_due(step - self._run.memory.start, self._cache.refresh_every)
        return Work(lambda keeps_going: self._train(blocks, priority, keeps_going, looks=looks), self._adopt)

    @np.errstate(over="ignore", invalid="ignore")  # an overflow reaches the loss or the metrics, which are checked
    def _train(self, blocks: Promoted, priority: float, keeps_going: KeepsGoing, *, looks: bool) -> Metrics:
        """Refresh the cache, then one update per minibatch."""
        rng, shape = self._streams.batches, (self._cache.updates_per_refresh, self._batch_size)
        cache = build_cache(blocks, self._method.critic(rng), self._estimator)
        updates, batch_size = shape
        quantile, sampling = self._cache.priority_quantile, self._cache.sampling
        rows = cache.sample_rows(batch_size, updates, priority, quantile, rng=rng, sampling=sampling)  # [updates, B]
        seen = rows.reshape(-1)[:NUM_STATES]
        health = self._method.describe(cache.minibatch(seen)) if looks else {}
        wanted = takewhile(lambda batch: keeps_going(), rows)
        summary, own = self._method.train((cache.minibatch(batch) for batch in wanted), shape, rng)
        return {**describe_training(blocks, cache, rows, summary), **health, **own, "priority": priority}

    def _adopt(self) -> None:
        if self._acting is not self._method.networks:
            self._method.networks.copy_weights_to(self._acting)

    def get_tensors(self) -> dict[str, Tensors]:
        return self._method.get_tensors()

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._method.set_tensors(tensors)
        self._adopt()

    def check_finite(self) -> None:
        self._method.check_finite()

    def get_state(self) -> dict[str, float]:
        """Empty: at a boundary, the tensors hold this agent's whole state."""
        return {}

    def set_state(self, state: Mapping[str, float]) -> None:
        assert not state
