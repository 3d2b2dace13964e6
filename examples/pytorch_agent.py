"""DQN(λ) on CartPole with your own PyTorch network: python examples/pytorch_agent.py [STEPS [SEED]]"""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import lambda_replay as lr

REFRESH_EVERY, UPDATES, START = 100, 50, 1_000  # the paper's F; minibatches per refresh; steps before the first refresh


def train(steps: int, seed: int) -> float:
    """Train for ``steps`` steps and return the mean score of the last 100 games."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    network = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    memory = lr.ReplayMemory(capacity=50_000, observation_shape=(4,), observation_dtype=np.float32, history=1)
    estimator = lr.parse_estimator("peng:0.9")

    @torch.no_grad()
    def q_function(states: np.ndarray) -> np.ndarray:  # [n, history, 4] -> [n, actions]
        return network(torch.from_numpy(states[:, 0])).numpy()

    scores = [0.0]
    observation, _ = env.reset(seed=seed)
    memory.begin(observation)
    for step in range(1, steps + 1):
        epsilon = max(0.05, 1 - 0.95 * step / 10_000)
        greedy = int(q_function(observation[None, None])[0].argmax())
        action = int(rng.integers(2)) if rng.random() < epsilon else greedy
        prob = epsilon / 2 + (1 - epsilon) * (action == greedy)  # for Retrace; Peng's does not need it

        observation, reward, terminated, truncated, _ = env.step(action)
        memory.append(action, float(reward), observation, terminated, truncated, behaviour_prob=prob)
        scores[-1] += float(reward)
        if terminated or truncated:
            observation, _ = env.reset()
            memory.begin(observation)
            scores.append(0.0)

        if step >= START and step % REFRESH_EVERY == 0:
            cache = lr.refresh(memory, q_function, estimator, discount=0.99, size=4_000, block_length=50, rng=rng)
            for batch in cache.minibatches(64, updates=UPDATES, priority=0.1, rng=rng):
                values = network(torch.from_numpy(batch.states[:, 0]))  # [64, actions]
                chosen = values.gather(1, torch.from_numpy(batch.actions).long()[:, None])[:, 0]
                loss = nn.functional.smooth_l1_loss(chosen, torch.from_numpy(batch.returns))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return float(np.mean(scores[-101:-1]))  # the last game is unfinished


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"mean score of the last 100 games: {train(steps, seed):.1f}")
