"""An agent, an estimator and an environment that the package has never heard of, each as short as its seam allows.

Importing this module adds the agent to the table of agents, which is all that is needed to use it everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

import lambda_replay as lr
from lambda_replay.agents.epsilon_greedy import epsilon_greedy
from lambda_replay.agents.protocol import Acted, AgentKind, KeepsGoing, Tensors, Work
from lambda_replay.agents.table import AGENTS
from lambda_replay.checks import require_positive
from lambda_replay.config import RunConfig, Schedule
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.randomness import RandomStreams

LENGTH = 6


class Corridor(gymnasium.Env[Any, Any]):
    """Cells in a row, observed one-hot; walking right out of the last one pays 1, every other step −0.1."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 1, shape=(LENGTH,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode, self._cell = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell = int(self.np_random.integers(LENGTH))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1 and self._cell == LENGTH - 1:
            return self._observation(), 1.0, True, False, {}
        self._cell = max(0, self._cell + (1 if action == 1 else -1))
        return self._observation(), -0.1, False, False, {}

    def render(self) -> Any:
        picture = np.zeros((8, 8 * LENGTH, 3), dtype=np.uint8)
        picture[:, 8 * self._cell : 8 * (self._cell + 1)] = 255
        return picture

    def _observation(self) -> NDArray[np.float32]:
        return np.eye(LENGTH, dtype=np.float32)[self._cell]


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=25)  # type: ignore[arg-type]


def between(block: lr.Evaluation) -> NDArray[Any]:
    """An estimator: half-way between one-step and Monte Carlo returns."""
    one, all_ = (lr.parse_estimator(name)(block) for name in ("peng:0", "peng:1"))
    return (one + all_) / 2


@dataclass(frozen=True, kw_only=True)
class TabularConfig:
    """Settings of the tabular agent."""

    refresh_every: int = 50  # agent steps between refreshes
    step_size: float = 0.2  # share of an error that is corrected
    epsilon: float = 0.3  # probability of a random action

    def __post_init__(self) -> None:
        require_positive("", self, "refresh_every", "step_size")

    @property
    def boundary_every(self) -> int:
        return self.refresh_every

    @property
    def schedule(self) -> Schedule:
        return "burst"

    def check(self, run: RunConfig) -> None:
        run.check_lock_step("refresh_every", self.refresh_every)


class Tabular:
    """Q(λ) with a table: every refresh moves the entries of its samples towards their returns."""

    def __init__(self, run: RunConfig, memory: lr.ReplayMemory, table: NDArray[Any], streams: RandomStreams) -> None:
        assert isinstance(run.algorithm, TabularConfig)
        self._run, self._config, self._memory, self._streams = run, run.algorithm, memory, streams
        self._table = table  # [cells, A]
        self._estimator = lr.parse_estimator(run.estimator)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        return epsilon_greedy(states[:, 0] @ self._table, self._config.epsilon, self._streams.explore)

    def describe(self, step: int) -> dict[str, float]:
        return {"epsilon": self._config.epsilon}

    def learn(self, step: int) -> Work | None:
        if not self._run.is_boundary(step):
            return None
        blocks = lr.promote(
            self._memory, discount=self._run.discount, size=100, block_length=10, rng=self._streams.blocks
        )
        return Work(lambda keeps_going: self._train(blocks, keeps_going), adopt=lambda: None)

    def _train(self, blocks: lr.Promoted, keeps_going: KeepsGoing) -> dict[str, float]:
        cache = lr.build_cache(blocks, lr.QCritic(lambda states: states[:, 0] @ self._table), self._estimator)
        for batch in cache.minibatches(16, updates=20, rng=self._streams.batches):
            cells = batch.states[:, 0].argmax(axis=1)
            errors = batch.returns - self._table[cells, batch.actions]
            np.add.at(self._table, (cells, batch.actions), self._config.step_size * errors / 4)
        return cache.metrics

    def get_tensors(self) -> dict[str, Tensors]:
        return {"weights": {"table": torch.from_numpy(self._table.copy())}}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._table[:] = tensors["weights"]["table"].numpy()

    def check_finite(self) -> None:
        assert np.isfinite(self._table).all()

    def get_state(self) -> dict[str, float]:
        return {}

    def set_state(self, state: Mapping[str, float]) -> None:
        assert not state


@dataclass(frozen=True)
class TablePolicy:
    """A trained table that plays."""

    table: NDArray[Any]

    def critic(self, states: NDArray[Any]) -> NDArray[Any]:
        q_values: NDArray[Any] = states[:, 0] @ self.table
        return q_values

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        return epsilon_greedy(self.critic(states), epsilon, rng)


def make(
    run: RunConfig, spec: EnvironmentSpec, *, memory: lr.ReplayMemory, streams: RandomStreams, module: nn.Module | None
) -> Tabular:
    table = np.zeros((*spec.observation_shape, spec.num_actions), dtype=np.float32)
    return Tabular(run, memory, table, streams)


AGENTS["tabular"] = AgentKind(
    summary="a table of Q-values",
    boundary="next refresh",
    config=TabularConfig,
    make=make,
    load=lambda run, spec, weights: TablePolicy(weights["table"].numpy()),
)
