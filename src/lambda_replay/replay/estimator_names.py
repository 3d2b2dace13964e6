"""Parses an estimator's name, such as ``peng:0.75`` or ``package.module:callable``; errors list the valid forms."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from lambda_replay.config import OBJECT
from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Evaluation, Explanation, Floats
from lambda_replay.replay.dynamic_lambda import Bounded, Median
from lambda_replay.replay.estimators import (
    Estimator,
    ExpectedSarsa,
    NStep,
    Peng,
    QStar,
    Retrace,
    TreeBackup,
    Watkins,
    WatkinsPublished,
    explain,
)

MAX_N = 10_000  # steps: longer than any useful block or episode; ``describe`` plays this many
MAX_K = 100  # steps of λ: the median holds k+1 returns of every row, 130 MB for the paper's cache
MAX_BOUND = float(np.finfo(np.float32).max)
LEGEND = f"λ and ε from 0 to 1, n from 1 to {MAX_N:,}, k even from 2 to {MAX_K}, δ from 0 to {MAX_BOUND:.2g}"
OWN_FORM = "package.module:callable"
_ALIASES = {"peng-median": "median", "peng-bounded": "bounded"}


class Parameters(NamedTuple):
    """The parts after the name in ``name:first/second@epsilon``; None where absent."""

    first: str | None
    second: str | None
    epsilon: str | None


class NamedEstimator(NamedTuple):
    """An estimator's form, how to build it from its parameters, what it computes, and its source."""

    form: str
    build: Callable[[Parameters], Estimator]
    formula: str
    source: str


_GREEDY, _EXPECTED = "V = max Q(s',·)", "V = Σπ Q(s',·)"
_MEDIAN = "at each step the median of the k+1 returns with λ = 0/k, 1/k, …, k/k"
_BOUNDED = "for each block the largest λ found with mean |G_t − Q(s_t,a_t)| ≤ δ, or 0 if there is none"
_CUT = " (with Watkins's cut)"
NAMED: dict[str, NamedEstimator] = {
    "peng": NamedEstimator(
        "peng:λ",
        lambda given: Peng(_fraction(given.first)),
        f"{_GREEDY}, b = V, c = λ",
        "Peng & Williams 1994; paper eq. (3)",
    ),
    "watkins": NamedEstimator(
        "watkins:λ",
        lambda given: Watkins(_fraction(given.first)),
        f"{_GREEDY}, b = V, c = λ·[a' greedy in s']",
        "Watkins 1989; Sutton & Barto 1st ed. §7.6",
    ),
    "watkins-published": NamedEstimator(
        "watkins-published:λ",
        lambda given: WatkinsPublished(_fraction(given.first)),
        f"{_GREEDY}, b = V, c = λ·[a greedy in s]",
        "the paper's released code, one step early; see deviations.md #4",
    ),
    "nstep": NamedEstimator(
        "nstep:n",
        lambda given: NStep(_whole(given.first, 1, MAX_N)),
        "r_t + γ·r_{t+1} + … + γⁿ·max Q(s_{t+n},·)",
        "paper eq. (1)",
    ),
    "median": NamedEstimator("median/k", lambda given: Median(_even(given.second)), _MEDIAN, "paper §3.4"),
    "watkins-median": NamedEstimator(
        "watkins-median/k", lambda given: Median(_even(given.second), "watkins-"), _MEDIAN + _CUT, "paper §3.4"
    ),
    "bounded": NamedEstimator("bounded:δ", lambda given: Bounded(_float(given.first)), _BOUNDED, "paper, appendix C"),
    "watkins-bounded": NamedEstimator(
        "watkins-bounded:δ",
        lambda given: Bounded(_float(given.first), "watkins-"),
        _BOUNDED + _CUT,
        "paper, appendix C",
    ),
    "tree": NamedEstimator(
        "tree:λ@ε",
        lambda given: TreeBackup(_fraction(given.first), _epsilon(given)),
        f"{_EXPECTED}, b = Q(s',a'), c = λ·π(a'|s'); π is ε-greedy",
        "Tree Backup: Precup, Sutton & Singh 2000",
    ),
    "retrace": NamedEstimator(
        "retrace:λ@ε",
        lambda given: Retrace(_fraction(given.first), _epsilon(given)),
        f"{_EXPECTED}, b = Q(s',a'), c = λ·min(1, π(a'|s') / μ(a'|s')); π is ε-greedy",
        "Munos et al. 2016",
    ),
    "qstar": NamedEstimator(
        "qstar:λ",
        lambda given: QStar(_fraction(given.first)),
        f"{_GREEDY}, b = Q(s',a'), c = λ; contracts only for λ < (1−γ)/(2γ)",
        "Q*(λ): Harutyunyan et al. 2016",
    ),
    "sarsa": NamedEstimator(
        "sarsa:λ@ε",
        lambda given: ExpectedSarsa(_fraction(given.first), _epsilon(given)),
        f"{_EXPECTED}, b = V, c = λ; π is ε-greedy",
        "Expected Sarsa(λ): Van Seijen et al. 2009; Sutton & Barto §12.7",
    ),
}


@dataclass(frozen=True, repr=False)
class OwnEstimator:
    """A user's estimator, named by where it is defined."""

    name: str
    function: Estimator

    def __repr__(self) -> str:
        return self.name

    def __call__(self, block: Evaluation) -> Floats:
        return self.function(block)

    def explain(self, block: Evaluation) -> Explanation:
        return explain(self.function, block)


def parse_estimator(spelling: str) -> Estimator:
    """The estimator with a name such as ``peng:0.75``, ``nstep:3``, ``median/10`` or ``retrace:0.9@0.05``.

    ``package.module:callable`` names a user's own: any callable from blocks to returns [K, L].
    """
    if not isinstance(spelling, str):
        raise ConfigError(f"an estimator's name is text such as peng:0.75, not {type(spelling).__name__}.")
    if spelling.startswith(OBJECT):
        return _find_given(spelling)
    if module_of_estimator(spelling) is not None:
        return _import_own(spelling)
    pattern = r"(?P<name>[a-z-]+)(:(?P<first>[^:@/]+))?(/(?P<second>[^:@/]+))?(@(?P<epsilon>[^:@/]+))?"
    match = re.fullmatch(pattern, spelling)
    known = None if match is None else NAMED.get(_ALIASES.get(match["name"], match["name"]))
    if match is None or known is None:
        forms = ", ".join(known.form for known in NAMED.values())
        raise ConfigError(
            f"there is no estimator {spelling!r}; the forms are {forms} ({LEGEND}), or {OWN_FORM} for your own.",
            "estimator",
        )
    given = Parameters(match["first"], match["second"], match["epsilon"])
    is_allowed = (":" in known.form, "/" in known.form, "@" in known.form)
    try:
        if any(part is not None and not allowed for part, allowed in zip(given, is_allowed, strict=True)):
            raise ValueError
        return known.build(given)
    except ValueError:
        raise ConfigError(
            f"the estimator {spelling!r} is misspelt; its form is {known.form}, {LEGEND}.", "estimator"
        ) from None


_GIVEN: ContextVar[Mapping[str, Callable[..., Floats]]] = ContextVar("given estimators", default=MappingProxyType({}))


def name_of_estimator(estimator: Callable[..., object]) -> str:
    """The name with which ``parse_estimator`` finds this estimator again; ``object/NAME`` if there is none."""
    if isinstance(estimator, OwnEstimator):
        return estimator.name
    spelling = repr(estimator)
    if spelling.partition(":")[0].partition("/")[0] in NAMED and parse_estimator(spelling) == estimator:
        return spelling
    name = getattr(estimator, "__qualname__", type(estimator).__qualname__)
    module = getattr(estimator, "__module__", "")
    is_importable = module != "__main__" and getattr(sys.modules.get(module), name, None) is estimator
    if is_importable and module_of_estimator(f"{module}:{name}") is not None:
        return f"{module}:{name}"
    return OBJECT + re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")


@contextmanager
def given_estimator(name: str, estimator: Callable[..., Floats] | None) -> Iterator[None]:
    """Lets ``parse_estimator`` find an estimator that was given as an object under ``name``; None changes nothing."""
    token = _GIVEN.set(_GIVEN.get() if estimator is None else {**_GIVEN.get(), name: estimator})
    try:
        yield
    finally:
        _GIVEN.reset(token)


def _find_given(spelling: str) -> Estimator:
    if spelling not in _GIVEN.get():
        raise ConfigError(
            f"the estimator {spelling} was given as a Python object, which no name can find again; pass it again as "
            "estimator=.",
            "estimator",
        )
    return OwnEstimator(spelling, _GIVEN.get()[spelling])


def module_of_estimator(spelling: str) -> str | None:
    """The module named by a user's own estimator; None for a built-in one."""
    module, colon, name = spelling.partition(":")
    is_own = colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return module if is_own and module not in NAMED else None


def _import_own(spelling: str) -> Estimator:
    module, _, name = spelling.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # finds modules in the working directory, as ``python -m`` does
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            forms = ", ".join(known.form for known in NAMED.values())
            raise ConfigError(
                f"there is no module {module} for the estimator {spelling!r}; the forms are {forms}, or {OWN_FORM} "
                "with a module that Python can find.",
                "estimator",
            ) from None
        raise
    if not callable(function):
        raise ConfigError(
            f"the module {module} has no callable {name} for the estimator {spelling!r}; name another.", "estimator"
        )
    return OwnEstimator(spelling, function)


def _float(text: str | None, highest: float = MAX_BOUND) -> float:
    value = float(text or "")
    if not 0 <= value <= highest:
        raise ValueError
    return value


def _fraction(text: str | None) -> float:
    return _float(text, highest=1)


def _epsilon(given: Parameters) -> float:
    return 0.0 if given.epsilon is None else _fraction(given.epsilon)


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
