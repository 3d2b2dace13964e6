"""How a trained drqn-lambda plays if its hidden state is computed from the last steps only, instead of carried along.

    python -m benchmarks.hidden_window RUN [--windows 120 60 35 20 11] [--games 20]

If it plays better with a short window than with its carried state, it was not trained on the hidden states in which it
plays (docs/presets.md, "Hidden states must be those of acting").
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lambda_replay.agents.epsilon_greedy import epsilon_greedy
from lambda_replay.agents.protocol import Acted, Policy
from lambda_replay.agents.recurrent_acting import RecurrentPolicy
from lambda_replay.learning.recurrent_critic import RecurrentCritic, inputs_of, recurrent
from lambda_replay.replay.data import Before
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.training.playing import play
from lambda_replay.training.policy import load_policy


@dataclass(frozen=True)
class WindowPolicy:
    """Plays with a hidden state that starts from zero ``window`` steps ago, or where the episode begins."""

    policy: RecurrentPolicy
    window: int
    memory: ReplayMemory | None = None
    past: deque[tuple[NDArray[Any], Before]] = field(default_factory=deque)  # states [1, F, ...], what was before [1]

    @property
    def critic(self) -> RecurrentCritic:
        return self.policy.critic

    def following(self, memory: ReplayMemory) -> Policy:
        return WindowPolicy(self.policy, self.window, memory, deque(maxlen=self.window))

    @torch.inference_mode()
    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        assert self.memory is not None
        self.past.append((states, self.memory.before_newest()))
        network = self.policy.network
        module, seen = recurrent(network), np.concatenate([state for state, _ in self.past])  # [T, F, *observation]
        before = Before(*(np.concatenate(part)[None].copy() for part in zip(*(b for _, b in self.past), strict=True)))
        before.is_start[0, 0] = True
        features = module.encode(network.tensor(seen))[None]  # [1, T, features]
        outputs, _ = module.unroll(features, inputs_of(network, before), features.new_zeros(1, module.state_size))
        return epsilon_greedy(module.head(outputs[:, -1]).cpu().numpy(), epsilon, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description="Play with hidden states computed from the last steps only.")
    parser.add_argument("run", type=Path, help="a finished run of drqn-lambda")
    parser.add_argument("--windows", type=int, nargs="+", default=[120, 60, 35, 20, 11])
    parser.add_argument("--games", type=int, default=20)
    options = parser.parse_args()
    config, environment, policy, _ = load_policy(options.run)
    if not isinstance(policy, RecurrentPolicy) or min(options.windows) < 1:
        parser.error("give a run of drqn-lambda, and windows of 1 step or more")
    policies: dict[str, Policy] = {"carried": policy}
    policies |= {f"{window} steps": WindowPolicy(policy, window) for window in options.windows}
    for name, own in policies.items():
        games = (
            play(environment, own, history=config.memory.history, epsilon=0.0, seed=seed)
            for seed in range(options.games)
        )
        scores = [game.score for game in games]
        print(f"{name}: mean {np.mean(scores):.0f}, lowest {min(scores):.0f}", flush=True)


if __name__ == "__main__":
    main()
