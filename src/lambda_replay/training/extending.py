"""Lets a run, finished or not, go on for longer than planned, from its newest checkpoint.

The result is that of a run that was planned so long, to the byte, if no schedule depends on ``steps``. One that does
(``cache.priority``, ``optimizer.final_learning_rate``) follows the new plan from that checkpoint on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import TypedDict  # pydantic reads this one before Python 3.12

from lambda_replay.agents.run_settings import to_dict
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.rundir.checkpoints import change_config, read_state, remove_checkpoint, saved_steps
from lambda_replay.rundir.directory import (
    WEIGHTS,
    amend_provenance,
    is_finished,
    read_metrics,
    read_provenance,
    replace_config,
)
from lambda_replay.rundir.files import has_type

LENGTH_SETTINGS = ("steps", "stop_at_score")
EXTENDS_TO = "extends_to"  # in the provenance while an extension is written down: a crash cannot leave half of one


class Lengths(TypedDict):
    """What the provenance holds under EXTENDS_TO."""

    steps: int
    stop_at_score: float | None


class Extension(NamedTuple):
    """How long a run lasts from now on; None: as before."""

    steps: int | None = None
    stop_at_score: float | None = None


AS_PLANNED = Extension()


def find_extension(path: Path, recorded: RunConfig, wanted: Extension) -> RunConfig | None:
    """The config of the longer run, also if an earlier extension was interrupted; None if nothing changes."""
    pending = _pending(path)
    steps = pending.get("steps", recorded.steps) if wanted.steps is None else wanted.steps
    score = wanted.stop_at_score
    score = pending.get("stop_at_score", recorded.stop_at_score) if score is None else score
    if steps < recorded.steps:
        raise ConfigError(
            f"steps is {steps:,}, but {path} was planned for {recorded.steps:,}; give more, or leave it out.", "steps"
        )
    extended = replace(recorded, steps=steps, stop_at_score=score)
    if extended == recorded and not pending:
        return None
    _refuse_reached_score(path, extended)
    return extended


def _pending(path: Path) -> dict[str, Any]:
    try:
        found: Any = read_provenance(path).get(EXTENDS_TO)
    except DamageError:
        return {}
    return found if has_type(found, Lengths) else {}


def _refuse_reached_score(path: Path, extended: RunConfig) -> None:
    """A finished run that has the score at which it is to stop would stop at the same step again."""
    if extended.stop_at_score is None or not is_finished(path):
        return
    try:
        score = read_metrics(path)[-1]["score_mean_100"]
    except (OSError, ValueError, KeyError, IndexError):  # a damaged log, which does not end a run
        return
    if score is not None and score >= extended.stop_at_score:
        raise ConfigError(
            f"{path} has a score of {score:.4g} and stops at {extended.stop_at_score:g}; give a higher stop_at_score.",
            "stop_at_score",
        )


def extend_run(path: Path, recorded: RunConfig, extended: RunConfig, at: int) -> None:
    """Write down that a run goes on: it is no longer finished, and its config and checkpoints have the new length.

    The provenance says so from the first to the last of these writes; if they are interrupted, the next resume does
    the rest. ``at`` is the step from which it goes on.
    """
    lengths = {name: getattr(extended, name) for name in LENGTH_SETTINGS}
    changed = [name for name in LENGTH_SETTINGS if getattr(recorded, name) != getattr(extended, name)]
    notes = [
        f"extended at step {at}: {name} {getattr(extended, name)} instead of {getattr(recorded, name)}"
        for name in changed
    ]
    amend_provenance(path, recorded, notes, **{EXTENDS_TO: lengths})
    (path / WEIGHTS).unlink(missing_ok=True)
    for step in saved_steps(path):
        try:
            change_config(path, read_state(path, step), extended)
        except DamageError:
            remove_checkpoint(path, step)  # an older one that nobody can use
    replace_config(path, extended)
    amend_provenance(path, extended, **{EXTENDS_TO: None, "config": to_dict(extended)})
