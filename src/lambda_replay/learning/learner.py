"""The learner: a network trained by Adam, NumPy in and out; devices live here alone, not what to learn."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from lambda_replay.config import Device, OptimizerConfig
from lambda_replay.errors import ConfigError, diverged
from lambda_replay.learning.capture import Captured
from lambda_replay.learning.fast_networks import accelerate
from lambda_replay.learning.fused_adam import Adam
from lambda_replay.replay.data import Floats, Minibatch

FEW_STATES = 8  # up to which calls cost more than arithmetic; docs/performance.md

Backward = Callable[[Tensor], Sequence[Tensor]]  # gradient of Q-values [B, A] -> gradient of each parameter


class TrainingSummary(NamedTuple):
    """Means over the samples of one call of ``train``, each as it was before its own gradient step."""

    loss: float
    td_error_abs: float
    q_value: float

    def check_finite(self) -> None:
        """Refuse numbers that are not finite, the one behind the others first."""
        for what, value in (
            ("the Q-values are", self.q_value),
            ("the TD errors are", self.td_error_abs),
            ("the loss is", self.loss),
        ):
            if not math.isfinite(value):
                raise diverged(what)


class Learner:
    """Minimises [R − Q(s, a; θ)]² (or its Huber version) over minibatches."""

    def __init__(self, network: nn.Module, config: OptimizerConfig, device: torch.device, seed: int = 0) -> None:
        """``seed`` is that of a network which draws numbers while it is trained, such as one with dropout."""
        self.device = device
        self.chunk_size = 128 if device.type == "cpu" else 4096  # states per forward pass; docs/performance.md
        self._network = network.to(device).eval()  # dropout and its like are for gradient steps alone
        self._config, self._seed = config, seed
        self._fast = accelerate(self._network)
        self._few_q_values = self._fast.on_host() if self._fast is not None and device.type == "cpu" else None
        self._parameters = list(self._network.parameters())
        self._adam = Adam(self._parameters, config)
        self._step = Captured(self._update) if config.cuda_graph and device.type == "cuda" else self._update
        self._is_stopped = False

    def q_values(self, states: NDArray[Any]) -> Floats:  # [n, F, *observation] -> [n, A]
        """Q(s, ·; θ) of some states."""
        if self._few_q_values is not None and len(states) <= FEW_STATES:
            return self._few_q_values(states)
        with torch.inference_mode():
            forward = self._network if self._fast is None else self._fast.forward
            return forward(self._tensor(states)).cpu().numpy()

    @torch.no_grad()
    def train(self, minibatches: Iterable[Minibatch]) -> TrainingSummary:
        """One gradient step per minibatch."""
        torch.set_flush_denormal(True)  # of this thread: Adam's fading moments would slow it many times over
        try:
            with self._training_mode():
                updates = [self._step(*self._tensors(batch)) for batch in minibatches if not self._is_stopped]
        finally:
            torch.set_flush_denormal(False)
        errors, values = (torch.stack(many).cpu().numpy() for many in zip(*updates, strict=True))  # [updates, B] each
        summary = self._summarise(errors, values)
        summary.check_finite()
        return summary

    @np.errstate(over="ignore", invalid="ignore")  # an overflow is told by check_finite
    def _summarise(self, errors: Floats, values: Floats) -> TrainingSummary:
        sizes = np.abs(errors)
        losses = errors**2 if self._config.loss == "squared" else np.where(sizes < 1, errors**2 / 2, sizes - 0.5)
        return TrainingSummary(float(losses.mean()), float(sizes.mean()), float(values.mean()))

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Ours compute the same in both modes. A user's network may draw random numbers while it is trained.

        They come from a seed and the number of steps taken so far, so that a resumed run draws the same ones.
        """
        if self._fast is not None:
            with torch.inference_mode():  # autograd could not leave it
                yield
            return
        self._network.train()
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed((self._seed + self._adam.num_steps) % 2**63)
                yield
        finally:
            self._network.eval()

    def _update(self, states: Tensor, actions: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
        """One gradient step; the errors R − Q(s, a) and the values Q(s, a) before it, [B] each."""
        q_values, backward = self._forward(states)  # [B, A]
        values = q_values.gather(1, actions)[:, 0]  # [B]
        assert values.shape == returns.shape
        errors = returns - values
        slopes = 2 * errors if self._config.loss == "squared" else errors.clamp(-1, 1)
        q_gradient = torch.zeros_like(q_values).scatter_(1, actions, slopes[:, None] / -len(errors))
        gradients = backward(q_gradient)
        if self._config.max_grad_norm is not None:
            norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
            torch._foreach_mul_(list(gradients), torch.clamp(self._config.max_grad_norm / (norm + 1e-6), max=1.0))
        self._adam.step(gradients)
        return errors, values

    def _forward(self, states: Tensor) -> tuple[Tensor, Backward]:
        """Q-values, and the function from their gradient to the parameters': the network's own, or autograd's."""
        fast = self._fast
        if fast is not None:
            q_values, saved = fast.forward_saving(states)
            return q_values, lambda q_gradient: fast.gradients(saved, q_gradient)
        with torch.enable_grad():
            tracked: Tensor = self._network(states)
        return tracked.detach(), lambda q_gradient: torch.autograd.grad(
            tracked, self._parameters, q_gradient, materialize_grads=True
        )

    def stop(self) -> None:
        """Take no further step, also when called from another thread in the middle of ``train``."""
        self._is_stopped = True

    def frozen_copy(self) -> Learner:
        """A learner with the same weights that stays as it is: a target network."""
        return Learner(copy.deepcopy(self._network), self._config, self.device, self._seed)

    def copy_weights_to(self, other: Learner) -> None:
        other._network.load_state_dict(self._network.state_dict())

    def weights(self) -> dict[str, Tensor]:
        """A copy of the network's parameters on the host, in which tied ones are apart."""
        weights = self._network.state_dict().items()
        return {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in weights}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        expected = {name: tuple(value.shape) for name, value in self._network.state_dict().items()}
        if expected != {name: tuple(value.shape) for name, value in weights.items()}:
            raise ConfigError("the saved weights are those of another network; use the config they were trained with.")
        self._network.load_state_dict(weights)

    def check_finite(self) -> None:
        """Refuse weights that are not finite, and moments of Adam's, which would stop or break the next step."""
        for what, tensors in (
            ("the weights are", self._parameters),
            ("Adam's moments are", self._adam.get_state().values()),
        ):
            if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
                raise diverged(what)

    def optimizer_state(self) -> dict[str, Tensor]:
        return self._adam.get_state()

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        self._adam.set_state(state)

    def _tensors(self, batch: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
        """States [B, F, *observation], actions [B, 1] and returns [B]."""
        actions = batch.actions.astype(np.int64)[:, None]
        return self._tensor(batch.states), self._tensor(actions), self._tensor(batch.returns)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def find_device(name: Device) -> torch.device:
    """The device of a config, ``auto`` being the fastest that is available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_available in available.items() if is_available))
    if not available[name]:
        raise ConfigError(f"device {name} is not available; use cpu or auto.")
    return torch.device(name)


def set_threads(threads: int) -> None:
    """Split this process's products over so many threads, torch's and those of NumPy, which acts for small networks."""
    torch.set_num_threads(threads)
    threadpool_limits(limits=threads, user_api="blas")
