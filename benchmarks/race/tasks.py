"""The tasks of the race, and the contestants' settings for each, with their sources."""

from __future__ import annotations

from typing import Any, NamedTuple

MINATAR = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
CLASSIC = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "MountainCar-v0")

OURS = ("dqn-lambda", "pqn", "sac-lambda")  # agents, each with the default preset of the task
CONTESTANTS = {
    "dqn-lambda": "DQN(λ), ours",
    "sac-lambda": "SAC(λ), ours",
    "pqn": "PQN, ours (published settings)",
    "sb3-ppo": "PPO, Stable-Baselines3",
    "sb3-dqn": "DQN, Stable-Baselines3",
    "sb3-sac": "SAC, Stable-Baselines3",
}
DISCRETE = ("dqn-lambda", "pqn", "sb3-ppo", "sb3-dqn")
CONTINUOUS = ("sac-lambda", "sb3-ppo", "sb3-sac")


class Task(NamedTuple):
    """An environment, how long each contestant may train on it, and who takes part."""

    env: str
    minutes: float  # of one core
    contestants: tuple[str, ...] = DISCRETE
    num_games: int = 30  # played greedily at the end
    longest_game: int = 5_000  # steps after which such a game is stopped

    @property
    def is_continuous(self) -> bool:
        return self.contestants == CONTINUOUS


TASKS = {
    **{f"minatar/{game}": Task(f"minatar/{game}", 10) for game in MINATAR},
    **{env: Task(env, 2) for env in CLASSIC},
    "Pendulum-v1": Task("Pendulum-v1", 2, CONTINUOUS),
}

# PPO on MinAtar: 8 environments of Stable-Baselines3's Atari settings with a higher learning rate, which suits the
# small network; DQN on MinAtar: Young & Tian 2019, one update per step, with Adam instead of RMSProp.
PPO_MINATAR = {"n_envs": 8, "n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 5e-4, "ent_coef": 0.01}
DQN_MINATAR = {
    "buffer_size": 100_000,
    "learning_starts": 5_000,
    "batch_size": 32,
    "learning_rate": 2.5e-4,
    "target_update_interval": 1_000,
    "train_freq": 1,
    "gradient_steps": 1,
    "exploration_steps": 100_000,
    "exploration_final_eps": 0.1,
}

# The others: rl-baselines3-zoo, hyperparams/ppo.yml, dqn.yml and sac.yml. "lin" marks a value that falls linearly to 0.
PPO: dict[str, dict[str, Any]] = {
    **{f"minatar/{game}": PPO_MINATAR for game in MINATAR},
    "CartPole-v1": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "ent_coef": 0.0, "learning_rate": ("lin", 0.001), "clip_range": ("lin", 0.2),
    },
    "Acrobot-v1": {
        "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0,
        "normalize": True,
    },
    "LunarLander-v3": {
        "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
        "ent_coef": 0.01,
    },
    "MountainCar-v0": {
        "n_envs": 16, "n_steps": 16, "gae_lambda": 0.98, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0,
        "normalize": True,
    },
    "Pendulum-v1": {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
}  # fmt: skip
DQN: dict[str, dict[str, Any]] = {
    **{f"minatar/{game}": DQN_MINATAR for game in MINATAR},
    "CartPole-v1": {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
        "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_steps": 8_000,
        "exploration_final_eps": 0.04, "hidden": [256, 256],
    },
    "Acrobot-v1": {
        "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
        "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_steps": 12_000,
        "exploration_final_eps": 0.1, "hidden": [256, 256],
    },
    "LunarLander-v3": {
        "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
        "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_steps": 12_000,
        "exploration_final_eps": 0.1, "hidden": [256, 256],
    },
    "MountainCar-v0": {
        "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1_000, "gamma": 0.98,
        "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8, "exploration_steps": 24_000,
        "exploration_final_eps": 0.07, "hidden": [256, 256],
    },
}  # fmt: skip
SAC: dict[str, dict[str, Any]] = {"Pendulum-v1": {"learning_rate": 1e-3}}


def has_schedules(contestant: str, env: str) -> bool:
    """Whether a contestant's settings change over a run, so that it must know the number of steps beforehand.

    The exploration of Stable-Baselines3's DQN is given in steps, not as a share of the run.
    """
    if contestant == "sb3-ppo":
        return any(isinstance(value, tuple) for value in PPO[env].values())
    return contestant in OURS
