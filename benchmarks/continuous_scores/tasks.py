"""The tasks of the comparison, and the arms that take part in each."""

from __future__ import annotations

from typing import Any, NamedTuple

GAMES = 20  # played greedily at each evaluation
EVALUATIONS = 10  # of a run
THEIRS = "sb3-sac"  # two layers of 256 units, batches of 256 and one update per step are its defaults, as they are ours


class Arm(NamedTuple):
    """An agent and what differs from its preset."""

    words: str
    agent: str
    settings: dict[str, Any]


ARMS = {
    "sac-lambda": Arm("`sac-lambda`, λ = 0.7", "sac-lambda", {"estimator": "peng:0.7"}),
    "sac-lambda-000": Arm("`sac-lambda`, λ = 0", "sac-lambda", {"estimator": "peng:0"}),
    "sac-lambda-050": Arm("`sac-lambda`, λ = 0.5", "sac-lambda", {"estimator": "peng:0.5"}),
    "sac-lambda-090": Arm("`sac-lambda`, λ = 0.9", "sac-lambda", {"estimator": "peng:0.9"}),
    "sac-lambda-plain": Arm(
        "`sac-lambda` without LayerNorm", "sac-lambda", {"estimator": "peng:0.7", "network.layer_norm": False}
    ),
    "sac": Arm("`sac`: target networks, one-step returns", "sac", {}),
    THEIRS: Arm("SAC of Stable-Baselines3", "", {}),
    "td3-lambda": Arm("`td3-lambda`, λ = 0.7", "td3-lambda", {"estimator": "peng:0.7"}),
    "td3-lambda-plain": Arm(
        "`td3-lambda` without LayerNorm", "td3-lambda", {"estimator": "peng:0.7", "network.layer_norm": False}
    ),
    "td3": Arm("`td3`: target networks, one-step returns", "td3", {}),
    "ddpg-lambda": Arm("`ddpg-lambda`, λ = 0.7", "ddpg-lambda", {"estimator": "peng:0.7"}),
    "naf-lambda": Arm("`naf-lambda`, λ = 0.7", "naf-lambda", {"estimator": "peng:0.7"}),
    "sdqn-lambda": Arm("`sdqn-lambda`, λ = 0.7", "sdqn-lambda", {"estimator": "peng:0.7"}),
}


class Task(NamedTuple):
    """An environment, how long to train on it, and who does."""

    words: str
    env: str
    env_args: dict[str, Any]
    steps: int
    seeds: tuple[int, ...]
    arms: tuple[str, ...]


LAMBDAS = ("sac-lambda-000", "sac-lambda-050", "sac-lambda", "sac-lambda-090")  # λ = 0, 0.5, 0.7, 0.9
ROBOTS = (*LAMBDAS, "sac", THEIRS)
BASELINES = ("sac-lambda", "sac-lambda-plain", "sac", "td3-lambda", "td3-lambda-plain", "td3")
ALL = (*BASELINES, "ddpg-lambda", "naf-lambda", "sdqn-lambda")
TASKS = {
    "pendulum": Task("Pendulum-v1", "Pendulum-v1", {}, 20_000, (10, 11, 12, 13, 14), ALL),
    "lunar-lander": Task(
        "LunarLander-v3, continuous", "LunarLander-v3", {"continuous": True}, 300_000, (10, 11, 12), ("sac-lambda",)
    ),
    "half-cheetah": Task("HalfCheetah-v5", "HalfCheetah-v5", {}, 200_000, (0, 1, 2), ROBOTS),
    "hopper": Task("Hopper-v5", "Hopper-v5", {}, 200_000, (0, 1, 2), ROBOTS),
}
