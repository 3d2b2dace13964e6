"""Runs a function on the cases, and says in words what is wrong with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from lambda_replay.errors import ConfigError
from lambda_replay.testing.cases import RING, SEQUENCE, Answer, Case, cases, spread_returns
from lambda_replay.testing.traps import Trap, traps, wrong_returns

Function = Callable[[Case], ArrayLike]


class _Run(NamedTuple):
    """One case, what the function gave for it, and whether that is right."""

    case: Case
    given: Answer
    is_right: bool


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
    asked = cases(estimator, layout=layout, dtype=dtype)
    unknown = set(skip) - {case.name for case in asked}
    if unknown:
        raise ConfigError(
            f"skip names {min(unknown)!r}, which is not a case of {estimator}; "
            f"choose from: {'; '.join(case.name for case in asked)}."
        )
    runs = [_run(function, case, tolerance) for case in asked if case.name not in skip]
    if not all(run.is_right for run in runs):
        raise AssertionError(_report(runs, tolerance))


def check_returns(case: Case, returns: ArrayLike, *, tolerance: float = 1e-5) -> None:
    """``check`` for a single case whose returns you computed yourself."""
    given = _as_answer(case, returns)
    if not _is_close(given, case.returns, tolerance):
        raise AssertionError(_report([_Run(case, given, False)], tolerance))


def _run(function: Function, case: Case, tolerance: float) -> _Run:
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
    return _Run(case, given, _is_close(given, case.returns, tolerance))


def _as_answer(case: Case, returns: ArrayLike) -> Answer:
    given = np.asarray(returns, dtype=np.float64)
    if given.shape != case.returns.shape:
        raise AssertionError(
            f'"{case}": the result has shape {given.shape}; one return per step has {case.returns.shape}.'
        )
    return given


def _is_close(given: Answer, wanted: Answer, tolerance: float) -> bool:
    return bool(np.all(np.abs(given - wanted) <= tolerance * np.maximum(1, np.abs(wanted))))


def _report(runs: list[_Run], tolerance: float) -> str:
    """One mistake if it explains every wrong number; otherwise the mistake of each case."""
    failed = [run for run in runs if not run.is_right]
    case = runs[0].case
    known = traps(case.estimator, on_ring=case.layout == RING)
    agreement = {
        trap: [_is_close(run.given, _wrong_returns(trap, run.case), tolerance) for run in runs] for trap in known
    }
    likeliest_first = sorted(known, key=lambda trap: -sum(agreement[trap]))
    head = f"{case.estimator}: {len(failed)} of {len(runs)} cases are wrong."
    for trap in likeliest_first:
        if len(runs) > 1 and all(agrees or run.is_right for agrees, run in zip(agreement[trap], runs, strict=True)):
            return "\n\n".join(
                [f"{head} This {trap.sentence}. That explains every wrong number.", *map(_numbers, failed)]
            )
    details = []
    for index, run in enumerate(runs):
        if not run.is_right:
            culprit = next((trap for trap in likeliest_first if agreement[trap][index]), None)
            words = "No known mistake gives these numbers." if culprit is None else f"This {culprit.sentence}."
            details.append(f"{_numbers(run)}\n  {words}")
    return "\n\n".join([head, *details])


def _wrong_returns(trap: Trap, case: Case) -> Answer:
    return spread_returns(case, wrong_returns(trap, case.story.steps, case.estimator))


def _numbers(run: _Run) -> str:
    case = run.case
    knob = f"n = {case.n}" if case.estimator.endswith("nstep") else f"λ = {case.lambda_:g}"
    return "\n".join(
        [
            f'case "{case.name}" (γ = {case.gamma:g}, {knob}): {case.about}',
            f"  expected {_in_words(case.returns)}",
            f"  given    {_in_words(run.given)}",
        ]
    )


def _in_words(values: Answer) -> str:
    text = np.array2string(values, separator=", ", formatter={"float_kind": lambda value: f"{value:.7g}"})
    return text.replace("\n", "\n          ")
