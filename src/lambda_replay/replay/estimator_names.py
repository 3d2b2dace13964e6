"""How estimators are written in one word, and what is said to a word that is none; what they do is elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lambda_replay.errors import ConfigError
from lambda_replay.replay.estimators import (
    Bounded,
    Estimator,
    ExpectedSarsa,
    Median,
    NStep,
    Peng,
    QStar,
    Retrace,
    TreeBackup,
    Watkins,
    WatkinsPublished,
)


class Spelling(NamedTuple):
    """How an estimator is written, and how the parts of what was written become it."""

    form: str
    kind: type
    build: Callable[[re.Match[str]], Estimator]


MAX_N = 10_000  # steps: longer than any block or episode of use; ``describe`` plays so many
MAX_K = 100  # steps of λ: the median holds k+1 returns of every row, 130 MB for the paper's cache
MAX_BOUND = float(np.finfo(np.float32).max)
LEGEND = f"λ and ε from 0 to 1, n from 1 to {MAX_N:,}, k even from 2 to {MAX_K}, δ from 0 to {MAX_BOUND:.2g}"
_ALIASES = {"peng-median": "median", "peng-bounded": "bounded"}
SPELLINGS: dict[str, Spelling] = {
    "peng": Spelling("peng:λ", Peng, lambda m: Peng(_fraction(m["value"]))),
    "watkins": Spelling("watkins:λ", Watkins, lambda m: Watkins(_fraction(m["value"]))),
    "watkins-published": Spelling(
        "watkins-published:λ", WatkinsPublished, lambda m: WatkinsPublished(_fraction(m["value"]))
    ),
    "nstep": Spelling("nstep:n", NStep, lambda m: NStep(_whole(m["value"], 1, MAX_N))),
    "median": Spelling("median/k", Median, lambda m: Median(_even(m["k"]))),
    "watkins-median": Spelling("watkins-median/k", Median, lambda m: Median(_even(m["k"]), "watkins-")),
    "bounded": Spelling("bounded:δ", Bounded, lambda m: Bounded(_float(m["value"]))),
    "watkins-bounded": Spelling("watkins-bounded:δ", Bounded, lambda m: Bounded(_float(m["value"]), "watkins-")),
    "tree": Spelling("tree:λ@ε", TreeBackup, lambda m: TreeBackup(_fraction(m["value"]), _epsilon(m))),
    "retrace": Spelling("retrace:λ@ε", Retrace, lambda m: Retrace(_fraction(m["value"]), _epsilon(m))),
    "qstar": Spelling("qstar:λ", QStar, lambda m: QStar(_fraction(m["value"]))),
    "sarsa": Spelling("sarsa:λ@ε", ExpectedSarsa, lambda m: ExpectedSarsa(_fraction(m["value"]), _epsilon(m))),
}


def parse_estimator(spelling: str) -> Estimator:
    """The estimator of a spelling such as ``peng:0.75``, ``nstep:3``, ``median/10`` or ``retrace:0.9@0.05``."""
    match = re.fullmatch(r"(?P<name>[a-z-]+)(/(?P<k>[^:@/]+))?(:(?P<value>[^:@/]+))?(@(?P<epsilon>[^:@/]+))?", spelling)
    known = None if match is None else SPELLINGS.get(_ALIASES.get(match["name"], match["name"]))
    if match is None or known is None:
        forms = ", ".join(known.form for known in SPELLINGS.values())
        raise ConfigError(f"there is no estimator {spelling!r}; the forms are {forms} ({LEGEND}).")
    is_allowed = {"k": "/k" in known.form, "value": ":" in known.form, "epsilon": "@" in known.form}
    try:
        if any(match[part] is not None and not is_allowed[part] for part in is_allowed):
            raise ValueError
        return known.build(match)
    except ValueError:
        raise ConfigError(f"the estimator {spelling!r} is misspelt; its form is {known.form}, {LEGEND}.") from None


def _float(text: str | None, highest: float = MAX_BOUND) -> float:
    value = float(text or "")
    if not 0 <= value <= highest:
        raise ValueError
    return value


def _fraction(text: str | None) -> float:
    return _float(text, highest=1)


def _epsilon(match: re.Match[str]) -> float:
    return 0.0 if match["epsilon"] is None else _fraction(match["epsilon"])


def _whole(text: str | None, lowest: int, highest: int) -> int:
    value = int(text or "")
    if not lowest <= value <= highest:
        raise ValueError
    return value


def _even(text: str | None) -> int:
    k = 20 if text is None else _whole(text, 2, MAX_K)
    if k % 2:
        raise ValueError
    return k
