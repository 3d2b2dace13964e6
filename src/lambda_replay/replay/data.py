"""Records that travel between the rooms, and the legend of dimensions; no behaviour beyond checking them.

Legend: B minibatch · K blocks · L block length · S = K·L cache rows · A actions · F stacked frames (history)
· H W C image · N memory slots. Index t holds what happened at t; anything of t+1 says ``next_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lambda_replay.errors import ConfigError

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]
Booleans = NDArray[np.bool_]

NO_ACTION = -1  # the action of a slot in which none was taken: an episode's closing slot, or the newest slot


def as_floats(name: str, values: ArrayLike) -> Floats:
    """An array of floats as it is, integers and booleans as float32; anything else is refused.

    Returns are computed in the dtype of what goes in, and λ would be rounded to 0 or 1 in integers.
    """
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{name} has dtype {array.dtype}; give an array of floats, integers or booleans.")
    return array if array.dtype.kind == "f" else array.astype(np.float32)


class Transitions(NamedTuple):
    """What the memory knows of some slots, beside their states; any shape."""

    actions: Integers  # NO_ACTION where none was taken
    rewards: Floats
    behaviour_probs: Floats  # 1 where no action was taken
    terminated: Booleans


@dataclass(frozen=True, eq=False)
class Block:
    """K blocks of L contiguous memory slots with the Q-values of all their L+1 states.

    ``discounts`` is γ·(1 − terminated); ``continues`` is False where an episode ends, terminated or truncated.
    A slot without an action (``NO_ACTION``) is not a transition: its return has no meaning and nothing reads it.
    Integers among the rewards, discounts, Q-values and probabilities become float32; floats of any size stay.
    """

    rewards: Floats  # [K, L]
    discounts: Floats  # [K, L]
    q_values: Floats  # [K, L+1, A]
    actions: Integers  # [K, L+1]
    behaviour_probs: Floats  # [K, L+1]  μ(a|s)
    continues: Booleans  # [K, L]

    def __post_init__(self) -> None:
        for name in ("rewards", "discounts", "q_values", "behaviour_probs"):
            object.__setattr__(self, name, as_floats(f"Block.{name}", getattr(self, name)))
        for name, kinds, wanted_dtype in (("actions", "iu", "integers"), ("continues", "b", "booleans")):
            array = np.asarray(getattr(self, name))
            if array.dtype.kind not in kinds:
                raise ConfigError(f"Block.{name} has dtype {array.dtype}; give an array of {wanted_dtype}.")
            object.__setattr__(self, name, array)
        self._check_shapes()
        num_actions = self.q_values.shape[2]
        lowest, highest = int(self.actions.min(initial=0)), int(self.actions.max(initial=0))
        if lowest < NO_ACTION or highest >= num_actions:
            raise ConfigError(
                f"Block.actions has values from {lowest} to {highest}, but q_values is for {num_actions} actions; "
                f"give numbers from 0 to {num_actions - 1}, and {NO_ACTION} where no action was taken."
            )

    def _check_shapes(self) -> None:
        if self.rewards.ndim != 2 or self.q_values.ndim != 3:
            raise ConfigError(
                f"Block wants rewards [K, L] and q_values [K, L+1, A], not {self.rewards.shape} and "
                f"{self.q_values.shape}; add an axis of length 1 for a single block."
            )
        num_blocks, length = self.rewards.shape
        if length < 1:
            raise ConfigError("Block.rewards [K, L] holds no step; a block needs at least one.")
        wanted = {
            "discounts": (num_blocks, length),
            "continues": (num_blocks, length),
            "q_values": (num_blocks, length + 1, self.q_values.shape[2]),
            "actions": (num_blocks, length + 1),
            "behaviour_probs": (num_blocks, length + 1),
        }
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape:
                raise ConfigError(
                    f"Block.{name} has shape {getattr(self, name).shape}, but rewards {self.rewards.shape} "
                    f"and q_values {self.q_values.shape} ask for {shape}."
                )

    @cached_property
    def is_transition(self) -> Booleans:  # [K, L]
        """True where an action was taken; False in closing slots."""
        return self.actions[:, :-1] != NO_ACTION

    @cached_property
    def action_values(self) -> Floats:  # [K, L+1]
        """Q(s_t, a_t); zero where no action was taken."""
        taken = np.take_along_axis(self.q_values, np.maximum(self.actions, 0)[..., None], axis=-1)[..., 0]
        return np.where(self.actions != NO_ACTION, taken, np.zeros_like(taken))

    @cached_property
    def greedy_values(self) -> Floats:  # [K, L+1]
        """max_a Q(s_t, a)."""
        return self.q_values.max(axis=-1)


class Explanation(NamedTuple):
    """What an estimator computed and why."""

    returns: Floats  # [K, L]
    next_traces: Floats | None = None  # [K, L]  c_{t+1}, 0 where the episode ends at t; None: no trace is involved
    lambdas: Floats | None = None  # [K, L]  the λ chosen for each step; None: λ is not chosen from the data


@dataclass(frozen=True, eq=False)
class Minibatch:
    """B samples of the cache with their states gathered from memory."""

    states: NDArray[Any]  # [B, F, *observation]
    actions: Integers  # [B]
    returns: Floats  # [B]
    rows: Integers  # [B]  rows of the cache (or slots of the memory) they came from
