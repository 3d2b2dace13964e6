"""Training steps per second of SAC(λ) and TD3(λ) beside Stable-Baselines3's SAC and TD3, and what our gradients gain.

python -m benchmarks.continuous_speed [--rounds 5] [--steps 192] [--start 1000] [--operations]

Pendulum-v1, two hidden layers of 256 units, batches of 256, one update per step, one thread, no LayerNorm. Arms take
turns, and ratios are taken within a round. Other work on the machine disturbs steps per second of processor time less
than those by the clock; both are printed. ``--start`` is the number of steps in our memory before training.
``--operations`` also prints in which of torch's operations our agents spend their time.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any
from unittest import mock

import gymnasium
import stable_baselines3
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.turns import Run, ours, show, take_turns, theirs
from lambda_replay.agents.run_settings import override
from lambda_replay.learning import actor_critic
from lambda_replay.learning.ensembles import Ensemble
from lambda_replay.training.presets import make_config

ENV = "Pendulum-v1"
PEERS = {  # with whom each arm is compared
    "SAC, Stable-Baselines3": "SAC, Stable-Baselines3",
    "sac-lambda": "SAC, Stable-Baselines3",
    "sac-lambda with autograd": "SAC, Stable-Baselines3",
    "TD3, Stable-Baselines3": "TD3, Stable-Baselines3",
    "td3-lambda": "TD3, Stable-Baselines3",
}


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


def our_agent(agent: str, start: int, fast: Any = None) -> Run:
    """A run of ours after its random start of this many steps; ``fast`` replaces the fast ensembles."""
    changes = {
        "steps": 10**6,
        "threads": 1,
        "device": "cpu",
        "checkpoint_every": 0,
        "memory": {"storage": "ram", "capacity": 2 * start + 50_000, "start": start},
        "network": {"layer_norm": False},
    }
    config = override(make_config(ENV, agent=agent), changes)
    is_plain = contextlib.nullcontext() if fast is None else mock.patch.object(actor_critic, "FastEnsemble", fast)
    with is_plain:
        run = ours(config)
    run(start + 64)
    return run


def their_agent(kind: Any) -> Run:
    """A model of Stable-Baselines3 after its random start."""
    settings = {"batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_starts": 300}
    options: dict[str, Any] = {"policy_kwargs": {"net_arch": [256, 256]}, "device": "cpu", "seed": 0}
    model = kind("MlpPolicy", gymnasium.make(ENV), **settings, **options)
    model.learn(350)
    return theirs(model)


def show_operations(name: str, run: Run, steps: int, most: int = 10) -> None:
    """Print the shares of torch's operations in the time that all of them take in a run."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run(steps)
    operations = sorted(profiled.key_averages(), key=lambda operation: -operation.self_cpu_time_total)
    total = sum(operation.self_cpu_time_total for operation in operations)
    print(f"{name}: shares of the time in torch's operations")
    for operation in operations[:most]:
        share = operation.self_cpu_time_total / total
        print(f"  {operation.key:<36} {share:6.1%}   {operation.count / steps:5.1f} calls per step")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time SAC(λ) and TD3(λ) beside Stable-Baselines3.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--start", type=int, default=1_000)
    parser.add_argument("--operations", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms = {
        "SAC, Stable-Baselines3": their_agent(stable_baselines3.SAC),
        "sac-lambda": our_agent("sac-lambda", options.start),
        "sac-lambda with autograd": our_agent("sac-lambda", options.start, PlainEnsemble),
        "TD3, Stable-Baselines3": their_agent(stable_baselines3.TD3),
        "td3-lambda": our_agent("td3-lambda", options.start),
    }
    assert arms.keys() == PEERS.keys()
    speeds = take_turns(arms, options.rounds, options.steps)
    print("steps per second of processor time and by the clock; each as a multiple of Stable-Baselines3's")
    for name, peer in PEERS.items():
        show(name, speeds[name], speeds[peer])
    for name in ("sac-lambda", "td3-lambda") if options.operations else ():
        show_operations(name, arms[name], options.steps)


if __name__ == "__main__":
    main()
