"""PQN: Q(λ) over fresh rollouts of many environments, without a replay memory or a target network.

Gallici et al. 2025, "Simplifying Deep Temporal Difference Learning", Algorithm 1. The returns come from the same
recursion as those of DQN(λ); what differs is that they are computed for the newest steps instead of random blocks, and
that each step is used in every epoch instead of being drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents.epsilon_greedy import EpsilonGreedy
from lambda_replay.agents.protocol import Acted, AgentNeeds, KeepsGoing, Tensors, Work
from lambda_replay.agents.q_learning import FLOAT_BYTES, make_q_network, q_learning_kind
from lambda_replay.checks import require, require_positive, require_reasonable
from lambda_replay.config import ExplorationConfig, NetworkConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.network_health import NUM_STATES, describe_network, is_look_due
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.cache import build_cache
from lambda_replay.replay.critic import Promoted, QCritic, promote_slots
from lambda_replay.replay.data import Integers
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory

ROLLOUT_STEP_BYTES = 2 * (8 + 4 + 4 + 4 + 1)  # slot, action, return, TD error, whether it is a step; closing slots too


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """The fresh steps that each round of learning takes (Gallici et al. 2025)."""

    size: int = 4_096  # agent steps of all environments per rollout; PQN 128 environments × 32 steps
    epochs: int = 2  # times that each step of a rollout is trained on; PQN 2

    def __post_init__(self) -> None:
        require_reasonable("rollout.", self)
        require_positive("rollout.", self, "size", "epochs")


@dataclass(frozen=True, kw_only=True)
class PQNConfig:
    """Settings of pqn."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def boundary_every(self) -> int:
        return self.rollout.size

    @property
    def schedule(self) -> Schedule:
        return "burst"

    def check(self, run: RunConfig) -> None:
        """Reject what does not fit the rest of the run."""
        size, batch_size = self.rollout.size, self.optimizer.batch_size
        run.check_lock_step("rollout.size", size)
        require(
            size % batch_size == 0,
            f"rollout.size ({size}) must be a multiple of optimizer.batch_size ({batch_size}).",
            "rollout.size",
            "optimizer.batch_size",
        )
        require(
            run.memory.start >= size,
            f"memory.start ({run.memory.start}) must hold the first rollout; raise it to {size}.",
            "memory.start",
            "rollout.size",
        )
        needed = 2 * size + run.memory.history * run.envs  # a step takes at most two slots: its own and a closing one
        require(
            run.memory.capacity >= needed,
            f"memory.capacity ({run.memory.capacity}) must hold a rollout and the ends of its episodes; "
            f"raise it to {needed}.",
            "memory.capacity",
            "rollout.size",
        )


class PQN:
    """After every rollout, trains on its λ-returns for a few epochs; the memory holds little more than the rollout."""

    def __init__(
        self,
        run: RunConfig,
        config: PQNConfig,
        *,
        memory: ReplayMemory,
        network: QNetwork,
        estimator: Estimator,
        spec: EnvironmentSpec,
        streams: RandomStreams,
        seed: int,
    ) -> None:
        self._run, self._config, self._memory = run, config, memory
        self._network, self._estimator, self._streams = network, estimator, streams
        self._learner = Learner(network, config.optimizer, seed)
        self._actor = EpsilonGreedy(network, spec.num_actions, config.exploration, run.memory.start, streams.explore)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        return self._actor.act(states, step)

    def describe(self, step: int) -> Metrics:
        return {"epsilon": self._actor.epsilon(step)}

    def learn(self, step: int) -> Work | None:
        """If a rollout is complete, take it from the memory."""
        if not self._run.is_boundary(step):
            return None
        slots = self._memory.newest_steps(self._config.rollout.size // self._run.envs)  # [envs, L+1]
        rollout = promote_slots(self._memory, slots, discount=self._run.discount, length=slots.shape[1] - 1)
        looks = is_look_due(step - self._run.memory.start, self._config.rollout.size)
        return Work(
            lambda keeps_going: self._train(rollout, step / self._run.steps, keeps_going, looks=looks),
            adopt=lambda: None,
        )

    @np.errstate(over="ignore", invalid="ignore")  # an overflow reaches the loss or the metrics, which are checked
    def _train(self, rollout: Promoted, progress: float, keeps_going: KeepsGoing, *, looks: bool) -> Metrics:
        """The rollout's returns with the network that played it, then the epochs."""
        cache = build_cache(rollout, QCritic(self._network, self._network.chunk_size), self._estimator)
        rows = np.flatnonzero(cache.is_transition)  # [rollout.size]
        health = describe_network(self._network, cache.minibatch(rows[:NUM_STATES]).states) if looks else {}
        wanted = takewhile(lambda batch: keeps_going(), self._shuffled(rows))
        summary = self._learner.train((cache.minibatch(batch) for batch in wanted), progress=progress)
        return {"loss": summary.loss, "gradient_norm": summary.gradient_norm, **cache.metrics, **health}

    def _shuffled(self, rows: Integers) -> Iterator[Integers]:
        """The rows in random order, in minibatches [B]; once per epoch."""
        for _ in range(self._config.rollout.epochs):
            yield from self._streams.batches.permutation(rows).reshape(-1, self._config.optimizer.batch_size)

    def get_tensors(self) -> dict[str, Tensors]:
        return {"weights": self._network.weights(), "optimizer": self._learner.optimizer_state()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._network.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])

    def check_finite(self) -> None:
        self._learner.check_finite()

    def get_state(self) -> dict[str, float]:
        """Empty: at a boundary, the tensors and the memory hold this agent's whole state."""
        return {}

    def set_state(self, state: Mapping[str, float]) -> None:
        assert not state


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> PQN:
    seed, config = streams.draw_init_seed(), run.algorithm
    assert isinstance(config, PQNConfig)
    network, estimator = make_q_network(run, spec, seed, module), parse_estimator(run.estimator)
    return PQN(run, config, memory=memory, network=network, estimator=estimator, spec=spec, streams=streams, seed=seed)


def rollout_config(run: RunConfig) -> RolloutConfig:
    assert isinstance(run.algorithm, PQNConfig)
    return run.algorithm.rollout


def needs(run: RunConfig, spec: EnvironmentSpec, batch_size: int) -> AgentNeeds:
    """Bytes of a rollout's returns and of the values they are computed from."""
    size = rollout_config(run).size
    returns_bytes, q_values_bytes = size * ROLLOUT_STEP_BYTES, 2 * size * spec.num_actions * FLOAT_BYTES
    return AgentNeeds([(returns_bytes + q_values_bytes, f"rollout.size ({size})")], returns_bytes, q_values_bytes)


KIND = q_learning_kind(
    summary="λ-returns of fresh rollouts, no replay (Gallici et al. 2025)",
    boundary="next update",
    config=PQNConfig,
    make=make,
    needs=needs,
    shortest_start=lambda run: rollout_config(run).size // run.envs,
    shrink=lambda config, steps, share: (config, 1.0),  # a rollout is short enough to be timed whole
)
