"""Tianshou's DQN with λ-returns in place of its n-step targets: python examples/tianshou_agent.py [STEPS [SEED]]

Two hooks are enough. A buffer passes every step on to the replay memory; ``_preprocess_batch``, where Tianshou computes
the targets of a batch, takes a minibatch with returns from the cache instead. Tianshou's update is unchanged.
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

import lambda_replay as lr

REFRESH_EVERY, UPDATES, START = 100, 50, 1_000  # the paper's F; minibatches per refresh; steps before the first refresh


class HandingOn(VectorReplayBuffer):
    """Tianshou's buffer, which also stores each step in a replay memory; nothing is read from it, so keep it small."""

    def __init__(self, memory: lr.ReplayMemory, size: int) -> None:
        super().__init__(size, memory.num_streams)
        self._memory = memory
        self._is_open = [False] * memory.num_streams

    def add(self, batch, buffer_ids=None):
        for row, stream in enumerate(range(self._memory.num_streams) if buffer_ids is None else buffer_ids):
            step = batch[row]
            if not self._is_open[stream]:
                self._memory.begin(step.obs, stream=stream)
            self._memory.append(
                int(step.act),
                float(step.rew),
                step.obs_next,
                bool(step.terminated),
                bool(step.truncated),
                stream=stream,
            )
            self._is_open[stream] = not (step.terminated or step.truncated)
        return super().add(batch, buffer_ids)


class LambdaDQN(DQN):
    """DQN whose targets are the returns of a cache, refreshed with the online network after ``UPDATES`` minibatches."""

    def __init__(self, memory: lr.ReplayMemory, estimator: str, seed: int, **options) -> None:
        super().__init__(target_update_freq=0, **options)  # frozen returns replace the target network
        self._memory, self._estimator = memory, lr.parse_estimator(estimator)
        self._rng = np.random.default_rng(seed)
        self._minibatches = iter(())

    @torch.no_grad()
    def _q_function(self, states: np.ndarray) -> np.ndarray:  # [n, 1, *observation] -> [n, actions]
        return self.policy.model(states[:, 0])[0].numpy()

    def _preprocess_batch(self, batch, buffer, indices):
        minibatch = next(self._minibatches, None)
        if minibatch is None:
            cache = lr.refresh(
                self._memory,
                self._q_function,
                self._estimator,
                discount=self.gamma,
                size=4_000,
                block_length=50,
                rng=self._rng,
            )
            self._minibatches = cache.minibatches(len(indices), updates=UPDATES, priority=0.1, rng=self._rng)
            minibatch = next(self._minibatches)
        return Batch(obs=minibatch.states[:, 0], act=minibatch.actions, returns=minibatch.returns, info=Batch())


def train(steps: int, seed: int) -> float:
    """Train on CartPole for ``steps`` steps and return the mean score of the last 100 games."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  Tianshou explores with NumPy's global generator
    env = gym.make("CartPole-v1")
    env.action_space.seed(seed)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=(128, 128)), action_space=env.action_space
    )
    memory = lr.ReplayMemory(capacity=50_000, observation_shape=(4,), observation_dtype=np.float32, history=1)
    algorithm = LambdaDQN(
        memory,
        "peng:0.9",
        seed,
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        huber_loss_delta=1.0,
    )
    buffer = HandingOn(memory, size=1_000)
    collector = Collector(algorithm, DummyVectorEnv([lambda: env]), buffer, exploration_noise=True)
    collector.reset(gym_reset_kwargs={"seed": seed})
    scores = list(collector.collect(n_step=START, random=True).returns)
    with policy_within_training_step(policy):
        for step in range(START, steps, REFRESH_EVERY):
            for _ in range(UPDATES):
                algorithm.update(buffer, 64)
            policy.set_eps_training(max(0.05, 1 - 0.95 * step / 10_000))
            scores += list(collector.collect(n_step=REFRESH_EVERY).returns)
    return float(np.mean(scores[-100:]))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"mean score of the last 100 games: {train(steps, seed):.1f}")
