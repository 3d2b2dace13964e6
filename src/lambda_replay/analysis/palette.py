"""How arms look in every figure: a colour for light and one for dark ground, and a dash pattern; nothing is drawn here.

The hues are Okabe and Ito's (2008), safe for the colour-blind, without their yellow and darkened or lightened where the
contrast with the ground was below 3:1. The baseline has the colour of the text. Dashes tell arms apart without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ArmStyle:
    """Colours as #rrggbb; the dash pattern in pixels on and off, empty for a solid line."""

    index: int  # of the arm in its study
    light: str
    dark: str
    dash: tuple[int, ...]


BASELINE_HUE = ("#3d434b", "#d5dae1")
HUES = (  # light ground, dark ground
    ("#0072b2", "#4aa8e8"),  # blue
    ("#d55e00", "#ff8a3c"),  # vermilion
    ("#009070", "#2fc7a0"),  # bluish green
    ("#b8508a", "#e394c0"),  # reddish purple
    ("#a87800", "#e8b93a"),  # orange
    ("#3b8fc9", "#8fd0f7"),  # sky blue
    ("#7a4fb5", "#b79af0"),  # violet
)
DASHES: tuple[tuple[int, ...], ...] = ((), (8, 3), (2, 3), (10, 3, 2, 3))  # 4 and 7 share no factor: 28 pairs


def arm_styles(arms: Sequence[str], baseline: str) -> dict[str, ArmStyle]:
    """A style for each arm, in the order of the study."""
    others = [arm for arm in arms if arm != baseline]
    hues = {arm: HUES[number % len(HUES)] for number, arm in enumerate(others)}
    dashes = {arm: DASHES[number % len(DASHES)] for number, arm in enumerate(others)}
    return {
        arm: ArmStyle(index, *hues.get(arm, BASELINE_HUE), dash=dashes.get(arm, ())) for index, arm in enumerate(arms)
    }
