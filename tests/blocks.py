"""Valid random Blocks: ``random_block`` draws one from a NumPy generator, ``blocks`` is the Hypothesis strategy.

Here live the rules of what a block may look like; no expectations about returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from lambda_replay.replay.data import Block

CONTINUES, TERMINATED, TRUNCATED = 0, 1, 2  # what an action does to its episode

Outcomes = NDArray[np.integer[Any]]  # [K, L]


def random_outcomes(rng: np.random.Generator, num_blocks: int, length: int, end_probability: float) -> Outcomes:
    """Each step terminates or truncates its episode with ``end_probability`` in all."""
    half = end_probability / 2
    return rng.choice(
        [CONTINUES, TERMINATED, TRUNCATED], size=(num_blocks, length), p=[1 - end_probability, half, half]
    )


def closing_slots(outcomes: Outcomes, starts_closed: NDArray[np.bool_]) -> NDArray[np.bool_]:  # [K, L+1]
    """True at the slot after each end; where ``starts_closed`` the first slot closes an episode that ended before.

    The outcome of a closing slot itself is ignored: it holds no action.
    """
    num_blocks, length = outcomes.shape
    closing = np.zeros((num_blocks, length + 1), dtype=bool)
    closing[:, 0] = starts_closed
    for t in range(length):
        closing[:, t + 1] = (outcomes[:, t] != CONTINUES) & ~closing[:, t]
    return closing


def block_of(
    rng: np.random.Generator,
    outcomes: Outcomes,
    *,
    starts_closed: NDArray[np.bool_],  # [K]
    newest_is_last: NDArray[np.bool_],  # [K]
    num_actions: int = 3,
    discount: float = 0.95,
    all_greedy: bool = False,
    ties: bool = False,
    scale: float = 3.0,
) -> Block:
    """A float32 Block with these episode ends and random contents.

    Where ``newest_is_last``, slot L is the newest of the memory: no action has been taken in it yet. With ``ties`` the
    Q-values are small integers, so several actions often share the maximum; without, all Q-values of a state differ.
    """
    num_blocks, length = outcomes.shape
    closing = closing_slots(outcomes, starts_closed)
    q_values = rng.normal(scale=scale, size=(num_blocks, length + 1, num_actions)).astype(np.float32)
    if ties:
        q_values = np.round(q_values / scale).astype(np.float32)
    actions = rng.integers(num_actions, size=(num_blocks, length + 1))
    if all_greedy:
        actions = np.argmax(q_values + rng.uniform(0, 1e-3, q_values.shape) * ties, axis=-1)  # any of the tied ones
    is_step = ~closing
    is_step[newest_is_last, -1] = False

    is_transition = ~closing[:, :-1]
    rewards = rng.normal(scale=scale / 2, size=(num_blocks, length))
    return Block(
        rewards=np.where(is_transition, rewards, 0).astype(np.float32),
        discounts=np.where(is_transition & (outcomes != TERMINATED), discount, 0).astype(np.float32),
        q_values=q_values,
        actions=np.where(is_step, actions, 0),
        behaviour_probs=(1 - rng.random(size=(num_blocks, length + 1)) * 0.98).astype(np.float32),  # in (0, 1]
        continues=is_transition & (outcomes == CONTINUES),
        is_step=is_step,
    )


def random_block(
    rng: np.random.Generator,
    num_blocks: int = 4,
    length: int = 12,
    num_actions: int = 3,
    *,
    end_probability: float = 0.2,
    discount: float = 0.95,
    all_greedy: bool = False,
    ties: bool = False,
    scale: float = 3.0,
) -> Block:
    """A valid Block with ends anywhere; with ``end_probability`` 0 every slot is a step of one episode."""
    has_ends = end_probability > 0
    return block_of(
        rng,
        random_outcomes(rng, num_blocks, length, end_probability),
        starts_closed=has_ends & (rng.random(num_blocks) < 0.1),
        newest_is_last=rng.random(num_blocks) < 0.1,
        num_actions=num_actions,
        discount=discount,
        all_greedy=all_greedy,
        ties=ties,
        scale=scale,
    )


@st.composite
def blocks(
    draw: st.DrawFn,
    *,
    max_blocks: int = 3,
    max_length: int = 9,
    max_actions: int = 4,
    allow_ties: bool = True,
    all_greedy: bool | None = None,
) -> Block:
    """Valid Blocks. Their shape and episode ends shrink; their numbers come from one drawn seed.

    ``all_greedy`` None draws blocks of either kind.
    """
    num_blocks = draw(st.integers(1, max_blocks))
    length = draw(st.integers(1, max_length))
    outcome = st.sampled_from([CONTINUES, CONTINUES, CONTINUES, TERMINATED, TRUNCATED])
    size = num_blocks * length
    outcomes = np.array(draw(st.lists(outcome, min_size=size, max_size=size))).reshape(num_blocks, length)
    flags = st.lists(st.booleans(), min_size=num_blocks, max_size=num_blocks)
    return block_of(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        outcomes,
        starts_closed=np.array(draw(flags)),
        newest_is_last=np.array(draw(flags)),
        num_actions=draw(st.integers(1, max_actions)),
        discount=draw(st.sampled_from([0.5, 0.9, 0.99, 1.0])),
        all_greedy=draw(st.booleans()) if all_greedy is None else all_greedy,
        ties=allow_ties and draw(st.booleans()),
        scale=draw(st.sampled_from([0.1, 3.0, 100.0])),
    )
