"""The learner: gradient steps against a literal Adam in float64; the network it trains, its copies and its device."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from torch import Tensor, nn

from lambda_replay.config import NetworkConfig, OptimizerConfig
from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.learning.device import QNetwork, find_device
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.networks import make_network
from lambda_replay.replay.data import Minibatch
from lambda_replay.rundir.files import load_tensors, save_tensors

CPU = torch.device("cpu")
Doubles = NDArray[np.float64]
Loss = Literal["squared", "huber"]
NUM_INPUTS, NUM_ACTIONS, BATCH = 3, 2, 4


class Trained(NamedTuple):
    """A network with the learner that trains it."""

    network: QNetwork
    learner: Learner


def trained(module: nn.Module, **config: Any) -> Trained:
    network = QNetwork(module, CPU)
    return Trained(network, Learner(network, OptimizerConfig(batch_size=BATCH, **config)))


def linear(seed: int = 0, **config: Any) -> Trained:
    """Q(s, ·) = W s + b, nothing hidden."""
    return trained(make_network(NetworkConfig(kind="mlp", hidden=()), (1, NUM_INPUTS), NUM_ACTIONS, seed), **config)


def minibatches(count: int, seed: int = 0, scale: float = 2.0, batch_size: int = BATCH) -> list[Minibatch]:
    rng = np.random.default_rng(seed)
    return [
        Minibatch(
            states=rng.normal(size=(batch_size, 1, NUM_INPUTS)).astype(np.float32),
            actions=rng.integers(NUM_ACTIONS, size=batch_size).astype(np.int32),
            returns=(scale * rng.normal(size=batch_size)).astype(np.float32),
            rows=np.arange(batch_size),
        )
        for _ in range(count)
    ]


def own_module(seed: int = 0) -> nn.Module:
    """A user's network, which knows nothing of ours: the same function as the linear one, through autograd."""
    ours = make_network(NetworkConfig(kind="mlp", hidden=()), (1, NUM_INPUTS), NUM_ACTIONS, seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(NUM_INPUTS, NUM_ACTIONS))
    with torch.no_grad():
        for theirs, value in zip(network.parameters(), ours.parameters(), strict=True):
            theirs.copy_(value)
    return network


def parameters(network: QNetwork) -> list[Doubles]:
    return [value.double().numpy().copy() for value in network.weights().values()]


def clones(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same_weights(one: QNetwork, other: QNetwork) -> None:
    for (name, left), right in zip(one.weights().items(), other.weights().values(), strict=True):
        assert torch.equal(left, right), name


class LiteralAdam:
    """Kingma & Ba (2015), Algorithm 1, line by line in float64, on Q(s, a) = W s + b and a literal gradient."""

    def __init__(self, values: list[Doubles], config: OptimizerConfig) -> None:
        self.values = values  # W, b
        self._config = config
        self._means = [np.zeros_like(value) for value in self.values]
        self._squares = [np.zeros_like(value) for value in self.values]
        self._step = 0

    def update(self, minibatch: Minibatch) -> tuple[float, float, float, float]:
        """One step; the loss, the mean |TD error|, the mean Q(s, a) and the norm of the gradient before it."""
        weight, bias = self.values
        gradients = [np.zeros_like(weight), np.zeros_like(bias)]
        losses, errors, chosen = [], [], []
        size = len(minibatch.actions)
        for state, action, target in zip(minibatch.states, minibatch.actions, minibatch.returns, strict=True):
            features = state.reshape(-1).astype(np.float64)
            value = float(weight[action] @ features + bias[action])
            error = float(target) - value
            if self._config.loss == "squared":
                loss, slope = error**2, -2 * error
            else:
                loss = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
                slope = -float(np.clip(error, -1, 1))
            gradients[0][action] += slope * features / size
            gradients[1][action] += slope / size
            losses.append(loss)
            errors.append(abs(error))
            chosen.append(value)
        norm = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients)))
        if self._config.max_grad_norm is not None:
            gradients = [gradient * min(1.0, self._config.max_grad_norm / norm) for gradient in gradients]
        self._move(gradients)
        return float(np.mean(losses)), float(np.mean(errors)), float(np.mean(chosen)), norm

    def _move(self, gradients: list[Doubles]) -> None:
        config = self._config
        self._step += 1
        for number, gradient in enumerate(gradients):
            self._means[number] = config.beta1 * self._means[number] + (1 - config.beta1) * gradient
            self._squares[number] = config.beta2 * self._squares[number] + (1 - config.beta2) * gradient**2
            mean = self._means[number] / (1 - config.beta1**self._step)
            square = self._squares[number] / (1 - config.beta2**self._step)
            self.values[number] = self.values[number] - config.learning_rate * mean / (np.sqrt(square) + config.epsilon)


# --- golden -----------------------------------------------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    """Q(s, ·) = W s + b with W = 0, b = 0; s = (1, 2, 0), a = 1, R = 3, one sample.

    Loss 9; dL/dQ = −6; the gradient of row 1 is (−6, −12, 0), of its bias −6; its norm is √(36 + 144 + 36) = √216.
    Adam's first step moves each parameter by α·g/(|g| + ε) = α·sign(g), up to ε: W₁ = (0.1, 0.1, 0), b₁ = 0.1.
    """
    network, learner = linear(learning_rate=0.1, epsilon=1e-8)
    network.load_weights({name: torch.zeros_like(value) for name, value in network.weights().items()})
    states = np.array([[[1.0, 2.0, 0.0]]], dtype=np.float32)
    summary = learner.train([Minibatch(states, np.array([1]), np.array([3.0], dtype=np.float32), rows=np.array([0]))])
    assert_allclose(summary, (9.0, 3.0, 0.0, 216**0.5))
    weight, bias = parameters(network)
    assert_allclose(weight, np.array([[0, 0, 0], [0.1, 0.1, 0]]), atol=1e-6)
    assert_allclose(bias, np.array([0, 0.1]), atol=1e-6)


def test_the_summary_is_the_mean_over_all_samples_each_before_its_own_step() -> None:
    network, learner = linear(learning_rate=0.05)
    literal = LiteralAdam(parameters(network), OptimizerConfig(learning_rate=0.05))
    batches = minibatches(40)
    updates = np.array([literal.update(batch) for batch in batches])  # [40, 4]
    expected = [*updates[:, :3].mean(axis=0), updates[[0, 32], 3].mean()]  # the norm of every 32nd gradient
    assert_allclose(learner.train(batches), expected, rtol=1e-4)


def test_gradient_norms_are_measured_by_the_number_in_the_window() -> None:
    """Trained one minibatch at a time, as agent dqn does, steps 0 and 32 of 40 are measured; the others report 0."""
    _, learner = linear(learning_rate=0.05)
    norms = [learner.train([batch], first=number).gradient_norm for number, batch in enumerate(minibatches(40))]
    assert [number for number, norm in enumerate(norms) if norm > 0] == [0, 32]


# --- identity ---------------------------------------------------------------------------------------------------------

CONFIGS: list[dict[str, Any]] = [
    {"loss": "squared"},
    {"loss": "huber"},
    {"loss": "squared", "max_grad_norm": 0.5},
    {"loss": "huber", "max_grad_norm": 0.1},
    {"loss": "squared", "max_grad_norm": 1e6},
    {"beta1": 0.0, "beta2": 0.5, "epsilon": 1e-3},
    {"beta1": 0.5, "beta2": 0.0, "learning_rate": 0.3},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("is_own", [False, True], ids=["our gradients", "autograd"])
def test_updates_are_those_of_a_literal_adam(config: dict[str, Any], is_own: bool) -> None:
    config = {"learning_rate": 0.02, **config}
    network, learner = trained(own_module(), **config) if is_own else linear(**config)
    literal = LiteralAdam(parameters(network), OptimizerConfig(**config))
    for batch in minibatches(10):
        expected = literal.update(batch)
        assert_allclose(learner.train([batch]), expected, rtol=1e-4, atol=1e-6)
        for found, wanted in zip(parameters(network), literal.values, strict=True):
            assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("state_shape", [(1, 4), (1, 5, 5, 2), (4, 36, 36)])
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_updates_of_every_network_are_those_of_torch(state_shape: tuple[int, ...], loss: Loss) -> None:
    """Against torch's own losses, autograd, clipping and Adam."""
    config = OptimizerConfig(learning_rate=1e-3, loss=loss, max_grad_norm=0.7)
    network = QNetwork(make_network(NetworkConfig(), state_shape, 3, seed=1), CPU)
    theirs = make_network(NetworkConfig(), state_shape, 3, seed=1)
    learner = Learner(network, config)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-3, eps=config.epsilon)
    rng = np.random.default_rng(2)
    for _ in range(4):
        states = rng.integers(256, size=(6, *state_shape), dtype=np.uint8)
        batch = Minibatch(states, rng.integers(3, size=6), rng.normal(size=6).astype(np.float32), np.arange(6))
        learner.train([batch])
        chosen = theirs(torch.from_numpy(states)).gather(1, torch.from_numpy(batch.actions)[:, None])[:, 0]
        returns = torch.from_numpy(batch.returns)
        measure = nn.functional.mse_loss if loss == "squared" else nn.functional.huber_loss
        adam.zero_grad()
        measure(chosen, returns).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.7)
        adam.step()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(network.weights()[name], value, rtol=1e-4, atol=1e-6)


def test_one_call_with_many_minibatches_is_many_calls_with_one() -> None:
    together, apart = linear(), linear()
    together.learner.train(minibatches(6))
    for batch in minibatches(6):
        apart.learner.train([batch])
    assert_same_weights(together.network, apart.network)


def test_q_values_are_the_networks() -> None:
    network, _ = linear()
    weight, bias = parameters(network)
    states = minibatches(1)[0].states
    q_values = network(states)
    assert (q_values.shape, q_values.dtype) == ((BATCH, NUM_ACTIONS), np.dtype(np.float32))
    assert_allclose(q_values, states[:, 0] @ weight.T + bias, rtol=1e-5)


def test_how_a_parameter_lies_in_memory_changes_nothing() -> None:
    """A user's network may hold its filters with the channels last."""

    def trained_in(memory_format: torch.memory_format) -> QNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            module = nn.Sequential(nn.Flatten(1, 2), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
        module[1].to(memory_format=memory_format)  # type: ignore[call-overload]
        network, learner = trained(module, learning_rate=1e-2)
        rng = np.random.default_rng(0)
        for _ in range(5):
            states = rng.normal(size=(4, 2, 3, 5, 5)).astype(np.float32)
            returns = rng.normal(size=4).astype(np.float32)
            learner.train([Minibatch(states, np.array([0, 1, 2, 0]), returns, np.arange(4))])
        return network

    one, other = trained_in(torch.contiguous_format), trained_in(torch.channels_last)
    for left, right in zip(one.weights().values(), other.weights().values(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


# --- property ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returns", [np.zeros((BATCH, 1), dtype=np.float32), np.zeros((1, BATCH), dtype=np.float32), np.zeros((), "f4")]
)
def test_nothing_is_broadcast_in_silence(returns: NDArray[np.float32]) -> None:
    batch = minibatches(1)[0]
    with pytest.raises(AssertionError):
        linear().learner.train([Minibatch(batch.states, batch.actions, returns, batch.rows)])


def test_minibatches_are_only_read() -> None:
    batch = minibatches(1)[0]
    before = [array.copy() for array in (batch.states, batch.actions, batch.returns)]
    network, learner = linear()
    learner.train([batch])
    network(batch.states)
    for array, copy in zip((batch.states, batch.actions, batch.returns), before, strict=True):
        assert_array_equal(array, copy)


def test_states_may_lie_in_memory_as_they_like() -> None:
    batch = minibatches(1)[0]
    reversed_states = batch.states[:, :, ::-1].copy()[:, :, ::-1]
    one, other = linear(), linear()
    assert_array_equal(one.network(batch.states), other.network(reversed_states))
    one.learner.train([batch])
    other.learner.train([Minibatch(reversed_states, batch.actions, batch.returns, batch.rows)])
    assert_same_weights(one.network, other.network)


def test_a_parameter_that_is_not_used_stays_as_it_is() -> None:
    module = own_module()
    module.unused = nn.Parameter(torch.ones(3))
    network, learner = trained(module, learning_rate=0.1)
    learner.train(minibatches(3))
    assert network.weights()["unused"].tolist() == [1, 1, 1]


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    network, learner = linear()
    learner.train(minibatches(3))
    network(minibatches(1)[0].states)
    assert torch.equal(torch.get_rng_state(), before)


def test_training_leaves_the_callers_arithmetic_as_it_was() -> None:
    """Numbers too small to be normal are not flushed to zero afterwards: that is a setting of the whole thread."""

    def is_flushed() -> bool:
        tiny = np.array([np.finfo(np.float64).smallest_subnormal])
        return (tiny * 1.0).tobytes() == bytes(8)  # the bits, for comparisons would flush as well

    torch.set_flush_denormal(False)
    try:
        assert not is_flushed()
        linear().learner.train(minibatches(2))
        assert not is_flushed()
    finally:
        torch.set_flush_denormal(False)


def test_gradient_clipping_bounds_the_first_step_of_plain_descent() -> None:
    """With β₁ = β₂ = 0 and ε far above |g|, Adam's step is α·g/ε, so its length shows the clipped norm."""
    for bound, is_clipped in ((0.01, True), (1e6, False)):
        network, learner = linear(learning_rate=1.0, beta1=0.0, beta2=0.0, epsilon=1e6, max_grad_norm=bound)
        before = parameters(network)
        network.load_weights({name: value * 0 for name, value in network.weights().items()})
        learner.train(minibatches(1, scale=100.0))
        after = parameters(network)
        norm = 1e6 * np.sqrt(sum(float((value**2).sum()) for value in after))
        assert (norm == pytest.approx(0.01, rel=1e-3)) == is_clipped
        assert len(before) == len(after)


# --- saving and restoring ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("updates_before", [0, 5])
def test_restored_from_files_it_goes_on_exactly(tmp_path: Path, updates_before: int) -> None:
    config: dict[str, Any] = {"learning_rate": 0.02, "max_grad_norm": 1.0}
    network, learner = linear(**config)
    if updates_before:
        learner.train(minibatches(updates_before))
    save_tensors(tmp_path / "weights", network.weights())
    save_tensors(tmp_path / "optimizer", learner.optimizer_state())
    expected = learner.train(minibatches(5, seed=9))

    restored = linear(seed=99, **config)
    restored.network.load_weights(load_tensors(tmp_path / "weights"))
    restored.learner.load_optimizer_state(load_tensors(tmp_path / "optimizer"))
    assert restored.learner.train(minibatches(5, seed=9)) == expected
    assert_same_weights(network, restored.network)
    for name, value in learner.optimizer_state().items():
        assert torch.equal(value, restored.learner.optimizer_state()[name]), name


def test_without_the_optimizers_state_it_does_not(tmp_path: Path) -> None:
    network, learner = linear(learning_rate=0.02)
    learner.train(minibatches(5))
    other = linear(learning_rate=0.02)
    other.network.load_weights(clones(network.weights()))
    learner.train(minibatches(1, seed=9))
    other.learner.train(minibatches(1, seed=9))
    assert not all(torch.equal(value, other.network.weights()[name]) for name, value in network.weights().items())


def test_weights_of_another_network_are_refused() -> None:
    network, _ = linear()
    for hidden, inputs in (((4,), NUM_INPUTS), ((), NUM_INPUTS + 1)):
        other = make_network(NetworkConfig(kind="mlp", hidden=hidden), (1, inputs), NUM_ACTIONS, seed=0)
        with pytest.raises(ConfigError, match="another network"):
            network.load_weights(dict(other.state_dict()))


def test_weights_are_a_copy_that_training_does_not_change() -> None:
    network, learner = linear()
    weights = network.weights()
    before = clones(weights)
    learner.train(minibatches(4))
    assert all(torch.equal(value, before[name]) for name, value in weights.items())
    assert not all(torch.equal(value, before[name]) for name, value in network.weights().items())


def test_a_copy_stays_until_it_is_copied_to() -> None:
    network, learner = linear()
    target = network.copy()
    states = minibatches(1)[0].states
    before = network(states)
    learner.train(minibatches(4))
    assert_array_equal(target(states), before)
    assert (network(states) != before).any()
    network.copy_weights_to(target)
    assert_array_equal(target(states), network(states))
    learner.train(minibatches(1))
    assert (target(states) != network(states)).any()


def test_a_copy_does_not_disturb_training() -> None:
    alone, copied = linear(), linear()
    target = copied.network.copy()
    for batch in minibatches(4):
        alone.learner.train([batch])
        copied.learner.train([batch])
        copied.network.copy_weights_to(target)
    assert_same_weights(alone.network, copied.network)


@pytest.mark.parametrize("is_own", [False, True], ids=["our network", "a user's"])
def test_a_network_is_in_training_mode_during_gradient_steps_alone(is_own: bool) -> None:
    """Our own networks compute the same in both modes, so they stay in one."""
    network, learner = trained(own_module()) if is_own else linear()
    modes: list[bool] = []

    def noting() -> Iterator[Minibatch]:
        for batch in minibatches(3):
            modes.append(network.module.training)
            yield batch

    assert not network.module.training
    learner.train(noting())
    assert modes == [is_own] * 3
    assert not network.module.training
    assert not network.copy().module.training


# --- devices ----------------------------------------------------------------------------------------------------------


def set_devices(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "device"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_the_fastest_device_that_is_available(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, device: str
) -> None:
    set_devices(monkeypatch, cuda=cuda, mps=mps)
    assert find_device("auto").type == device
    assert find_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_available_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: Literal["cuda", "mps"]
) -> None:
    set_devices(monkeypatch, cuda=False, mps=False)
    with pytest.raises(ConfigError) as caught:
        find_device(name)
    assert f"device {name} is not available" in str(caught.value)
    assert "use cpu or auto" in str(caught.value)


def test_a_network_is_on_the_device_it_was_given() -> None:
    network, _ = linear()
    assert network.device == network.copy().device == CPU
    assert all(value.device == CPU for value in network.weights().values())
    assert network.tensor(np.zeros(3)).device == CPU


# Divergence


def scaled(batches: list[Minibatch], states: float, returns: float) -> list[Minibatch]:
    return [
        replace(batch, states=batch.states * np.float32(states), returns=batch.returns * np.float32(returns))
        for batch in batches
    ]


@pytest.mark.parametrize(
    ("returns", "what"), [(np.nan, "the TD errors are"), (np.inf, "the TD errors are"), (1e30, "the loss is")]
)
def test_a_summary_that_is_not_finite_is_divergence(returns: float, what: str) -> None:
    """An error of 1e30 has a square of 1e60, which float32 does not hold."""
    _, learner = linear(loss="squared")
    with pytest.raises(DivergenceError, match=f"^{what} not finite: training diverged; lower the learning rate"):
        learner.train(scaled(minibatches(1), 1.0, returns))


def test_values_that_are_not_finite_are_named_before_what_follows_from_them() -> None:
    network, learner = linear()
    network.load_weights({name: value + np.inf for name, value in network.weights().items()})
    with pytest.raises(DivergenceError, match=r"^the weights are not finite"):
        learner.check_finite()
    with pytest.raises(DivergenceError, match=r"^the Q-values are not finite"):
        learner.train(minibatches(1))


def test_a_second_moment_that_overflows_is_divergence_though_the_weights_are_finite() -> None:
    """A gradient of about 1e23 has a square that float32 does not hold: Adam would not move that weight ever again."""
    network, learner = linear(loss="squared")
    learner.check_finite()
    learner.train(scaled(minibatches(1, scale=1.0), 1e5, 1e18))
    assert all(bool(value.isfinite().all()) for value in network.weights().values())
    with pytest.raises(DivergenceError, match=r"^Adam's moments are not finite"):
        learner.check_finite()


# Page faults of a process that takes and frees the memory of a large tensor many times, before and after the call.
FAULTS = """
import resource, sys, torch
from lambda_replay.learning.device import keep_freed_memory

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(2**22).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_stays_in_the_process() -> None:
    answer = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    before, after = map(int, answer.split())
    assert before > 20  # pages or huge pages, from the system each time
    assert after < before / 10


def test_frozen_parameters_stay_and_the_others_learn() -> None:
    """A user's pretrained encoder, for example."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(NUM_INPUTS, 4), nn.ReLU(), nn.Linear(4, NUM_ACTIONS))
    module[1].requires_grad_(False)
    before = [value.clone() for value in module.parameters()]
    trained(module).learner.train(minibatches(3))
    changed = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    assert changed == [False, False, True, True]


def test_gradients_that_share_memory_are_clipped_once() -> None:
    """Autograd gives both biases of a + b the same tensor."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (nn.Parameter(torch.zeros(NUM_ACTIONS)) for _ in range(2))

        def forward(self, states: Tensor) -> Tensor:
            biases: Tensor = self.one + self.other
            return biases + torch.zeros(len(states), 1)

    bound, settings = 0.1, {"learning_rate": 1.0, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e6}
    module = Twice()
    trained(module, max_grad_norm=bound, **settings).learner.train(minibatches(1, scale=100.0))
    moved = torch.cat([module.one.detach(), module.other.detach()]) * 1e6  # one step of nearly plain gradient descent
    assert float(moved.norm()) == pytest.approx(bound, rel=1e-3)
