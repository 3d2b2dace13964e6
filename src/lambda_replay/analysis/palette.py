"""The look of arms in every figure: a colour for light backgrounds, one for dark backgrounds, and a dash pattern.

The hues started as Okabe and Ito's (2008) and were moved by search until any two are well apart (ΔE above 20) for
normal, protan, deutan and tritan vision, with a contrast of at least 3:1 to the background; a test checks this.
The baseline has the colour of the text. Dashes distinguish arms without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ArmStyle:
    """Colours as #rrggbb; the dash pattern in pixels on and off, empty for a solid line."""

    index: int  # of the arm in the study
    light: str
    dark: str
    dash: tuple[int, ...]


BASELINE_HUE = ("#3d434b", "#d5dae1")
HUES = (  # light background, dark background
    ("#2c4ca1", "#5288ee"),  # blue
    ("#e56908", "#cb830e"),  # orange
    ("#107e4b", "#5afeb7"),  # green
    ("#c0779d", "#f66b9a"),  # reddish purple
    ("#735201", "#edcc76"),  # brown, sand
    ("#3b9ae1", "#78c6ff"),  # sky blue
)
DASHES: tuple[tuple[int, ...], ...] = ((), (8, 3), (2, 3), (10, 3, 2, 3), (12, 3, 2, 3, 2, 3))  # 5 × 6 hues: 30 pairs


def arm_styles(arms: Sequence[str], baseline: str) -> dict[str, ArmStyle]:
    """A style for each arm, in the order of the study."""
    others = [arm for arm in arms if arm != baseline]
    hues = {arm: HUES[number % len(HUES)] for number, arm in enumerate(others)}
    dashes = {arm: DASHES[number % len(DASHES)] for number, arm in enumerate(others)}
    return {
        arm: ArmStyle(index, *hues.get(arm, BASELINE_HUE), dash=dashes.get(arm, ())) for index, arm in enumerate(arms)
    }
