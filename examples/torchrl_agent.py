"""TorchRL's DQN with λ-returns from a replay-buffer transform: python examples/torchrl_agent.py [STEPS [SEED]]

The transform stores what enters the buffer in a replay memory. A sample that leaves it becomes a minibatch of the
cache: its reward is the return, and it ends the episode, so TorchRL's own one-step loss regresses on the return.
"""

import sys

import numpy as np
import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardSum, Transform, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss

import lambda_replay as lr

REFRESH_EVERY, UPDATES, START = 100, 50, 1_000  # the paper's F; minibatches per refresh; steps before the first refresh


class LambdaReturns(Transform):
    """A transform for the replay buffer of one environment; call ``refresh`` before the first sample of a round."""

    def __init__(self, memory: lr.ReplayMemory, network: torch.nn.Module, seed: int) -> None:
        super().__init__()
        self._memory, self._network = memory, [network]  # in a list, so that the weights are not the transform's
        self._estimator, self._rng = lr.parse_estimator("peng:0.9"), np.random.default_rng(seed)
        self._is_open = False
        self._minibatches = iter(())

    def inv(self, tensordict):
        """Steps [n] of one environment on their way into the buffer, in order."""
        following = tensordict["next"]
        observations, next_observations = tensordict["observation"].numpy(), following["observation"].numpy()
        actions, rewards = tensordict["action"].tolist(), following["reward"][:, 0].tolist()
        terminated, truncated = following["terminated"][:, 0].tolist(), following["truncated"][:, 0].tolist()
        for t in range(len(actions)):
            if not self._is_open:
                self._memory.begin(observations[t])
            self._memory.append(actions[t], rewards[t], next_observations[t], terminated[t], truncated[t])
            self._is_open = not (terminated[t] or truncated[t])
        return tensordict

    @torch.no_grad()
    def _q_function(self, states: np.ndarray) -> np.ndarray:  # [n, 1, *observation] -> [n, actions]
        return self._network[0](torch.from_numpy(states[:, 0])).numpy()

    def refresh(self, batch_size: int) -> None:
        cache = lr.refresh(
            self._memory,
            self._q_function,
            self._estimator,
            discount=0.99,
            size=4_000,
            block_length=50,
            rng=self._rng,
        )
        self._minibatches = cache.minibatches(batch_size, updates=UPDATES, priority=0.1, rng=self._rng)

    def forward(self, tensordict):
        """A sample [B] on its way out of the buffer."""
        minibatch = next(self._minibatches)
        tensordict["observation"] = torch.from_numpy(minibatch.states[:, 0])
        tensordict["action"] = torch.from_numpy(minibatch.actions).long()
        tensordict["next", "reward"] = torch.from_numpy(minibatch.returns)[:, None]
        tensordict["next", "terminated"] = tensordict["next", "done"] = torch.ones(
            len(minibatch.returns), 1, dtype=bool
        )
        return tensordict


def train(steps: int, seed: int) -> float:
    """Train on CartPole for ``steps`` steps and return the mean score of the last 100 games."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), RewardSum())
    env.set_seed(seed)
    network = MLP(in_features=4, out_features=2, num_cells=[128, 128], activation_class=torch.nn.ReLU)
    value = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=10_000)
    loss_of = DQNLoss(value, loss_function="smooth_l1", delay_value=False)
    loss_of.make_value_estimator(gamma=0.99)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    memory = lr.ReplayMemory(capacity=50_000, observation_shape=(4,), observation_dtype=np.float32, history=1)
    returns = LambdaReturns(memory, network, seed)
    # It can be small, for a sample is only a form that the transform fills in.
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=64, transform=returns)
    collector = Collector(
        env,
        TensorDictSequential(value, explore),
        frames_per_batch=REFRESH_EVERY,
        total_frames=steps,
        init_random_frames=START,
        auto_register_policy_transforms=False,
    )
    scores: list[float] = []
    for batch in collector:
        explore.step(batch.numel())
        buffer.extend(batch)
        scores += batch["next", "episode_reward"][batch["next", "done"]].tolist()
        if len(memory) < START:
            continue
        returns.refresh(batch_size=64)
        for _ in range(UPDATES):
            loss = loss_of(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    collector.shutdown()
    return float(np.mean(scores[-100:]))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"mean score of the last 100 games: {train(steps, seed):.1f}")
