"""SAC with target critics and n-step returns, the baseline of sac-lambda; no cache, no λ."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, nn

from lambda_replay.agents.continuous import (
    ActorCriticConfig,
    Minimum,
    check_constant_rate,
    fast_optimizer,
    make_networks,
    modules_of,
)
from lambda_replay.agents.sac_lambda import SAC, SHAPE, EntropyConfig, SoftOrNot, check, load
from lambda_replay.agents.target_actor_critic import Bootstrap, PolyakConfig, TargetActorCritic, baseline_kind
from lambda_replay.config import OptimizerConfig, RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.actor_critic import ActorCritic
from lambda_replay.learning.squashed_gaussian import sample
from lambda_replay.learning.target_networks import TargetNetworks
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.memory import ReplayMemory


@dataclass(frozen=True, kw_only=True)
class SACConfig:
    """Settings of sac."""

    critic: SoftOrNot = "soft"  # soft: the entropy of every later step is part of a return
    polyak: PolyakConfig = field(default_factory=PolyakConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    optimizer: OptimizerConfig = field(default_factory=fast_optimizer)
    network: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    @property
    def minimum(self) -> Minimum:
        """An n-step return has one bootstrap, so the smaller critic there gives the smaller return too."""
        return "step"

    @property
    def boundary_every(self) -> int:
        return self.polyak.train_every

    @property
    def schedule(self) -> Schedule:
        return "burst"

    def check(self, run: RunConfig) -> None:
        """Reject what does not fit the rest of the run."""
        run.check_lock_step("polyak.train_every", self.polyak.train_every)
        check_constant_rate(self.optimizer)


@dataclass(frozen=True)
class SoftTargets:
    """V(s) = min_j Q'_j(s, ã) − α·log π(ã|s) with ã ~ π(·|s), by target critics Q' and the present policy and α.

    Haarnoja et al. 2018, eq. (3). The entropy is a bonus, so an n-step return counts that of every step on its way:
    G_t = r_t + Σ_{i=1}^{n−1} γⁱ·[ r_{t+i} − α·log π(ã_{t+i}|s_{t+i}) ] + γⁿ·V(s_{t+n}). See docs/algorithm.md.
    """

    networks: ActorCritic  # the present policy, and the target critics
    method: SAC  # knows the present α
    is_soft: bool
    action_size: int

    def evaluate(self, states: Tensor, rng: np.random.Generator) -> Bootstrap:
        noise = self.networks.tensor(rng.standard_normal((len(states), self.action_size), dtype=np.float32))
        drawn, log_probs, *_ = sample(self.networks.act(states), noise)
        q_values = self.networks.values(states, drawn).amin(dim=0)  # [n]
        if not self.is_soft:
            return Bootstrap(q_values)
        entropies = -self.method.alpha * log_probs
        return Bootstrap(q_values + entropies, entropies)


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> TargetActorCritic:
    config, networks = run.algorithm, make_networks(run, spec, SHAPE, streams.draw_init_seed())
    assert isinstance(config, SACConfig)
    (size,) = spec.action_shape
    method, targets = SAC(config, networks, size), TargetNetworks(networks, config.polyak.rate, ["critics"])
    return TargetActorCritic(
        run,
        config.polyak,
        batch_size=config.optimizer.batch_size,
        method=method,
        targets=targets,
        values=SoftTargets(targets.networks, method, config.critic == "soft", size),
        follow_every=1,
        memory=memory,
        streams=streams,
    )


KIND = baseline_kind(
    summary="soft actor-critic with target critics and n-step returns, the baseline of sac-lambda",
    config=SACConfig,
    make=make,
    load=load,
    modules=modules_of(SHAPE),
    check=check,
)
