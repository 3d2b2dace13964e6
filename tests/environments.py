"""Tiny environments and configs for tests: a chain whose Q* is known, and environments that misbehave on purpose.

Importing this module registers the Gymnasium ones, so that ``environments:LinearChain-v0`` names one on the command
line too.
"""

from __future__ import annotations

import errno
import sys
from itertools import cycle
from typing import Any, Literal, NamedTuple, final

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.agents.dqn import DQNConfig, TargetConfig
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.run_settings import override
from lambda_replay.config import (
    CacheConfig,
    ExplorationConfig,
    MemoryConfig,
    MinAtarConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
)
from lambda_replay.envs import Environment, EnvironmentSpec, Step
from lambda_replay.training.assembly import Assembly, assemble

NUM_STATES = 5
LEFT, RIGHT = 0, 1
TIME_LIMIT = 30

Observation = NDArray[np.float32]
Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class LinearChain(gymnasium.Env[Any, Any]):
    """States 0 … 4 in a row, each observed one-hot; a game starts anywhere, by its seed.

    Stepping right from the last state pays 1 and terminates; any other step pays −0.1; left of the first is the first.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 1, shape=(NUM_STATES,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(NUM_STATES))
        return one_hot(self._state), {}

    def step(self, action: Any) -> Outcome:
        if action == RIGHT and self._state == NUM_STATES - 1:
            return one_hot(self._state), 1.0, True, False, {}
        self._state = max(0, self._state + (1 if action == RIGHT else -1))
        return one_hot(self._state), -0.1, False, False, {}

    def render(self) -> Any:
        picture = np.zeros((10, 10 * NUM_STATES, 3), dtype=np.uint8)
        picture[:, 10 * self._state : 10 * (self._state + 1)] = 255
        return picture


def one_hot(state: int) -> Observation:
    return np.eye(NUM_STATES, dtype=np.float32)[state]


def optimal_chain_values(discount: float) -> NDArray[np.float64]:
    """Q* [states, 2] of the chain by value iteration: Q(s, a) = r + γ · max Q(s', ·), nothing after the end."""
    q_values = np.zeros((NUM_STATES, 2))
    for _ in range(1_000):
        best = q_values.max(axis=1)
        left = -0.1 + discount * best[[0, 0, 1, 2, 3]]
        right = np.append(-0.1 + discount * best[1:], 1.0)
        q_values = np.stack([left, right], axis=1)
    return q_values


class Misbehaving(gymnasium.Env[Any, Any]):
    """A game without end that does something wrong at its ``at``-th step (the first is 0), counted over all games."""

    def __init__(self, wrong: str, at: int = 100) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, shape=(2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self._wrong, self._at, self._count = wrong, at, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        is_now = self._count == self._at
        self._count += 1
        observation, reward = np.full(2, self._count % 7, dtype=np.float32), float(action)
        if not is_now:
            return observation, reward, False, self._count % 20 == 0, {}
        if self._wrong == "raises":
            raise RuntimeError("the simulator fell over")
        if self._wrong == "exits":
            sys.exit(0)
        if self._wrong == "refuses":
            raise OSError(errno.ENOSPC, "No space left on device", "simulator.log")
        if self._wrong == "four values":
            return observation, reward, False, {}
        if self._wrong == "nan observation":
            observation[1] = np.nan
        if self._wrong == "infinite observation":
            observation[0] = -np.inf
        rewards: dict[str, Any] = {"nan reward": np.nan, "infinite reward": np.inf, "no reward": None}
        return observation, rewards.get(self._wrong, reward), False, False, {}


class WrongSpaces(gymnasium.Env[Any, Any]):
    """An environment that no Q-network here can play."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions


_VECTOR = spaces.Box(-1, 1, shape=(2,), dtype=np.float32)


class Constant(gymnasium.Env[Any, Any]):
    """Shows the same observation at every step; games of ten steps with rewards of 0 or 1 at random."""

    observation_space = spaces.Box(-1, 1, shape=(3,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.ones(3, dtype=np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.ones(3, dtype=np.float32), float(self.np_random.integers(2)), self._step == 10, False, {}


def _register(name: str, creator: Any, max_episode_steps: int | None = None, **arguments: Any) -> None:
    gymnasium.register(name, entry_point=creator, max_episode_steps=max_episode_steps, kwargs=arguments)


_register("LinearChain-v0", LinearChain, TIME_LIMIT)
_register("Constant-v0", Constant)
_register("NanObservation-v0", Misbehaving, wrong="nan observation")
_register("InfiniteObservation-v0", Misbehaving, wrong="infinite observation")
_register("NanReward-v0", Misbehaving, wrong="nan reward")
_register("InfiniteReward-v0", Misbehaving, wrong="infinite reward")
_register("NoReward-v0", Misbehaving, wrong="no reward")
_register("Raising-v0", Misbehaving, wrong="raises")
_register("Exiting-v0", Misbehaving, wrong="exits")
_register("Refusing-v0", Misbehaving, wrong="refuses")
_register("FourValues-v0", Misbehaving, wrong="four values")
_register("SeveralActions-v0", WrongSpaces, observations=_VECTOR, actions=spaces.MultiDiscrete([2, 3]))
_register("UnboundedActions-v0", WrongSpaces, observations=_VECTOR, actions=spaces.Box(-1, np.inf, shape=(1,)))
_register("TextObservations-v0", WrongSpaces, observations=spaces.Text(5), actions=spaces.Discrete(2))


class Tape(list[Any]):
    """What happened, in order; whoever writes on it may be copied, the tape is not."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tape:
        return self


class Taken(NamedTuple):
    """A step as the environment saw it."""

    action: int
    step: Step


@final
class Scripted:
    """Follows a script, over and over, whatever the actions: one letter per step.

    "." the game goes on · "L" a life is lost: terminated, but the game goes on · "T" the game terminates · "U" it is
    truncated. Every observation holds its own number and the number of the game; the number of the first one is given,
    the others follow. The reward of the step that leads to observation n is ``reward_of(n)``, its score ten times that.
    """

    def __init__(
        self, script: str, num_actions: int = 3, first_observation: int = 1, tape: list[Any] | None = None
    ) -> None:
        self._letters = cycle(script)
        self._count, self._games = first_observation - 1, 0
        self._spec = EnvironmentSpec((2,), np.dtype(np.float32), num_actions, tuple("abcdefgh"[:num_actions]))
        self._tape = Tape() if tape is None else tape
        self.taken: dict[int, Taken] = {}  # by the number of the observation it was taken in
        self.seen: dict[int, Observation] = {}  # every observation, by its number
        self.seeds: list[int] = []

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self, seed: int) -> Observation:
        self._tape.append(("reset", seed))
        self.seeds.append(seed)
        self._games += 1
        return self._observe()

    def step(self, action: int) -> Step:
        self._tape.append(("step", action))
        letter, number = next(self._letters), self._count
        observation = self._observe()
        reward = reward_of(self._count)
        step = Step(
            observation=observation,
            reward=reward,
            terminated=letter in "LT",
            truncated=letter == "U",
            game_over=letter in "TU",
            score=10 * reward,
        )
        self.taken[number] = Taken(action, step)
        return step

    def render(self) -> NDArray[np.uint8]:
        return np.full((4, 4, 3), self._count % 256, dtype=np.uint8)

    def close(self) -> None:
        self._tape.append(("close",))

    def _observe(self) -> Observation:
        self._count += 1
        self.seen[self._count] = np.array([self._count, self._games], dtype=np.float32)
        return self.seen[self._count]


class TapeNetwork(nn.Module):
    """Q(s, ·) = W·s/100 + b over the flattened state; writes ("q" or "update", states, Q-values) on the tape.

    A user's own module like any other, so autograd is on exactly where a gradient is wanted.
    """

    def __init__(self, tape: list[Any], num_actions: int = 3, history: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * history, num_actions)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self._tape = tape

    def forward(self, states: Tensor) -> Tensor:
        q_values: Tensor = self.layer(states.flatten(1) / 100)
        kind = "update" if torch.is_grad_enabled() else "q"
        self._tape.append((kind, states.numpy().copy(), q_values.detach().numpy().copy()))
        return q_values


def make_loop(config: RunConfig, environments: list[Environment], network: nn.Module | None = None) -> Assembly:
    """The real loop with the config's real agent and memory around the given environments."""
    return assemble(config, environments, network)


def reward_of(observation_number: int) -> float:
    """Small rewards of both signs, none of which repeats soon."""
    return float(observation_number * 7 % 11 - 5) / 4


def tiny_config(
    env: str = "environments:LinearChain-v0", agent: Literal["dqn-lambda", "dqn"] = "dqn-lambda", **changes: Any
) -> RunConfig:
    """A complete config small enough for a test; ``changes`` as for ``config.override``."""
    shared: dict[str, Any] = {
        "exploration": ExplorationConfig(start=0.9, end=0.1, steps=300),
        "optimizer": OptimizerConfig(batch_size=8, learning_rate=1e-2),
        "network": NetworkConfig(hidden=(16,)),
    }
    cached = DQNLambdaConfig(cache=CacheConfig(size=80, block_length=8, refresh_every=50, updates=5), **shared)
    config = RunConfig(
        env=env,
        agent=agent,
        estimator="peng:0.75" if agent == "dqn-lambda" else "nstep:3",
        steps=400,
        device="cpu",
        checkpoint_every=0,
        memory=MemoryConfig(capacity=500, start=100, history=1, storage="ram"),
        algorithm=(
            cached if agent == "dqn-lambda" else DQNConfig(target=TargetConfig(copy_every=40, update_every=4), **shared)
        ),
        minatar=MinAtarConfig() if env.startswith("minatar/") else None,
    )
    return override(config, changes)


def cached(config: RunConfig) -> DQNLambdaConfig:
    """The settings of a dqn-lambda."""
    assert isinstance(config.algorithm, DQNLambdaConfig)
    return config.algorithm


def targeted(config: RunConfig) -> DQNConfig:
    """The settings of a dqn."""
    assert isinstance(config.algorithm, DQNConfig)
    return config.algorithm
