"""Diverged runs in words: how many of which arm, and what its numbers are then worth; other words are in wording.py."""

from __future__ import annotations

from html import escape

from lambda_replay.analysis.summary import ArmSummary, StudySummary
from lambda_replay.analysis.wording import bold, count, listed

METHOD = (
    "Diverged runs",
    "A run is stopped when its loss, its Q-values or its weights are no longer finite. It has no final score, so the "
    "mean of its arm is that of the runs that went well. Read the two together: the mean and the number of diverged "
    "runs.",
)


def study_sentence(summary: StudySummary) -> str:
    """That training diverged in some runs, and what became of them; empty when it did in none."""
    if not summary.num_diverged:
        return ""
    what = f"Training diverged in {summary.num_diverged} of {count(len(summary.study.runs), 'run')}"
    return f"{what}: their values were no longer finite, so they were stopped and are in no score, curve or comparison."


def arm_items(summary: StudySummary) -> list[str]:
    """For each arm with diverged runs: how many, where, and what its numbers are worth."""
    return [_arm_item(summary, arm) for arm in summary.study.arms if summary.num_diverged_of(arm)]


def _arm_item(summary: StudySummary, arm: str) -> str:
    hit = [environment for environment in summary.environments if environment.arm(arm).num_diverged]
    lost = summary.lost(arm)
    places = [f"{share(env.arm(arm))} in {escape(env.environment)}" for env in hit]
    sentences = [f"{bold(arm)}: {listed(places)} diverged."]
    if len(lost) < len(hit):
        sentences.append("Its numbers are of the surviving runs only, which flatters it.")
    if lost:
        where = listed(list(map(escape, lost)))
        compared = ", and as it is the baseline, nothing is compared with it there"
        sentences.append(f"It has no score in {where}{compared if arm == summary.study.baseline else ''}.")
    return " ".join(sentences)


def share(arm: ArmSummary) -> str:
    """How many of the arm's runs diverged: 2 of 3 runs, all 3 runs, the only run."""
    total = len(arm.runs)
    if arm.is_lost:
        return "the only run" if total == 1 else f"all {total} runs"
    return f"{arm.num_diverged} of {count(total, 'run')}"


def note(arm: ArmSummary) -> str:
    """2 of 3 runs diverged; empty when none did."""
    return f"{share(arm)} diverged" if arm.num_diverged else ""


def aggregate_sentence(summary: StudySummary) -> str:
    """Whose numbers over all environments are of the surviving runs only; empty when all runs survived."""
    hit = [result.arm for result in summary.aggregates if summary.num_diverged_of(result.arm)]
    if not hit:
        return ""
    names = [f"{bold(arm)} ({summary.num_diverged_of(arm)} diverged)" for arm in hit]
    return f"Of the surviving runs only, and therefore flattered: {listed(names)}."
