"""Shared by agents with continuous actions: their networks, the estimators that fit, refreshes and diagnostics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.agents.cached import FLOAT_BYTES, cache_needs, check_room_for_blocks, shortest_start, shrink_cache
from lambda_replay.agents.protocol import Acted, AgentKind, AgentNeeds, CheckRun, MakeAgent, Policy, Probe, Tensors
from lambda_replay.agents.q_learning import LEARNER_COPIES, PROBE_LEARNING_RATE
from lambda_replay.checks import require, require_widths
from lambda_replay.config import CacheConfig, OptimizerConfig, RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError, diverged
from lambda_replay.learning.actor_critic import ActorCritic, make_ensembles
from lambda_replay.learning.critic_training import CriticSummary
from lambda_replay.learning.device import find_device
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.learning.network_health import describe_layers
from lambda_replay.replay.cache import Cache
from lambda_replay.replay.critic import Promoted
from lambda_replay.replay.data import Floats, Integers, Minibatch, ValueBlock
from lambda_replay.replay.diagnostics import Metrics, describe_samples
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator, ExpectedSarsa, QStar, check_fits

Minimum = Literal["step", "return"]
MOST_CRITICS = 2
WORKED_ON = 4  # copies of the layers while a minibatch is trained on: outputs and gradients, policy and critics


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """The policy and the critics."""

    hidden: tuple[int, ...] = (256, 256)  # units per hidden layer of the policy and of each critic
    layer_norm: bool = True  # normalise the critics' hidden layers before their ReLU (Ba et al. 2016)

    def __post_init__(self) -> None:
        require_widths(self.hidden)


def frequent_cache() -> CacheConfig:
    """The default cache of these agents: small, and refreshed often; an update per step."""
    return CacheConfig(size=8_000, block_length=50, refresh_every=64, updates=64)


def check_cached(run: RunConfig, cache: CacheConfig, optimizer: OptimizerConfig) -> None:
    """Reject what does not fit the rest of the run, for an agent with a cache."""
    run.check_lock_step("cache.refresh_every", cache.refresh_every)
    check_room_for_blocks(run, cache)
    check_constant_rate(optimizer)


def check_constant_rate(optimizer: OptimizerConfig) -> None:
    """Reject a learning rate that falls, which these agents' learners do not know."""
    require(
        optimizer.final_learning_rate is None,
        "optimizer.final_learning_rate works with discrete actions only; leave it out.",
        "optimizer.final_learning_rate",
    )


def fast_optimizer() -> OptimizerConfig:
    """The default optimizer of these agents, as in SAC's own paper."""
    return OptimizerConfig(batch_size=256, learning_rate=3e-4, epsilon=1e-8)


class Shape(NamedTuple):
    """What an algorithm's networks must have."""

    policy_outputs: int  # for each number of an action
    num_critics: int
    policy_bound: float | None = None  # the policy's last layer is drawn from ± this; None: nn.Linear's bound


def make_networks(run: RunConfig, spec: EnvironmentSpec, shape: Shape, seed: int) -> ActorCritic:
    """The config's networks on the run's device."""
    return ActorCritic(*_make_ensembles(run, spec, shape, seed), find_device(run.device))


def _make_ensembles(run: RunConfig, spec: EnvironmentSpec, shape: Shape, seed: int) -> tuple[Ensemble, Ensemble]:
    config: Any = run.algorithm
    (size,) = spec.action_shape
    return make_ensembles(
        math.prod(run.state_shape(spec.observation_shape)),
        size,
        policy_outputs=shape.policy_outputs * size,
        num_critics=shape.num_critics,
        hidden=config.network.hidden,
        layer_norm=config.network.layer_norm,
        policy_bound=shape.policy_bound,
        seed=seed,
    )


def random_actions(num_states: int, size: int, rng: np.random.Generator) -> Acted:
    """Uniform actions [n, D] from −1 to 1, and log μ(a|s) = −D·log 2 of each."""
    actions = rng.uniform(-1, 1, (num_states, size)).astype(np.float32)
    return Acted(actions, np.full(num_states, -size * math.log(2)))


def mixed_with_random(acted: Acted, epsilon: float, rng: np.random.Generator) -> Acted:
    """The actions, each replaced by a uniformly random one with probability ε."""
    is_random = rng.random(len(acted.actions)) < epsilon  # [n]
    num_states, size = acted.actions.shape
    random = random_actions(num_states, size, rng)
    return Acted(
        np.where(is_random[:, None], random.actions, acted.actions),
        np.where(is_random, random.behaviour_probs, acted.behaviour_probs),
    )


def parse_value_estimator(run: RunConfig, *, has_densities: bool) -> Estimator:
    """The run's estimator, if it needs no row of Q-values; ``has_densities``: the critic knows π(a|s)/μ(a|s)."""
    estimator = parse_estimator(run.estimator)
    reason = ""
    if isinstance(estimator, ExpectedSarsa):
        reason = "with continuous actions it would be peng; use that."
    elif isinstance(estimator, QStar):
        reason = "it contracts only for λ close to 0, so it is not offered for continuous actions; use peng."
    else:
        try:
            check_fits(estimator, _smallest_block(has_densities=has_densities))
        except ConfigError as error:
            reason = str(error)
    if reason:
        raise ConfigError(f"agent {run.agent} cannot use {run.estimator}: {reason}", "estimator", "agent")
    return estimator


def _smallest_block(*, has_densities: bool) -> ValueBlock:
    """Two steps as a critic without a row of Q-values evaluates them."""
    steps, states = np.zeros((1, 2), dtype=np.float32), np.zeros((1, 3), dtype=np.float32)
    ratios = np.ones_like(states) if has_densities else None
    return ValueBlock(steps, steps, states, states, np.ones((1, 2), dtype=np.bool_), ratios=ratios)


class ReadsStates(Protocol):
    """Networks that take states and actions as the memory has them."""

    @property
    def chunk_size(self) -> int: ...  # states per forward pass

    def states(self, array: NDArray[Any]) -> Tensor:
        """States [n, F, *observation] as the networks take them: [n, inputs]."""
        ...

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array on the networks' device."""
        ...


def over_chunks(
    blocks: Promoted, networks: ReadsStates, evaluate: Callable[[Tensor, slice], Sequence[Tensor]]
) -> list[Floats]:
    """The results [..., K, L+1] of a function of states [n, inputs] and of their place among all the blocks' states."""
    chunks = []
    with torch.inference_mode():
        for start in range(0, blocks.slots.size, networks.chunk_size):
            rows = slice(start, start + networks.chunk_size)
            chunks.append(evaluate(networks.states(blocks.states(rows)), rows))
    results = [torch.cat(parts, dim=-1).cpu().numpy() for parts in zip(*chunks, strict=True)]
    if not all(np.isfinite(result).all() for result in results):
        raise diverged("the Q-values are")
    return [result.reshape(*result.shape[:-1], *blocks.slots.shape) for result in results]


def evaluate_greedily(
    blocks: Promoted, networks: ReadsStates, evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> ValueBlock:
    """The blocks with V(s) = max_a Q(s, a) and Q(s, a), which ``evaluate`` gives for states and the stored actions."""
    actions = networks.tensor(blocks.actions)  # [n, D]
    values, action_values = over_chunks(blocks, networks, lambda states, rows: evaluate(states, actions[rows]))
    return ValueBlock(
        rewards=blocks.rewards,
        discounts=blocks.discounts,
        values=values,  # [K, L+1]
        action_values=action_values,
        continues=blocks.continues,
        is_step=blocks.transitions.is_step,
    )


def describe_critics(networks: ActorCritic, batch: Minibatch) -> Metrics:
    """The health of critics whose inputs are states and actions."""
    inputs = torch.cat([networks.states(batch.states), networks.tensor(batch.actions)], dim=1)
    return describe_ensemble(networks.modules["critics"], inputs)


def describe_ensemble(module: Ensemble, inputs: Tensor) -> Metrics:
    """The share of dead units in each hidden layer, zero for all inputs [n, inputs], and the norm of the weights.

    Inputs [N, n, inputs] are each network's own.
    """
    with torch.no_grad():
        layers = [layer.transpose(0, 1).flatten(1) for layer in module.hidden_layers(inputs)]  # [n, N·units] each
        return describe_layers(layers, module)


def describe_summary(summary: CriticSummary) -> Metrics:
    """The metrics of the minibatches trained on; names as in docs/metrics.md."""
    return {
        "loss": summary.loss,
        "gradient_norm": summary.gradient_norm,
        **{f"q_{number}_mean": value for number, value in enumerate(summary.q_values, start=1)},
    }


def describe_training(blocks: Promoted, cache: Cache, rows: Integers, summary: CriticSummary) -> Metrics:
    """The metrics of a refresh and of the minibatches [updates, B] drawn from it; names as in docs/metrics.md."""
    ages, drawn = blocks.ages[:, : blocks.length].reshape(-1), rows.reshape(-1)
    return {
        **describe_summary(summary),
        **cache.metrics,
        **describe_samples(cache.slots[drawn], ages[drawn]),
    }


MakeModules = Callable[[RunConfig, EnvironmentSpec], Sequence[Ensemble]]


def modules_of(shape: Shape) -> MakeModules:
    """Makes a policy, and critics that see states and actions."""
    return lambda run, spec: _make_ensembles(run, spec, shape, seed=0)


def cached_needs(run: RunConfig, spec: EnvironmentSpec, make_modules: MakeModules) -> AgentNeeds:
    """Bytes of the cache, of the networks and of what these compute for a state."""
    settings: Any = run.algorithm
    (size,) = spec.action_shape
    networks = network_needs(run, spec, make_modules)
    own = cache_needs(run, spec, settings.optimizer.batch_size, values_per_state=2 * MOST_CRITICS + 3 + size)
    return own._replace(takers=[*own.takers, *networks])


def network_needs(run: RunConfig, spec: EnvironmentSpec, make_modules: MakeModules) -> list[tuple[int, str]]:
    """Bytes of the networks with a copy and Adam, and of a minibatch on its way through them; what to lower."""
    settings: Any = run.algorithm
    batch_size, hidden = settings.optimizer.batch_size, settings.network.hidden
    inputs = math.prod(run.state_shape(spec.observation_shape)) + spec.action_shape[0]
    with torch.device("meta"):  # sizes without memory
        modules = make_modules(run, spec)
    weights = sum(parameter.numel() for module in modules for parameter in module.parameters())
    widths = f"network.hidden ({', '.join(map(str, hidden))})"
    numbers = inputs + WORKED_ON * max(module.count * (sum(hidden) + module.num_outputs) for module in modules)
    return [
        (weights * FLOAT_BYTES * LEARNER_COPIES, widths),
        (batch_size * FLOAT_BYTES * numbers, f"optimizer.batch_size ({batch_size})"),
    ]


def check_continuous(run: RunConfig, spec: EnvironmentSpec, module: nn.Module | None) -> None:
    """Reject a device that is not there, and a network of the user's own."""
    find_device(run.device)
    if module is not None:
        raise ConfigError(f"agent {run.agent} takes no network of your own; use network.hidden.", "agent")


def continuous_kind(
    *,
    summary: str,
    config: type[Any],
    make: MakeAgent,
    load: Callable[[RunConfig, EnvironmentSpec, Tensors], Policy],
    modules: MakeModules,
    has_densities: bool,
    check: CheckRun = check_continuous,
) -> AgentKind:
    """An entry for the table of agents, given only what is specific to this agent."""

    def probe(run: RunConfig, steps: int, share: int) -> Probe:
        small, scale = shrink_cache(run.algorithm, steps, share)
        return Probe(replace(small, optimizer=replace(small.optimizer, learning_rate=PROBE_LEARNING_RATE)), scale)

    return AgentKind(
        summary=summary,
        boundary="next refresh",
        config=config,
        make=make,
        load=load,
        actions="Box",
        check=check,
        estimator=lambda run: parse_value_estimator(run, has_densities=has_densities),
        needs=lambda run, spec, module: cached_needs(run, spec, modules),
        shortest_start=shortest_start,
        probe=probe,
    )
