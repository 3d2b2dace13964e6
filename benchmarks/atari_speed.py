"""Steps per second of the preset atari and of Stable-Baselines3's DQN with its own wrappers, in turns on this machine.

    python benchmarks/atari_speed.py [--game pong] [--rounds 3] [--seconds 60]

Both learn from the first timed step on; each has all cores. Ours is `lambda-replay train atari/GAME`; Stable-Baselines3
has the settings of its zoo (results/atari_sb3.py). Only the memory is smaller for both, and Stable-Baselines3 starts to
learn earlier.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START, CAPACITY = 10_000, 40_000  # random steps, and slots of the memory
SB3 = """
import sys, time
sys.path.insert(0, "results")
import ale_py, gymnasium
from atari_sb3 import ZOO, name_of
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack
game, start, capacity, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

class Stopwatch(BaseCallback):
    began = None
    def _on_step(self):
        if self.num_timesteps < start + 100:
            return True
        if self.began is None:
            self.began, self.first = time.monotonic(), self.num_timesteps
        elapsed = time.monotonic() - self.began
        if elapsed < seconds:
            return True
        print((self.num_timesteps - self.first) / elapsed)
        return False

gymnasium.register_envs(ale_py)
environments = VecFrameStack(make_atari_env(name_of(game), n_envs=1, seed=1), n_stack=4)
settings = {**ZOO, "learning_starts": start, "buffer_size": capacity}
DQN("CnnPolicy", environments, seed=1, device="cpu", **settings).learn(10**7, callback=Stopwatch())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the preset atari with Stable-Baselines3's DQN.")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    ratios = []
    for number in range(options.rounds):
        ours, theirs = time_ours(options.game, options.seconds), time_sb3(options.game, options.seconds)
        ratios.append(ours / theirs)
        print(f"round {number + 1}: {ours:.0f} and {theirs:.0f} steps/s, {ratios[-1]:.2f} times as fast", flush=True)
    print(f"mean {statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def time_ours(game: str, seconds: float) -> float:
    """Steps per second between the first and the last row of the run's timing."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        sizes = ["--memory.start", str(START), "--memory.capacity", str(CAPACITY), "--checkpoint-every", "0"]
        command = [sys.executable, "-m", "lambda_replay", "train", f"atari/{game}", *sizes, "--out", str(run)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            while _elapsed(run) < seconds and process.poll() is None:
                time.sleep(0.5)
            process.terminate()
            _, errors = process.communicate()
        if _elapsed(run) < seconds:
            sys.exit(f"the run ended after {_elapsed(run):.0f} s: {errors}")
        rows = _rows(run)
        return float((rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["seconds"] - rows[0]["seconds"]))


def _rows(run: Path) -> list[dict[str, float]]:
    path = run / "timing.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _elapsed(run: Path) -> float:
    rows = _rows(run)
    return rows[-1]["seconds"] - rows[0]["seconds"] if rows else 0.0


def time_sb3(game: str, seconds: float) -> float:
    command = [sys.executable, "-c", SB3, game, str(START), str(CAPACITY), str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
