"""The agent behind the baselines sac and td3: n-step returns that bootstrap from target networks; no cache, no λ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lambda_replay.agents.actor_critic import Method
from lambda_replay.agents.cached import FLOAT_BYTES
from lambda_replay.agents.continuous import (
    MOST_CRITICS,
    MakeModules,
    check_continuous,
    describe_summary,
    network_needs,
    random_actions,
)
from lambda_replay.agents.n_step import WINDOW_STEP_BYTES, look_ahead, parse_n_step, sample_slots, shortest_start
from lambda_replay.agents.protocol import (
    Acted,
    AgentKind,
    AgentNeeds,
    CheckRun,
    KeepsGoing,
    MakeAgent,
    Policy,
    Probe,
    Tensors,
    Work,
)
from lambda_replay.agents.q_learning import PROBE_LEARNING_RATE
from lambda_replay.checks import require, require_positive, require_reasonable
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.network_health import is_look_due
from lambda_replay.learning.target_networks import TargetNetworks
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.data import Floats, Integers, Minibatch
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.returns import nstep_returns


@dataclass(frozen=True, kw_only=True)
class PolyakConfig:
    """The target networks, and when they and the others are trained."""

    rate: float = 0.005  # τ: share of the trained weights in an average; Haarnoja et al. and Fujimoto et al. 2018 0.005
    train_every: int = 64  # agent steps between two rounds of updates; the papers 1
    updates: int = 64  # minibatches per round; the papers 1

    def __post_init__(self) -> None:
        require_reasonable("polyak.", self)
        require_positive("polyak.", self, "train_every", "updates")
        require(0 < self.rate <= 1, f"polyak.rate is {self.rate}; give a number above 0, up to 1.", "polyak.rate")


class Bootstrap(NamedTuple):
    """What n-step returns need of the states that steps lead to."""

    values: Tensor  # [n]  V(s')
    bonuses: Tensor | None = (
        None  # [n]  the part of V(s') that every step on the way counts too: a soft critic's entropy
    )


class TargetValues(Protocol):
    """The values of some target networks."""

    def evaluate(self, states: Tensor, rng: np.random.Generator) -> Bootstrap:
        """V(s') for states [n, inputs]."""
        ...


@final
class TargetActorCritic:
    """Every so many steps, trains on minibatches of the whole memory, one after another.

    The returns of each minibatch come from the target networks as they are by then.
    """

    def __init__(
        self,
        run: RunConfig,
        config: PolyakConfig,
        *,
        batch_size: int,
        method: Method,
        targets: TargetNetworks,
        values: TargetValues,
        follow_every: int,
        memory: ReplayMemory,
        streams: RandomStreams,
    ) -> None:
        """The targets follow the trained networks after every ``follow_every`` updates."""
        self._run, self._config, self._batch_size = run, config, batch_size
        self._method, self._targets, self._values, self._follow_every = method, targets, values, follow_every
        self._memory, self._streams, self._n = memory, streams, parse_n_step(run).n
        self._num_updates = 0

    def act(self, states: NDArray[Any], step: int) -> Acted:
        rng = self._streams.explore
        if step < self._run.memory.start:
            return random_actions(len(states), self._memory.action_shape[0], rng)
        return self._method.explore(self._method.networks, states, rng)

    def describe(self, step: int) -> Metrics:
        return {}

    def learn(self, step: int) -> Work | None:
        if not self._run.is_boundary(step):
            return None
        looks = is_look_due(step - self._run.memory.start, self._config.train_every)
        return Work(lambda keeps_going: self._train(keeps_going, looks=looks), adopt=lambda: None)

    @np.errstate(over="ignore", invalid="ignore")  # an overflow reaches the loss, which is checked
    def _train(self, keeps_going: KeepsGoing, *, looks: bool) -> Metrics:
        """A round of updates, each followed by its targets."""
        rng, shape = self._streams.batches, (self._config.updates, self._batch_size)
        health = self._describe_values(looks=looks)
        summary, own = self._method.train(self._minibatches(keeps_going), shape, rng)
        return {
            **describe_summary(summary),
            "td_error_abs_mean": summary.td_error_abs,
            "q_mean": float(np.mean(summary.q_values)),
            **health,
            **own,
        }

    def _minibatches(self, keeps_going: KeepsGoing) -> Iterator[Minibatch]:
        """Goes on after a ``yield`` when the learner has trained on that minibatch and asks for the next."""
        for _ in range(self._config.updates):
            if not keeps_going():
                return
            slots = sample_slots(self._memory, self._batch_size, self._n, self._streams.batches)  # [B, n+1]
            yield self._minibatch(slots)
            self._num_updates += 1
            if self._num_updates % self._follow_every == 0:
                self._targets.follow()

    def _minibatch(self, slots: Integers) -> Minibatch:
        """The transitions at the first of these slots [B, n+1] with their n-step returns."""
        window, first = look_ahead(self._memory, slots, self._run.discount), slots[:, 0]
        values, bonuses = self._evaluate(slots[:, 1:])  # [B, n] each
        returns = nstep_returns(
            window.rewards, window.discounts, values, window.continues, self._n, next_bonuses=bonuses
        )
        return Minibatch(self._memory.states(first), window.actions, returns[:, 0], first)

    def _evaluate(self, slots: Integers) -> tuple[Floats, Floats | None]:
        """V of the states at slots of any shape, and its bonuses."""
        with torch.inference_mode():
            states = self._targets.networks.states(self._memory.states(slots.reshape(-1)))
            values, bonuses = self._values.evaluate(states, self._streams.batches)
        of_steps = None if bonuses is None else bonuses.cpu().numpy().reshape(slots.shape)
        return values.cpu().numpy().reshape(slots.shape), of_steps

    def _describe_values(self, *, looks: bool) -> Metrics:
        """How V varies over some states and, if that is due, the health of the critics; affects no other draw."""
        seen = sample_slots(self._memory, self._batch_size, 1, np.random.default_rng(0))[:, 0]
        with torch.inference_mode():
            states = self._targets.networks.states(self._memory.states(seen))
            values = self._values.evaluate(states, np.random.default_rng(0)).values
        batch = Minibatch(self._memory.states(seen), self._memory.actions[seen], np.zeros(len(seen)), seen)
        return {
            "q_std_states": float(values.std(unbiased=False)),
            **(self._method.describe(batch) if looks else {}),
        }

    def get_tensors(self) -> dict[str, Tensors]:
        return {**self._method.get_tensors(), "targets": self._targets.weights()}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None:
        self._method.set_tensors(tensors)
        self._targets.load_weights(tensors["targets"])

    def check_finite(self) -> None:
        self._method.check_finite()
        self._targets.check_finite()

    def get_state(self) -> dict[str, float]:
        return {"num_updates": self._num_updates}

    def set_state(self, state: Mapping[str, float]) -> None:
        self._num_updates = int(state["num_updates"])


def needs(run: RunConfig, spec: EnvironmentSpec, make_modules: MakeModules) -> AgentNeeds:
    """Bytes of the networks with their targets, and of the steps that each sample looks ahead."""
    settings: Any = run.algorithm
    steps = settings.optimizer.batch_size * (parse_n_step(run).n + 1)
    numbers = int(np.prod(run.state_shape(spec.observation_shape))) + spec.action_shape[0] + 2 * MOST_CRITICS
    ahead = steps * (WINDOW_STEP_BYTES + numbers * FLOAT_BYTES)
    own = (ahead, f"the number in estimator ({run.estimator})")
    return AgentNeeds([own, *network_needs(run, spec, make_modules)])


def probe(run: RunConfig, steps: int, share: int) -> Probe:
    """A config with 1/``share`` of a round, and no other within ``steps``."""
    settings: Any = run.algorithm
    small = replace(settings.polyak, train_every=steps, updates=max(1, settings.polyak.updates // share))
    optimizer = replace(settings.optimizer, learning_rate=PROBE_LEARNING_RATE)
    return Probe(replace(settings, polyak=small, optimizer=optimizer), float(share))


def baseline_kind(
    *,
    summary: str,
    config: type[Any],
    make: MakeAgent,
    load: Callable[[RunConfig, EnvironmentSpec, Tensors], Policy],
    modules: MakeModules,
    check: CheckRun = check_continuous,
) -> AgentKind:
    """An entry for the table of agents, given only what is specific to this agent."""
    return AgentKind(
        summary=summary,
        boundary="next updates",
        config=config,
        make=make,
        load=load,
        actions="Box",
        check=check,
        estimator=parse_n_step,
        needs=lambda run, spec, module: needs(run, spec, modules),
        shortest_start=shortest_start,
        probe=probe,
    )
