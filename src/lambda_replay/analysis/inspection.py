"""Draws one block of a refresh, to show why two estimators give different returns for the same steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambda_replay.analysis.files import write_shared
from lambda_replay.analysis.palette import arm_styles
from lambda_replay.analysis.plots import render
from lambda_replay.replay.data import Block, Evaluation, Explanation, Floats
from lambda_replay.replay.estimators import Estimator, explain

PANELS = ("rewards", "Q-values", "returns", "λ and traces")
HEIGHTS = (1.0, 1.6, 2.4, 1.3)


def draw_block(block: Evaluation, estimators: Sequence[Estimator], out_png: Path, title: str) -> Path:
    """Draw the first block of ``block`` along time: rewards, Q-values, each estimator's returns, its λ or trace."""
    explanations = {repr(estimator): explain(estimator, block) for estimator in estimators}

    def draw(figure: Any) -> None:
        all_axes = figure.subplots(4, 1, sharex=True, height_ratios=HEIGHTS)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        for axes, label in zip(all_axes, PANELS, strict=True):
            axes.set_ylabel(label)
            _mark_ends(axes, block)
        _draw_rewards(all_axes[0], block)
        _draw_q_values(all_axes[1], block)
        _draw_explanations(all_axes[2], all_axes[3], block, explanations)
        of_actions = "; dots: the action was not greedy" if isinstance(block, Block) else ""
        all_axes[-1].set_xlabel(f"step of the block (dotted line: the episode ends{of_actions})")

    return write_shared(out_png, render(draw, (10.0, 9.0), ["png"])["png"])


def _mark_ends(axes: Any, block: Evaluation) -> None:
    for step in np.flatnonzero(~block.continues[0] & block.is_transition[0]):
        if step < block.rewards.shape[1] - 1:
            axes.axvline(step + 0.5, color="#8b939c", linestyle=":", linewidth=1.2)


def _draw_rewards(axes: Any, block: Evaluation) -> None:
    rewards = np.where(block.is_transition[0], block.rewards[0], np.nan)  # [L]
    axes.bar(np.arange(len(rewards)), rewards, width=0.8, color="#3d434b")
    axes.axhline(0, color="#8b939c", linewidth=0.8)


def _draw_q_values(axes: Any, block: Evaluation) -> None:
    steps = np.arange(block.rewards.shape[1])
    if isinstance(block, Block):  # a row of Q-values per state
        greedy = _where_transition(block, block.greedy_values[0, :-1])
        lowest = _where_transition(block, block.q_values[0, :-1].min(axis=-1))
        axes.fill_between(steps, lowest, greedy, color="#e3e6ea", label="all actions")
        axes.plot(steps, greedy, color="#4aa8e8", linewidth=3.5, label="max Q(s, ·)")
        explored = np.flatnonzero(~block.is_greedy[0, :-1] & block.is_transition[0])
        at_the_bottom = axes.get_xaxis_transform()  # x in steps, y as a fraction of the panel
        axes.plot(explored, np.full(len(explored), 0.04), "o", color="#d55e00", markersize=3, transform=at_the_bottom)
    taken = _where_transition(block, _first(block.action_values)[:-1])
    axes.plot(steps, taken, color="#3d434b", label="Q(s, a) taken")
    _put_legend(axes)


def _put_legend(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8.5, handlelength=2.6)


def _draw_explanations(
    returns_axes: Any, trace_axes: Any, block: Evaluation, explanations: dict[str, Explanation]
) -> None:
    steps = np.arange(block.rewards.shape[1])
    styles = arm_styles(["Q(s, a)", *explanations], baseline="Q(s, a)")
    taken = _where_transition(block, _first(block.action_values)[:-1])
    returns_axes.plot(steps, taken, color=styles["Q(s, a)"].light, label="Q(s, a)")
    for name, explanation in explanations.items():
        style: dict[str, Any] = {
            "color": styles[name].light,
            "linestyle": (0, styles[name].dash or (1, 0)),
            "label": name,
        }
        returns = _where_transition(block, _first(explanation.returns, np.min))
        returns_axes.plot(steps, returns, **{**style, "linewidth": 1.5})
        shown = explanation.next_traces if explanation.lambdas is None else explanation.lambdas
        if shown is not None:
            row = _where_transition(block, _first(np.broadcast_to(shown, explanation.returns.shape)))
            trace_axes.step(steps, row, where="mid", **{**style, "linewidth": 1.3})
    _put_legend(returns_axes)
    trace_axes.set_ylim(-0.05, 1.05)


def _first(values: Floats, join: Callable[..., Floats] = np.mean) -> Floats:
    """The first block of values [..., K, L], with several critics joined as in the cache: their smallest return."""
    return join(values, axis=tuple(range(values.ndim - 2)))[0]


def _where_transition(block: Evaluation, values: Floats) -> Floats:
    """The values with a gap where a slot has no action."""
    return np.where(block.is_transition[0], values, np.nan)
