"""How the mean absolute TD error of a block depends on λ: a row per game and moment of training.

Bounded λ assumes that it rises with λ (paper, appendix C). Agents train with peng:0.75 and the preset ``mini``; at
each of several refreshes L(λ), as the paper defines it, is computed for the blocks of one cache.

python results/td_errors.py > results/mini/td_errors.csv        # four games, two minutes each on one core
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace

import numpy as np

from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.learning.device import QNetwork
from lambda_replay.replay.critic import QCritic, promote
from lambda_replay.replay.data import Block, Floats
from lambda_replay.replay.estimators import Peng
from lambda_replay.training.assembly import Assembly, assemble, make_environments
from lambda_replay.training.loop import Boundary
from lambda_replay.training.presets import make_config

GAMES = ("minatar/breakout", "minatar/space_invaders", "minatar/asterix", "minatar/freeway")
LAMBDAS = tuple(tenths / 10 for tenths in range(11))
MOMENTS = (25_000, 50_000, 100_000, 200_000)  # agent steps; each is a refresh of the preset
SEED = 0


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["environment", "step", *(f"lambda_{value:g}" for value in LAMBDAS), "rising", "smallest_at_0"])
    for game in GAMES:
        for step, errors in measure(game):  # [λ, K]
            shares = (np.diff(errors, axis=0) >= 0).all(axis=0).mean(), (errors.argmin(axis=0) == 0).mean()
            writer.writerow([game, step, *(f"{value:.4f}" for value in (*errors.mean(axis=1), *shares))])


def measure(game: str) -> list[tuple[int, Floats]]:
    """Train, and at each moment take L(λ) of every block of a cache [λ, K]."""
    found: list[tuple[int, Floats]] = []
    config = replace(
        make_config(game, "mini"), estimator="peng:0.75", steps=MOMENTS[-1] + 1, seed=SEED, checkpoint_every=0
    )
    environments = make_environments(config)
    assembly = assemble(config, environments)
    for event in assembly.loop.run():
        if isinstance(event, Boundary) and event.step in MOMENTS:
            found.append((event.step, block_errors(present_block(config, environments[0].spec, assembly))))
    assert [step for step, _ in found] == list(MOMENTS)
    return found


def present_block(config: RunConfig, spec: EnvironmentSpec, assembly: Assembly) -> Block:
    """As many blocks of the run's memory as its cache has, with the present Q-values."""
    assert isinstance(config.algorithm, DQNLambdaConfig)
    cache, memory, rng = config.algorithm.cache, assembly.memory, np.random.default_rng(SEED)
    blocks = promote(memory, discount=config.discount, size=cache.size, block_length=cache.block_length, rng=rng)
    network = agent_kind(config.agent).load(config, spec, assembly.agent.get_tensors()["weights"]).critic
    assert isinstance(network, QNetwork)
    return QCritic(network, network.chunk_size).evaluate(blocks)


def block_errors(block: Block) -> Floats:
    """L(λ) = 1/B Σ_i |R_i^λ − Q(s_i, a_i)| for every λ and block [λ, K]; closing slots are no transitions."""
    counts = block.is_transition.sum(axis=1)  # [K]
    errors = [np.abs(Peng(value)(block) - block.action_values[:, :-1]) for value in LAMBDAS]  # [K, L] each
    return np.array([np.where(block.is_transition, error, 0).sum(axis=1) / counts for error in errors])


if __name__ == "__main__":
    main()
