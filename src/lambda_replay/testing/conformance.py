"""Runs a function on the cases, and says in words what is wrong with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from lambda_replay.errors import ConfigError
from lambda_replay.testing.cases import Answer, Case, cases, spread_returns
from lambda_replay.testing.stories import SEQUENCE
from lambda_replay.testing.trap import Trap
from lambda_replay.testing.traps import traps, wrong_returns

Function = Callable[[Case], ArrayLike]


class Verdict(NamedTuple):
    """One case, what the function gave for it, and the known mistake in it, if any."""

    case: Case
    given: Answer
    is_right: bool
    mistake: Trap | None = None  # None too where no known mistake gives these numbers


def check(
    function: Function,
    estimator: str,
    *,
    layout: str = SEQUENCE,
    skip: Collection[str] = (),
    dtype: DTypeLike = np.float32,
    tolerance: float = 1e-5,
) -> None:
    """Raise AssertionError if ``function(case)`` is not the estimator's returns in every case.

    The message names the cases that fail, the numbers, and the mistake if it is a known one. ``skip`` names cases that
    a function cannot express; ``tolerance`` is relative for numbers above 1.
    """
    verdicts = examine(function, estimator, layout=layout, skip=skip, dtype=dtype, tolerance=tolerance)
    if not all(verdict.is_right for verdict in verdicts):
        raise AssertionError(_report(verdicts))


def examine(
    function: Function,
    estimator: str,
    *,
    layout: str = SEQUENCE,
    skip: Collection[str] = (),
    dtype: DTypeLike = np.float32,
    tolerance: float = 1e-5,
) -> list[Verdict]:
    """The verdict on every case: what ``check`` knows, as values. Arguments are those of ``check``."""
    if isinstance(skip, str):
        raise ConfigError(f"skip is the text {skip!r}; give a list of names, such as [{skip!r}].")
    asked = cases(estimator, layout=layout, dtype=dtype)
    unknown = set(skip) - {case.name for case in asked}
    if unknown:
        raise ConfigError(
            f"skip names {min(unknown)!r}, which is not a case of {estimator}; "
            f"choose from: {'; '.join(case.name for case in asked)}."
        )
    given = [(case, _call(function, case)) for case in asked if case.name not in skip]
    return _judge(given, tolerance)


def check_returns(case: Case, returns: ArrayLike, *, tolerance: float = 1e-5) -> None:
    """``check`` for a single case whose returns you computed yourself."""
    verdicts = _judge([(case, _as_answer(case, returns))], tolerance)
    if not verdicts[0].is_right:
        raise AssertionError(_report(verdicts))


def _call(function: Function, case: Case) -> Answer:
    arrays = {name: value for name, value in vars(case).items() if isinstance(value, np.ndarray)}
    copies: dict[str, Any] = {name: array.copy() for name, array in arrays.items()}
    handed = replace(case, **copies)
    try:
        given = _as_answer(case, function(handed))
    except Exception as error:
        error.add_note(f'This happened in the case "{case}": {case.about}.')
        raise
    for name, array in arrays.items():
        if not np.array_equal(array, copies[name]):
            raise AssertionError(f'"{case}": the function writes into case.{name}; work on a copy.')
    return given


def _as_answer(case: Case, returns: ArrayLike) -> Answer:
    given = np.asarray(returns, dtype=np.float64)
    if given.shape != case.returns.shape:
        raise AssertionError(
            f'"{case}": the result has shape {given.shape}; one return per step has {case.returns.shape}.'
        )
    return given


def _is_close(given: Answer, wanted: Answer, tolerance: float) -> bool:
    return bool(np.all(np.abs(given - wanted) <= tolerance * np.maximum(1, np.abs(wanted))))


def _judge(given: list[tuple[Case, Answer]], tolerance: float) -> list[Verdict]:
    """Of the mistakes that give the numbers of a wrong case, the one that explains most of all the cases."""
    is_right = [_is_close(answer, case.returns, tolerance) for case, answer in given]
    if all(is_right):
        return [Verdict(case, answer, True) for case, answer in given]
    first = given[0][0]
    agreement = {
        trap: [_is_close(answer, _wrong_returns(trap, case), tolerance) for case, answer in given]
        for trap in traps(first.estimator, first.layout)
    }

    def rank(trap: Trap) -> tuple[bool, int]:
        explains_all = all(agrees or right for agrees, right in zip(agreement[trap], is_right, strict=True))
        return not explains_all, -sum(agreement[trap])

    likeliest_first = sorted(agreement, key=rank)
    verdicts = []
    for index, (case, answer) in enumerate(given):
        mistake = next((trap for trap in likeliest_first if agreement[trap][index]), None)
        verdicts.append(Verdict(case, answer, is_right[index], None if is_right[index] else mistake))
    return verdicts


def _report(verdicts: list[Verdict]) -> str:
    """One sentence if one mistake explains every wrong number; otherwise one for each case."""
    wrong = [verdict for verdict in verdicts if not verdict.is_right]
    head = f"{wrong[0].case.estimator}: {len(wrong)} of {len(verdicts)} cases are wrong."
    mistake = wrong[0].mistake
    if mistake is not None and len(verdicts) > 1 and all(verdict.mistake is mistake for verdict in wrong):
        head = f"{head} This {mistake.sentence}. That explains every wrong number."
        return "\n\n".join([head, *map(_numbers, wrong)])
    return "\n\n".join([head, *(f"{_numbers(verdict)}\n  {_words(verdict.mistake)}" for verdict in wrong)])


def _words(mistake: Trap | None) -> str:
    return "No known mistake gives these numbers." if mistake is None else f"This {mistake.sentence}."


def _wrong_returns(trap: Trap, case: Case) -> Answer:
    return spread_returns(case.story, case.layout, lambda steps: wrong_returns(trap, steps, case.estimator))


def _numbers(verdict: Verdict) -> str:
    case = verdict.case
    return "\n".join(
        [
            f'case "{case.name}" (γ = {case.gamma:g}, {_setting(case)}): {case.about}',
            f"  expected {_in_words(case.returns)}",
            f"  given    {_in_words(verdict.given)}",
        ]
    )


def _setting(case: Case) -> str:
    if case.estimator.endswith("nstep"):
        return f"n = {case.n}"
    if case.estimator.endswith("median"):
        return f"k = {case.k}"
    return f"δ = {case.bound:g}" if case.estimator.endswith("bounded") else f"λ = {case.lambda_:g}"


def _in_words(values: Answer) -> str:
    text = np.array2string(values, separator=", ", formatter={"float_kind": lambda value: f"{value:.7g}"})
    return text.replace("\n", "\n          ")
