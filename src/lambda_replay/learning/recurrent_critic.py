"""Connects a network that remembers with the memory: its critic for a refresh, and its minibatches of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Samples
from lambda_replay.learning.recurrent_network import Inputs, RecurrentNetwork, TrainingInputs
from lambda_replay.replay.critic import Promoted, q_block
from lambda_replay.replay.data import Before, Block
from lambda_replay.replay.sequences import SequenceBatch


def recurrent(network: QNetwork) -> RecurrentNetwork:
    """The module of a network that remembers."""
    assert isinstance(network.module, RecurrentNetwork)
    return network.module


def inputs_of(network: QNetwork, before: Before) -> Inputs:
    """What came before some states, on the network's device."""
    actions, rewards = before.actions.astype(np.int64), before.rewards.astype(np.float32)
    return Inputs(before.is_start, network.tensor(actions), network.tensor(rewards))


@dataclass(frozen=True)
class RecurrentCritic:
    """A row of Q-values per state, from a network unrolled along each block, from its burn-in on.

    The hidden states are those of the current weights, not of the ones that acted: a refresh leaves none stale.
    """

    network: QNetwork

    @torch.inference_mode()
    def evaluate(self, blocks: Promoted) -> Block:
        module, slots = recurrent(self.network), blocks.unrolled_slots  # [K, H+L+1]
        flat, size = slots.reshape(-1), self.network.chunk_size
        chunks = (flat[start : start + size] for start in range(0, len(flat), size))
        encoded = [module.encode(self.network.tensor(blocks.memory.states(chunk))) for chunk in chunks]
        features = torch.cat(encoded).unflatten(0, slots.shape)  # [K, H+L+1, features]
        hidden = features.new_zeros(len(slots), module.state_size)
        outputs, _ = module.unroll(features, inputs_of(self.network, blocks.before), hidden)
        q_values: Tensor = module.head(outputs[:, -blocks.slots.shape[1] :])  # [K, L+1, A]
        return q_block(blocks, q_values.flatten(0, 1).cpu().numpy())


def sequence_samples(network: QNetwork, batch: SequenceBatch) -> Samples:
    """The transitions of a minibatch of sequences, n in all, for a ``Learner``."""
    wanted = batch.is_transition
    inputs = TrainingInputs(
        network.tensor(batch.states), inputs_of(network, batch.before), batch.burn_in, network.tensor(wanted)
    )
    actions = batch.actions[wanted].astype(np.int64)[:, None]  # [n, 1]
    return inputs, network.tensor(actions), network.tensor(batch.returns[wanted])
