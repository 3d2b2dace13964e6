"""Records passed between the packages, and the legend of array dimensions.

Legend: B minibatch · K blocks · L block length · S = K·L cache rows · A actions · F stacked frames (history)
· H W C image · N memory slots. Index t holds what happened at t; names of anything at t+1 start with ``next_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lambda_replay.errors import ConfigError

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]
Booleans = NDArray[np.bool_]


def as_floats(name: str, values: ArrayLike) -> Floats:
    """Floats unchanged, integers and booleans as float32; anything else is rejected.

    Returns are computed in the input's dtype, and integers would round λ to 0 or 1.
    """
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{name} has dtype {array.dtype}; give an array of floats, integers or booleans.")
    return array if array.dtype.kind == "f" else array.astype(np.float32)


class Transitions(NamedTuple):
    """What the memory holds at some slots, apart from their states; any shape."""

    actions: NDArray[Any]  # meaningless where ``is_step`` is False
    rewards: Floats
    behaviour_probs: Floats  # μ(a|s), or its logarithm where actions are vectors; μ = 1 where none was taken
    terminated: Booleans
    is_step: Booleans  # False in an episode's closing slot, where no action was taken, and in the newest one
    columns: Mapping[str, NDArray[Any]]  # a slot's additional values, by name


class Before(NamedTuple):
    """What came just before some states, for networks that remember; any shape."""

    is_start: Booleans  # whether the state begins its episode: nothing came before it
    actions: Integers  # a_{t−1}; 0 at a start
    rewards: Floats  # r_{t−1}; 0 at a start

    def at(self, index: Any) -> Before:
        """The part that an index selects of each array."""
        return Before(self.is_start[index], self.actions[index], self.rewards[index])


class Evaluation(Protocol):
    """What estimators can read about K blocks of L steps: the steps themselves, and a critic's values for them.

    ``Block`` derives it from a row of Q-values per state, ``ValueBlock`` from values given directly. Several critics
    add leading axes to a critic's values. Asking for what a critic cannot know raises ConfigError.
    """

    @property
    def rewards(self) -> Floats: ...  # [K, L]

    @property
    def discounts(self) -> Floats: ...  # [K, L]  γ·(1 − terminated)

    @property
    def continues(self) -> Booleans: ...  # [K, L]  False where an episode ends, terminated or truncated

    @property
    def is_transition(self) -> Booleans: ...  # [K, L]  False in closing slots, whose returns are meaningless

    @property
    def action_values(self) -> Floats: ...  # [..., K, L+1]  Q(s_t, a_t); zero where no action was taken

    @property
    def shared_action_values(self) -> Floats: ...  # [..., K, L+1]  the same; one for critics that share V(s)

    @property
    def is_greedy(self) -> Booleans: ...  # [..., K, L+1]  whether a_t maximises Q(s_t, ·)

    def next_values(self, epsilon: float = 0.0) -> Floats:  # [..., K, L]
        """V(s') under the target policy: greedy, ε-greedy or, with SAC, the agent's own."""
        ...

    def next_baselines(self) -> Floats | None:  # [..., K, L]
        """The part of V(s') that a return from s' replaces; None for all of it. A soft critic keeps its entropy."""
        ...

    def next_probs(self, epsilon: float) -> Floats:  # [..., K, L]
        """π(a'|s')."""
        ...

    def next_ratios(self, epsilon: float) -> Floats:  # [..., K, L]
        """π(a'|s') / μ(a'|s'); unused where no action was taken."""
        ...


@dataclass(frozen=True, eq=False)
class Block:
    """K blocks of L contiguous memory slots with the Q-values of all their L+1 states.

    ``discounts`` is γ·(1 − terminated); ``continues`` is False where an episode ends, terminated or truncated.
    Where ``is_step`` is False no action was taken: such a slot has no return, and its contents are unused.
    Integer rewards, discounts, Q-values and probabilities become float32; floats keep their dtype.
    """

    rewards: Floats  # [K, L]
    discounts: Floats  # [K, L]
    q_values: Floats  # [..., K, L+1, A]; leading axes: several critics
    actions: Integers  # [K, L+1]
    behaviour_probs: Floats  # [K, L+1]  μ(a|s)
    continues: Booleans  # [K, L]
    is_step: Booleans | None = None  # [K, L+1]; None: every slot is a step

    def __post_init__(self) -> None:
        _make_floats(self, "rewards", "discounts", "q_values", "behaviour_probs")
        if self.is_step is None:
            object.__setattr__(self, "is_step", np.ones(np.shape(self.actions), dtype=np.bool_))
        _check_kinds(self, actions="integers", continues="booleans", is_step="booleans")
        self._check_shapes()
        num_actions = self.q_values.shape[-1]
        is_known = (self.actions >= 0) & (self.actions < num_actions)
        if np.count_nonzero(is_known < self.is_step):
            taken = self.actions[self.is_step]
            lowest, highest = int(taken.min()), int(taken.max())
            raise ConfigError(
                f"Block.actions has values from {lowest} to {highest}, but q_values is for {num_actions} actions; "
                f"give numbers from 0 to {num_actions - 1}, and False in is_step where no action was taken."
            )

    def _check_shapes(self) -> None:
        if self.rewards.ndim != 2 or self.q_values.ndim < 3:
            raise ConfigError(
                f"Block needs rewards [K, L] and q_values [K, L+1, A], not {self.rewards.shape} and "
                f"{self.q_values.shape}; add an axis of length 1 for a single block."
            )
        _check_shapes(
            self, {"discounts": 0, "continues": 0, "actions": 1, "behaviour_probs": 1, "is_step": 1}, ("q_values",)
        )

    @cached_property
    def is_transition(self) -> Booleans:  # [K, L]
        """True where an action was taken; False in closing slots."""
        assert self.is_step is not None
        return self.is_step[:, :-1]

    @cached_property
    def action_values(self) -> Floats:  # [..., K, L+1]
        """Q(s_t, a_t); zero where no action was taken."""
        assert self.is_step is not None
        chosen = np.where(self.is_step, self.actions, 0)
        indices = np.broadcast_to(chosen, self.q_values.shape[:-1])[..., None]
        taken = np.take_along_axis(self.q_values, indices, axis=-1)[..., 0]
        return np.where(self.is_step, taken, np.zeros_like(taken))

    @property
    def shared_action_values(self) -> Floats:  # [..., K, L+1]
        return self.action_values

    @cached_property
    def greedy_values(self) -> Floats:  # [..., K, L+1]
        """max_a Q(s_t, a)."""
        return self.q_values.max(axis=-1)

    @cached_property
    def is_greedy(self) -> Booleans:  # [..., K, L+1]
        """Compares values, not indices, so that tied actions are greedy too."""
        return self.action_values == self.greedy_values

    def next_values(self, epsilon: float = 0.0) -> Floats:  # [..., K, L]
        """Σ_a π(a|s') Q(s', a) for the ε-greedy π, which is (1−ε)·max Q + ε·mean Q."""
        greedy = self.greedy_values[..., 1:]
        if epsilon == 0:
            return greedy
        dtype = self.q_values.dtype.type
        return dtype(1 - epsilon) * greedy + dtype(epsilon) * self.q_values[..., 1:, :].mean(axis=-1)

    def next_baselines(self) -> Floats | None:
        return None

    def next_probs(self, epsilon: float) -> Floats:  # [..., K, L]
        """π(a'|s') for the ε-greedy π, with tied greedy actions sharing the greedy mass."""
        num_greedy = (self.q_values == self.greedy_values[..., None]).sum(axis=-1)[..., 1:]
        greedy_share = self.is_greedy[..., 1:] / num_greedy
        return (epsilon / self.q_values.shape[-1] + (1 - epsilon) * greedy_share).astype(self.q_values.dtype)

    def next_ratios(self, epsilon: float) -> Floats:  # [..., K, L]
        assert self.is_step is not None
        one = self.q_values.dtype.type(1)
        probs = np.where(self.is_step[:, 1:], self.behaviour_probs[:, 1:], one)
        if not ((probs > 0) & (probs <= 1)).all():
            raise ConfigError(
                "Block.behaviour_probs has values that are not above 0 and up to 1; give the probability with which "
                "each action was chosen."
            )
        return self.next_probs(epsilon) / probs


@dataclass(frozen=True, eq=False)
class ValueBlock:
    """K blocks of L contiguous memory slots with values from a critic that has no row of Q-values.

    An actor and its critics (DDPG, TD3), a soft critic (SAC) or a closed form (NAF) know V(s) and Q(s, a), but not
    which stored action was greedy. ``ratios`` are π(a|s)/μ(a|s) of densities, for estimators that need them.
    """

    rewards: Floats  # [K, L]
    discounts: Floats  # [K, L]
    values: Floats  # [..., K, L+1]  V(s) under the target policy
    action_values: Floats  # [..., K, L+1]  Q(s, a) of the stored action; set to zero where no action was taken
    continues: Booleans  # [K, L]
    baselines: Floats | None = None  # [..., K, L+1]; None: V(s). A soft critic gives Q(s, ã) without the entropy
    ratios: Floats | None = None  # [K, L+1]
    is_step: Booleans | None = None  # [K, L+1]; None: every slot is a step

    def __post_init__(self) -> None:
        _make_floats(self, "rewards", "discounts", "values", "action_values", "baselines", "ratios")
        if self.rewards.ndim != 2:
            raise ConfigError(f"ValueBlock needs rewards [K, L], not {self.rewards.shape}; add an axis of length 1.")
        num_blocks, length = self.rewards.shape
        if self.is_step is None:
            object.__setattr__(self, "is_step", np.ones((num_blocks, length + 1), dtype=np.bool_))
        _check_kinds(self, continues="booleans", is_step="booleans")
        leading = ("values", "action_values", *(("baselines",) if self.baselines is not None else ()))
        offsets = {"discounts": 0, "continues": 0, "is_step": 1, **({} if self.ratios is None else {"ratios": 1})}
        _check_shapes(self, offsets, (), leading)
        assert self.is_step is not None
        taken = np.where(self.is_step, self.action_values, np.zeros_like(self.action_values))
        object.__setattr__(self, "action_values", taken)

    @cached_property
    def is_transition(self) -> Booleans:  # [K, L]
        assert self.is_step is not None
        return self.is_step[:, :-1]

    @cached_property
    def shared_action_values(self) -> Floats:  # [..., K, L+1], with the leading axes of ``values``
        """Critics that share one V(s), the smaller of theirs, share Q(s, a) too: then there is one return, not two."""
        num_extra = max(0, self.action_values.ndim - self.values.ndim)
        return self.action_values.min(axis=tuple(range(num_extra))) if num_extra else self.action_values

    @property
    def is_greedy(self) -> Booleans:
        raise ConfigError(
            "this estimator needs to know which actions were greedy, but this critic has no row of Q-values; "
            f"choose one of {self._fitting}."
        )

    @property
    def _fitting(self) -> str:
        """The estimators that need nothing else."""
        return "peng, nstep, median, bounded" if self.ratios is None else "peng, nstep, retrace, median, bounded"

    def next_values(self, epsilon: float = 0.0) -> Floats:  # [..., K, L]
        _refuse_epsilon(epsilon)
        return self.values[..., 1:]

    def next_baselines(self) -> Floats | None:  # [..., K, L]
        return None if self.baselines is None else self.baselines[..., 1:]

    def next_probs(self, epsilon: float) -> Floats:
        raise ConfigError(
            "this estimator needs the probabilities of finitely many actions, but this critic has no row of Q-values; "
            f"choose one of {self._fitting}."
        )

    def next_ratios(self, epsilon: float) -> Floats:  # [K, L]
        _refuse_epsilon(epsilon)
        if self.ratios is None:
            raise ConfigError("retrace needs π(a|s)/μ(a|s), which this critic does not provide; use peng.")
        return self.ratios[:, 1:]


def _refuse_epsilon(epsilon: float) -> None:
    if epsilon != 0:
        raise ConfigError(
            "an ε-greedy target policy (@ε) needs a row of Q-values, which this critic does not have; leave out @ε."
        )


def _make_floats(block: Block | ValueBlock, *names: str) -> None:
    """Convert these fields to arrays of floats."""
    fields = vars(block)
    for name in names:
        value = fields[name]
        if value is not None and not (type(value) is np.ndarray and value.dtype.kind == "f"):
            object.__setattr__(block, name, as_floats(f"{type(block).__name__}.{name}", value))


def _check_kinds(block: Block | ValueBlock, **kinds: str) -> None:
    """Convert these fields to arrays, and reject the wrong kinds of numbers."""
    fields = vars(block)
    for name, words in kinds.items():
        array = np.asarray(fields[name])
        if array.dtype.kind not in ("b" if words == "booleans" else "iu"):
            raise ConfigError(f"{type(block).__name__}.{name} has dtype {array.dtype}; give an array of {words}.")
        if array is not fields[name]:
            object.__setattr__(block, name, array)


def _check_shapes(
    block: Block | ValueBlock, offsets: Mapping[str, int], rows: tuple[str, ...], leading: tuple[str, ...] = ()
) -> None:
    """Reject arrays that do not fit rewards [K, L]: [K, L + offset], rows [..., K, L+1, A], leading [..., K, L+1]."""
    num_blocks, length = block.rewards.shape
    if length < 1:
        raise ConfigError(f"{type(block).__name__}.rewards [K, L] holds no step; a block needs at least one.")
    fields, wanted = vars(block), (num_blocks, length + 1)
    for name, offset in offsets.items():
        _check_shape(block, name, fields[name].shape, wanted if offset else (num_blocks, length))
    for name in rows:
        _check_shape(block, name, fields[name].shape[-3:-1], wanted, " and an axis of actions")
    for name in leading:
        _check_shape(block, name, fields[name].shape[-2:], wanted)


def _check_shape(
    block: Block | ValueBlock, name: str, found: tuple[int, ...], wanted: tuple[int, ...], rest: str = ""
) -> None:
    if found != wanted:
        raise ConfigError(
            f"{type(block).__name__}.{name} has shape {getattr(block, name).shape}, but rewards "
            f"{block.rewards.shape} require {wanted}{rest}."
        )


class Explanation(NamedTuple):
    """What an estimator computed and why."""

    returns: Floats  # [..., K, L]
    next_traces: Floats | None = None  # [..., K, L]  c_{t+1}, 0 where the episode ends at t; None: no traces are used
    lambdas: Floats | None = None  # [..., K, L]  the λ chosen for each step; None: λ is not chosen from the data


@dataclass(frozen=True, eq=False)
class Minibatch:
    """B samples of the cache with their states gathered from memory."""

    states: NDArray[Any]  # [B, F, *observation]
    actions: NDArray[Any]  # [B] integers, or [B, D] floats
    returns: Floats  # [B]
    rows: Integers  # [B]  rows of the cache (or slots of the memory) they came from
