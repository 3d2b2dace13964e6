"""DQN with a target network and n-step returns, the paper's baseline; no cache, no λ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents.epsilon_greedy import EpsilonGreedy
from lambda_replay.agents.n_step import WINDOW_STEP_BYTES, look_ahead, parse_n_step, sample_slots, shortest_start
from lambda_replay.agents.protocol import Acted, AgentNeeds, KeepsGoing, Tensors, Work
from lambda_replay.agents.q_learning import FLOAT_BYTES, make_q_network, q_learning_kind
from lambda_replay.checks import require, require_positive, require_reasonable
from lambda_replay.config import ExplorationConfig, NetworkConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.network_health import NUM_STATES, describe_network, is_look_due
from lambda_replay.learning.training_summary import NORM_EVERY, TrainingSummary
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.data import Minibatch
from lambda_replay.replay.diagnostics import Metrics, describe_q_values
from lambda_replay.replay.estimators import NStep
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.returns import nstep_returns


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The target network of the paper's baseline."""

    copy_every: int = 10_000  # agent steps between copies of the network into the target network; paper 10,000
    update_every: int = 4  # agent steps per minibatch; paper 4

    def __post_init__(self) -> None:
        require_reasonable("target.", self)
        require_positive("target.", self, "copy_every", "update_every")
        require(
            self.copy_every % self.update_every == 0,
            f"target.copy_every ({self.copy_every}) must be a multiple of target.update_every ({self.update_every}).",
            "target.copy_every",
            "target.update_every",
        )


@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Settings of dqn."""

    target: TargetConfig = field(default_factory=TargetConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def boundary_every(self) -> int:
        return self.target.copy_every

    @property
    def schedule(self) -> Schedule:
        return "burst"

    def check(self, run: RunConfig) -> None:
        """Reject what does not fit the rest of the run."""
        run.check_lock_step("target.copy_every", self.target.copy_every)


class DQN:
    """Trains on one minibatch every few steps, with returns that bootstrap from an older copy of the network."""

    def __init__(
        self,
        run: RunConfig,
        config: DQNConfig,
        *,
        memory: ReplayMemory,
        network: QNetwork,
        estimator: NStep,
        spec: EnvironmentSpec,
        streams: RandomStreams,
        seed: int,
    ) -> None:
        self._run, self._config, self._memory = run, config, memory
        self._network, self._estimator, self._streams = network, estimator, streams
        self._learner = Learner(network, config.optimizer, seed)
        self._target = network.copy()
        self._actor = EpsilonGreedy(network, spec.num_actions, config.exploration, run.memory.start, streams.explore)
        self._totals = np.zeros(4)  # loss, |TD error|, Q-value, gradient norm, summed since the last copy
        self._num_updates = 0  # since the last copy

    def act(self, states: NDArray[Any], step: int) -> Acted:
        return self._actor.act(states, step)

    def describe(self, step: int) -> Metrics:
        return {"epsilon": self._actor.epsilon(step)}

    def learn(self, step: int) -> Work | None:
        """Copy the network if that is due, then train."""
        is_boundary, num_updates = self._run.is_boundary(step), self._updates_due(step)
        if not is_boundary and num_updates == 0:
            return None
        looks = is_boundary and is_look_due(step - self._run.memory.start, self._config.target.copy_every)
        return Work(
            lambda keeps_going: self._train(step, num_updates, keeps_going, is_boundary=is_boundary, looks=looks),
            adopt=lambda: None,
        )

    def _updates_due(self, step: int) -> int:
        """Multiples of ``update_every`` that the environments' last lock-step reached."""
        elapsed, every = step - self._run.memory.start, self._config.target.update_every
        return 0 if elapsed < 0 else elapsed // every - (elapsed - self._run.envs) // every

    def _train(
        self, step: int, num_updates: int, keeps_going: KeepsGoing, *, is_boundary: bool, looks: bool
    ) -> Metrics | None:
        """The metrics cover the time since the last copy."""
        metrics = None
        if is_boundary:
            self._network.copy_weights_to(self._target)
            metrics = self._take_metrics(looks=looks) if self._num_updates > 0 else None
        for _ in range(num_updates):
            if keeps_going():
                self._totals += self._learner.train(
                    [self._sample_minibatch()], self._num_updates, step / self._run.steps
                )
                self._num_updates += 1
        return metrics

    def _take_metrics(self, *, looks: bool) -> Metrics:
        *totals, norms = self._totals.tolist()
        loss, td_error_abs, q_value = (total / self._num_updates for total in totals)
        gradient_norm = norms / -(-self._num_updates // NORM_EVERY)
        self._totals, self._num_updates = np.zeros(4), 0
        looked_at = self._memory.sample_blocks(NUM_STATES, 1, np.random.default_rng(0))[:, 0]  # affects no other draw
        states = self._memory.states(looked_at)
        return {
            "loss": loss,
            "gradient_norm": gradient_norm,
            "td_error_abs_mean": td_error_abs,
            "q_mean": q_value,
            **describe_q_values(self._network(states)),
            **(describe_network(self._network, states) if looks else {}),
        }

    @np.errstate(over="ignore", invalid="ignore")  # an overflow reaches the loss, which is checked
    def _sample_minibatch(self) -> Minibatch:
        """B transitions from the whole memory with their n-step returns."""
        batch_size, n = self._config.optimizer.batch_size, self._estimator.n
        slots = sample_slots(self._memory, batch_size, n, self._streams.batches)  # [B, n+1]
        actions, rewards, discounts, continues = look_ahead(self._memory, slots, self._run.discount)
        # Only the state that ends the return needs Q-values: the one after the first end, or the n-th.
        lengths = np.where(continues.all(axis=1), n, continues.argmin(axis=1) + 1)  # [B]
        batch = np.arange(batch_size)
        q_values = self._target(self._memory.states(slots[batch, lengths]))  # [B, A]
        next_values = np.zeros(continues.shape, dtype=np.float32)  # [B, n]
        next_values[batch, lengths - 1] = q_values.max(axis=1)
        returns = nstep_returns(rewards, discounts, next_values, continues, n)  # [B, n]
        first = slots[:, 0]
        return Minibatch(self._memory.states(first), actions, returns[:, 0], first)

    def get_tensors(self) -> dict[str, Tensors]:
        """The target network is not needed: at a boundary it is about to be overwritten."""
        return {"weights": self._network.weights(), "optimizer": self._learner.optimizer_state()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._network.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])

    def check_finite(self) -> None:
        self._learner.check_finite()

    def get_state(self) -> dict[str, float]:
        """The sums of the current window."""
        sums = dict(zip(TrainingSummary._fields, self._totals.tolist(), strict=True))
        return {**sums, "num_updates": self._num_updates}

    def set_state(self, state: Mapping[str, float]) -> None:
        self._totals = np.array([state[name] for name in TrainingSummary._fields])
        self._num_updates = int(state["num_updates"])


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> DQN:
    seed, config = streams.draw_init_seed(), run.algorithm
    assert isinstance(config, DQNConfig)
    network, estimator = make_q_network(run, spec, seed, module), parse_n_step(run)
    return DQN(run, config, memory=memory, network=network, estimator=estimator, spec=spec, streams=streams, seed=seed)


def needs(run: RunConfig, spec: EnvironmentSpec, batch_size: int) -> AgentNeeds:
    """Bytes of the steps that each sample looks ahead."""
    steps = batch_size * (parse_n_step(run).n + 1)
    ahead = steps * (WINDOW_STEP_BYTES + spec.num_actions * FLOAT_BYTES)
    return AgentNeeds([(ahead, f"the number in estimator ({run.estimator})")])


KIND = q_learning_kind(
    summary="target network and n-step returns, the paper's baseline",
    boundary="next target copy",
    config=DQNConfig,
    make=make,
    estimator=parse_n_step,
    needs=needs,
    shortest_start=shortest_start,
)
