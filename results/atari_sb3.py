"""Trains Stable-Baselines3's DQN on an Atari game with the hyper-parameters of its zoo, for a number of hours.

    python results/atari_sb3.py --game pong --hours 1.5 --seed 1 --out RUN

Its own wrappers, as the zoo uses them: no-ops, frame skip with maximum, a lost life ends the episode, FIRE, 84×84
greyscale, clipped rewards, four frames stacked. Games are logged unclipped and whole, like ours: RUN/episodes.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

# rl-baselines3-zoo, hyperparams/dqn.yml, "atari".
ZOO: dict[str, Any] = {
    "buffer_size": 100_000,
    "learning_rate": 1e-4,
    "batch_size": 32,
    "learning_starts": 100_000,
    "target_update_interval": 1_000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
    "optimize_memory_usage": False,
}
STEPS = 10_000_000  # the zoo's, from which its exploration schedule follows


class GameLog(BaseCallback):
    """Writes every whole game, and stops when the time is over."""

    def __init__(self, path: Path, hours: float) -> None:
        super().__init__()
        self._file = path.open("w", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(["step", "score", "seconds"])
        self._start, self._seconds = time.monotonic(), 3600 * hours

    def _on_step(self) -> bool:
        elapsed = time.monotonic() - self._start
        for info in self.locals["infos"]:
            if "episode" in info:  # SB3's Monitor, below the wrapper that ends an episode with a life: whole games
                self._writer.writerow([self.num_timesteps, info["episode"]["r"], round(elapsed, 3)])
                self._file.flush()
        return elapsed < self._seconds


def name_of(game: str) -> str:
    """Gymnasium's name of a game, as the zoo uses it: space_invaders is SpaceInvadersNoFrameskip-v4."""
    return game.title().replace("_", "") + "NoFrameskip-v4"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train Stable-Baselines3's DQN with the settings of its zoo.")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    torch.set_num_threads(options.threads)
    gymnasium.register_envs(ale_py)
    environments = VecFrameStack(make_atari_env(name_of(options.game), n_envs=1, seed=options.seed), n_stack=4)
    model = DQN("CnnPolicy", environments, seed=options.seed, device="cpu", **ZOO)
    (options.out / "config.json").write_text(json.dumps({**vars(options), "out": None, **ZOO}, indent=1, default=str))
    model.learn(STEPS, callback=GameLog(options.out / "episodes.csv", options.hours))


if __name__ == "__main__":
    main()
