"""Numbers that change with the step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearRamp:
    """Linear from ``start`` at step 0 to ``end`` at step ``steps``, then constant."""

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * step / self.steps
