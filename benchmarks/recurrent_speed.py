"""Training steps per second of drqn-lambda on CartPole beside sb3-contrib's RecurrentPPO, and where ours go.

.venv/peers/bin/python -m benchmarks.recurrent_speed [--rounds 5] [--steps 2000]   (after make peers)

CartPole-v1 without velocities for both; each has its own defaults (ours: the preset ``classic``), one thread. Arms take
turns, and ratios are taken within a round. Other work on the machine disturbs steps per second of processor time less
than those by the clock; both are printed, and then the shares of processor time of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from sb3_contrib import RecurrentPPO

from benchmarks.turns import Run, ours, show, take_turns, theirs
from lambda_replay.agents.drqn_lambda import DRQNLambda
from lambda_replay.agents.run_settings import override
from lambda_replay.learning.recurrent_critic import RecurrentCritic
from lambda_replay.learning.recurrent_network import RecurrentNetwork
from lambda_replay.training.presets import make_config

ENV, KEPT = "CartPole-v1", [0, 2]  # positions
PEER = "RecurrentPPO, sb3-contrib"
PARTS = {  # of our time: what is timed
    "acting": (DRQNLambda, "act"),
    "refresh: blocks unrolled": (RecurrentCritic, "unroll"),
    "training: sequences unrolled": (RecurrentNetwork, "forward"),
    "training: gradients through them": (torch.autograd, "grad"),
}


def our_agent() -> Run:
    """A run of ours after its random start and first refresh."""
    changes = {"observe": KEPT, "steps": 10**6, "threads": 1, "device": "cpu", "checkpoint_every": 0}
    config = override(make_config(ENV, agent="drqn-lambda"), {**changes, "memory": {"storage": "ram"}})
    run = ours(config)
    run(config.memory.start + config.algorithm.boundary_every)
    return run


def make_partial() -> Any:
    env = gymnasium.make(ENV)
    bounds = env.observation_space
    assert isinstance(bounds, spaces.Box)
    seen = spaces.Box(bounds.low[KEPT], bounds.high[KEPT], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[KEPT], seen)


def their_agent() -> Run:
    """RecurrentPPO at its defaults, after its first rollout."""
    model = RecurrentPPO("MlpLstmPolicy", make_partial(), device="cpu", seed=0)
    model.learn(model.n_steps)
    return theirs(model)


@contextlib.contextmanager
def watched(seconds: dict[str, float]) -> Iterator[None]:
    """Add to ``seconds`` the processor time of every part."""

    def watch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **options)
            finally:
                seconds[name] += time.process_time() - began

        return call

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, method, watch(name, getattr(owner, method))))
        yield


def shares(run: Run, steps: int) -> dict[str, float]:
    """The share of processor time of each part, and of the rest."""
    seconds, began = dict.fromkeys(PARTS, 0.0), time.process_time()
    with watched(seconds):
        run(steps)
    total = time.process_time() - began
    rest = {"rest: environments, memory, returns, Adam": total - sum(seconds.values())}
    return {name: spent / total for name, spent in {**seconds, **rest}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time drqn-lambda beside sb3-contrib's RecurrentPPO.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms = {PEER: their_agent(), "drqn-lambda": our_agent()}
    speeds = take_turns(arms, options.rounds, options.steps)
    print("steps per second of processor time and by the clock; each as a multiple of RecurrentPPO's")
    for name in arms:
        show(name, speeds[name], speeds[PEER])
    print("shares of our processor time")
    for name, share in shares(arms["drqn-lambda"], options.steps).items():
        print(f"{name:<42} {share:4.0%}")


if __name__ == "__main__":
    main()
