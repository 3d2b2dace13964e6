"""The interface of an algorithm, for the loop, playing, checkpoints and timing; each algorithm has its own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.config import AgentConfig, RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import diverged
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.critic import Critic, QFunction
from lambda_replay.replay.data import Floats
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.storage import Columns

CheckRun = Callable[[RunConfig, EnvironmentSpec, nn.Module | None], None]
KeepsGoing = Callable[[], bool]  # called before every gradient step; False: stop
Tensors = dict[str, Tensor]


class Acted(NamedTuple):
    """An agent's actions in n states."""

    actions: NDArray[Any]  # [n] integers, or [n, D] floats
    behaviour_probs: Floats  # [n]  μ(a|s), or its logarithm where actions are vectors
    columns: Mapping[str, NDArray[Any]] = MappingProxyType({})  # [n, ...] each: what the memory keeps besides

    def check_finite(self) -> None:
        """Raise DivergenceError if vectors are not finite: an update can ruin a policy before any loss shows it."""
        is_vector = self.actions.dtype.kind == "f"
        if is_vector and not (np.isfinite(self.actions).all() and np.isfinite(self.behaviour_probs).all()):
            raise diverged("the actions are")


class Work(NamedTuple):
    """Learning that is due. Everything that ``train`` reads is fixed by now, so it may run alongside acting.

    ``train`` returns metrics if a window ends, else None. ``adopt`` makes the agent act with what was learnt.
    """

    train: Callable[[KeepsGoing], Metrics | None]
    adopt: Callable[[], None]


class Agent(Protocol):
    """A running algorithm. It knows nothing about environments, threads or files."""

    def act(self, states: NDArray[Any], step: int) -> Acted:
        """Actions for states [n, F, *observation]."""
        ...

    def learn(self, step: int) -> Work | None:
        """The learning that is due at this step, if any."""
        ...

    def describe(self, step: int) -> Metrics:
        """How it currently acts, for every row of the metrics: ε, noise and so on."""
        ...

    def get_tensors(self) -> dict[str, Tensors]:
        """Everything learnt, by file name: "weights" for the policy, "optimizer" and others for the rest."""
        ...

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None: ...

    def check_finite(self) -> None:
        """Raise DivergenceError if anything learnt is not finite."""
        ...

    def get_state(self) -> dict[str, float]:
        """Plain values at a boundary that the tensors do not hold."""
        ...

    def set_state(self, state: Mapping[str, float]) -> None: ...


class Policy(Protocol):
    """A trained agent, for playing and inspecting."""

    @property
    def critic(self) -> Critic | QFunction:
        """The critic that a refresh would use."""
        ...

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        """Actions for states [n, F, *observation]; a random one with probability ``epsilon``."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A policy whose actions depend on the whole episode.

    An agent in training reads what came before a state from the replay memory that it was made with
    (``ReplayMemory.before_newest``); a trained policy is given one to follow.
    """

    def following(self, memory: ReplayMemory) -> Policy:
        """The policy for the newest states of a memory; it must be asked for an action in each of them, in order."""
        ...


def following(policy: Policy, memory: ReplayMemory) -> Policy:
    """The policy for the newest states of a memory; one that does not remember is the same for all of them."""
    return policy.following(memory) if isinstance(policy, Remembers) else policy


class AgentNeeds(NamedTuple):
    """Bytes that an agent takes beyond the replay memory."""

    takers: Sequence[tuple[int, str]] = ()  # bytes, and the setting to lower if they are too many
    cache_bytes: int = 0  # part of the first, while the cache is used
    q_values_bytes: int = 0  # part of the first, while the cache is computed


class Probe(NamedTuple):
    """A small version of an agent's settings, for timing a run."""

    algorithm: AgentConfig
    scale: float = 0.0  # a full boundary's time divided by the probe's; 0: learning is spread over steps


class MakeAgent(Protocol):
    """Builds an agent around a memory; ``module`` is the user's own network, or None for the config's."""

    def __call__(
        self,
        run: RunConfig,
        spec: EnvironmentSpec,
        *,
        memory: ReplayMemory,
        streams: RandomStreams,
        module: nn.Module | None,
    ) -> Agent: ...


@dataclass(frozen=True)
class AgentKind:
    """Everything the package needs from an algorithm; the defaults after ``load`` suit a simple one."""

    summary: str  # for help texts
    boundary: str  # what is due at a boundary, for the live panel: "next refresh"
    config: type[Any]  # its settings: an AgentConfig that can be made without arguments
    make: MakeAgent
    load: Callable[[RunConfig, EnvironmentSpec, Tensors], Policy]  # from saved weights
    # The same with the user's own network; None: it takes none.
    load_own: Callable[[RunConfig, EnvironmentSpec, Tensors, nn.Module], Policy] | None = None
    actions: Literal["Discrete", "Box", "any"] = "Discrete"  # the action spaces it can learn
    needs_goals: bool = False  # whether observations must hold goals
    sees_reward: Callable[[RunConfig], bool] = lambda run: False  # whether it acts on the last reward too
    # Rejects, before anything is written, what ``make`` or the first step would reject.
    check: CheckRun = lambda run, spec, module: None
    # The values that its actions bring into the memory, ``Acted.columns``.
    columns: Callable[[RunConfig, EnvironmentSpec], Columns] = lambda run, spec: {}
    estimator: Callable[[RunConfig], Estimator] = lambda run: parse_estimator(run.estimator)
    threads: Callable[[RunConfig, EnvironmentSpec], int] = lambda run, spec: 1
    needs: Callable[[RunConfig, EnvironmentSpec, nn.Module | None], AgentNeeds] = lambda run, spec, module: AgentNeeds()
    # Share of random actions at the end of training.
    final_epsilon: Callable[[RunConfig, EnvironmentSpec], float] = lambda run, spec: 0.0
    shortest_start: Callable[[RunConfig], int] = lambda run: run.memory.history  # steps per stream before learning
    # 1/``share`` of a boundary's learning, with no other boundary within ``steps``, and no risk of divergence.
    probe: Callable[[RunConfig, int, int], Probe] = lambda run, steps, share: Probe(run.algorithm)
