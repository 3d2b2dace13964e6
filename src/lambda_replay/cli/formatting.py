"""Formats numbers and durations for people."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Four digits; a dash if there is no value yet."""
    return "–" if value is None else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """A duration such as 3 h 20 min."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
