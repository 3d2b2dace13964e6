"""Acting with a network that remembers: a hidden state per stream of a memory, forgotten where an episode begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lambda_replay.agents.epsilon_greedy import epsilon_greedy
from lambda_replay.agents.protocol import Acted, Policy, Tensors
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.divergence import require_all_finite
from lambda_replay.learning.recurrent_critic import RecurrentCritic, inputs_of, recurrent
from lambda_replay.replay.data import Floats
from lambda_replay.replay.memory import ReplayMemory


class RecurrentActing:
    """Q-values of the newest states of a memory, whose streams are followed from state to state."""

    def __init__(self, network: QNetwork, memory: ReplayMemory) -> None:
        self._network, self._memory = network, memory
        self._hidden = torch.zeros(memory.num_streams, recurrent(network).state_size, device=network.device)

    @torch.inference_mode()
    def q_values(self, states: NDArray[Any]) -> Floats:  # [streams, F, *observation] -> [streams, A]
        """To be called once for each newest state; a stream's hidden state starts from zero with every episode."""
        network = self._network
        inputs = inputs_of(network, self._memory.before_newest().at(np.s_[:, None]))
        q_values, self._hidden = recurrent(network).step(network.tensor(states), inputs, self._hidden)
        return q_values.cpu().numpy()

    @property
    def hidden(self) -> Floats:  # [streams, size]
        """The states in which the network left the newest states."""
        return self._hidden.cpu().numpy()

    def get_tensors(self) -> Tensors:
        return {"state": self._hidden.cpu().clone()}

    def set_tensors(self, tensors: Tensors) -> None:
        self._hidden = tensors["state"].to(self._network.device)

    def check_finite(self) -> None:
        require_all_finite("the hidden states are", [self._hidden])


@dataclass(frozen=True)
class RecurrentPolicy:
    """A trained network that plays ε-greedily; as it stands, it takes every state for the first of an episode."""

    network: QNetwork

    @property
    def critic(self) -> RecurrentCritic:
        return RecurrentCritic(self.network)

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        memory = ReplayMemory(2 * len(states), states.shape[2:], states.dtype, num_streams=len(states))
        for stream, state in enumerate(states):
            memory.begin(state[-1], stream)
        return self.following(memory).act(states, epsilon, rng)

    def following(self, memory: ReplayMemory) -> Policy:
        return FollowingPolicy(RecurrentActing(self.network, memory), self.critic)


@dataclass(frozen=True)
class FollowingPolicy:
    """The policy along the episodes of one memory."""

    acting: RecurrentActing
    critic: RecurrentCritic

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        return epsilon_greedy(self.acting.q_values(states), epsilon, rng)
