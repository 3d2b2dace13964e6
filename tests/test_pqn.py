"""PQN: which steps a rollout is made of, its returns by definition, how often each is trained on, RAdam, learning."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from environments import Scripted, Tape, TapeNetwork, make_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_memory import OBSERVATION_SHAPE, Model

import lambda_replay as lr
from lambda_replay.agents.pqn import PQNConfig, RolloutConfig
from lambda_replay.agents.run_settings import override
from lambda_replay.config import MemoryConfig, NetworkConfig, OptimizerConfig, RunConfig
from lambda_replay.envs import Environment
from lambda_replay.errors import ConfigError
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.fused_adam import Adam, rectification
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.networks import make_network
from lambda_replay.replay.data import Minibatch
from lambda_replay.training.loop import Learned
from lambda_replay.training.presets import make_config
from lambda_replay.training.run import train_run

SCRIPT = "....T......U...L..T.LU..."
LAMBDA, DISCOUNT = 0.65, 0.9


def pqn_config(**changes: Any) -> RunConfig:
    """Four environments, rollouts of 40 steps."""
    config = RunConfig(
        env="Scripted-v0",
        agent="pqn",
        estimator=f"peng:{LAMBDA}",
        steps=200,
        envs=4,
        discount=DISCOUNT,
        device="cpu",
        checkpoint_every=0,
        memory=MemoryConfig(capacity=200, start=40, history=1, storage="ram"),
        algorithm=PQNConfig(
            rollout=RolloutConfig(size=40, epochs=3), optimizer=OptimizerConfig(batch_size=8, learning_rate=1e-2)
        ),
    )
    return override(config, changes)


def play(config: RunConfig) -> tuple[list[Scripted], Tape]:
    tape = Tape()
    environments = [Scripted(SCRIPT, 3, 1 + 500 * stream, tape) for stream in range(config.envs)]
    network = TapeNetwork(tape, 3, config.memory.history)
    list(make_loop(config, list[Environment](environments), network).loop.run())
    return environments, tape


# --- the newest steps of a memory -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3), st.integers(1, 8), st.floats(0.0, 0.7))
def test_the_newest_steps_are_the_last_ones_of_every_stream(
    seed: int, streams: int, history: int, count: int, end_probability: float
) -> None:
    rng = np.random.default_rng(seed)
    window = 2 * count + history + int(rng.integers(5))
    memory = lr.ReplayMemory(window * streams, OBSERVATION_SHAPE, np.int32, history, streams)
    model = Model(memory, window)
    model.run(rng, int(rng.integers(3 * window * streams)), end_probability, memory)
    while any(sum(slot.is_step for slot in one.slots) < count for one in model.streams):
        model.run(rng, 1, end_probability, memory)
    slots = memory.newest_steps(count)
    assert slots.shape[0] == streams
    for stream, row in enumerate(slots):
        numbers = [number for number, slot in enumerate(model.streams[stream].slots) if slot.is_step][-count:]
        newest = len(model.streams[stream].slots) - 1
        expected = list(range(numbers[0], newest + 1))
        expected += [newest] * (len(row) - len(expected))
        assert_array_equal(row, [memory.ring.slot(stream, number) for number in expected])
        assert int(memory.is_step[row[:-1]].sum()) == count
        for slot, number in zip(row, expected, strict=True):
            assert_array_equal(memory.states(np.array([slot]))[0], model.streams[stream].state(stream, number, history))


def test_too_few_steps_are_refused() -> None:
    memory = lr.ReplayMemory(20, OBSERVATION_SHAPE, np.int32)
    Model(memory, 20).run(np.random.default_rng(0), 5, 0.0, memory)
    assert memory.newest_steps(5).shape == (1, 6)
    with pytest.raises(ConfigError, match=r"stream 0 holds 5 steps, so its last 6 cannot be given"):
        memory.newest_steps(6)
    with pytest.raises(ConfigError, match=r"count is 0; give 1 or more"):
        memory.newest_steps(0)


# --- a rollout --------------------------------------------------------------------------------------------------------


def literal_return(environment: Scripted, number: int, last: int, q_max: dict[int, float]) -> float:
    """Peng's λ-return of the step taken at observation ``number``; the rollout's last step leads to ``last``."""
    step = environment.taken[number].step
    if step.terminated:
        return step.reward
    bootstrap = q_max[number + 1]
    if not step.truncated and number + 1 < last:
        after = literal_return(environment, number + 1, last, q_max)
        bootstrap = (1 - LAMBDA) * bootstrap + LAMBDA * after
    return step.reward + DISCOUNT * bootstrap


def test_each_rollout_is_trained_on_with_its_literal_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the newest rollout, and no other, once per epoch, with the λ-return of the network that played."""
    trained: list[list[Minibatch]] = []
    seen: list[dict[int, float]] = []  # max Q of every observation, by its number, before each training
    learn = Learner.train

    def recording(self: Learner, batches: Any, first: int = 0, progress: float = 0.0) -> Any:
        kept = list(batches)
        module = self._network.module
        with torch.no_grad():
            every = {
                number: float(module(torch.from_numpy(observation)[None, None]).max())
                for environment in environments
                for number, observation in environment.seen.items()
            }
        trained.append(kept)
        seen.append(every)
        return learn(self, kept, first, progress)

    monkeypatch.setattr(Learner, "train", recording)
    config, tape = pqn_config(), Tape()
    environments = [Scripted(SCRIPT, 3, 1 + 500 * stream, tape) for stream in range(config.envs)]
    list(make_loop(config, list[Environment](environments), TapeNetwork(tape, 3)).loop.run())
    assert len(trained) == 4  # at 40, 80, 120 and 160 steps; nothing follows the last rollout
    for rollout, (batches, q_max) in enumerate(zip(trained, seen, strict=True)):
        assert [len(batch.actions) for batch in batches] == [8] * 15
        numbers = Counter(int(state[0, 0]) for batch in batches for state in batch.states)
        expected: dict[int, float] = {}
        for environment in environments:
            taken = sorted(environment.taken)[10 * rollout : 10 * (rollout + 1)]
            last = taken[-1] + 1
            expected |= {number: literal_return(environment, number, last, q_max) for number in taken}
        assert numbers == dict.fromkeys(expected, 3)
        for start in (0, 5, 10):  # each epoch has every step once
            epoch = [int(state[0, 0]) for batch in batches[start : start + 5] for state in batch.states]
            assert len(set(epoch)) == 40
        for batch in batches:
            wanted = [expected[int(state[0, 0])] for state in batch.states]
            assert_allclose(batch.returns, wanted, rtol=1e-5, atol=1e-6)


def test_the_tape_of_pqn() -> None:
    """Play 40 steps, value them once, train for three epochs of five minibatches, play the next 40."""
    _, tape = play(pqn_config(steps=120))
    kinds = [kind for kind, *_ in tape if kind in ("step", "update")]
    runs = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    assert runs == [("step", 40), ("update", 15), ("step", 40), ("update", 15), ("step", 40)]


def test_metrics_are_those_of_a_refresh() -> None:
    tape = Tape()
    config = pqn_config()
    environments = [Scripted(SCRIPT, 3, 1 + 500 * stream, tape) for stream in range(4)]
    events = make_loop(config, list[Environment](environments), TapeNetwork(tape, 3)).loop.run()
    rows = [event.metrics for event in events if isinstance(event, Learned)]
    assert len(rows) == 5
    assert {"loss", "gradient_norm", "return_mean", "td_error_abs_mean", "epsilon"} <= set(rows[0])


# --- the learning rate and RAdam --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta2", [0.999, 0.9, 0.5])
def test_rectified_adam_is_that_of_torch(beta2: float) -> None:
    """From the first steps, which have no variance yet, on; with a learning rate that changes."""
    config = OptimizerConfig(learning_rate=0.02, beta2=beta2, epsilon=1e-8, rectified=True)
    ours = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Parameter(ours.clone())
    adam = Adam([ours], config)
    reference = torch.optim.RAdam([theirs], lr=0.02, betas=(0.9, beta2), eps=1e-8)
    for number in range(30):
        gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(number + 1))
        adam.learning_rate = reference.param_groups[0]["lr"] = 0.02 / (number + 1)
        adam.step([gradient])
        theirs.grad = gradient.clone()
        reference.step()
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-6)


def test_rectification_by_hand() -> None:
    """β₂ = 0.999: ρ∞ = 1999; undefined for the first five steps, then small, and 1 in the end."""
    assert [rectification(step, 0.999) for step in range(1, 6)] == [None] * 5
    limit, length = 1999.0, 1999 - 2 * 6 * 0.999**6 / (1 - 0.999**6)
    by_hand = math.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))
    sixth, late = rectification(6, 0.999), rectification(100_000, 0.999)
    assert sixth == pytest.approx(by_hand)
    assert sixth is not None
    assert 0 < sixth < 0.05
    assert late == pytest.approx(1)
    assert rectification(10, 0.0) is None


@pytest.mark.parametrize(("progress", "rate"), [(0.0, 0.1), (0.25, 0.08), (1.0, 0.02)])
def test_the_learning_rate_falls_linearly(progress: float, rate: float) -> None:
    """Adam's first step moves every weight with a gradient by the learning rate, up to ε."""
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.02, epsilon=1e-12)
    network = QNetwork(make_network(NetworkConfig(hidden=()), (1, 1), 1, seed=0), torch.device("cpu"))
    before = network.weights()
    batch = Minibatch(
        np.ones((1, 1, 1), np.float32), np.zeros(1, np.int64), np.full(1, 9, np.float32), np.zeros(1, int)
    )
    Learner(network, config).train([batch], progress=progress)
    for name, value in network.weights().items():
        assert_allclose(value - before[name], rate, rtol=1e-4)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rollout": {"size": 42}}, "rollout.size (42) must be a multiple of envs (4)"),
        ({"rollout": {"size": 36}}, "rollout.size (36) must be a multiple of optimizer.batch_size (8)."),
        ({"memory": {"start": 36}}, "memory.start (36) must hold the first rollout; raise it to 40."),
        ({"memory": {"capacity": 80}}, "memory.capacity (80) must hold a rollout and the ends of its episodes;"),
        ({"rollout": {"epochs": 0}}, "rollout.epochs is 0; give a number above 0."),
        ({"optimizer": {"final_learning_rate": -1.0}}, "optimizer.final_learning_rate is -1.0; give 0 or more."),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pqn_config(**changes)
    assert sentence in str(caught.value)


def test_presets_are_the_published_ones() -> None:
    """Gallici et al.: 128 × 32 steps, 2 epochs × 32 minibatches on MinAtar and Atari; 32 × 64, 4 × 16 on CartPole.

    Then λ, the learning rate at the beginning and the end, ε at the end, and the share of the run over which it falls.
    """
    for env, envs, size, epochs, minibatches, estimator, rates, epsilon, share in (
        ("minatar/breakout", 128, 4_096, 2, 32, "peng:0.65", (5e-4, 0.0), 0.05, 0.1),
        ("atari/pong", 128, 4_096, 2, 32, "peng:0.65", (2.5e-4, None), 0.001, 0.1),
        ("CartPole-v1", 32, 2_048, 4, 16, "peng:0.95", (1e-4, 0.0), 0.2, 0.2),
    ):
        config = make_config(env, agent="pqn")
        algorithm = config.algorithm
        assert isinstance(algorithm, PQNConfig)
        assert (config.envs, algorithm.rollout.size, algorithm.rollout.epochs) == (envs, size, epochs)
        assert algorithm.rollout.size // algorithm.optimizer.batch_size == minibatches
        assert config.estimator == estimator
        optimizer, exploration = algorithm.optimizer, algorithm.exploration
        assert (optimizer.learning_rate, optimizer.final_learning_rate) == rates
        assert (optimizer.rectified, optimizer.loss, optimizer.max_grad_norm) == (True, "squared", 20)  # half of it: 10
        assert (exploration.start, exploration.end) == (1, epsilon)
        assert exploration.steps / config.steps == pytest.approx(share, rel=0.03)
        assert algorithm.network.layer_norm
        assert (config.steps - config.memory.start) % size == 0


# --- learning ---------------------------------------------------------------------------------------------------------


def test_it_learns_cartpole(tmp_path: Path) -> None:
    """Random play scores 22; published settings with a higher learning rate and a lower ε."""
    config = override(
        make_config("CartPole-v1", agent="pqn"),
        {
            "steps": 61_440,  # 30 rollouts
            "seed": 1,
            "device": "cpu",
            "threads": 1,
            "checkpoint_every": 0,
            "memory": {"storage": "ram"},
            "exploration": {"end": 0.05},
            "optimizer": {"learning_rate": 1e-3},
        },
    )
    train_run(tmp_path / "run", config)
    final = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert final["score_mean_100"] > 120
