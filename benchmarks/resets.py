"""Resets with a high replay ratio (Nikishin et al. 2022), which are no part of the product: do they help on MinAtar?

    python -m benchmarks.resets GAME --seed N [--updates 500] [--resets 100000 200000 300000] [--steps 500000]
                                [--out DIR]

Trains the preset ``minatar`` with more updates per refresh. At each of the given steps, the layers behind the
convolution get new weights; Adam's moments stay. Without ``--resets`` nothing is reset.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import lambda_replay as lr
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.envs import make_environment
from lambda_replay.learning.networks import make_network
from lambda_replay.training.events import Boundary, RunEvent
from lambda_replay.training.presets import make_config

RESET = ("hidden", "norms.1", "output")  # parts of the network for MinAtar


class Resets:
    """Gives the last layers of a network the weights of fresh ones, once at each of the steps."""

    def __init__(self, game: str, seed: int, steps: list[int]) -> None:
        config = make_config(game, "minatar")
        spec = make_environment(config).spec
        assert isinstance(config.algorithm, DQNLambdaConfig)
        shape = config.state_shape(spec.observation_shape)
        self._fresh = [
            make_network(config.algorithm.network, shape, spec.num_actions, seed + n) for n in range(len(steps) + 1)
        ]
        self.network, self._steps = self._fresh.pop(0), list(steps)

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, Boundary) and self._steps and event.step >= self._steps[0]:
            print(f"reset at step {event.step:,}", flush=True)
            self._steps.pop(0)
            fresh = self._fresh.pop(0).state_dict()
            with torch.no_grad():
                for name, weights in self.network.state_dict().items():
                    if name.startswith(RESET):
                        weights.copy_(fresh[name])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with resets and a high replay ratio on MinAtar.")
    parser.add_argument("game", help="minatar/…")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--updates", type=int, default=500, help="per refresh of 4,000 steps")
    parser.add_argument("--resets", type=int, nargs="*", default=[], help="steps at which the last layers start anew")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--out", type=Path, default=Path("runs/resets"))
    options = parser.parse_args()
    resets = Resets(options.game, options.seed, sorted(options.resets))
    name = f"{options.game.split('/')[-1]}-{options.updates}-{len(options.resets)}-seed{options.seed}"
    run = lr.train(
        options.game,
        out=options.out / name,
        preset="minatar",
        network=resets.network,
        on_event=resets,
        seed=options.seed,
        steps=options.steps,
        threads=1,
        **{"cache.updates": options.updates},
    )
    print(f"{name}: {run.score}")


if __name__ == "__main__":
    main()
