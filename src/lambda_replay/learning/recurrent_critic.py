"""Connects a network that remembers with the memory: its critic for a refresh, and its minibatches of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Samples
from lambda_replay.learning.recurrent_network import Inputs, RecurrentNetwork, TrainingInputs
from lambda_replay.replay.critic import Promoted, q_block
from lambda_replay.replay.data import Before, Block, Floats
from lambda_replay.replay.sequences import SequenceBatch


def recurrent(network: QNetwork) -> RecurrentNetwork:
    """The module of a network that remembers."""
    assert isinstance(network.module, RecurrentNetwork)
    return network.module


def inputs_of(network: QNetwork, before: Before) -> Inputs:
    """What came before some states, on the network's device."""
    actions, rewards = before.actions.astype(np.int64), before.rewards.astype(np.float32)
    return Inputs(before.is_start, network.tensor(actions), network.tensor(rewards))


class Unrolled(NamedTuple):
    """Blocks along which a network was unrolled."""

    block: Block  # a row of Q-values per state
    hidden: Floats  # [K, L/T, size]  in which the network left the first slot of each sequence's burn-in


@dataclass(frozen=True)
class RecurrentCritic:
    """A row of Q-values per state, from a network unrolled along each block, from its burn-in on.

    It continues from the hidden state that the memory has kept, in which the agent left the first slot of the burn-in;
    without one it starts there from zero. From then on, hidden states are those of the current weights, not of the ones
    that acted.
    """

    network: QNetwork

    def evaluate(self, blocks: Promoted) -> Block:
        return self.unroll(blocks, blocks.length).block

    @torch.inference_mode()
    def unroll(self, blocks: Promoted, sequence_length: int) -> Unrolled:
        """Unroll the network along blocks that will be cut into sequences of T = ``sequence_length`` steps."""
        module, slots = recurrent(self.network), blocks.unrolled_slots  # [K, H+L+1]
        features, inputs = self._encode(blocks), inputs_of(self.network, blocks.before)
        hidden, outputs, left = features.new_zeros(len(slots), module.state_size), [], []
        # Stops are where a hidden state is wanted: after the first slot of a burn-in, and then every T slots.
        wanted = range(1, blocks.length + 1, sequence_length)
        stops = [slots.shape[1]] if blocks.burn_in is None else [*wanted, slots.shape[1]]
        for first, last in pairwise([0, *stops]):
            output, hidden = module.unroll(features[:, first:last], inputs.steps(first, last), hidden)
            if first == 0 and blocks.stored_states is not None:
                hidden = self.network.tensor(blocks.stored_states)
            outputs.append(output)
            left.append(hidden)
        q_values: Tensor = module.head(torch.cat(outputs, dim=1)[:, -blocks.slots.shape[1] :])  # [K, L+1, A]
        if blocks.burn_in is None:  # sequences start from zero
            left = [torch.zeros_like(hidden) for _ in (*wanted, None)]
        states = torch.stack(left[:-1], dim=1)  # [K, L/T, size]
        return Unrolled(q_block(blocks, q_values.flatten(0, 1).cpu().numpy()), states.cpu().numpy())

    def _encode(self, blocks: Promoted) -> Tensor:  # -> [K, H+L+1, features]
        slots, size = blocks.unrolled_slots, self.network.chunk_size
        flat = slots.reshape(-1)
        chunks = (flat[start : start + size] for start in range(0, len(flat), size))
        encoded = [recurrent(self.network).encode(self.network.tensor(blocks.memory.states(chunk))) for chunk in chunks]
        return torch.cat(encoded).unflatten(0, slots.shape)


def sequence_samples(network: QNetwork, batch: SequenceBatch) -> Samples:
    """The transitions of a minibatch of sequences, n in all, for a ``Learner``."""
    wanted = batch.is_transition
    inputs = TrainingInputs(
        states=network.tensor(batch.states),
        inputs=inputs_of(network, batch.before),
        hidden=network.tensor(batch.hidden),
        burn_in=batch.burn_in,
        is_wanted=network.tensor(wanted),
    )
    actions = batch.actions[wanted].astype(np.int64)[:, None]  # [n, 1]
    return inputs, network.tensor(actions), network.tensor(batch.returns[wanted])
