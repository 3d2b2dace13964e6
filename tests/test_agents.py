"""The two agents: DQN's updates and n-step returns by definition; work beside the acting; state; own networks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from environments import Scripted, Tape, TapeNetwork, make_loop, tiny_config
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from small_runs import Stopped, differences, finish, small_config, stop_at
from test_concurrent import acting_first, training_first
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from lambda_replay.agents.protocol import Acted, Agent
from lambda_replay.agents.q_learning import num_cores
from lambda_replay.agents.run_settings import override
from lambda_replay.agents.table import AGENTS, agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.device import set_threads
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.training_summary import TrainingSummary
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.rundir.directory import read_config
from lambda_replay.rundir.files import load_tensors
from lambda_replay.training.assembly import Assembly, assemble, check_agent, choose_threads
from lambda_replay.training.loop import Boundary, Learned
from lambda_replay.training.playing import store
from lambda_replay.training.presets import make_config
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import start_run, train_run

NUM_ACTIONS = 3
SCRIPT = "....T......U...L..T.LU..."
Weights = dict[str, Tensor]


def make_environments(count: int, tape: Tape, script: str = SCRIPT) -> list[Scripted]:
    return [Scripted(script, NUM_ACTIONS, 1 + 500 * stream, tape) for stream in range(count)]


def own_loop(config: RunConfig, environments: list[Scripted], tape: Tape) -> Assembly:
    return make_loop(config, list[Environment](environments), TapeNetwork(tape, NUM_ACTIONS, config.memory.history))


def clones(weights: Weights) -> Weights:
    return {name: value.clone() for name, value in weights.items()}


def is_same(one: Weights, other: Weights) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def dqn_config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "steps": 200,
        "discount": 0.9,
        "memory": {"capacity": 1_000, "start": 40},
        "target": {"copy_every": 40, "update_every": 4},
    }
    for name, value in changes.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) and name in values else value
    return tiny_config("Scripted-v0", "dqn", **values)


def concurrent_config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "steps": 200,
        "memory": {"capacity": 1_000, "start": 40},
        "cache": {"size": 80, "block_length": 8, "refresh_every": 40, "updates": 6, "schedule": "concurrent"},
    }
    for name, value in changes.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) and name in values else value
    return tiny_config("Scripted-v0", **values)


KINDS: dict[str, Callable[..., RunConfig]] = {
    "burst": lambda **changes: concurrent_config(cache={"schedule": "burst"}, **changes),
    "concurrent": concurrent_config,
    "dqn": dqn_config,
}


# --- DQN: when it trains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 2, 4, 8])
@pytest.mark.parametrize("update_every", [4, 8, 1])
def test_dqn_updates_every_few_steps_of_all_environments_together(num_envs: int, update_every: int) -> None:
    """As many updates as learning steps / update_every, evenly spread, whatever the number of environments."""
    tape = Tape()
    config = dqn_config(envs=num_envs, target={"update_every": update_every})
    list(own_loop(config, make_environments(num_envs, tape), tape).loop.run())
    step, updates_at = 0, []
    for kind, *_ in tape:
        step += kind == "step"
        if kind == "update":
            updates_at.append(step)
    assert len(updates_at) == (200 - 40) // update_every
    # The n-th update belongs to learning step n·update_every, and is taken when all environments rest next to it.
    ideal = [40 + number * update_every for number in range(len(updates_at))]
    assert max(abs(at - step) for at, step in zip(updates_at, ideal, strict=True)) < num_envs
    assert min(updates_at) == 40


def test_the_tape_of_dqn_with_one_environment() -> None:
    """From the start on, every fourth step: the target's values of 8 states, one update on 8 states; then it acts."""
    tape = Tape()
    environments = make_environments(1, tape, script=".")
    list(own_loop(dqn_config(steps=60), environments, tape).loop.run())
    outline = [(kind, len(rest[0])) if kind in ("q", "update") else kind for kind, *rest in tape]
    expected: list[Any] = ["reset"]
    for step in range(60):
        if step >= 40 and (step - 40) % 4 == 0:
            expected += [("q", 8), ("update", 8)]
        if step >= 40:
            expected += [("q", 1)]
        expected += ["step"]
    assert outline == expected


@pytest.mark.parametrize("num_envs", [1, 2, 8])
def test_dqn_reports_once_per_copy(num_envs: int) -> None:
    tape = Tape()
    events = list(own_loop(dqn_config(envs=num_envs), make_environments(num_envs, tape), tape).loop.run())
    assert [event.step for event in events if isinstance(event, Boundary)] == [40, 80, 120, 160]
    rows = [event for event in events if isinstance(event, Learned)]
    assert [row.step for row in rows] == [80, 120, 160, 200]
    assert {"loss", "td_error_abs_mean", "q_mean"} <= rows[0].metrics.keys()


# --- DQN: what it trains on -------------------------------------------------------------------------------------------


class Truth:
    """The literal n-step return of any observation, from the environments' own record and given weights."""

    def __init__(self, environments: list[Scripted], config: RunConfig) -> None:
        self._taken = {number: taken for environment in environments for number, taken in environment.taken.items()}
        self._discount, self._history = config.discount, config.memory.history
        # The first observation of the episode (for learning) that an observation is in, as a state to act in.
        self._first: dict[int, int] = {}
        for number in sorted(self._taken):
            before = self._taken.get(number - 1)
            goes_on = before is not None and not (before.step.terminated or before.step.truncated)
            self._first[number] = self._first[number - 1] if goes_on else number
        self._seen = {number: seen for environment in environments for number, seen in environment.seen.items()}

    def state(self, number: int, first: int) -> NDArray[np.float32]:
        """The last observations up to this one, blank before the episode's first."""
        numbers = range(number - self._history + 1, number + 1)
        return np.stack([self._seen[n] if n >= first else np.zeros(2, dtype=np.float32) for n in numbers])

    def n_step(self, number: int, n: int, weights: Weights) -> float:
        """Σ γ^k r_k, and γ^n·max Q of the state after n steps or after a truncation; nothing after a termination."""
        total, first = 0.0, self._first[number]
        for k in range(n):
            step = self._taken[number + k].step
            total += self._discount**k * step.reward
            if step.terminated:
                return total
            if step.truncated or k == n - 1:
                return total + self._discount ** (k + 1) * self._value(number + k + 1, first, weights)
        raise AssertionError

    def _value(self, number: int, first: int, weights: Weights) -> float:
        features = self.state(number, first).reshape(-1).astype(np.float64) / 100
        weight, bias = (weights[f"layer.{name}"].double().numpy() for name in ("weight", "bias"))
        return float((weight @ features + bias).max())

    def action(self, number: int) -> int:
        return self._taken[number].action


@pytest.mark.parametrize(
    ("n", "num_envs", "history", "capacity"), [(3, 1, 1, 1_000), (3, 1, 2, 60), (1, 2, 2, 1_000), (5, 2, 1, 120)]
)
def test_dqn_trains_on_literal_n_step_returns_of_the_last_copy(
    monkeypatch: pytest.MonkeyPatch, n: int, num_envs: int, history: int, capacity: int
) -> None:
    """Over terminations, truncations, lost lives and the seam of the ring; closing slots are never sampled."""
    samples: list[tuple[int, Any]] = []
    copies: list[tuple[int, Weights]] = []
    tape = Tape()
    config = dqn_config(
        steps=400, envs=num_envs, estimator=f"nstep:{n}", memory={"history": history, "capacity": capacity}
    )
    environments = make_environments(num_envs, tape)
    loop, agent, _, _ = own_loop(config, environments, tape)
    original = Learner.train

    def train(self: Learner, minibatches: Any, first: int = 0, progress: float = 0.0) -> TrainingSummary:
        batches = list(minibatches)
        samples.extend((loop.step, batch) for batch in batches)
        return original(self, batches, first)

    monkeypatch.setattr(Learner, "train", train)
    for event in loop.run():
        if isinstance(event, Boundary):
            copies.append((event.step, agent.get_tensors()["weights"]))
    truth = Truth(environments, config)
    assert [step for step, _ in copies] == list(range(40, 400, 40))
    assert len(samples) == 360 // 4
    assert not is_same(copies[0][1], copies[-1][1])
    num_sampled = set()
    for step, batch in samples:
        weights = next(weights for at, weights in reversed(copies) if at <= step)
        for state, action, found in zip(batch.states, batch.actions, batch.returns, strict=True):
            number = int(state[-1, 0])
            num_sampled.add(number)
            assert action == truth.action(number)
            assert found == pytest.approx(truth.n_step(number, n, weights), rel=1e-4, abs=1e-5)
    assert len(num_sampled) > 150


def test_dqn_samples_every_transition_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the transitions is drawn about as often: 4,000 draws over some 197, expected 20 each."""
    counts: dict[int, int] = {}
    tape = Tape()
    config = dqn_config(steps=201, memory={"start": 200}, optimizer={"batch_size": 4_000})
    loop = own_loop(config, make_environments(1, tape, "..T.U"), tape).loop
    original = Learner.train

    def train(self: Learner, minibatches: Any, first: int = 0, progress: float = 0.0) -> TrainingSummary:
        batches = list(minibatches)
        for number in batches[0].states[:, 0, 0]:
            counts[int(number)] = counts.get(int(number), 0) + 1
        return original(self, batches, first)

    monkeypatch.setattr(Learner, "train", train)
    list(loop.run())
    # 200 steps, less those within the last three slots, which no 3-step return may start from.
    assert 195 <= len(counts) <= 200
    assert sum(counts.values()) == 4_000
    assert max(counts.values()) < 45
    assert min(counts.values()) > 4


# --- what is due, and what its work reads -----------------------------------------------------------------------------


class Stand(NamedTuple):
    """A run of one environment that stands at a boundary: nothing is under way, and learning is due."""

    environment: Scripted
    agent: Agent
    memory: ReplayMemory
    streams: RandomStreams

    def act(self, step: int) -> list[float]:
        """One step of the agent into its memory; its actions there and in other states, with their probabilities."""
        states = np.concatenate([self.memory.newest_states(), some_states(20, self.memory.history)])
        actions, probs, _ = self.agent.act(states, step)
        store(self.memory, 0, int(actions[0]), float(probs[0]), self.environment.step(int(actions[0])))
        return [*actions.tolist(), *probs.tolist()]


def some_states(count: int, history: int = 1) -> NDArray[np.float32]:
    """States far apart, so that a network which learnt acts differently in some of them."""
    return np.random.default_rng(0).normal(scale=300, size=(count, history, 2)).astype(np.float32)


def at_boundary(
    config: RunConfig,
    step: int,
    script: str = SCRIPT,
    *,
    network: nn.Module | None = None,
    first_observation: int = 1,
) -> Stand:
    environment = Scripted(script, NUM_ACTIONS, first_observation)
    loop, agent, memory, streams = make_loop(config, [environment], network)
    assert next(event.step for event in loop.run() if isinstance(event, Boundary) and event.step >= step) == step
    return Stand(environment, agent, memory, streams)


@pytest.mark.parametrize(
    ("config", "due"),
    [
        (KINDS["burst"](), range(40, 201, 40)),
        (KINDS["concurrent"](), range(40, 201, 40)),
        (KINDS["dqn"](), range(40, 201, 4)),
        (KINDS["dqn"](target={"copy_every": 20, "update_every": 10}), range(40, 201, 10)),
        (KINDS["dqn"](target={"update_every": 40}), range(40, 201, 40)),
    ],
    ids=["burst", "concurrent", "dqn every 4", "dqn every 10", "dqn every 40"],
)
def test_there_is_work_exactly_where_something_is_due(config: RunConfig, due: range) -> None:
    """Where there is none, no random number is drawn."""
    _, agent, _, streams = at_boundary(config, 40)
    found = []
    for step in range(201):
        before = streams.get_state()
        if agent.learn(step) is not None:
            found.append(step)
        else:
            assert streams.get_state() == before
    assert found == list(due)


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_work_learns_nothing_yet(kind: str) -> None:
    _, agent, memory, _ = at_boundary(KINDS[kind](), 80)
    before, stored = own_tensors(agent), {name: array.copy() for name, array in memory.arrays.items()}
    work = agent.learn(80)
    assert work is not None
    assert are_same(own_tensors(agent), before)
    work.train(lambda: True)
    assert not are_same(own_tensors(agent), before)
    for name, array in stored.items():
        assert_array_equal(memory.arrays[name], array, err_msg=name)  # training only reads


def own_tensors(agent: Agent) -> dict[str, Weights]:
    """A copy of all that the agent has learnt."""
    return {name: clones(tensors) for name, tensors in agent.get_tensors().items()}


def are_same(one: dict[str, Weights], other: dict[str, Weights]) -> bool:
    return one.keys() == other.keys() and all(is_same(tensors, other[name]) for name, tensors in one.items())


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("script", ["L", SCRIPT.replace("T", "L").replace("U", "L")], ids=["one-step lives", "lives"])
def test_work_reads_nothing_that_changes_while_the_caller_acts(history: int, script: str) -> None:
    """In the smallest memory that is allowed, a whole window is acted before, amid or after the training.

    A life per step takes two slots per step, so the window overwrites all that it ever may.
    """
    reserve = 2 * 40
    config = concurrent_config(
        memory={"history": history, "capacity": reserve + 8 + history},
        exploration={"start": 0.3, "end": 0.3},
        optimizer={"learning_rate": 0.5},
    )
    found = [act_and_train(config, script, order) for order in ("before", "amid", "after")]
    for other in found[1:]:
        assert other.metrics == found[0].metrics
        assert other.acted == found[0].acted
        assert are_same(other.tensors, found[0].tensors)
        assert other.acted_later == found[0].acted_later
    assert len(found[0].acted) == 40


class Window(NamedTuple):
    """A window of 40 steps and its training, and the steps with what was learnt."""

    metrics: Metrics | None
    acted: list[list[float]]
    tensors: dict[str, Weights]
    acted_later: list[list[float]]


def act_and_train(config: RunConfig, script: str, order: str) -> Window:
    stand = at_boundary(config, 160, script)
    agent, steps = stand.agent, iter(range(160, 200))
    acted: list[list[float]] = []

    def act_on(count: int) -> bool:
        acted.extend(stand.act(step) for step in islice(steps, count))
        return True

    work = agent.learn(160)
    assert work is not None
    if order == "before":
        act_on(40)
    metrics = work.train(lambda: act_on(7 if order == "amid" else 0))  # asked before each of the 6 gradient steps
    act_on(40)
    work.adopt()
    return Window(metrics, acted, own_tensors(agent), [stand.act(step) for step in range(200, 220)])


def test_an_agent_that_trains_beside_acts_with_what_it_learnt_once_that_is_adopted() -> None:
    changes: dict[str, Any] = {"exploration": {"start": 0.0, "end": 0.0}, "optimizer": {"learning_rate": 0.5}}
    states = some_states(200)
    for schedule, changes_at_once in (("burst", True), ("concurrent", False)):
        agent = at_boundary(concurrent_config(cache={"schedule": schedule}, **changes), 40).agent
        work = agent.learn(40)
        assert work is not None
        untrained = agent.act(states, 40).actions
        work.train(lambda: True)
        assert (agent.act(states, 40).actions != untrained).any() == changes_at_once
        work.adopt()
        assert (agent.act(states, 40).actions != untrained).any()


@pytest.mark.parametrize("num_wanted", [1, 2, 5, 6])
def test_work_that_is_to_stop_ends_after_its_present_gradient_step(num_wanted: int) -> None:
    """6 gradient steps are due; before each it is asked whether to go on."""
    tape = Tape()
    agent = at_boundary(concurrent_config(), 40, network=TapeNetwork(tape, NUM_ACTIONS)).agent
    work, asked = agent.learn(40), count()
    assert work is not None
    work.train(lambda: next(asked) < num_wanted)
    assert sum(kind == "update" for kind, *_ in tape) == num_wanted


@pytest.mark.parametrize("num_wanted", [0, 1, 3, 4])
def test_dqn_stops_after_its_present_gradient_step(num_wanted: int) -> None:
    """4 gradient steps are due, with 4 environments that make 4 steps at once."""
    tape = Tape()
    config = dqn_config(envs=4, target={"update_every": 1})
    assembly = own_loop(config, make_environments(4, tape), tape)
    next(event for event in assembly.loop.run() if isinstance(event, Boundary))
    work, asked = assembly.agent.learn(44), count()
    assert work is not None
    work.train(lambda: next(asked) < num_wanted)
    assert sum(kind == "update" for kind, *_ in tape) == num_wanted


# --- giving an agent back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [40, 120])
def test_tensors_and_state_give_back_the_same_agent(kind: str, step: int) -> None:
    """Another agent, of another seed, that gets them at a boundary acts and learns on just like the first."""
    config = KINDS[kind](exploration={"start": 0.3, "end": 0.3}, optimizer={"learning_rate": 0.05})
    one = at_boundary(config, step)
    other = at_boundary(override(config, {"seed": 1}), 40, first_observation=1_000)
    assert not are_same(own_tensors(one.agent), own_tensors(other.agent))

    other.agent.set_tensors(own_tensors(one.agent))
    other.agent.set_state(one.agent.get_state())
    assert are_same(own_tensors(one.agent), own_tensors(other.agent))
    assert one.agent.get_state() == other.agent.get_state()

    for name, array in one.memory.arrays.items():
        other.memory.arrays[name][:] = array
    other.memory.set_state(one.memory.get_state())
    other.streams.set_state(one.streams.get_state())
    (metrics, *acted), (other_metrics, *other_acted) = (window_of(stand, step) for stand in (one, other))
    assert other_metrics == metrics
    assert (metrics is None) == (kind == "dqn" and step == 40)  # no update yet that metrics could be of
    for (actions, probs, _), (other_actions, other_probs, _) in zip(acted, other_acted, strict=True):
        assert_array_equal(actions, other_actions)
        assert_array_equal(probs, other_probs)
    assert are_same(own_tensors(one.agent), own_tensors(other.agent))
    assert one.agent.get_state() == other.agent.get_state()


def window_of(stand: Stand, step: int) -> tuple[Metrics | None, Acted, Acted]:
    """The metrics of the work that is due, and how the agent acts while it is done and after it is adopted."""
    states = some_states(100)
    work = stand.agent.learn(step)
    assert work is not None
    before = stand.agent.act(states, step)
    metrics = work.train(lambda: True)
    work.adopt()
    return metrics, before, stand.agent.act(states, step)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learnt_is_named_after_its_files(kind: str) -> None:
    """A policy is loaded from "weights" alone, and plays as the agent does."""
    config = KINDS[kind](exploration={"start": 0.0, "end": 0.0})
    stand = at_boundary(config, 120)
    tensors = stand.agent.get_tensors()
    assert tensors.keys() == {"weights", "optimizer"}
    policy = agent_kind(config.agent).load(config, stand.environment.spec, tensors["weights"])
    states = some_states(100)
    actions, probs, _ = policy.act(states, 0.0, np.random.default_rng(0))
    assert_array_equal(actions, stand.agent.act(states, 120).actions)
    assert_array_equal(probs, np.ones(100))
    assert len(set(actions.tolist())) > 1


def test_an_unknown_agent_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        agent_kind("dqn-mu")
    assert str(caught.value) == f"there is no agent 'dqn-mu'; choose one of {', '.join(AGENTS)}."
    assert list(AGENTS)[:2] == ["dqn-lambda", "dqn"]


# --- acting while training --------------------------------------------------------------------------------------------


def run_tape(config: RunConfig) -> tuple[list[Any], Weights]:
    environments: list[Environment] = [Scripted(SCRIPT, NUM_ACTIONS)]
    loop, agent, _, _ = make_loop(config, environments, TapeNetwork(Tape(), NUM_ACTIONS))
    return list(loop.run()), agent.get_tensors()["weights"]


def test_acting_while_training_does_not_depend_on_who_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    events, weights = run_tape(concurrent_config())
    for order in (lambda patch: training_first(patch, Scripted, "step"), acting_first):
        with monkeypatch.context() as patch:
            order(patch)
            other_events, other_weights = run_tape(concurrent_config())
        assert other_events == events
        assert is_same(weights, other_weights)


def test_the_first_window_trains_as_in_a_burst_and_only_later_acts_so() -> None:
    """θ₁ is the same, for it comes from the same memory and θ₀; but the steps 40 … 79 are played with θ₀ instead."""
    first: dict[str, Weights] = {}
    probs: dict[str, NDArray[np.float32]] = {}
    for schedule in ("burst", "concurrent"):
        config = concurrent_config(
            steps=80,
            cache={"schedule": schedule},
            exploration={"start": 0.3, "end": 0.3},
            optimizer={"learning_rate": 0.5},
        )
        loop, agent, memory, _ = make_loop(config, [Scripted(SCRIPT, NUM_ACTIONS)], TapeNetwork(Tape(), NUM_ACTIONS))
        list(loop.run())
        first[schedule] = agent.get_tensors()["weights"]
        probs[schedule] = memory.behaviour_probs[memory.is_step]
        assert len(probs[schedule]) == 80
    assert is_same(first["burst"], first["concurrent"])
    assert (probs["burst"][:40] == probs["concurrent"][:40]).all()
    assert (probs["burst"] != probs["concurrent"]).any()


def test_a_window_is_acted_with_the_network_from_before_it() -> None:
    """The stored probabilities of window k are those of θ_k, the weights at its boundary."""
    config = concurrent_config(exploration={"start": 0.4, "end": 0.4}, optimizer={"learning_rate": 0.5})
    environment = Scripted(SCRIPT, NUM_ACTIONS)
    loop, agent, memory, _ = make_loop(config, [environment], TapeNetwork(Tape(), NUM_ACTIONS))
    boundaries: list[tuple[int, Weights]] = []
    for event in loop.run():
        if isinstance(event, Boundary):
            boundaries.append((event.step, agent.get_tensors()["weights"]))
    assert [step for step, _ in boundaries] == [40, 80, 120, 160]
    assert not is_same(boundaries[0][1], boundaries[1][1])
    slots = np.flatnonzero(memory.is_step)
    assert len(slots) == 200
    for step in range(40, 200):
        weights = next(weights for at, weights in reversed(boundaries) if at <= step)
        features = torch.from_numpy(memory.observations[slots[step]]) / 100
        greedy = int((weights["layer.weight"] @ features + weights["layer.bias"]).argmax())
        expected = 0.4 / 3 + 0.6 * (memory.actions[slots[step]] == greedy)
        assert memory.behaviour_probs[slots[step]] == pytest.approx(expected, rel=1e-5)


def test_the_metrics_of_a_window_come_at_its_end() -> None:
    events, _ = run_tape(concurrent_config())
    rows = [event for event in events if isinstance(event, Learned)]
    assert [row.step for row in rows] == [80, 120, 160, 200]
    assert all("loss" in row.metrics for row in rows)


def test_an_error_in_the_training_thread_is_not_lost() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = TapeNetwork(Tape(), NUM_ACTIONS)

        def forward(self, states: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise RuntimeError("out of order")
            q_values: Tensor = self.network(states)
            return q_values

    loop = make_loop(concurrent_config(), [Scripted(SCRIPT, NUM_ACTIONS)], Failing()).loop
    with pytest.raises(RuntimeError, match="out of order"):
        list(loop.run())


# --- networks and estimators of the user's choice ---------------------------------------------------------------------


class OwnNetwork(nn.Module):
    """Any module from states [n, F, *observation] to Q-values [n, A] will do."""

    def __init__(self, num_outputs: int = 2, is_tied: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, num_outputs)
        if is_tied:
            self.second.weight = self.first.weight

    def forward(self, states: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(states.flatten(1)))))
        q_values: Tensor = self.scale * self.head(hidden)
        return q_values


@pytest.mark.parametrize("agent", ["dqn-lambda", "dqn"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_network_of_ones_own_is_trained_and_saved(tmp_path: Path, agent: Any, is_tied: bool) -> None:
    network = OwnNetwork(is_tied=is_tied)
    before = clones(dict(network.state_dict()))
    train_run(tmp_path / "run", tiny_config(agent=agent), network=network)
    saved = load_tensors(tmp_path / "run" / "weights.safetensors")
    after = network.state_dict()
    assert saved.keys() == after.keys()
    for name, value in after.items():
        assert torch.equal(saved[name], value)
        assert not torch.equal(before[name], value), f"{name} was not trained"


class Dropping(nn.Module):
    """A user's network with dropout; notes the mode of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
        self.modes = Tape()

    def forward(self, states: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        q_values: Tensor = self.layers(states)
        return q_values


def dropping_network() -> Dropping:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Dropping()


@pytest.mark.parametrize(
    "config",
    [tiny_config(), tiny_config(cache={"schedule": "concurrent"}), tiny_config(agent="dqn")],
    ids=["burst", "concurrent", "dqn"],
)
def test_dropout_is_on_in_gradient_steps_alone(tmp_path: Path, config: RunConfig) -> None:
    """Acting and the values that returns are made of use the whole network."""
    network = dropping_network()
    train_run(tmp_path / "run", config, network=network)
    assert set(network.modes) == {(True, True), (False, False)}


@pytest.mark.parametrize("agent", ["dqn-lambda", "dqn"])
def test_a_network_with_dropout_resumes_to_the_same_bytes(tmp_path: Path, agent: Any) -> None:
    """Whatever else the process drew from torch's global generator, which is left as it was."""
    config = small_config(agent=agent)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    torch.manual_seed(1)
    train_run(whole, config, network=cartpole_network())
    run = start_run(stopped, config, cartpole_network())
    with pytest.raises(Stopped):
        run.train(stop_at(350))
    run.close()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    finish(resume_run(stopped, pytest.fail, cartpole_network()))
    assert torch.equal(torch.get_rng_state(), before)
    assert not differences(whole, stopped)


def cartpole_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))


# --- threads and devices ----------------------------------------------------------------------------------------------


def test_threads_are_chosen_for_the_network_and_recorded_as_a_number(tmp_path: Path) -> None:
    cartpole, pictures = Scripted(".").spec, EnvironmentSpec((84, 84), np.dtype(np.uint8), 2, ("a", "b"))
    atari = make_config("atari/pong")
    assert atari.threads is None
    assert choose_threads(atari, pictures) == min(2, num_cores())
    assert choose_threads(tiny_config(), cartpole) == 1
    assert choose_threads(tiny_config(threads=3), cartpole) == 3
    train_run(tmp_path / "run", tiny_config())
    assert read_config(tmp_path / "run").threads == 1


def test_numpys_products_take_the_threads_of_the_run() -> None:
    """Small networks act in NumPy, whose BLAS would otherwise take every core."""
    try:
        make_loop(tiny_config("Scripted-v0", threads=2), [Scripted(".", num_actions=3)])
        assert (torch.get_num_threads(), blas_threads()) == (2, {2})
        make_loop(tiny_config("Scripted-v0"), [Scripted(".", num_actions=3)])
        assert (torch.get_num_threads(), blas_threads()) == (1, {1})
    finally:
        set_threads(1)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_a_network_with_the_wrong_number_of_outputs_is_refused_before_anything_is_written(
    tmp_path: Path, num_outputs: int
) -> None:
    """The chain has 2 actions."""
    with pytest.raises(ConfigError, match="action"):
        train_run(tmp_path / "run", tiny_config(), network=OwnNetwork(num_outputs))
    assert not (tmp_path / "run").exists()


def test_agent_dqn_takes_n_step_returns_only() -> None:
    config = dqn_config(estimator="peng:0.5")
    environment = Scripted(".", NUM_ACTIONS)
    for refuse in (lambda: assemble(config, [environment]), lambda: check_agent(config, environment.spec)):
        with pytest.raises(ConfigError) as caught:
            refuse()
        assert "agent dqn takes the estimator nstep:n, not peng:0.5" in str(caught.value)


# In the last, the memory might hold a closing slot and what follows it, but no step to start at.
@pytest.mark.parametrize(
    ("n", "memory"),
    [(60, {"start": 50, "capacity": 500}), (30, {"start": 20, "capacity": 20}), (1, {"start": 2, "capacity": 2})],
)
def test_a_return_longer_than_the_start_is_refused_before_anything_is_written(
    tmp_path: Path, n: int, memory: dict[str, int]
) -> None:
    config = tiny_config(agent="dqn", estimator=f"nstep:{n}", memory=memory)
    with pytest.raises(ConfigError, match=rf"nstep:{n}|memory\.(start|capacity)"):
        train_run(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()
