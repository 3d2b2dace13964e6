"""Numbers and times as people read them."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Four digits; a dash where there is none yet."""
    return "–" if value is None else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Seconds for people: 3 h 20 min."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
