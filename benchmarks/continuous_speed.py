"""Training steps per second of SAC(λ) and TD3(λ) beside Stable-Baselines3's SAC and TD3, and what our gradients gain.

python benchmarks/continuous_speed.py [--rounds 5] [--steps 192]

Pendulum-v1, two hidden layers of 256 units, batches of 256, one update per step, one thread, no LayerNorm. Arms take
turns, and processor time counts, so that other work on the machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import stable_baselines3
import torch
from torch import Tensor

from lambda_replay.agents.run_settings import override
from lambda_replay.learning import actor_critic
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.presets import make_config

ENV, START = "Pendulum-v1", 1_000
Run = Callable[[int], float]  # agent steps -> steps per second


class PlainEnsemble:
    """A readable ensemble whose gradients are autograd's, behind the interface of the fast one."""

    def __init__(self, module: Ensemble) -> None:
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs)
        return outputs

    def forward_saving(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with torch.inference_mode(False), torch.enable_grad():
            own = inputs.clone().requires_grad_()
            outputs = self.module(own)
        return outputs.detach(), (own, outputs)

    def gradients(self, saved: tuple[Tensor, Tensor], gradient: Tensor) -> list[Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            return list(torch.autograd.grad(saved[1], list(self.module.parameters()), gradient.clone()))

    def input_gradient(self, saved: tuple[Tensor, Tensor], gradient: Tensor, num_columns: int) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(saved[1], saved[0], gradient.clone())[0][:, -num_columns:]

    def chosen_input_gradient(
        self, saved: tuple[Tensor, Tensor], chosen: Tensor, gradient: Tensor, num_columns: int
    ) -> Tensor:
        of_all = torch.zeros_like(saved[1]).scatter_(0, chosen[None, :, None], gradient[None])
        return self.input_gradient(saved, of_all, num_columns)


def ours(agent: str, fast: Any = None) -> Run:
    """A run of ours after its random start; ``fast`` replaces the fast ensembles."""
    changes = {
        "steps": 10**6,
        "threads": 1,
        "device": "cpu",
        "checkpoint_every": 0,
        "memory": {"storage": "ram", "capacity": 50_000, "start": START},
        "network": {"layer_norm": False},
    }
    config = override(make_config(ENV, agent=agent), changes)
    is_plain = contextlib.nullcontext() if fast is None else mock.patch.object(actor_critic, "FastEnsemble", fast)
    with is_plain:
        loop = assemble(config, make_environments(config)).loop
    events = loop.run()

    def run(steps: int) -> float:
        first, began = loop.step, time.process_time()
        while loop.step < first + steps:
            next(events)
        return (loop.step - first) / (time.process_time() - began)

    run(START + 64)
    return run


def theirs(kind: Any) -> Run:
    """A model of Stable-Baselines3 after its random start."""
    settings = {"batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_starts": 300}
    options: dict[str, Any] = {"policy_kwargs": {"net_arch": [256, 256]}, "device": "cpu", "seed": 0}
    model = kind("MlpPolicy", gymnasium.make(ENV), **settings, **options)
    model.learn(350)

    def run(steps: int) -> float:
        began = time.process_time()
        model.learn(steps, reset_num_timesteps=False)
        return steps / (time.process_time() - began)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="Time SAC(λ) and TD3(λ) beside Stable-Baselines3.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=192)
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms = {
        "SAC, Stable-Baselines3": theirs(stable_baselines3.SAC),
        "sac-lambda": ours("sac-lambda"),
        "sac-lambda with autograd": ours("sac-lambda", PlainEnsemble),
        "TD3, Stable-Baselines3": theirs(stable_baselines3.TD3),
        "td3-lambda": ours("td3-lambda"),
    }
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, run in arms.items():
            speeds[name].append(run(options.steps))
    for name, found in speeds.items():
        quartiles = np.quantile(found, [0.25, 0.75])
        print(f"{name:<26} {statistics.median(found):6.1f} steps/s  ({quartiles[0]:.1f} to {quartiles[1]:.1f})")


if __name__ == "__main__":
    main()
