"""Stable-Baselines3's DQN with λ-returns in place of a target network: python examples/sb3_dropin.py [STEPS [SEED]]"""

import sys

import numpy as np
from stable_baselines3 import DQN

from lambda_replay.sb3 import LambdaReplayBuffer


def train(steps: int, seed: int) -> float:
    """Train on CartPole for ``steps`` steps and return the mean score of the last 100 games."""
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=64,
        train_freq=100,
        gradient_steps=50,
        exploration_fraction=0.2,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [128, 128]},
        device="cpu",
        seed=seed,
        replay_buffer_class=LambdaReplayBuffer,
        replay_buffer_kwargs={"estimator": "peng:0.9", "cache_size": 4_000, "block_length": 50, "priority": 0.1},
    )
    model.replay_buffer.attach(model)
    model.learn(steps)
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer]))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"mean score of the last 100 games: {train(steps, seed):.1f}")
