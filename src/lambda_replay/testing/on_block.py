"""The cases as blocks of this library, for estimators that take an ``lr.Block``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Block, Evaluation, Floats, Integers, ValueBlock
from lambda_replay.replay.estimators import Estimator
from lambda_replay.testing.cases import Case
from lambda_replay.testing.stories import SEQUENCE


def on_block(estimator: Estimator, case: Case) -> Floats:  # [T]
    """The returns of an estimator that takes blocks, such as ``lr.parse_estimator("peng:0.5")`` or one of your own.

    A block has one slot per observation: every episode that ends is followed by a slot for its final observation, in
    which no action is taken. With an actor the block is a ``lr.ValueBlock``, and "twin-return" has two critics in it.
    """
    if case.layout != SEQUENCE:
        raise ConfigError(f"on_block needs the layout {SEQUENCE!r}, not {case.layout!r}; leave out layout.")
    ends = ~case.continues[:-1]  # [T−1]  the last step's final observation is slot L anyway
    slots = np.arange(len(case.rewards)) + np.concatenate([[0], np.cumsum(ends)])  # [T]  where each step lies
    returns = estimator(_make_block(case, slots))  # [..., 1, L]
    if returns.ndim > 2:
        returns = returns.min(axis=tuple(range(returns.ndim - 2)))
    return returns[0, slots]


def _make_block(case: Case, slots: Integers) -> Evaluation:
    length = int(slots[-1]) + 1  # L
    is_step = np.zeros((1, length + 1), dtype=np.bool_)
    is_step[0, slots] = True
    is_step[0, -1] = bool(case.continues[-1])

    def steps(values: NDArray[Any]) -> NDArray[Any]:  # [1, L]
        placed = np.zeros((1, length), dtype=values.dtype)
        placed[0, slots] = values
        return placed

    def states(here: NDArray[Any], following: NDArray[Any]) -> NDArray[Any]:  # [1, L+1, …]
        placed = np.zeros((1, length + 1, *here.shape[1:]), dtype=here.dtype)
        placed[0, slots] = here
        placed[0, slots + 1] = following
        return placed

    rewards, discounts, continues = steps(case.rewards), steps(case.discounts), steps(case.continues)
    if case.q_values.shape[-1] > 1:
        return Block(
            rewards=rewards,
            discounts=discounts,
            q_values=states(case.q_values, case.next_q_values),
            actions=states(case.actions, case.next_actions),
            behaviour_probs=states(case.behaviour_probs, case.next_behaviour_probs),
            continues=continues,
            is_step=is_step,
        )
    unknown = np.zeros_like(case.values)  # the first state's value, which no return reads
    if case.estimator == "twin-return":
        values = np.stack([states(unknown, critic) for critic in case.next_critic_values])  # [2, 1, L+1]
    else:
        values = states(unknown, case.next_values)  # [1, L+1]
    return ValueBlock(
        rewards=rewards,
        discounts=discounts,
        values=values,
        action_values=np.zeros_like(values),
        continues=continues,
        baselines=states(unknown, case.next_baselines) if case.estimator.startswith("soft") else None,
        is_step=is_step,
    )
