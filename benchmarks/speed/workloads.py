"""What is measured: three networks with their environments, and the contenders.

All contenders get the same network, batch of 32, one update per 4 agent steps, replay size, environments and ε. The
cache has the paper's proportions (S = 8·F, one update per 4 steps, blocks of 100), at a size for which whole cycles
take seconds.
"""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass, replace
from typing import Any

from lambda_replay.agents.dqn import DQNConfig, TargetConfig
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.config import (
    CacheConfig,
    ExplorationConfig,
    MemoryConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    Schedule,
)
from lambda_replay.errors import ConfigError
from lambda_replay.training.presets import make_config

BATCH_SIZE = 32
STEPS_PER_UPDATE = 4
EPSILON = 0.1
BLOCK_LENGTH = 100
ROWS_PER_STEP = 8  # S / F; in the paper 80,000 / 10,000
HIDDEN = (128, 128)  # of the CartPole MLP


@dataclass(frozen=True)
class Workload:
    """One network and its environment; sizes are in agent steps and slots."""

    name: str
    env: str
    network: str
    history: int
    capacity: int
    start: int  # random steps before learning; not timed
    refresh_every: int  # F, and the interval between target network copies
    weight: float  # multiplies a measurement's length, so that slow environments get more seconds


WORKLOADS = {
    "atari": Workload("atari", "atari/breakout", "atari", 4, 20_000, 2_000, 400, 2.0),
    "minatar": Workload("minatar", "minatar/breakout", "minatar", 1, 50_000, 2_000, 1_000, 1.0),
    "cartpole": Workload("cartpole", "CartPole-v1", "mlp", 1, 50_000, 2_000, 1_000, 1.0),
}


@dataclass(frozen=True)
class Contender:
    """An implementation to measure; ``package`` must be installed alongside lambda-replay."""

    name: str
    package: str | None = None
    agent: str = "dqn"
    schedule: Schedule = "burst"  # of the cache
    n_steps: int = 1

    @property
    def is_ours(self) -> bool:
        return self.package is None


BASELINE = "sb3"
CONTENDERS = {
    "dqn-lambda": Contender("dqn-lambda", agent="dqn-lambda"),
    "dqn-lambda-concurrent": Contender("dqn-lambda-concurrent", agent="dqn-lambda", schedule="concurrent"),
    "dqn": Contender("dqn", agent="dqn", n_steps=3),
    "sb3": Contender("sb3", "stable_baselines3"),
    "sb3-3step": Contender("sb3-3step", "stable_baselines3", n_steps=3),
    "tianshou": Contender("tianshou", "tianshou"),
    "torchrl": Contender("torchrl", "torchrl"),
}


def is_available(contender: Contender) -> bool:
    """Whether it is ours or an installed peer."""
    return contender.package is None or importlib.util.find_spec(contender.package) is not None


@dataclass(frozen=True)
class Job:
    """One measurement of one contender, in its own process."""

    workload: Workload
    contender: str
    envs: int
    threads: int
    seconds: float  # minimum to time, in whole cycles of refresh and training

    def __post_init__(self) -> None:
        if self.contender not in CONTENDERS:
            raise ConfigError(f"there is no contender {self.contender!r}; choose one of {', '.join(CONTENDERS)}.")

    @property
    def steps_per_collection(self) -> int:
        """Agent steps between two rounds of a peer's updates: four in each environment."""
        return STEPS_PER_UPDATE * self.envs

    @property
    def updates_per_collection(self) -> int:
        return self.steps_per_collection // STEPS_PER_UPDATE


def job_to_dict(job: Job) -> dict[str, Any]:
    return asdict(job)


def job_from_dict(values: dict[str, Any]) -> Job:
    return Job(**{**values, "workload": Workload(**values["workload"])})


def run_config(job: Job) -> RunConfig:
    """Our config for a job; peers also get their environment from it."""
    workload, contender = job.workload, CONTENDERS[job.contender]
    name = "paper" if workload.env.startswith("atari/") else None  # the proportions that the peers use
    preset = make_config(workload.env, name, contender.agent)
    return replace(
        preset,
        estimator=preset.estimator if contender.agent == "dqn-lambda" else f"nstep:{contender.n_steps}",
        steps=10**9,  # the stopwatch ends it
        envs=job.envs,
        device="cpu",
        threads=job.threads,
        checkpoint_every=0,
        memory=MemoryConfig(capacity=workload.capacity, start=workload.start, history=workload.history, storage="ram"),
        algorithm=_algorithm(workload, contender),
    )


def _algorithm(workload: Workload, contender: Contender) -> DQNLambdaConfig | DQNConfig:
    shared: dict[str, Any] = {
        "exploration": ExplorationConfig(start=EPSILON, end=EPSILON),
        "optimizer": OptimizerConfig(batch_size=BATCH_SIZE),
        "network": NetworkConfig(kind=workload.network, hidden=HIDDEN),  # type: ignore[arg-type]
    }
    if contender.agent == "dqn-lambda":
        return DQNLambdaConfig(cache=cache_config(workload, contender), **shared)
    target = TargetConfig(copy_every=workload.refresh_every, update_every=STEPS_PER_UPDATE)
    return DQNConfig(target=target, **shared)


def cache_config(workload: Workload, contender: Contender) -> CacheConfig:
    """The paper's proportions at the workload's size."""
    return CacheConfig(
        size=ROWS_PER_STEP * workload.refresh_every,
        block_length=min(BLOCK_LENGTH, workload.refresh_every),
        refresh_every=workload.refresh_every,
        updates=workload.refresh_every // STEPS_PER_UPDATE,
        schedule=contender.schedule,
    )
