"""What the house asks of an algorithm: the loop, playing, checkpoints, timing; each algorithm has a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.config import AgentConfig, RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.critic import Critic, QFunction
from lambda_replay.replay.data import Floats
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory

KeepsGoing = Callable[[], bool]  # asked before every gradient step; False: take no further one
Tensors = dict[str, Tensor]


class Acted(NamedTuple):
    """What an agent does in n states."""

    actions: NDArray[Any]  # [n] integers, or [n, D] floats
    behaviour_probs: Floats  # [n]  μ(a|s)


class Work(NamedTuple):
    """Learning that is due. All that ``train`` reads is fixed by now, so it may run beside the acting.

    ``train`` returns metrics where a window ends, else None. ``adopt`` makes the agent act with what was learnt.
    """

    train: Callable[[KeepsGoing], Metrics | None]
    adopt: Callable[[], None]


class Agent(Protocol):
    """An algorithm at work. It knows neither environments nor threads nor files."""

    def act(self, states: NDArray[Any], step: int) -> Acted:
        """Actions for states [n, F, *observation]."""
        ...

    def learn(self, step: int) -> Work | None:
        """What is due at this step."""
        ...

    def describe(self, step: int) -> Metrics:
        """How it acts now, for every row of the metrics: ε, noise, and the like."""
        ...

    def get_tensors(self) -> dict[str, Tensors]:
        """All that was learnt, by the name of its file: "weights" for what plays, "optimizer" and more for the rest."""
        ...

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None: ...

    def check_finite(self) -> None:
        """Raise DivergenceError if anything that was learnt is not finite."""
        ...

    def get_state(self) -> dict[str, float]:
        """Plain values that the tensors do not hold, as they are at a boundary."""
        ...

    def set_state(self, state: Mapping[str, float]) -> None: ...


class Policy(Protocol):
    """A trained agent, for playing and for looking at."""

    @property
    def critic(self) -> Critic | QFunction:
        """What a refresh would ask."""
        ...

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        """Actions for states [n, F, *observation]; a random one with probability ``epsilon``."""
        ...


class AgentNeeds(NamedTuple):
    """Bytes that an agent takes beyond the replay memory."""

    takers: Sequence[tuple[int, str]] = ()  # bytes, and the setting to lower where they are too many
    cache_bytes: int = 0  # of the first, while it is used
    q_values_bytes: int = 0  # of the first, while it is computed


class Probe(NamedTuple):
    """A small version of an agent's settings, by which a run is timed."""

    algorithm: AgentConfig
    scale: float = 0.0  # of the time of its first boundary, for that of a whole one; 0: learning is spread over steps


class MakeAgent(Protocol):
    """Builds an agent around a memory; ``module`` is a network of the user's own, or None for the config's."""

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
    """All that the house asks about an algorithm; what comes after ``load`` has an answer that suits a simple one."""

    summary: str  # for help texts
    boundary: str  # what is due at a boundary, for the live panel: "next refresh"
    config: type[Any]  # its settings: an AgentConfig that can be made without arguments
    make: MakeAgent
    load: Callable[[RunConfig, EnvironmentSpec, Tensors], Policy]  # from saved weights
    # Refuses, before anything is written, what ``make`` or the first step would refuse.
    check: Callable[[RunConfig, EnvironmentSpec, nn.Module | None], None] = lambda run, spec, module: None
    estimator: Callable[[RunConfig], Estimator] = lambda run: parse_estimator(run.estimator)
    threads: Callable[[RunConfig, EnvironmentSpec], int] = lambda run, spec: 1
    needs: Callable[[RunConfig, EnvironmentSpec, nn.Module | None], AgentNeeds] = lambda run, spec, module: AgentNeeds()
    final_epsilon: Callable[[RunConfig], float] = lambda run: 0.0  # share of random actions at the end of training
    shortest_start: Callable[[RunConfig], int] = lambda run: run.memory.history  # steps per stream before learning
    # One part in ``share`` of a boundary's learning, with no other boundary within ``steps``, and unable to diverge.
    probe: Callable[[RunConfig, int, int], Probe] = lambda run, steps, share: Probe(run.algorithm)
