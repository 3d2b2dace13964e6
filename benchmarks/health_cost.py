"""What the metrics of a network's health cost: their share of the time of a refresh with its training.

python benchmarks/health_cost.py [--refreshes 20]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lambda_replay.agents import dqn_lambda
from lambda_replay.agents.dqn_lambda import DQNLambda, DQNLambdaConfig
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.learning import network_health
from lambda_replay.learning.networks import make_network
from lambda_replay.learning.training_summary import NORM_EVERY
from lambda_replay.replay import diagnostics
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.presets import make_config

PRESETS = {"classic": "CartPole-v1", "minatar": "minatar/breakout", "atari": "atari/pong"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the metrics of a network's health.")
    parser.add_argument("--refreshes", type=int, default=20)
    options = parser.parse_args()
    for preset, env in PRESETS.items():
        seconds = time_refreshes(small(make_config(env, preset)), options.refreshes)
        share = (seconds["units"] + seconds["values"] + seconds["norms"]) / seconds["refresh"]
        print(
            f"{preset:<8} {1e3 * seconds['refresh']:8.1f} ms per refresh, of which {100 * share:.2f} % for its health"
        )


def small(config: RunConfig) -> RunConfig:
    """The preset with a short random start and no files."""
    per_stream = max(2_000 // config.envs, agent_kind(config.agent).shortest_start(config))
    start = config.envs * per_stream
    memory = replace(config.memory, start=start, capacity=20_000, storage="ram")
    return replace(config, memory=memory, checkpoint_every=0, threads=1, device="cpu")


def time_refreshes(config: RunConfig, refreshes: int) -> dict[str, float]:
    """Mean processor seconds of a refresh with its training, and of its health metrics within; one thread."""
    taken: dict[str, list[float]] = {"refresh": [], "units": [], "values": []}
    originals: dict[tuple[Any, str, str], Callable[..., Any]] = {
        (DQNLambda, "_train", "refresh"): DQNLambda._train,
        (dqn_lambda, "describe_network", "units"): network_health.describe_network,
        (diagnostics, "describe_q_values", "values"): diagnostics.describe_q_values,
    }
    for (owner, name, part), function in originals.items():
        setattr(owner, name, timed(function, taken[part]))
    algorithm = config.algorithm
    assert isinstance(algorithm, DQNLambdaConfig)
    try:
        config = replace(config, steps=config.memory.start + (1 + refreshes) * algorithm.boundary_every)
        environments = make_environments(config)
        for _ in assemble(config, environments).loop.run():
            pass
    finally:
        for (owner, name, _), function in originals.items():
            setattr(owner, name, function)
    spec = environments[0].spec
    module = make_network(algorithm.network, config.state_shape(spec.observation_shape), spec.num_actions, seed=0)
    norms = -(-algorithm.cache.updates_per_refresh // NORM_EVERY)
    taken["refresh"].pop(0), taken["units"].pop(0), taken["values"].pop(0)  # these warm up
    means = {name: sum(seconds) / refreshes for name, seconds in taken.items()}
    return {**means, "norms": norms * time_norm([parameter.detach() for parameter in module.parameters()])}


def timed(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            taken.append(time.process_time() - start)

    return call


def time_norm(gradients: list[torch.Tensor], repeats: int = 50) -> float:
    """Seconds for the norm of gradients of these shapes, as the learner computes it."""
    start = time.process_time()
    for _ in range(repeats):
        torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
    return (time.process_time() - start) / repeats


if __name__ == "__main__":
    main()
