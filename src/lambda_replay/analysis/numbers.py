"""Formats numbers for the report: rounded, with units, in lists."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lambda_replay.analysis.statistics import Estimate, Mean

UNKNOWN = "–"


def decimals_for(largest: float) -> int:
    """Digits after the decimal point that give a number of this size about three figures: 0.91, 5.61, 12.3, 358."""
    return 2 if largest < 1 else max(0, 2 - math.floor(math.log10(largest)))


def fixed(value: float, decimals: int) -> str:
    """1234.5 -> 1,234 or 1,234.5, with a real minus sign, and never −0."""
    if math.isnan(value):
        return UNKNOWN
    text = f"{value:,.{decimals}f}"
    negative = text.startswith("-") and any(digit in text for digit in "123456789")
    return ("−" if negative else "") + text.removeprefix("-")


def signed(value: float, decimals: int) -> str:
    """+1.2 or −1.2."""
    text = fixed(value, decimals)
    return text if text.startswith(("−", UNKNOWN)) else f"+{text}"


def mean_and_error(mean: Mean, decimals: int) -> str:
    """12.3 ± 0.4."""
    error = "" if math.isnan(mean.standard_error) else f" ± {fixed(mean.standard_error, decimals)}"
    return fixed(mean.value, decimals) + error


def interval(estimate: Estimate, decimals: int) -> str:
    """0.88 to 0.97; empty if there is no interval."""
    return f"{fixed(estimate.low, decimals)} to {fixed(estimate.high, decimals)}" if estimate.has_interval else ""


def with_interval(estimate: Estimate, decimals: int) -> str:
    """0.98 (0.94 to 1.04)."""
    between = f" ({interval(estimate, decimals)})" if estimate.has_interval else ""
    return fixed(estimate.value, decimals) + between


def steps(value: float) -> str:
    """400k, 1.25M; infinity is "not reached"."""
    if not math.isfinite(value):
        return UNKNOWN if math.isnan(value) else "not reached"
    if value >= 999_500:
        return f"{value / 1e6:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / 1e3:.0f}k" if value >= 10_000 else f"{value:,.0f}"


def hours(value: float) -> str:
    """41 s, 3.4 min, 12 min, 1.4 h."""
    if not math.isfinite(value):
        return UNKNOWN if math.isnan(value) else "not reached"
    if value < 1 / 60:
        return f"{value * 3600:.0f} s"
    if value < 1:
        return f"{value * 60:.{1 if value * 60 < 9.95 else 0}f} min"
    return f"{value:.1f} h"


def count(total: int, singular: str) -> str:
    """1 run, 2 runs."""
    return f"{total:,} {singular}" + ("" if total == 1 else "s")


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
