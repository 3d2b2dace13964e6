"""Small pictures that stand in a line of text or a table's cell, as inline SVG; the charts are drawn by report.js.

Positions are percentages, so a picture takes the width that its cell has.
"""

from __future__ import annotations

import math

import numpy as np

from lambda_replay.analysis.palette import ArmStyle
from lambda_replay.analysis.statistics import Estimate
from lambda_replay.replay.data import Floats

Domain = tuple[float, float]  # the values at the left and at the right edge


def swatch(style: ArmStyle) -> str:
    """A piece of the arm's line."""
    dash = " ".join(map(str, style.dash))
    pattern = f' stroke-dasharray="{dash}"' if dash else ""
    line = f'<line x1="1" y1="5" x2="27" y2="5" stroke="var(--arm-{style.index})" stroke-width="2.5"{pattern}/>'
    return f'<svg class="swatch" width="28" height="10" aria-hidden="true">{line}</svg>'


def interval_bar(estimate: Estimate, style: ArmStyle, domain: Domain, reference: float | None = None) -> str:
    """A dot with its interval, and a thin upright line at a reference value."""
    colour = f"var(--arm-{style.index})"
    parts = [_rail()]
    if reference is not None:
        parts.append(_upright(reference, domain, "reference"))
    if estimate.has_interval:
        ends = f'x1="{_percent(estimate.low, domain)}" x2="{_percent(estimate.high, domain)}"'
        parts.append(f'<line {ends} y1="50%" y2="50%" stroke="{colour}" class="interval"/>')
    parts.append(f'<circle cx="{_percent(estimate.value, domain)}" cy="50%" r="4.5" fill="{colour}"/>')
    return _picture(parts)


def run_strip(scores: Floats, style: ArmStyle, domain: Domain) -> str:
    """Every run a dot, their mean an upright line."""
    colour = f"var(--arm-{style.index})"
    dots = [
        f'<circle cx="{_percent(float(score), domain)}" cy="50%" r="3.5" fill="{colour}" class="run"/>'
        for score in np.sort(scores)
    ]
    mean = [_upright(float(np.mean(scores)), domain, "mean")] if len(scores) else []
    return _picture([_rail(), *dots, *mean])


def scale(values: tuple[float, ...], domain: Domain) -> str:
    """Numbers under a column of pictures."""
    texts = [f'<text x="{_percent(value, domain)}" y="12" text-anchor="middle">{value:g}</text>' for value in values]
    return _picture(texts)


def padded(values: Floats) -> Domain:
    """The range of the values and a little more, so that no dot is cut off; NaN is left out."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return (0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    margin = 0.06 * (high - low) or 1.0
    return (low - margin, high + margin)


def _rail() -> str:
    return '<line x1="0" x2="100%" y1="50%" y2="50%" class="rail"/>'


def _upright(value: float, domain: Domain, kind: str) -> str:
    position = _percent(value, domain)
    return f'<line x1="{position}" x2="{position}" y1="10%" y2="90%" class="{kind}"/>'


def _percent(value: float, domain: Domain) -> str:
    low, high = domain
    assert not math.isnan(value)
    return f"{100 * (value - low) / (high - low):.2f}%"


def _picture(parts: list[str]) -> str:
    return f'<svg class="small" width="100%" height="18" aria-hidden="true">{"".join(parts)}</svg>'
