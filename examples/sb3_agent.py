"""Stable-Baselines3's DQN with λ-returns instead of a target network: python examples/sb3_agent.py [STEPS [SEED]]"""

import sys

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import BaseBuffer

import lambda_replay as lr


class LambdaReplay(BaseBuffer):
    """Stores the transitions of an SB3 agent in a ReplayMemory with one stream per environment, for `DQNLambda`.

    It does not support VecNormalize.
    """

    def __init__(self, buffer_size, observation_space, action_space, device="auto", n_envs=1, **_):
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        shape, dtype = observation_space.shape, observation_space.dtype
        self.memory = lr.ReplayMemory(buffer_size, shape, dtype, history=1, num_streams=n_envs)
        self.expected = [None] * n_envs  # the observation that continues each episode

    def add(self, obs, next_obs, action, reward, done, infos):  # noqa: PLR0917 - SB3's signature
        for stream in range(self.n_envs):
            expected = self.expected[stream]
            if expected is None or not np.array_equal(expected, obs[stream]):  # a new episode, or learn() called again
                self.memory.abandon(stream)
                self.memory.begin(obs[stream], stream)
            truncated = bool(done[stream] and infos[stream].get("TimeLimit.truncated", False))
            terminated = bool(done[stream] and not truncated)
            self.memory.append(
                int(action[stream]), float(reward[stream]), next_obs[stream], terminated, truncated, stream=stream
            )
            self.expected[stream] = None if done[stream] else next_obs[stream]

    def _get_samples(self, batch_inds, env=None):
        raise NotImplementedError("minibatches come from a cache; use DQNLambda.train")


class DQNLambda(DQN):
    """DQN(λ): builds a new cache every `train_freq` steps and trains on `gradient_steps` minibatches from it."""

    def __init__(self, *args, estimator="peng:0.9", cache_size=4_000, block_length=50, priority=0.1, **kwargs):
        super().__init__(*args, **kwargs, replay_buffer_class=LambdaReplay)
        self.estimator, self.priority = lr.parse_estimator(estimator), priority
        self.cache_size, self.block_length = cache_size, block_length
        self.cache_rng = np.random.default_rng(self.seed)

    @torch.no_grad()
    def q_function(self, states):  # [n, history, ...] -> [n, actions]
        return self.q_net(torch.from_numpy(states[:, 0]).to(self.device)).cpu().numpy()

    def train(self, gradient_steps, batch_size=100):
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        cache = lr.refresh(
            self.replay_buffer.memory,
            self.q_function,
            self.estimator,
            discount=self.gamma,
            size=self.cache_size,
            block_length=self.block_length,
            rng=self.cache_rng,
        )
        losses = []
        for batch in cache.minibatches(batch_size, gradient_steps, priority=self.priority, rng=self.cache_rng):
            actions, returns = (torch.from_numpy(array).to(self.device) for array in (batch.actions, batch.returns))
            values = self.q_net(torch.from_numpy(batch.states[:, 0]).to(self.device))  # [batch, actions]
            loss = torch.nn.functional.smooth_l1_loss(values.gather(1, actions.long()[:, None])[:, 0], returns)
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/td_error_abs_mean", np.abs(cache.td_errors[cache.is_transition]).mean())


def train(steps: int, seed: int) -> float:
    """Train on CartPole for ``steps`` steps and return the mean score of the last 100 games."""
    model = DQNLambda(
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
    )
    model.learn(steps)
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer]))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"mean score of the last 100 games: {train(steps, seed):.1f}")
