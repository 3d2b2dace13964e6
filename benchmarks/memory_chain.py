"""How long drqn-lambda can remember: a cue at the start, a choice N steps later, for several N and λ.

    python -m benchmarks.memory_chain [--lengths 30 100] [--lambdas 0 0.5 0.8 0.95] [--steps N] [--seed N] [--out DIR]

Each run is one file DIR/N-λ-SEED.json; a run whose file exists is skipped, so an interrupted benchmark goes on where it
stopped. A run is solved as soon as 95 of 100 greedy games are right, which is looked at every 5,000 steps. The game is
``benchmarks.memory_chain:MemoryChain-v0`` for the command line, in the spirit of bsuite's (Osband et al. 2020).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lambda_replay.agents.protocol import Policy
from lambda_replay.agents.run_settings import override
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.loop import Boundary
from lambda_replay.training.playing import play
from lambda_replay.training.presets import make_config

ROOT = Path(__file__).resolve().parents[1]
GAMES, RIGHT = 100, 0.95  # greedy games, and the share of right choices that counts as solved
LOOK_EVERY = 5_000  # agent steps


class MemoryChain(gymnasium.Env[Any, Any]):
    """Shows −1 or 1 at first, then 0; after ``length`` steps the choice pays 1 if it names the cue, else −1.

    The observation is the cue and whether this is the moment of choice. Earlier actions do nothing.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, length: int = 3, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, shape=(2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode, self._length, self._time, self._cue = render_mode, length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time, self._cue = 0, int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_choice = self._time == self._length
        self._time += 1
        reward = 0.0 if not is_choice else 1.0 if action == self._cue else -1.0
        return self._observation(), reward, is_choice, False, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), 255 * self._cue, dtype=np.uint8)

    def _observation(self) -> NDArray[np.float32]:
        cue = 2.0 * self._cue - 1 if self._time == 0 else 0.0
        return np.array([cue, self._time == self._length], dtype=np.float32)


gymnasium.register("MemoryChain-v0", MemoryChain)  # type: ignore[arg-type]


def chain_config(length: int, lambda_: float, *, steps: int, seed: int, agent: str = "drqn-lambda") -> RunConfig:
    """The preset ``classic`` with one environment, one update per 20 steps, and blocks that hold at least a game."""
    block_length = 2 * (length + 2)
    own: dict[str, Any] = {
        "env": "benchmarks.memory_chain:MemoryChain-v0",
        "env_args": [f"length={length}"],
        "estimator": f"peng:{lambda_:g}",
        "envs": 1,
        "steps": steps,
        "seed": seed,
        "threads": 1,
        "device": "cpu",
        "checkpoint_every": 0,
        "memory": {"storage": "ram"},
        "cache": {"size": 64 * block_length, "block_length": block_length, "refresh_every": 500, "updates": 25},
    }
    if agent == "drqn-lambda":
        own["recurrence"] = {"burn_in": 0, "sequence_length": None}
        own["optimizer"] = {"batch_size": 16, "final_learning_rate": None, "max_grad_norm": 10.0}
    return override(make_config("CartPole-v1", agent=agent), own)


def share_right(environment: Environment, policy: Policy, games: int = GAMES) -> float:
    """The share of greedy games in which the choice names the cue."""
    played = [play(environment, policy, history=1, epsilon=0.0, seed=seed) for seed in range(games)]
    return sum(game.score > 0 for game in played) / games


def solve(config: RunConfig) -> dict[str, Any]:
    """Train until the chain is solved or the steps are done."""
    environment, assembly = make_environment(config), assemble(config, make_environments(config))
    began, next_look, right = time.perf_counter(), LOOK_EVERY, 0.0
    for event in assembly.loop.run():
        if isinstance(event, Boundary) and event.step >= next_look:
            next_look += LOOK_EVERY
            weights = assembly.agent.get_tensors()["weights"]
            policy = agent_kind(config.agent).load(config, environment.spec, weights)
            right = share_right(environment, policy)
            if right >= RIGHT:
                break
    seconds = time.perf_counter() - began
    return {"right": right, "step": assembly.loop.step, "solved": right >= RIGHT, "seconds": round(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--lambdas", type=float, nargs="+", default=[0, 0.5, 0.8, 0.95])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "memory_chain")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for length in options.lengths:
        for lambda_ in options.lambdas:
            file = options.out / f"{length}-{lambda_:g}-{options.seed}.json"
            if not file.exists():
                found = solve(chain_config(length, lambda_, steps=options.steps, seed=options.seed))
                settings = {"length": length, "lambda": lambda_, "seed": options.seed, "steps": options.steps}
                file.write_text(json.dumps({**settings, **found}) + "\n")
            found = json.loads(file.read_text())
            print(f"N {length:>4}  λ {lambda_:<5g} right {found['right']:.2f} at step {found['step']:,}", flush=True)


if __name__ == "__main__":
    main()
