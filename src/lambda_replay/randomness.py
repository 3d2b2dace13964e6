"""One seed, many named generators; the global random state of Python, NumPy and torch is never read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class RandomStreams:
    """The generators of one run, independent of each other."""

    envs: tuple[np.random.Generator, ...]  # one per environment: seeds of its games
    explore: np.random.Generator  # ε-greedy choices
    blocks: np.random.Generator  # which blocks enter the cache
    batches: np.random.Generator  # which rows enter a minibatch
    init: np.random.Generator  # the network's initial weights
    evaluate: np.random.Generator  # games played outside training

    def draw_init_seed(self) -> int:
        """A seed for other kinds of generators, from the stream of the initial weights."""
        return int(self.init.integers(2**63))

    def get_state(self) -> dict[str, Any]:
        """The state of every stream, as plain values for JSON."""
        named = {name: stream.bit_generator.state for name, stream in vars(self).items() if name != "envs"}
        return {**named, "envs": [stream.bit_generator.state for stream in self.envs]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of every stream."""
        for name, stream in vars(self).items():
            for generator, saved in (
                zip(stream, state[name], strict=True) if name == "envs" else [(stream, state[name])]
            ):
                generator.bit_generator.state = saved

    def accepts(self, state: Any) -> bool:
        """Whether plain values are a valid state; the check overwrites these streams, so do not use them afterwards."""
        if not isinstance(state, dict) or state.keys() != self.get_state().keys():
            return False
        try:
            self.set_state(state)
            return self.get_state() == state
        except (ValueError, TypeError, KeyError, OverflowError):
            return False


def make_side_stream(seed: int, purpose: Literal["evaluations", "films"], step: int) -> np.random.Generator:
    """A generator for games beside training, independent of every other; it follows from its arguments alone."""
    child = {"evaluations": 6, "films": 7}[purpose]  # after the streams of ``make_streams``
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(child, step)))


def make_streams(seed: int, num_envs: int) -> RandomStreams:
    """The streams of a seed; a stream's numbers do not depend on how many environments there are."""
    env, *others = np.random.SeedSequence(seed).spawn(6)
    explore, blocks, batches, init, evaluate = (np.random.default_rng(child) for child in others)
    envs = tuple(np.random.default_rng(child) for child in env.spawn(num_envs))
    return RandomStreams(envs, explore, blocks, batches, init, evaluate)
