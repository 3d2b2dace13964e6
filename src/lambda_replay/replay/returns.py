"""Multi-step returns over blocks of steps; ``estimators.py`` chooses the values and traces."""

from __future__ import annotations

import numpy as np

from lambda_replay.replay.data import Booleans, Floats, as_floats


def backward_returns(
    rewards: Floats, discounts: Floats, next_values: Floats, next_baselines: Floats, next_traces: Floats
) -> Floats:
    """Per-decision returns of every step of every block, by one backward recursion.

    G_t = r_t + γ_t · [ V_{t+1} + c_{t+1} · (G_{t+1} − b_{t+1}) ],      G_{L−1} = r_{L−1} + γ_{L−1} · V_L

    Paper eq. (3) for b = V and c = λ; Munos et al. 2016 eq. (3) for b = Q(s', a'). The block's last step has no
    correction, because its successor's return is unknown. See deviations.md #3.

    Arguments are [..., K, L], where index t of the ``next_`` ones is t+1; leading axes broadcast, so many
    candidate λ cost one pass. ``next_traces`` is 0 where the episode ends at t.
    """
    names = ("rewards", "discounts", "next_values", "next_baselines", "next_traces")
    given = (rewards, discounts, next_values, next_baselines, next_traces)
    arrays = [as_floats(name, array) for name, array in zip(names, given, strict=True)]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    by_time = [_by_time(array, shape) for array in arrays]
    returns = np.empty((shape[-1], *shape[:-1]), dtype=np.result_type(arrays[0], arrays[2]))  # [L, ..., K]
    following: Floats | None = None
    for t in range(shape[-1] - 1, -1, -1):
        reward, discount, next_value, next_baseline, next_trace = (array[t] for array in by_time)
        bootstrap = next_value if following is None else next_value + next_trace * (following - next_baseline)
        following = reward + discount * bootstrap
        returns[t] = following
    return np.moveaxis(returns, 0, -1)


def _by_time(array: Floats, shape: tuple[int, ...]) -> Floats:
    """The array with time as its first axis, its other axes broadcastable to ``shape`` and contiguous for speed."""
    full_time = np.broadcast_to(array, (*array.shape[:-1], shape[-1]))
    return np.ascontiguousarray(np.moveaxis(full_time, -1, 0))


def nstep_returns(
    rewards: Floats,
    discounts: Floats,
    next_values: Floats,
    continues: Booleans,
    n: int,
    *,
    next_bonuses: Floats | None = None,
) -> Floats:
    """n-step returns of every step, shortened where the block or the episode ends first.

    G ← r_{t+i} + γ_{t+i} · [ (1−w) · V_{t+i+1} + w · (G + e_{t+i+1}) ],   i = n−1 … 0,
    w = 0 at lag n−1, at the block's last step and where the episode ends at t+i, else 1.   Paper eq. (1), footnote 2.

    e is a bonus for every step, such as the entropy that a soft critic's V includes too; none by default.
    Rewards, discounts and continues are [K, L], values and bonuses [..., K, L]; index t of the ``next_`` ones is t+1.
    """
    assert n >= 1
    rewards, discounts = as_floats("rewards", rewards), as_floats("discounts", discounts)
    next_values = as_floats("next_values", next_values)
    length = rewards.shape[-1]
    longest = min(n, length)
    shape = next_values.shape if next_bonuses is None else np.broadcast_shapes(next_values.shape, next_bonuses.shape)
    returns = np.zeros(shape, dtype=np.result_type(rewards, next_values))  # [..., K, L]
    goes_on = continues.copy()  # [K, L]
    goes_on[..., -1] = False
    for lag in range(longest - 1, -1, -1):
        starts, later = slice(0, length - lag), slice(lag, length)
        bootstrap = next_values[..., later]  # [..., K, L − lag]
        if lag < longest - 1:
            after = returns[..., starts] if next_bonuses is None else returns[..., starts] + next_bonuses[..., later]
            bootstrap = np.where(goes_on[..., later], after, bootstrap)
        returns[..., starts] = rewards[..., later] + discounts[..., later] * bootstrap
    return returns
