"""Metrics that describe a refresh and its samples; nothing here affects learning."""

from __future__ import annotations

import numpy as np

from lambda_replay.replay.data import Block, Booleans, Evaluation, Explanation, Floats, Integers

Metrics = dict[str, float]
FEWEST_STATES = 256  # for the spread of Q-values: precise to a few percent, and cheap


@np.errstate(over="ignore", invalid="ignore")  # a mean that overflows is rejected when metrics are written
def describe_refresh(returns: Floats, td_errors: Floats, evaluation: Evaluation, explanation: Explanation) -> Metrics:
    """|TD error|, returns against Q-values, chosen λ and cut traces of one refresh; names as in docs/metrics.md.

    Returns and TD errors are those of the cache's transitions [n].
    """
    if len(returns) == 0:
        return {}
    errors, q_values = np.abs(td_errors), returns - td_errors
    quantiles = np.quantile(errors, [0.1, 0.5, 0.9])
    return {
        "td_error_abs_mean": float(errors.mean()),
        **{f"td_error_abs_q{q}": float(value) for q, value in zip((10, 50, 90), quantiles, strict=True)},
        "return_mean": float(returns.mean()),
        "q_mean": float(q_values.mean()),
        "return_minus_q_mean": float(returns.mean() - q_values.mean()),
        **(describe_q_values(evaluation.q_values) if isinstance(evaluation, Block) else _describe_values(evaluation)),
        **_describe_lambdas(evaluation, explanation),
        **_describe_traces(evaluation, explanation),
    }


def describe_q_values(q_values: Floats) -> Metrics:
    """How Q-values [n, A] or [..., K, L+1, A] vary over states, in the mean over actions, and over a state's actions.

    Several critics are averaged. Of many states, 256 to 511 are looked at, evenly spaced.
    """
    critics = tuple(range(q_values.ndim - 3))
    rows = (q_values.mean(axis=critics) if critics else q_values).reshape(-1, q_values.shape[-1])
    seen = rows[:: max(1, len(rows) // FEWEST_STATES)]  # [n, A]
    means = seen.mean(axis=1)  # [n]
    return {
        "q_std_states": float(means.std()),
        "q_std_actions": float(np.sqrt(np.square(seen - means[:, None]).mean(axis=1)).mean()),
    }


def _describe_values(evaluation: Evaluation) -> Metrics:
    """How V(s') varies over the states that steps lead to; several critics are averaged."""
    values = evaluation.next_values()  # [..., K, L]
    mean = values.mean(axis=tuple(range(values.ndim - 2)))
    return {"q_std_states": float(mean[evaluation.is_transition].std())}


def _describe_lambdas(evaluation: Evaluation, explanation: Explanation) -> Metrics:
    if explanation.lambdas is None:
        return {}
    lambdas = explanation.lambdas[..., evaluation.is_transition]
    quantiles = np.quantile(lambdas, [0.1, 0.5, 0.9])
    return {
        "lambda_mean": float(lambdas.mean()),
        **{f"lambda_q{q}": float(value) for q, value in zip((10, 50, 90), quantiles, strict=True)},
        "lambda_share_0": float((lambdas == 0).mean()),
        "lambda_share_1": float((lambdas == 1).mean()),
    }


def _describe_traces(evaluation: Evaluation, explanation: Explanation) -> Metrics:
    """A trace is cut where the estimator, not the end of the episode or the block, made it zero."""
    if explanation.next_traces is None:
        return {}
    may_go_on = evaluation.continues.copy()  # [K, L]
    may_go_on[:, -1] = False
    is_alive = may_go_on & (explanation.next_traces > 0)
    # Steps that the return at t looks ahead before its trace is zero: 1 + those of t+1 where the trace is alive.
    lengths = np.ones(is_alive.shape)
    for t in range(is_alive.shape[-1] - 2, -1, -1):
        lengths[..., t] += is_alive[..., t] * lengths[..., t + 1]
    return {
        "trace_mean": float(explanation.next_traces[..., may_go_on].mean()) if may_go_on.any() else 0.0,
        "trace_cut_share": float(1 - is_alive[..., may_go_on].mean()) if may_go_on.any() else 0.0,
        "trace_length_mean": float(lengths[..., evaluation.is_transition].mean()),
    }


def describe_relabelled(returns: Floats, is_transition: Booleans, num_relabelled: int) -> Metrics:
    """The share of a cache's transitions [S] with a goal chosen in hindsight, which come first; their mean return."""
    relabelled = returns[:num_relabelled][is_transition[:num_relabelled]]
    if len(relabelled) == 0:
        return {}
    return {
        "relabelled_share": len(relabelled) / int(np.count_nonzero(is_transition)),
        "relabelled_return_mean": float(relabelled.mean()),
    }


def describe_samples(slots: Integers, ages: Integers) -> Metrics:
    """How often drawn slots [n] repeat, and how old they are, in slots of their stream."""
    return {
        "sample_repeated_share": 1 - len(np.unique(slots)) / len(slots),
        "sample_age_mean": float(ages.mean()),
    }
