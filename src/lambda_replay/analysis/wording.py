"""Numbers and results in words: formats, verdicts and the sentences of a report; where they stand is decided elsewhere.

Sentences are HTML only in so far as names are escaped and bold.
"""

from __future__ import annotations

import math
from html import escape
from typing import Literal

import numpy as np

from lambda_replay.analysis.pairs import ENOUGH_PER_ENVIRONMENT, ENOUGH_RUNS, is_enough
from lambda_replay.analysis.scores import THRESHOLD_EPISODES, WINDOW
from lambda_replay.analysis.statistics import LEVEL, RESAMPLES, Estimate, MedianTime
from lambda_replay.analysis.summary import ArmSummary, EnvironmentSummary, Mean, StudySummary

Verdict = Literal["above", "below", "unclear", "unknown"]
UNKNOWN = "–"
ENOUGH = f"{ENOUGH_RUNS} runs of each arm, and {ENOUGH_PER_ENVIRONMENT} in each environment"
SAME_EVERYWHERE = ("commit", "versions.", "python", "platform", "processor")  # in the provenance of a study's runs


def decimals_for(largest: float) -> int:
    """Digits after the point that give a number of this size about three figures: 0.91, 5.61, 12.3, 358."""
    return 2 if largest < 1 else max(0, 2 - math.floor(math.log10(largest)))


def decimals_of(environment: EnvironmentSummary) -> int:
    """The same digits for all scores of an environment."""
    heights = np.abs([arm.curves["steps"].mean for arm in environment.arms])  # [arms, G]
    return decimals_for(float(np.max(heights, initial=0.0, where=~np.isnan(heights))))


def number(value: float, decimals: int) -> str:
    """1234.5 -> 1,234 or 1,234.5, with a real minus sign, and never −0."""
    if math.isnan(value):
        return UNKNOWN
    text = f"{value:,.{decimals}f}"
    negative = text.startswith("-") and any(digit in text for digit in "123456789")
    return ("−" if negative else "") + text.removeprefix("-")


def signed(value: float, decimals: int) -> str:
    """+1.2 or −1.2."""
    text = number(value, decimals)
    return text if text.startswith(("−", UNKNOWN)) else f"+{text}"


def mean_and_error(mean: Mean, decimals: int) -> str:
    """12.3 ± 0.4."""
    error = "" if math.isnan(mean.standard_error) else f" ± {number(mean.standard_error, decimals)}"
    return number(mean.value, decimals) + error


def interval(estimate: Estimate, decimals: int) -> str:
    """0.88 to 0.97; empty when there is none."""
    return f"{number(estimate.low, decimals)} to {number(estimate.high, decimals)}" if estimate.has_interval else ""


def steps(value: float) -> str:
    """400k, 1.25M; infinite is not reached."""
    if not math.isfinite(value):
        return UNKNOWN if math.isnan(value) else "not reached"
    if value >= 999_500:
        return f"{value / 1e6:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / 1e3:.0f}k" if value >= 10_000 else f"{value:,.0f}"


def hours(value: float) -> str:
    """41 s, 3.4 min, 12 min, 1.4 h."""
    if not math.isfinite(value):
        return UNKNOWN if math.isnan(value) else "not reached"
    if value < 1 / 60:
        return f"{value * 3600:.0f} s"
    if value < 1:
        return f"{value * 60:.{1 if value * 60 < 9.95 else 0}f} min"
    return f"{value:.1f} h"


def count(total: int, singular: str) -> str:
    """1 run, 2 runs."""
    return f"{total:,} {singular}" + ("" if total == 1 else "s")


def listed(names: list[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def bold(name: str) -> str:
    return f"<b>{escape(name)}</b>"


def share(time: MedianTime) -> str:
    """How many runs a median time rests on."""
    return f"{time.reached} of {count(time.total, 'run')}" if time.total else ""


def verdict(estimate: Estimate, draw: float) -> Verdict:
    """What a 95% interval allows to say, of a difference (a draw is 0) or of a probability (0.5)."""
    if not estimate.has_interval:
        return "unknown"
    if estimate.low > draw:
        return "above"
    return "below" if estimate.high < draw else "unclear"


def state_sentences(summary: StudySummary) -> list[str]:
    """How much of the study is in, and what is not there yet; a finished study needs one short sentence."""
    study, total = summary.study, len(summary.study.runs)
    if summary.num_finished == total:
        return [f"All {total} runs have finished." if total > 1 else "The run has finished."]
    kinds = ("running", "waiting", "failed", "diverged")
    states = [(state, sum(run.state == state for run in study.runs)) for state in kinds]
    others = ", ".join(f"{number_of} {state}" for state, number_of in states if number_of)
    sentences = [f"{summary.num_finished} of {count(total, 'run')} have finished ({others})."]
    if summary.num_finished and not summary.is_complete:
        rest = "the others, but for the diverged ones," if summary.num_diverged else "the others"
        sentences.append(
            f"Scores are of the finished runs; curves, and steps and time to a score, also count {rest} as far as "
            "they have got."
        )
    missing = missing_arms(summary)
    if missing:
        sentences.append(f"No finished run yet: {'; '.join(missing)}.")
    return sentences


def missing_arms(summary: StudySummary) -> list[str]:
    """Arms without a finished run that may still get one, with the environments where they lack it."""
    lacking = {
        arm: [
            env.environment
            for env in summary.environments
            if not len(env.arm(arm).final_scores) and not env.arm(arm).is_lost
        ]
        for arm in summary.study.arms
    }
    everywhere = len(summary.environments)
    return [
        bold(arm) + ("" if len(environments) == everywhere else f" in {listed(list(map(escape, environments)))}")
        for arm, environments in lacking.items()
        if environments
    ]


def overall_sentences(summary: StudySummary) -> list[str]:
    """Which arm is best over all environments, by how much and how surely."""
    if summary.num_finished and not summary.learnt:
        return ["No arm scores clearly above random play anywhere so far, so there is nothing to compare overall."]
    if len(summary.aggregates) < 2:
        who = f"Only {bold(summary.aggregates[0].arm)}" if summary.aggregates else "No arm"
        return [f"{who} has a finished run in every environment, so there is no overall comparison."]
    best, *others = summary.aggregates
    ready = f"Of the {len(summary.aggregates)} arms with finished runs in every environment, "
    scope = "" if len(summary.aggregates) == len(summary.study.arms) else ready
    lead = (
        f"{scope}{bold(best.arm)} scores highest overall: interquartile mean {_with_interval(best.interquartile_mean)}"
    )
    baseline = next((other for other in others if other.arm == summary.study.baseline), None)
    if best.arm == summary.study.baseline:
        lead += "; it is the baseline, and no other arm has a higher one"
    elif lost := summary.lost(summary.study.baseline):
        where = listed(list(map(escape, lost)))
        lead += f"; every run of the baseline {bold(summary.study.baseline)} in {where} diverged, so it is not compared"
    elif baseline is not None:
        lead += f"; the baseline {bold(baseline.arm)} has {_with_range(baseline.interquartile_mean)}"
    sentences = [lead + "."]
    if diverged := summary.num_diverged_of(best.arm):
        verb = "is" if diverged == 1 else "are"
        sentences.append(f"{count(diverged, 'run')} of {bold(best.arm)} diverged and {verb} not counted.")
    if best.probability is not None and best.probability.has_interval:
        chance = _with_range(best.probability)
        sentences.append(f"A run of {bold(best.arm)} beats a run of the baseline with probability {chance}.")
    if others[0].arm != summary.study.baseline:
        sentences.append(_runner_up(best.interquartile_mean, others[0].arm, others[0].interquartile_mean))
    if best.interquartile_mean.has_interval and not _has_enough_runs(summary):
        sentences.append(f"These intervals are too narrow: they need {ENOUGH}.")
    return sentences


def chance_sentence(summary: StudySummary) -> str:
    """How many of the signs would be there by chance."""
    found = [arm.comparison for environment in summary.environments for arm in environment.arms]
    comparisons = sum(comparison is not None and comparison.difference.has_interval for comparison in found)
    return expected_by_chance(comparisons, "comparison") if comparisons else ""


def pair_marks(pairs: int, *, is_marked: bool) -> str:
    """What the signs in the table of pairs mean, or why there are none."""
    if not is_marked:
        return f"Nothing is marked: these intervals are too narrow, they need {ENOUGH}."
    return f"▲ and ▼: it lies wholly above or below 0.5. {expected_by_chance(pairs, 'pair')}"


def unlearnt_sentence(summary: StudySummary) -> str:
    """Which environments the numbers over all of them leave out; empty when none."""
    absent = [env.environment for env in summary.environments if env.best is not None and not env.is_learnt]
    if not absent:
        return ""
    return f"Left out, since no arm scores clearly above random play there: {listed([bold(name) for name in absent])}."


def provenance_sentences(summary: StudySummary) -> list[str]:
    """What sets runs apart that should differ in their settings alone; empty when nothing does."""
    known = [run.provenance for env in summary.environments for arm in env.arms for run in arm.runs if run.provenance]
    names = dict.fromkeys(name for provenance in known for name in provenance if name.startswith(SAME_EVERYWHERE))
    differing = [
        name.removeprefix("versions.") for name in names if len({str(values.get(name)) for values in known}) > 1
    ]
    noted = sum(bool(provenance.get("notes")) for provenance in known)
    sentences = [f"Runs differ in more than their settings: {listed(differing)}."] if differing else []
    if noted:
        words = "run has notes: see its provenance" if noted == 1 else "runs have notes: see their provenance"
        sentences.append(f"{noted} {words}.")
    return sentences


def expected_by_chance(comparisons: int, singular: str) -> str:
    return f"Of {count(comparisons, singular)} chance alone would mark about {comparisons * (1 - LEVEL):.1f}."


def method(summary: StudySummary) -> list[tuple[str, str]]:
    """How the numbers are made: terms and their explanations."""
    baseline = escape(summary.study.baseline)
    return [
        (
            "Final score",
            f"Mean score of a run’s last {WINDOW} whole episodes, unclipped, as in Daley &amp; Amato (2019); then the "
            "mean over runs ± its standard error. The arm named first is chosen for its score, which flatters it; the "
            "interval beside its name in the summary is widened for that (Bonferroni, over the arms compared).",
        ),
        ("Mean over training", "Area under a run’s learning curve divided by its steps; then the mean over runs."),
        (
            f"Difference from {baseline}",
            "Difference of the mean final scores with Welch’s 95% confidence interval, each comparison by itself.",
        ),
        (
            "Better with probability",
            "Share of pairs, one run of the arm and one of the baseline, in which the arm’s run scores higher; a tie "
            "counts half (Mann and Whitney’s U). Over all environments it is the mean of theirs. Where every pair "
            "agrees the bootstrap finds no spread: 1.00 to 1.00 speaks of these runs, not of all that might be made. "
            "With a handful of runs its intervals are too narrow.",
        ),
        (
            "Interquartile mean",
            "Mean of the middle half of the normalised final scores of all runs (Agarwal et al. 2021). "
            f"Intervals: {RESAMPLES:,} bootstrap resamples of runs within each environment, with a fixed seed. The "
            "two ends of the normalisation are taken as exact, and they move when arms are added. Environments are "
            "left out where the best arm is not above random play by three standard errors.",
        ),
        (
            "Steps and time to a score",
            f"When the learning curve, as a mean of at least {THRESHOLD_EPISODES} episodes, first reaches the score: "
            f"the mean final score of {baseline} unless the study names another. Median over runs (Kaplan and Meier); "
            "runs that have not got there count as later than all they did. Below it: how many runs got there.",
        ),
        (
            "Hours",
            "Training time as each run recorded it; comparable between runs that had the same machine and load.",
        ),
    ]


def environment_sentence(environment: EnvironmentSummary, baseline: str) -> str:
    """Which arm wins here, by how much and how surely; the environment's name is not in it."""
    best = environment.best
    if best is None:
        return "every run diverged." if environment.is_lost else "no run has finished yet."
    digits = decimals_of(environment)
    runs = count(len(best.final_scores), "run") + (f", {best.num_diverged} diverged" if best.num_diverged else "")
    text = f"{bold(best.arm)} is first with {mean_and_error(best.final, digits)} ({runs})"
    if sum(len(arm.final_scores) > 0 for arm in environment.arms) == 1:
        return f"{bold(best.arm)} alone has finished runs, with {mean_and_error(best.final, digits)} ({runs})."
    if best.arm == baseline:
        return f"{text}; it is the baseline, and no arm has a higher mean."
    lead = environment.lead(baseline)
    if lead is None and environment.arm(baseline).is_lost:
        return f"{text}; every run of the baseline {bold(baseline)} diverged, so nothing is compared with it."
    if lead is None:
        return f"{text}; the baseline {bold(baseline)} has no finished run yet."
    gain = _difference(lead, environment.num_compared, baseline, digits)
    return f"{text}, {gain}.{_speed(best, environment, baseline)}{_lost_runs(environment.arm(baseline))}"


def _lost_runs(arm: ArmSummary) -> str:
    if not arm.num_diverged:
        return ""
    return f" {arm.num_diverged} of {count(len(arm.runs), 'run')} of {bold(arm.arm)} diverged, which flatters it."


def _difference(difference: Estimate, compared: int, baseline: str, digits: int) -> str:
    amount = f"{number(difference.value, digits)} above {bold(baseline)}"
    if not difference.has_interval:
        return f"{amount}, but one run on a side says nothing about chance"
    sure = "a clear gain" if difference.low > 0 else "which may be chance"
    widened = f", as the best of {compared}" if compared > 1 else ""
    return f"{amount} (95% interval{widened}: {interval(difference, digits)}), {sure}"


def threshold_meaning(environment: EnvironmentSummary, baseline: str) -> str:
    """What the timed score is."""
    if math.isnan(environment.threshold):
        return ""
    is_final = environment.threshold == environment.arm(baseline).final.value
    return f"final score of {baseline}" if is_final else "threshold of the study"


def _speed(arm: ArmSummary, environment: EnvironmentSummary, baseline: str) -> str:
    """How soon the best arm reaches the threshold, where half of its runs get there."""
    time = arm.to_threshold["steps"]
    if not math.isfinite(time.median):
        return ""
    threshold = number(environment.threshold, decimals_of(environment))
    meaning = escape(threshold_meaning(environment, baseline))
    return f" It reaches {threshold} ({meaning}) after {steps(time.median)} steps."


def _has_enough_runs(summary: StudySummary) -> bool:
    return all(
        is_enough([len(environment.arm(result.arm).final_scores) for environment in summary.learnt])
        for result in summary.aggregates
    )


def _with_interval(estimate: Estimate) -> str:
    """The first time in a paragraph: 0.98 (95% interval 0.94 to 1.04)."""
    between = f" (95% interval {interval(estimate, 2)})" if estimate.has_interval else ""
    return number(estimate.value, 2) + between


def _with_range(estimate: Estimate) -> str:
    """Later: 0.98 (0.94 to 1.04)."""
    return number(estimate.value, 2) + (f" ({interval(estimate, 2)})" if estimate.has_interval else "")


def _runner_up(best: Estimate, name: str, second: Estimate) -> str:
    if not (best.has_interval and second.has_interval):
        return f"Second is {bold(name)} with {number(second.value, 2)}."
    apart = best.low > second.high
    ending = (
        "the intervals do not overlap." if apart else "the intervals overlap, so the order of the two is not certain."
    )
    return f"Second is {bold(name)} with {_with_range(second)}; {ending}"
