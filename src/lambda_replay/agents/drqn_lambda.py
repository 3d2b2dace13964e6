"""DRQN(λ): DQN(λ) with a recurrent network, which is unrolled along the blocks of every refresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lambda_replay.agents import cached
from lambda_replay.agents.epsilon_greedy import Epsilon, epsilon_greedy, uniformly_random
from lambda_replay.agents.protocol import Acted, AgentKind, AgentNeeds, KeepsGoing, Tensors, Work
from lambda_replay.agents.q_learning import FLOAT_BYTES, LEARNER_COPIES, minibatch_bytes, q_learning_kind
from lambda_replay.agents.recurrent_acting import RecurrentActing, RecurrentPolicy
from lambda_replay.agents.schedules import LinearRamp
from lambda_replay.checks import require, require_positive, require_reasonable
from lambda_replay.config import CacheConfig, ExplorationConfig, NetworkConfig, OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.device import QNetwork, find_device
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.network_health import NUM_STATES, describe_network, is_look_due
from lambda_replay.learning.networks import make_network
from lambda_replay.learning.recurrent_critic import RecurrentCritic, sequence_samples
from lambda_replay.learning.recurrent_network import Cell, RecurrentNetwork
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.cache import fill_cache
from lambda_replay.replay.critic import HIDDEN, Promoted
from lambda_replay.replay.diagnostics import Metrics, describe_samples
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.sequences import Sequences
from lambda_replay.replay.storage import Columns

LARGEST_CELL = 16_384  # units; far more than any machine would unroll


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig:
    """The recurrent layer between the network's last hidden layer and the Q-values, and how it is unrolled."""

    cell: Cell = "gru"  # gru, lstm, or none: the network of dqn-lambda
    units: int = 64  # size of the cell's output
    hidden: int = 128  # units of the ReLU layer between the cell and the Q-values
    shortcut: bool = False  # that layer also sees the features that enter the cell
    reward: bool = False  # the previous reward is an input of the cell, as the previous action always is
    burn_in: int = 10  # agent steps before each block and sequence that set the hidden state and are not trained on
    sequence_length: int | None = None  # agent steps per sequence of a minibatch; None means cache.block_length

    def __post_init__(self) -> None:
        require_reasonable("recurrence.", self)
        require_positive("recurrence.", self, "units", "hidden")
        if self.sequence_length is not None:
            require_positive("recurrence.", self, "sequence_length")
        for name in ("units", "hidden"):
            value = getattr(self, name)
            require(
                value <= LARGEST_CELL,
                f"recurrence.{name} is {value}; give a number up to {LARGEST_CELL}.",
                f"recurrence.{name}",
            )
        require(
            self.burn_in >= 0,
            f"recurrence.burn_in is {self.burn_in}; give 0 or more agent steps.",
            "recurrence.burn_in",
        )


@dataclass(frozen=True, kw_only=True)
class DRQNLambdaConfig:
    """Settings of drqn-lambda; a sample of its minibatches is a sequence."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def boundary_every(self) -> int:
        return self.cache.refresh_every

    @property
    def schedule(self) -> Schedule:
        return self.cache.schedule

    @property
    def sequence_length(self) -> int:
        """Agent steps per sequence of a minibatch."""
        length = self.recurrence.sequence_length
        return self.cache.block_length if length is None else length

    def check(self, run: RunConfig) -> None:
        """Reject what does not fit the rest of the run."""
        run.check_lock_step("cache.refresh_every", self.cache.refresh_every)
        require(
            self.cache.block_length % self.sequence_length == 0,
            f"recurrence.sequence_length ({self.sequence_length}) must divide cache.block_length "
            f"({self.cache.block_length}), so that blocks are whole sequences.",
            "recurrence.sequence_length",
            "cache.block_length",
        )
        cached.check_room_for_blocks(run, self.cache, self.recurrence.burn_in)


class DRQNLambda:
    """Every F steps, unrolls the current network along random blocks and trains on sequences of their fixed returns."""

    def __init__(
        self,
        run: RunConfig,
        config: DRQNLambdaConfig,
        *,
        memory: ReplayMemory,
        network: QNetwork,
        estimator: Estimator,
        streams: RandomStreams,
        seed: int,
    ) -> None:
        self._run, self._config, self._memory = run, config, memory
        self._network, self._estimator, self._streams = network, estimator, streams
        self._learner = Learner(network, config.optimizer, seed, samples_of=sequence_samples)
        # A network that trains alongside acting must not be the one that acts.
        self._acting_network = network if config.schedule == "burst" else network.copy()
        self._acting = RecurrentActing(self._acting_network, memory)
        self._epsilon = Epsilon(config.exploration, run.memory.start)
        self._priority = LinearRamp(config.cache.priority, 0.0, run.steps)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        """ε-greedy; the network sees every state, also where all actions are random, because it remembers them."""
        q_values, epsilon, rng = self._acting.q_values(states), self._epsilon(step), self._streams.explore
        if epsilon == 1:
            acted = uniformly_random(len(states), q_values.shape[1], rng)
        else:
            acted = epsilon_greedy(q_values, epsilon, rng)
        if HIDDEN not in self._memory.columns:
            return acted
        self._acting.check_finite()
        return acted._replace(columns={HIDDEN: self._acting.hidden})

    def describe(self, step: int) -> Metrics:
        return {"epsilon": self._epsilon(step)}

    def learn(self, step: int) -> Work | None:
        """If a refresh is due, promote random blocks of the memory, each with the steps that lead up to it."""
        if not self._run.is_boundary(step):
            return None
        cache, burn_in = self._config.cache, self._config.recurrence.burn_in
        blocks = cached.promote_due(self._run, cache, self._memory, self._streams.blocks, burn_in)
        looks = is_look_due(step - self._run.memory.start, cache.refresh_every)
        return Work(lambda keeps_going: self._train(blocks, step, keeps_going, looks=looks), self._adopt)

    @np.errstate(over="ignore", invalid="ignore")  # an overflow reaches the loss or the metrics, which are checked
    def _train(self, blocks: Promoted, step: int, keeps_going: KeepsGoing, *, looks: bool) -> Metrics:
        """BUILD-CACHE with the unrolled network, then gradient steps on sequences of the cache."""
        config = self._config.cache
        block, hidden = RecurrentCritic(self._network).unroll(blocks, self._config.sequence_length)
        cache = fill_cache(blocks, block, self._estimator)
        sequences = Sequences(cache, blocks, self._config.sequence_length, hidden)
        priority, progress = self._priority(step), step / self._run.steps
        batch_size, updates = self._config.optimizer.batch_size, config.updates_per_refresh
        quantile, rng = config.priority_quantile, self._streams.batches
        numbers = sequences.sample(
            batch_size, updates, priority, quantile, rng=rng, sampling=config.sampling
        )  # [updates, B]
        wanted = takewhile(lambda batch: keeps_going(), numbers)
        rows = sequences.rows(numbers).reshape(-1)
        ages, drawn = blocks.ages[:, : blocks.length].reshape(-1), rows[cache.is_transition[rows]]
        apart = drawn[:: max(1, len(drawn) // NUM_STATES)][:NUM_STATES]  # neighbours in a sequence are much alike
        health = describe_network(self._network, cache.minibatch(apart).states) if looks else {}
        summary = self._learner.train((sequences.minibatch(batch) for batch in wanted), progress=progress)
        return {
            "loss": summary.loss,
            "gradient_norm": summary.gradient_norm,
            **cache.metrics,
            **health,
            **describe_samples(cache.slots[drawn], ages[drawn]),
            "priority": priority,
        }

    def _adopt(self) -> None:
        if self._acting_network is not self._network:
            self._network.copy_weights_to(self._acting_network)

    def get_tensors(self) -> dict[str, Tensors]:
        return {
            "weights": self._network.weights(),
            "optimizer": self._learner.optimizer_state(),
            "hidden": self._acting.get_tensors(),
        }

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._network.load_weights(tensors["weights"])
        self._learner.load_optimizer_state(tensors["optimizer"])
        self._acting.set_tensors(tensors["hidden"])
        self._adopt()

    def check_finite(self) -> None:
        self._learner.check_finite()
        self._acting.check_finite()

    def get_state(self) -> dict[str, float]:
        """Empty: at a boundary, the tensors hold this agent's whole state."""
        return {}

    def set_state(self, state: Mapping[str, float]) -> None:
        assert not state


def _config(run: RunConfig) -> DRQNLambdaConfig:
    assert isinstance(run.algorithm, DRQNLambdaConfig)
    return run.algorithm


def _make_module(run: RunConfig, spec: EnvironmentSpec, seed: int, cell_seed: int) -> RecurrentNetwork:
    config, state_shape = _config(run), run.state_shape(spec.observation_shape)
    plain, own = make_network(config.network, state_shape, spec.num_actions, seed), config.recurrence
    return RecurrentNetwork(
        plain,
        spec.num_actions,
        cell=own.cell,
        units=own.units,
        hidden=own.hidden,
        shortcut=own.shortcut,
        has_reward=own.reward,
        seed=cell_seed,
    )


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> DRQNLambda:
    assert module is None
    seed, cell_seed = streams.draw_init_seed(), streams.draw_init_seed()
    network = QNetwork(_make_module(run, spec, seed, cell_seed), find_device(run.device))
    estimator = parse_estimator(run.estimator)
    return DRQNLambda(
        run, _config(run), memory=memory, network=network, estimator=estimator, streams=streams, seed=seed
    )


def _load(run: RunConfig, spec: EnvironmentSpec, weights: Tensors) -> RecurrentPolicy:
    network = QNetwork(_make_module(run, spec, run.seed, run.seed), find_device(run.device))
    network.load_weights(weights)
    return RecurrentPolicy(network)


def _check(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> None:
    find_device(run.device)
    if module is not None:
        raise ConfigError("agent drqn-lambda takes no network of your own; use dqn-lambda, or its settings.", "agent")
    _make_module_without_memory(run, spec)


def _make_module_without_memory(run: RunConfig, spec: EnvironmentSpec) -> RecurrentNetwork:
    with torch.device("meta"):  # sizes without memory
        return _make_module(run, spec, 0, 0)


def _columns(run: RunConfig, spec: EnvironmentSpec) -> Columns:
    """With every step, the hidden state that it left; nothing where a refresh has no use for it."""
    own = _config(run).recurrence
    if own.cell == "none" or own.burn_in == 0:
        return {}
    return {HIDDEN: ((_make_module_without_memory(run, spec).state_size,), np.float32)}


def _needs(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> AgentNeeds:
    """Bytes of the cache, of the network and Adam, of an unrolled refresh, and of a minibatch with its gradients."""
    config, network = _config(run), _make_module_without_memory(run, spec)
    own = cached.cache_needs(run, spec, config.optimizer.batch_size)
    weights = sum(parameter.numel() for parameter in network.parameters())
    # Inputs, gates and outputs of the cell, the layer behind it, and the stored hidden state.
    per_step = network.num_features + 7 * network.state_size + config.recurrence.hidden
    unrolled = config.cache.block_length + config.cache.tail + 1 + config.recurrence.burn_in
    steps = config.recurrence.burn_in + config.sequence_length
    per_state, size_setting = minibatch_bytes(run, spec)
    gradients = 2 * config.optimizer.batch_size * per_step * FLOAT_BYTES
    return own._replace(
        takers=[
            *own.takers,
            (weights * FLOAT_BYTES * LEARNER_COPIES, f"recurrence.units ({config.recurrence.units})"),
            (config.cache.num_blocks * unrolled * per_step * FLOAT_BYTES, f"cache.size ({config.cache.size})"),
            (steps * (per_state + gradients), size_setting),
        ]
    )


KIND: AgentKind = replace(
    q_learning_kind(
        summary="DQN(λ) with a recurrent network, for what a state does not show",
        boundary="next refresh",
        config=DRQNLambdaConfig,
        make=make,
        needs=cached.cache_needs,
        shortest_start=lambda run: cached.shortest_start(run) + _config(run).recurrence.burn_in,
        shrink=cached.shrink_cache,
    ),
    load=_load,
    load_own=None,
    check=_check,
    needs=_needs,
    sees_reward=lambda run: _config(run).recurrence.reward,
    columns=_columns,
)
