"""The cases as arrays, in the layout that a function takes, with the right returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Booleans, Floats, Integers
from lambda_replay.testing.exact import (
    BOTH,
    RULES,
    TERMINATED,
    TRUNCATED,
    Steps,
    moments,
    policy,
    right_returns,
)
from lambda_replay.testing.stories import (
    BATCH,
    BATCH_SIZE,
    ESTIMATORS,
    LAYOUTS,
    RING,
    SEQUENCE,
    TIME_FIRST,
    WRAPS_AFTER,
    Story,
    older_steps,
    sequences,
    stories,
)

Answer = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Case:
    """T steps with the values of their states, and the right returns.

    Index t holds what happened at t: the reward for a_t, and whether a_t ended the episode. After an end, row t+1 is
    the first step of the next episode, while ``next_…`` at t belongs to the final observation. Shapes are those of the
    layout "sequence". "batch" puts an axis K before T, "time-first" behind it. In "ring" T becomes N slots.
    A is the number of actions: 1 with an actor, whose own action in s_t is then meant. C critics: 1, or 2 for "twin"
    and "twin-return", whose ``values`` are the smaller critic's and the first critic's.
    """

    name: str
    about: str
    estimator: str
    layout: str
    gamma: float
    lambda_: float
    n: int  # of n-step returns
    epsilon: float  # π is ε-greedy
    k: int  # of the median: λ = 0/k, 1/k, …, k/k
    bound: float  # δ on the mean |G_t − Q(s_t, a_t)| of each sequence
    rewards: Floats  # [T]
    terminated: Booleans  # [T]
    truncated: Booleans  # [T]
    actions: Integers  # [T]
    next_actions: Integers  # [T]  a_{t+1}; meaningless where an episode ends
    q_values: Floats  # [T, A]  Q(s_t, ·)
    next_q_values: Floats  # [T, A]  Q(s_{t+1}, ·)
    values: Floats  # [T]  V(s_t) under the target policy: a maximum, an expectation, or with the entropy
    next_values: Floats  # [T]  V(s_{t+1})
    next_baselines: Floats  # [T]  what a following return replaces in V(s_{t+1}): all of it, Q(s', a') or Q(s', ã')
    policy: Floats  # [T, A]  π(·|s_t)
    next_policy: Floats  # [T, A]  π(·|s_{t+1})
    behaviour_probs: Floats  # [T]  μ(a_t|s_t)
    next_behaviour_probs: Floats  # [T]
    next_entropies: Floats  # [T]  −α·log π(ã|s_{t+1})
    next_critic_values: Floats  # [C, T]  each critic's value in s_{t+1}
    slots: Integers  # [T]  where the steps lie; in a ring, the slots whose returns are wanted, in order of time
    returns: Answer  # [T]  the right answer
    story: Story  # the exact numbers

    def __str__(self) -> str:
        return f"{self.estimator}: {self.name}"

    @property
    def discounts(self) -> Floats:  # [T]
        """γ·(1 − terminated)."""
        return self.rewards.dtype.type(self.gamma) * ~self.terminated

    @property
    def continues(self) -> Booleans:  # [T]
        """False where an episode ends, terminated or truncated."""
        return ~(self.terminated | self.truncated)

    @property
    def lambdas(self) -> Floats:  # [T]
        """The weight of G_{t+1}: λ, and 0 where an episode ends."""
        return self.rewards.dtype.type(self.lambda_) * self.continues

    @property
    def next_action_values(self) -> Floats:  # [T]
        """Q(s_{t+1}, a_{t+1})."""
        return _at(self.next_q_values, self.next_actions)

    @property
    def next_probs(self) -> Floats:  # [T]
        """π(a_{t+1}|s_{t+1})."""
        return _at(self.next_policy, self.next_actions)


def _at(rows: Floats, indices: Integers) -> Floats:
    chosen: Floats = np.take_along_axis(rows, indices[..., None], axis=-1)[..., 0]
    return chosen


def spread_returns(story: Story, layout: str, compute: Callable[[Steps], Iterable[Fraction]]) -> Answer:
    """What ``compute`` returns [T] for every sequence, in the shape that the layout wants."""
    rows = [np.array([float(g) for g in compute(steps)]) for steps in sequences(story.steps, layout)]
    return rows[0] if layout in {SEQUENCE, RING} else np.stack(rows, axis=0 if layout == BATCH else 1)


def cases(estimator: str, *, layout: str = SEQUENCE, dtype: DTypeLike = np.float32) -> list[Case]:
    """Every case of an estimator, for instance for ``pytest.mark.parametrize("case", cases("peng"), ids=str)``.

    In "batch" [K, T] and "time-first" [T, K] the K sequences are the same steps with all rewards and values times 1,
    2, 3; so are their returns, unless λ is chosen for each sequence. In "ring", step 2 of the sequence lies in slot 0
    of N, and the slots behind the newest step still hold older steps.
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(f"there are no cases for {estimator!r}; choose one of {', '.join(ESTIMATORS)}.")
    if layout not in LAYOUTS:
        raise ConfigError(f"layout {layout!r} is unknown; choose one of {', '.join(LAYOUTS)}.")
    if not np.issubdtype(np.dtype(dtype), np.floating):
        raise ConfigError(f"dtype is {np.dtype(dtype)}, which cannot hold the numbers; give a float such as float32.")
    return [_make_case(estimator, story, layout, np.dtype(dtype)) for story in stories(estimator)]


def _make_case(estimator: str, story: Story, layout: str, dtype: np.dtype[Any]) -> Case:
    steps = story.steps
    length = steps.length
    columns = _columns(steps, estimator)
    slots = np.arange(length)
    if layout == RING:
        older = _columns(older_steps(steps), estimator)
        size = length + len(older["rewards"])
        slots = (np.arange(length) - (WRAPS_AFTER + 1)) % size
        order = np.argsort((np.arange(size) - (WRAPS_AFTER + 1)) % size)  # storage slot -> row in order of time
        columns = {name: np.concatenate([column, older[name]])[order] for name, column in columns.items()}
    arrays = {
        name: _spread(column, layout, scaled=name in _SCALED).astype(_KINDS.get(name, dtype))
        for name, column in columns.items()
    }
    arrays["next_critic_values"] = np.moveaxis(arrays["next_critic_values"], -1, 0)
    return Case(
        name=story.name,
        about=story.about,
        estimator=estimator,
        layout=layout,
        gamma=float(steps.gamma),
        lambda_=float(steps.lambda_),
        n=steps.n,
        epsilon=float(steps.epsilon),
        slots=slots,
        k=steps.k,
        bound=float(steps.bound),
        returns=spread_returns(story, layout, lambda each: _right(each, estimator)),
        story=story,
        **arrays,
    )


_SCALED = {
    "rewards", "q_values", "next_q_values", "values", "next_values", "next_baselines", "next_entropies",
    "next_critic_values",
}  # fmt: skip
_KINDS: dict[str, DTypeLike] = {
    "terminated": np.bool_, "truncated": np.bool_, "actions": np.int64, "next_actions": np.int64,
}  # fmt: skip


def _spread(column: NDArray[Any], layout: str, *, scaled: bool) -> NDArray[Any]:
    """[T, …] as it is, or K times along a new axis, the k-th time multiplied by k + 1."""
    if layout not in {BATCH, TIME_FIRST}:
        return column
    rows = [column * (k + 1) if scaled else column for k in range(BATCH_SIZE)]
    return np.stack(rows, axis=0 if layout == BATCH else 1)


@functools.cache
def _columns(steps: Steps, estimator: str) -> dict[str, NDArray[Any]]:  # each [T, …] in float64
    length, rule = steps.length, RULES[estimator][0]
    seen = moments(steps)
    here = [moment._replace(next_state=moment.state, next_action=moment.action) for moment in seen]
    following = [moment.next_state for moment in seen]

    def numbers(read: Callable[[int], Any]) -> NDArray[Any]:
        return np.array([read(t) for t in range(length)], dtype=np.float64)

    num_critics = 2 if estimator.startswith("twin") else 1
    return {
        "rewards": numbers(lambda t: steps.rewards[t]),
        "terminated": numbers(lambda t: steps.ends[t] in {TERMINATED, BOTH}),
        "truncated": numbers(lambda t: steps.ends[t] in {TRUNCATED, BOTH}),
        "actions": numbers(lambda t: steps.actions[t]),
        "next_actions": numbers(lambda t: steps.actions[t + 1]),
        "q_values": numbers(lambda t: steps.states[t].q),
        "next_q_values": numbers(lambda t: following[t].q),
        "values": numbers(lambda t: rule.value(here[t])),
        "next_values": numbers(lambda t: rule.value(seen[t])),
        "next_baselines": numbers(lambda t: rule.baseline(seen[t])),
        "policy": numbers(lambda t: policy(steps.states[t].q, steps.epsilon)),
        "next_policy": numbers(lambda t: policy(following[t].q, steps.epsilon)),
        "behaviour_probs": numbers(lambda t: steps.behaviour_probs[t]),
        "next_behaviour_probs": numbers(lambda t: steps.behaviour_probs[t + 1]),
        "next_entropies": numbers(lambda t: following[t].entropy),
        "next_critic_values": numbers(lambda t: (*following[t].q[:1], following[t].second)[:num_critics]),
    }


@functools.cache
def _right(steps: Steps, estimator: str) -> tuple[Fraction, ...]:
    return tuple(right_returns(steps, estimator))
