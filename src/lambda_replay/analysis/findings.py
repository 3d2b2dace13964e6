"""The facts behind the report's sentences, as plain values; the sentences themselves are in templates/."""

from __future__ import annotations

import json
import math
from typing import Any

from lambda_replay.analysis.pairs import is_enough
from lambda_replay.analysis.records import StudyData
from lambda_replay.analysis.summary import EnvironmentSummary, StudySummary

UNFINISHED = ("running", "waiting", "failed", "diverged")
SAME_EVERYWHERE = ("commit", "versions.", "python", "platform", "processor")  # in the provenance of a study's runs


def unfinished_states(study: StudyData) -> list[str]:
    """How many unfinished runs are in each state: 1 running, 6 waiting."""
    totals = [(sum(run.state == state for run in study.runs), state) for state in UNFINISHED]
    return [f"{total} {state}" for total, state in totals if total]


def missing_arms(summary: StudySummary) -> dict[str, list[str]]:
    """Arms without a finished run yet, with the environments where they have none."""
    lacking = {
        arm: [
            environment.environment
            for environment in summary.environments
            if not len(environment.arm(arm).final_scores) and not environment.arm(arm).is_lost
        ]
        for arm in summary.study.arms
    }
    return {arm: environments for arm, environments in lacking.items() if environments}


def diverged_arms(summary: StudySummary) -> list[str]:
    """Arms with diverged runs."""
    return [arm for arm in summary.study.arms if summary.num_diverged_of(arm)]


def unlearnt_environments(summary: StudySummary) -> list[str]:
    """Environments in which runs have finished, but no arm is clearly above random play."""
    return [env.environment for env in summary.environments if env.best is not None and not env.is_learnt]


def has_enough_runs(summary: StudySummary) -> bool:
    """Whether the intervals over all environments can be trusted."""
    return all(
        is_enough([len(environment.arm(result.arm).final_scores) for environment in summary.learnt])
        for result in summary.aggregates
    )


def num_comparisons(summary: StudySummary) -> int:
    """Comparisons with the baseline that have an interval and may therefore be marked."""
    found = [arm.comparison for environment in summary.environments for arm in environment.arms]
    return sum(comparison is not None and comparison.difference.has_interval for comparison in found)


def differing_provenance(summary: StudySummary) -> list[str]:
    """What differs between runs that should differ only in their settings, such as the commit."""
    known = [run.provenance for environment in summary.environments for run in environment.runs if run.provenance]
    names = dict.fromkeys(name for provenance in known for name in provenance if name.startswith(SAME_EVERYWHERE))
    return [name.removeprefix("versions.") for name in names if len({str(values.get(name)) for values in known}) > 1]


def num_noted(summary: StudySummary) -> int:
    """Runs with notes in their provenance."""
    return sum(bool(run.provenance.get("notes")) for environment in summary.environments for run in environment.runs)


def threshold_meaning(environment: EnvironmentSummary, baseline: str) -> str:
    """What the threshold score is; empty if there is none."""
    if math.isnan(environment.threshold):
        return ""
    is_final = environment.threshold == environment.arm(baseline).final.value
    return f"final score of {baseline}" if is_final else "threshold of the study"


def setting_text(value: Any) -> str:
    """A setting or a provenance entry as one line."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)  # a command, or notes, which are sentences
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
