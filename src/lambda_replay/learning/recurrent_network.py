"""A Q-network that remembers: a GRU or LSTM between the layers of our Q-networks and their Q-values.

DRQN (Hausknecht & Stone 2015), with the previous action beside the features, as in R2D2 (Kapturowski et al. 2019).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from lambda_replay.learning.network_health import HasHiddenLayers
from lambda_replay.replay.data import Booleans, Integers

Cell = Literal["gru", "lstm", "none"]


class Inputs(NamedTuple):
    """What came before the states of n sequences of T steps: ``data.Before``, on the network's device."""

    is_start: Booleans  # [n, T]  on the host, where it decides what is computed in which order
    actions: Tensor  # [n, T]  a_{t−1}
    rewards: Tensor  # [n, T]  r_{t−1}

    def steps(self, first: int | None, last: int | None) -> Inputs:
        """The steps from ``first`` up to ``last``."""
        columns = np.s_[:, first:last]
        return Inputs(self.is_start[columns], self.actions[columns], self.rewards[columns])


class TrainingInputs(NamedTuple):
    """Sequences of H+T steps, of which the first H only bring the network into its state.

    It continues from ``hidden``, the state in which it left the first of the H, or from zero if there are none.
    """

    states: Tensor  # [n, H+T, F, *observation]
    inputs: Inputs  # [n, H+T] each
    hidden: Tensor  # [n, size]
    burn_in: int  # H
    is_wanted: Tensor  # [n, T]  the steps whose Q-values are wanted


class RecurrentNetwork(nn.Module):
    """Q(o_{0…t}, a_{0…t−1}, ·): features of the state and the previous action (and reward) → cell → ReLU → Q-values.

    The layer of ReLU units behind the cell carries the size of the Q-values. Without it the cell's units, which stay
    between −1 and 1, saturate on the way to large values, and no longer tell states apart (docs/presets.md). With a
    shortcut, the features also go around the cell into that layer (Ni et al. 2022): the cell need only remember.

    The hidden state of a sequence is one vector [size]: h of a GRU, h and c of an LSTM, nothing without a cell. It is
    zero where an episode begins. Without a cell this is the plain Q-network that it was made from.
    """

    def __init__(
        self,
        network: nn.Module,
        num_actions: int,
        *,
        cell: Cell,
        units: int,
        hidden: int,
        shortcut: bool,
        has_reward: bool,
        seed: int,
    ) -> None:
        """``network`` is one of ours, which gives the features; ``seed`` is for the weights that are added to it."""
        super().__init__()
        name, q_layer = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)][-1]
        network.set_submodule(name, nn.Identity())  # so that it returns what its Q-values were computed from
        self.encoder, self.num_features = network, q_layer.in_features
        self.num_actions, self.has_reward, self.has_shortcut = num_actions, has_reward, shortcut
        self.state_size = {"gru": units, "lstm": 2 * units, "none": 0}[cell]
        self.cell: nn.GRU | nn.LSTM | None = None
        self.head: nn.Module = q_layer
        if cell != "none":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                kind = nn.GRU if cell == "gru" else nn.LSTM
                self.cell = kind(self.num_features + num_actions + has_reward, units)
                num_inputs = units + (self.num_features if shortcut else 0)
                self.head = nn.Sequential(nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))

    def encode(self, states: Tensor) -> Tensor:  # [n, F, *observation] -> [n, features]
        features: Tensor = self.encoder(states)
        return features

    def hidden_layers(self, states: Tensor) -> list[Tensor]:  # [n, F, *observation] -> [n, ..., units] each
        """The outputs of the layers before the cell."""
        assert isinstance(self.encoder, HasHiddenLayers)
        return self.encoder.hidden_layers(states)

    def step(self, states: Tensor, inputs: Inputs, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Q-values [n, A] of states [n, F, *observation] with inputs [n, 1], and the hidden states [n, size] after.

        The ``hidden`` state [n, size] from before is forgotten where an episode begins.
        """
        features = self.encode(states)
        if self.cell is None:
            return self.head(features), hidden
        known = hidden.masked_fill(torch.from_numpy(inputs.is_start).to(hidden.device), 0)
        steps = self._cell_inputs(features[:, None], inputs).movedim(1, 0)  # [1, n, inputs]
        outputs, after = self.cell(steps, self._as_cell_state(known))
        return self.head(self._beside(outputs[0], features)), _as_vector(after)

    def unroll(self, features: Tensor, inputs: Inputs, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs [n, T, inputs] along features [n, T, features], and the hidden states [n, size] after.

        Sequences are cut where an episode begins. Every piece starts from zero, except the first of a sequence that
        does not begin with a start: it continues from ``hidden`` [n, size]. All pieces are unrolled side by side.
        """
        if self.cell is None:
            return features, hidden
        pieces = cut(inputs.is_start)
        continued = np.flatnonzero(~inputs.is_start[:, 0])
        starting = hidden.new_zeros(pieces.number, self.state_size)
        starting[pieces.first[continued]] = hidden[continued]
        steps = self._cell_inputs(features, inputs).flatten(0, 1)[pieces.order]  # [n·T, inputs]
        packed = PackedSequence(steps, torch.from_numpy(pieces.batch_sizes))
        outputs, after = self.cell(packed, self._as_cell_state(starting))
        in_order = outputs.data[pieces.places].unflatten(0, features.shape[:2])  # [n, T, units]
        return self._beside(in_order, features), _as_vector(after)[pieces.last]

    def forward(self, sequences: TrainingInputs) -> Tensor:  # -> [wanted steps, A]
        """Q-values to train on; the burn-in sets the hidden state, and no gradient flows into it."""
        states, inputs, hidden, burn_in, is_wanted = sequences
        if burn_in > 1 and self.cell is not None:
            with torch.no_grad():
                features = self.encode(states[:, 1:burn_in].flatten(0, 1)).unflatten(0, (-1, burn_in - 1))
                hidden = self.unroll(features, inputs.steps(1, burn_in), hidden)[1]
        features = self.encode(states[:, burn_in:].flatten(0, 1)).unflatten(0, is_wanted.shape)
        outputs, _ = self.unroll(features, inputs.steps(burn_in, None), hidden)
        q_values: Tensor = self.head(outputs[is_wanted])
        return q_values

    def _beside(self, outputs: Tensor, features: Tensor) -> Tensor:  # [..., units] -> [..., inputs of the head]
        """The cell's outputs, and with a shortcut the features that they were computed from."""
        return torch.cat([outputs, features], dim=-1) if self.has_shortcut else outputs

    def _cell_inputs(self, features: Tensor, inputs: Inputs) -> Tensor:  # [n, T, features] -> [n, T, inputs]
        """Features, the previous action one-hot (all zero at a start), and the previous reward if it is wanted."""
        has_before = torch.from_numpy(~inputs.is_start).to(features)[..., None]  # [n, T, 1]
        actions = functional.one_hot(inputs.actions, self.num_actions) * has_before  # [n, T, A]
        rewards = [inputs.rewards[..., None]] if self.has_reward else []
        return torch.cat([features, actions, *rewards], dim=-1)

    def _as_cell_state(self, hidden: Tensor) -> Any:  # [n, size] -> [1, n, units], or a pair of these
        if isinstance(self.cell, nn.GRU):
            return hidden[None]
        return tuple(part.contiguous() for part in hidden[None].chunk(2, dim=-1))


def _as_vector(state: Any) -> Tensor:  # [1, n, units], or a pair of these -> [n, size]
    """A cell's own form of its hidden state as one vector."""
    return torch.cat(state, dim=-1)[0] if isinstance(state, tuple) else state[0]


class Pieces(NamedTuple):
    """Where n sequences of T steps go when they are cut into pieces, ordered by length, longest first.

    Steps are ordered by their time in the piece, then by piece, as ``PackedSequence`` wants them.
    """

    number: int
    order: Integers  # [n·T]  the steps, as numbers in the n·T steps of all sequences, in that order
    places: Integers  # [n·T]  the reverse: where each step is in that order
    batch_sizes: Integers  # [longest]  how many pieces have a step at each time
    first: Integers  # [n]  the piece with which each sequence begins
    last: Integers  # [n]  the piece with which it ends


def cut(is_start: Booleans) -> Pieces:
    """Cut sequences [n, T] before each start; the first step of a sequence begins a piece in any case."""
    num_sequences, length = is_start.shape
    begins = is_start.copy()
    begins[:, 0] = True
    firsts = np.flatnonzero(begins)  # [pieces]  the first step of each
    lengths = np.diff(firsts, append=begins.size)
    ranks = np.empty_like(lengths)
    ranks[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))
    pieces = np.cumsum(begins.reshape(-1)) - 1  # [n·T]  the piece of each step
    times = np.arange(begins.size) - firsts[pieces]  # [n·T]  and its time there
    order = np.lexsort((ranks[pieces], times))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    of_sequence = ranks[pieces].reshape(num_sequences, length)
    return Pieces(len(firsts), order, places, np.bincount(times), of_sequence[:, 0], of_sequence[:, -1])
