"""A network on a device, NumPy in and out; ``learner.py`` trains it."""

from __future__ import annotations

import copy
import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from lambda_replay.config import Device
from lambda_replay.errors import ConfigError
from lambda_replay.learning.fast_networks import accelerate
from lambda_replay.replay.data import Floats

FEW_STATES = 8  # up to this many, calls cost more than arithmetic; docs/performance.md
# Options of glibc's mallopt, from malloc.h, and their values in bytes: blocks from this size on are always returned to
# the system (2²⁵ is the most it accepts), and so is the free end of the heap when it is larger than this.
MALLOC_OPTIONS = {-3: 2**25, -1: 2**28}


class QNetwork:
    """Q(s, ·; θ) of a module, ours or a user's, in eval mode except while a learner trains it."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.device = device
        self.chunk_size = 128 if device.type == "cpu" else 4096  # states per forward pass; docs/performance.md
        self.module = module.to(device).eval()
        self.fast = accelerate(self.module)
        self._forward = self.module if self.fast is None else self.fast.forward
        self._few_q_values = self.fast.on_host() if self.fast is not None and device.type == "cpu" else None

    def __call__(self, states: NDArray[Any]) -> Floats:  # [n, F, *observation] -> [n, A]
        if self._few_q_values is not None and len(states) <= FEW_STATES:
            return self._few_q_values(states)
        with torch.inference_mode():
            return self._forward(self.tensor(states)).cpu().numpy()

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """Wraps gradient steps: ours compute the same in both modes, but a user's network may draw random numbers.

        They come from the seed, so a resumed run draws the same ones.
        """
        if self.fast is not None:
            with torch.inference_mode():  # not possible with autograd
                yield
            return
        self.module.train()
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed % 2**63)
                yield
        finally:
            self.module.eval()

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array on the network's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def copy(self) -> QNetwork:
        """Another network with the same weights."""
        return QNetwork(copy.deepcopy(self.module), self.device)

    def copy_weights_to(self, other: QNetwork) -> None:
        other.module.load_state_dict(self.module.state_dict())

    def weights(self) -> dict[str, Tensor]:
        """A copy of the parameters on the host, with tied ones separated."""
        weights = self.module.state_dict().items()
        return {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in weights}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        expected = {name: tuple(value.shape) for name, value in self.module.state_dict().items()}
        if expected != {name: tuple(value.shape) for name, value in weights.items()}:
            raise ConfigError(
                "the saved weights belong to another network; use the config they were trained with, and pass a "
                "network of your own again: lr.load(run, network=…)."
            )
        self.module.load_state_dict(weights)


def find_device(name: Device) -> torch.device:
    """The device of a config; ``auto`` is the fastest one available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_available in available.items() if is_available))
    if not available[name]:
        raise ConfigError(f"device {name} is not available; use cpu or auto.", "device")
    return torch.device(name)


def set_threads(threads: int) -> None:
    """Use this many threads for matrix products, in torch and in NumPy, which acts for small networks."""
    torch.set_num_threads(threads)
    threadpool_limits(limits=threads, user_api="blas")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensors of this process; does nothing where it is not glibc.

    By default it returns large blocks to the system at once, and getting them back, page by page, took a fifth of the
    time of training MinAtar's network (docs/performance.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in MALLOC_OPTIONS.items():
            mallopt(option, value)


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Wraps gradient steps, for this thread: Adam's vanishing moments would slow it down many times over."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
