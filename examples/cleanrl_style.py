"""DQN(λ) in one file, in the style of CleanRL: python examples/cleanrl_style.py --env-id CartPole-v1 --seed 1

Everything is here and in this order: arguments, environments, network, the loop. The library does three things: it
stores steps (begin, append), computes returns (refresh) and draws minibatches. There is no target network.
"""

import sys
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim

import lambda_replay as lr

try:
    import tyro
except ModuleNotFoundError:  # the options then keep their defaults
    tyro = None


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 50_000
    num_envs: int = 1
    learning_rate: float = 1e-3
    buffer_size: int = 50_000
    gamma: float = 0.99
    estimator: str = "peng:0.9"
    """the return estimator; lambda-replay describe --estimators lists them"""
    learning_starts: int = 1_000
    refresh_frequency: int = 100
    """steps between refreshes of the cache, the paper's F"""
    cache_size: int = 4_000
    """returns in the cache, the paper's S"""
    block_length: int = 50
    """steps per block, the paper's B"""
    updates: int = 50
    """gradient steps per refresh"""
    batch_size: int = 64
    priority: float = 0.1
    start_e: float = 1.0
    end_e: float = 0.05
    exploration_fraction: float = 0.2
    torch_threads: int = 1


class QNetwork(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(int(np.prod(env.single_observation_space.shape)), 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, env.single_action_space.n),
        )

    def forward(self, x):
        return self.network(x)


def linear_schedule(start_e: float, end_e: float, duration: int, t: int) -> float:
    return max((end_e - start_e) / duration * t + start_e, end_e)


def main(args: Args) -> None:
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.torch_threads)

    # SAME_STEP: an episode's last observation arrives with its last step, in infos["final_obs"].
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id)) for _ in range(args.num_envs)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    space = envs.single_observation_space
    memory = lr.ReplayMemory(args.buffer_size, space.shape, space.dtype, history=1, num_streams=args.num_envs)
    estimator = lr.parse_estimator(args.estimator)
    q_network = QNetwork(envs)
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate)

    @torch.no_grad()
    def q_function(states: np.ndarray) -> np.ndarray:  # [n, 1, *observation] -> [n, actions]
        return q_network(torch.as_tensor(states, dtype=torch.float32)).numpy()

    scores, start_time = [], time.time()
    obs, _ = envs.reset(seed=args.seed)
    for stream in range(args.num_envs):
        memory.begin(obs[stream], stream=stream)
    for global_step in range(args.num_envs, args.total_timesteps + 1, args.num_envs):
        # act: ε-greedy, with the probability of each action, which retrace needs
        duration = int(args.exploration_fraction * args.total_timesteps)
        epsilon = linear_schedule(args.start_e, args.end_e, duration, global_step)
        greedy = q_function(obs[:, None]).argmax(axis=1)
        random = rng.integers(envs.single_action_space.n, size=args.num_envs)
        actions = np.where(rng.random(args.num_envs) < epsilon, random, greedy)
        probs = epsilon / envs.single_action_space.n + (1 - epsilon) * (actions == greedy)

        # step, and store what the action led to: at the end of an episode that is not the next one's beginning
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        for stream in range(args.num_envs):
            ended = terminations[stream] or truncations[stream]
            last = infos["final_obs"][stream] if ended else next_obs[stream]
            memory.append(
                actions[stream],
                rewards[stream],
                last,
                terminations[stream],
                truncations[stream],
                behaviour_prob=probs[stream],
                stream=stream,
            )
            if ended:
                memory.begin(next_obs[stream], stream=stream)
                scores.append(float(infos["final_info"]["episode"]["r"][stream]))
        obs = next_obs

        # learn: compute the returns of random blocks, then regress on them
        is_due = global_step >= args.learning_starts and global_step % args.refresh_frequency < args.num_envs
        if is_due and max(memory.written) > args.block_length:  # with many environments, each has only a few steps yet
            cache = lr.refresh(
                memory,
                q_function,
                estimator,
                discount=args.gamma,
                size=args.cache_size,
                block_length=args.block_length,
                rng=rng,
            )
            for batch in cache.minibatches(args.batch_size, updates=args.updates, priority=args.priority, rng=rng):
                q_values = q_network(torch.as_tensor(batch.states, dtype=torch.float32))
                chosen = q_values.gather(1, torch.as_tensor(batch.actions, dtype=torch.int64)[:, None])[:, 0]
                loss = nn.functional.smooth_l1_loss(chosen, torch.as_tensor(batch.returns))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if global_step % 10_000 < args.num_envs:
                sps = int(global_step / (time.time() - start_time))
                print(f"global_step={global_step}, td_loss={loss.item():.3f}, SPS={sps}", file=sys.stderr)
    envs.close()
    print(f"mean score of the last 100 games: {np.mean(scores[-100:]):.1f}")


if __name__ == "__main__":
    if tyro is None and len(sys.argv) > 1:
        sys.exit("options need the package tyro; install it with: pip install tyro")
    main(Args() if tyro is None else tyro.cli(Args))
