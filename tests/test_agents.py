"""The two agents: DQN's updates, copies and n-step returns by their definition; acting while training; own networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from environments import Scripted, Tape, TapeNetwork, make_loop, tiny_config
from numpy.typing import NDArray
from small_runs import Stopped, differences, finish, small_config, stop_at
from test_concurrent import acting_first, training_first
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from lambda_replay.agents import choose_threads, make_agent, num_cores
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.learner import Learner, TrainingSummary, set_threads
from lambda_replay.randomness import make_streams
from lambda_replay.rundir.directory import read_config
from lambda_replay.rundir.files import load_tensors
from lambda_replay.training.loop import Boundary, Learned, Loop
from lambda_replay.training.presets import make_config
from lambda_replay.training.run import resume_run, start_run, train_run

NUM_ACTIONS = 3
SCRIPT = "....T......U...L..T.LU..."
Weights = dict[str, Tensor]


def make_environments(count: int, tape: Tape, script: str = SCRIPT) -> list[Scripted]:
    return [Scripted(script, NUM_ACTIONS, 1 + 500 * stream, tape) for stream in range(count)]


def own_loop(config: RunConfig, environments: list[Scripted], tape: Tape) -> Loop:
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


# --- DQN: when it trains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 2, 4, 8])
@pytest.mark.parametrize("update_every", [4, 8, 1])
def test_dqn_updates_every_few_steps_of_all_environments_together(num_envs: int, update_every: int) -> None:
    """As many updates as learning steps / update_every, evenly spread, whatever the number of environments."""
    tape = Tape()
    config = dqn_config(envs=num_envs, target={"update_every": update_every})
    loop = own_loop(config, make_environments(num_envs, tape), tape)
    list(loop.run())
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
    list(own_loop(dqn_config(steps=60), environments, tape).run())
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
    loop = own_loop(dqn_config(envs=num_envs), make_environments(num_envs, tape), tape)
    events = list(loop.run())
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
    loop = own_loop(config, environments, tape)
    original = Learner.train

    def train(self: Learner, minibatches: Any) -> TrainingSummary:
        batches = list(minibatches)
        samples.extend((loop.step, batch) for batch in batches)
        return original(self, batches)

    monkeypatch.setattr(Learner, "train", train)
    for event in loop.run():
        if isinstance(event, Boundary):
            copies.append((event.step, clones(loop.agent.learner.weights())))
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
    loop = own_loop(config, make_environments(1, tape, "..T.U"), tape)
    original = Learner.train

    def train(self: Learner, minibatches: Any) -> TrainingSummary:
        batches = list(minibatches)
        for number in batches[0].states[:, 0, 0]:
            counts[int(number)] = counts.get(int(number), 0) + 1
        return original(self, batches)

    monkeypatch.setattr(Learner, "train", train)
    list(loop.run())
    # 200 steps, less those within the last three slots, which no 3-step return may start from.
    assert 195 <= len(counts) <= 200
    assert sum(counts.values()) == 4_000
    assert max(counts.values()) < 45
    assert min(counts.values()) > 4


# --- acting while training --------------------------------------------------------------------------------------------


def concurrent_config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "steps": 200,
        "memory": {"capacity": 1_000, "start": 40},
        "cache": {"size": 80, "block_length": 8, "refresh_every": 40, "updates": 6, "schedule": "concurrent"},
    }
    for name, value in changes.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) and name in values else value
    return tiny_config("Scripted-v0", **values)


def run_tape(config: RunConfig) -> tuple[list[Any], Weights]:
    environments: list[Environment] = [Scripted(SCRIPT, NUM_ACTIONS)]
    loop = make_loop(config, environments, TapeNetwork(Tape(), NUM_ACTIONS))
    return list(loop.run()), clones(loop.agent.learner.weights())


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
        loop = make_loop(config, [Scripted(SCRIPT, NUM_ACTIONS)], TapeNetwork(Tape(), NUM_ACTIONS))
        list(loop.run())
        first[schedule] = clones(loop.agent.learner.weights())
        memory = loop.agent.memory
        probs[schedule] = memory.behaviour_probs[memory.actions >= 0][:80].copy()
    assert is_same(first["burst"], first["concurrent"])
    assert (probs["burst"][:40] == probs["concurrent"][:40]).all()
    assert (probs["burst"] != probs["concurrent"]).any()


def test_a_window_is_acted_with_the_network_from_before_it() -> None:
    """The stored probabilities of window k are those of θ_k, the weights at its boundary."""
    config = concurrent_config(exploration={"start": 0.4, "end": 0.4}, optimizer={"learning_rate": 0.5})
    environment = Scripted(SCRIPT, NUM_ACTIONS)
    loop = make_loop(config, [environment], TapeNetwork(Tape(), NUM_ACTIONS))
    boundaries: list[tuple[int, Weights]] = []
    for event in loop.run():
        if isinstance(event, Boundary):
            boundaries.append((event.step, clones(loop.agent.learner.weights())))
    assert [step for step, _ in boundaries] == [40, 80, 120, 160]
    assert not is_same(boundaries[0][1], boundaries[1][1])
    memory = loop.agent.memory
    slots = np.flatnonzero(memory.actions >= 0)[:200]
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

    loop = make_loop(concurrent_config(), [Scripted(SCRIPT, NUM_ACTIONS)], Failing())
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


def test_a_cuda_graph_is_an_option_that_needs_cuda_and_bursts() -> None:
    config = tiny_config("Scripted-v0", optimizer={"cuda_graph": True})
    with pytest.raises(ConfigError, match="cuda_graph needs a CUDA device, and this run uses cpu"):
        make_loop(config, [Scripted(".", num_actions=3)])
    with pytest.raises(ConfigError, match="exclude each other"):
        tiny_config(optimizer={"cuda_graph": True}, cache={"schedule": "concurrent"})


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
    with pytest.raises(ConfigError) as caught:
        make_agent(config, Scripted(".").spec, make_streams(0, 1))
    assert "agent dqn takes the estimator nstep:n, not peng:0.5" in str(caught.value)


@pytest.mark.parametrize(("n", "memory"), [(60, {"start": 50, "capacity": 500}), (30, {"start": 20, "capacity": 20})])
def test_a_return_longer_than_the_start_is_refused_before_anything_is_written(
    tmp_path: Path, n: int, memory: dict[str, int]
) -> None:
    config = tiny_config(agent="dqn", estimator=f"nstep:{n}", memory=memory)
    with pytest.raises(ConfigError, match=rf"nstep:{n}|memory\.(start|capacity)"):
        train_run(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()
