"""What a trap is, and the groups of estimators that can fall into one."""

from __future__ import annotations

from typing import NamedTuple

from lambda_replay.testing.exact import CHOICES, RULES
from lambda_replay.testing.mistakes import Wrong
from lambda_replay.testing.stories import LAYOUTS

ALL = frozenset(RULES)
NSTEP = frozenset(name for name in RULES if name.endswith("nstep"))
CHOOSING = frozenset(CHOICES)
LAMBDA = ALL - NSTEP
ACTORS = frozenset({"soft", "soft-nstep", "twin", "twin-return"})
SOFT = frozenset({"soft", "soft-nstep"})
EXPECTED = frozenset({"sarsa", "tree", "retrace"})
CORRECTED = frozenset({"tree", "retrace", "qstar"})
PENG = frozenset({"peng", "median", "bounded"})
WATKINS = frozenset({"watkins", "watkins-median", "watkins-bounded"})
MEDIAN = frozenset({"median", "watkins-median"})
BOUNDED = frozenset({"bounded", "watkins-bounded"})


class Trap(NamedTuple):
    """A known mistake: its name, what a function that makes it does, and the returns it gives."""

    name: str
    sentence: str  # goes on after "this "
    estimators: frozenset[str]
    wrong: Wrong
    layouts: tuple[str, ...] = LAYOUTS  # where it can be made
