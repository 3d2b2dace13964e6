"""Computes every number in a study's figures and report from its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lambda_replay.analysis import scores, statistics
from lambda_replay.analysis.arm_comparison import (
    Comparison,
    bootstrap_generator,
    compare,
    compare_over_environments,
)
from lambda_replay.analysis.numbers import decimals_for
from lambda_replay.analysis.records import (
    Run,
    RunRecord,
    StudyData,
    config_differences,
    read_run,
    varying_settings,
)
from lambda_replay.analysis.statistics import Estimate, Mean, MedianTime
from lambda_replay.config import flatten
from lambda_replay.replay.data import Floats, Integers

Axis = Literal["steps", "hours"]
AXES: tuple[Axis, ...] = ("steps", "hours")
GRID_POINTS = 200  # per curve; one per 5 pixels of a wide screen


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean learning curve of an arm, at each point over the runs that have reached it."""

    mean: Floats  # [G]
    standard_error: Floats  # [G]
    count: Integers  # [G]  runs


@dataclass(frozen=True, eq=False)
class RunSummary:
    """One run in numbers."""

    record: RunRecord
    reached: int  # agent steps
    hours: float  # of training so far
    num_episodes: int
    is_whole: bool  # whether its log of episodes starts with the first one
    final_score: float  # last 100 episodes so far
    greedy_score: float  # of the last evaluation; NaN without any
    area: float  # mean height of the curve; NaN until the run has finished
    to_threshold: Mapping[Axis, float]  # NaN if it has not reached it
    curves: Mapping[Axis, Floats]  # [G] each
    settings: Mapping[str, Any]  # in which its config differs
    provenance: Mapping[str, Any]
    warnings: tuple[str, ...]  # why it is sick


@dataclass(frozen=True, eq=False)
class ArmSummary:
    """One arm in one environment: scores of finished runs, curves and times of all but the diverged ones."""

    arm: str
    runs: tuple[RunSummary, ...]
    final_scores: Floats  # [finished runs]
    final: Mean
    greedy: Mean  # of the last evaluations of finished runs; NaN without any
    area: Mean
    comparison: Comparison | None  # None for the baseline itself, or while one of the two has no finished run
    greedy_comparison: Comparison | None  # the same of the last evaluations
    to_threshold: Mapping[Axis, MedianTime]
    curves: Mapping[Axis, Curve]

    @property
    def num_diverged(self) -> int:
        return sum(run.record.state == "diverged" for run in self.runs)

    @property
    def is_lost(self) -> bool:
        """Whether every run diverged."""
        return 0 < self.num_diverged == len(self.runs)


@dataclass(frozen=True, eq=False)
class EnvironmentSummary:
    """One environment: its grids, its reference scores and its arms in the order of the study."""

    environment: str
    grids: Mapping[Axis, Floats]  # [G] each
    random_scores: Floats  # [runs]  of uniformly random play
    threshold: float  # score to reach; NaN if there is none
    arms: tuple[ArmSummary, ...]

    def has_curves(self, axis: Axis) -> bool:
        return any(arm.curves[axis].count.any() for arm in self.arms)

    def arm(self, name: str) -> ArmSummary:
        return next(arm for arm in self.arms if arm.arm == name)

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def decimals(self) -> int:
        """Digits after the decimal point, the same for all scores of the environment."""
        heights = np.abs([arm.curves["steps"].mean for arm in self.arms])  # [arms, G]
        return decimals_for(float(np.max(heights, initial=0.0, where=~np.isnan(heights))))

    @property
    def ready(self) -> tuple[ArmSummary, ...]:
        """Arms with a finished run."""
        return tuple(arm for arm in self.arms if len(arm.final_scores))

    @property
    def best(self) -> ArmSummary | None:
        """The arm with the highest mean final score; None before any run has finished."""
        return max(self.ready, key=lambda arm: arm.final.value, default=None)

    @property
    def best_greedy(self) -> ArmSummary | None:
        """The arm with the highest mean of greedy games; None if no finished run was evaluated."""
        evaluated = [arm for arm in self.arms if not math.isnan(arm.greedy.value)]
        return max(evaluated, key=lambda arm: arm.greedy.value, default=None)

    @property
    def is_lost(self) -> bool:
        """Whether every run of every arm diverged."""
        return all(arm.is_lost for arm in self.arms)

    @property
    def is_learnt(self) -> bool:
        """Whether the best arm is above random play by more than three standard errors, pooled over arms."""
        if self.best is None or not len(self.random_scores):
            return False
        gain = self.best.final.value - float(self.random_scores.mean())
        several = [arm.final_scores for arm in self.arms if len(arm.final_scores) > 1]
        samples = several or [self.random_scores]  # one run per arm: as if the best varied as much as random play
        variances = [float(np.var(sample, ddof=1)) for sample in samples if len(sample) > 1]
        error = math.sqrt(np.mean(variances) / len(self.best.final_scores)) if variances else 0.0
        return gain > 3 * error

    @property
    def num_compared(self) -> int:
        """Arms that are compared with the baseline."""
        return sum(arm.comparison is not None for arm in self.arms)

    def lead(self, baseline: str) -> Estimate | None:
        """The best arm minus the baseline, with an interval that accounts for how many arms it is the best of.

        None if the baseline is the best, or one of the two is missing.
        """
        if self.best is None or self.best.comparison is None:
            return None
        finals = self.best.final_scores, self.arm(baseline).final_scores
        return statistics.difference_of_means(*finals, self.num_compared)


@dataclass(frozen=True)
class ArmAggregate:
    """One arm over all environments, in normalised scores."""

    arm: str
    interquartile_mean: Estimate
    probability: Estimate | None  # of improvement on the baseline; None for the baseline


@dataclass(frozen=True, eq=False)
class StudySummary:
    """A study in numbers.

    An arm enters ``aggregates`` (best first) once it has a finished run in every environment; environments in which no
    arm has learned anything are left out.
    """

    study: StudyData
    environments: tuple[EnvironmentSummary, ...]
    aggregates: tuple[ArmAggregate, ...]

    @property
    def learnt(self) -> tuple[EnvironmentSummary, ...]:
        return learnt_environments(self.environments)

    @property
    def has_greedy(self) -> bool:
        """Whether a finished run was evaluated."""
        return any(environment.best_greedy is not None for environment in self.environments)

    @property
    def num_finished(self) -> int:
        return sum(run.state == "finished" for run in self.study.runs)

    @property
    def num_diverged(self) -> int:
        return sum(run.state == "diverged" for run in self.study.runs)

    @property
    def num_sick(self) -> int:
        """Runs with a warning at their end."""
        return sum(bool(run.warnings) for environment in self.environments for run in environment.runs)

    def num_diverged_of(self, arm: str) -> int:
        return sum(environment.arm(arm).num_diverged for environment in self.environments)

    def with_diverged(self, arm: str) -> tuple[EnvironmentSummary, ...]:
        """Environments in which runs of the arm diverged."""
        return tuple(environment for environment in self.environments if environment.arm(arm).num_diverged)

    @property
    def is_complete(self) -> bool:
        """Whether every run has ended, finished or diverged."""
        return self.num_finished + self.num_diverged == len(self.study.runs)

    def lost(self, arm: str) -> tuple[str, ...]:
        """Environments in which every run of the arm diverged."""
        return tuple(environment.environment for environment in self.environments if environment.arm(arm).is_lost)


def summarise(study: StudyData) -> StudySummary:
    """Read all runs of the study, one environment at a time, and compute every number in its report."""
    environments = tuple(summarise_environment(study, environment) for environment in study.environments)
    return StudySummary(study, environments, aggregate(environments, study.arms, study.baseline))


def summarise_environment(study: StudyData, environment: str) -> EnvironmentSummary:
    """The numbers of one environment."""
    runs = {arm: [read_run(record) for record in study.runs_of(environment, arm)] for arm in study.arms}
    everyone = [run for arm_runs in runs.values() for run in arm_runs]
    finished = {arm: [run for run in arm_runs if run.record.state == "finished"] for arm, arm_runs in runs.items()}
    finals = {arm: _known(scores.final_score(run.episodes) for run in arm_runs) for arm, arm_runs in finished.items()}
    greedy = {arm: _known(run.greedy_score for run in arm_runs) for arm, arm_runs in finished.items()}
    random_scores = _known(scores.random_play_of(run) for run in everyone)
    threshold = study.thresholds.get(environment, _default_threshold(finals[study.baseline], random_scores))
    most_hours = max((scores.hours_of(run) for run in everyone if len(run.timing.steps)), default=0.0)
    grids: dict[Axis, Floats] = {"steps": _grid(study.steps), "hours": _grid(most_hours)}
    varying = varying_settings(run.config for run in everyone if run.config)
    summaries = {
        arm: tuple(summarise_run(run, study, threshold, grids, varying) for run in arm_runs)
        for arm, arm_runs in runs.items()
    }
    survivors = {
        arm: [run for run in arm_runs if run.record.state != "diverged"] for arm, arm_runs in summaries.items()
    }
    arms = [
        ArmSummary(
            arm=arm,
            runs=summaries[arm],
            final_scores=finals[arm],
            curves=mean_curves(survivors[arm]),
            final=_mean_of(finals[arm]),
            greedy=_mean_of(greedy[arm]),
            area=_mean_of(np.array([run.area for run in summaries[arm]])),
            comparison=_compare_with(study.baseline, arm, finals),
            greedy_comparison=_compare_with(study.baseline, arm, greedy),
            to_threshold=median_times(survivors[arm], threshold),
        )
        for arm in study.arms
    ]
    return EnvironmentSummary(environment, grids, random_scores, threshold, tuple(arms))


def summarise_run(
    run: Run, study: StudyData, threshold: float, grids: Mapping[Axis, Floats], varying: set[str]
) -> RunSummary:
    """The numbers of one run, its curves at the points of the grids.

    Its settings are those that differ from the study's defaults or, without defaults for the environment, those in
    which the study's runs differ. The provenance also contains the config, which is left out there.
    """
    defaults = study.defaults.get(run.record.environment)
    if defaults is None:
        settings = {name: value for name, value in flatten(run.config).items() if name in varying}
    else:
        settings = config_differences(run.config, defaults)
    arrival, reached = scores.steps_to_threshold(run.episodes, threshold), scores.reached_step(run, study.steps)
    return RunSummary(
        record=run.record,
        reached=reached,
        hours=scores.hours_of(run),
        num_episodes=len(run.episodes.steps),
        is_whole=run.episodes.is_whole,
        final_score=scores.final_score(run.episodes),
        greedy_score=run.greedy_score,
        area=scores.area_under_curve(run.episodes, reached) if run.record.state == "finished" else math.nan,
        to_threshold={
            "steps": math.nan if arrival is None else arrival,
            "hours": math.nan if arrival is None else scores.hours_at_step(run.timing, arrival),
        },
        curves={
            "steps": scores.learning_curve(run.episodes, grids["steps"], reached),
            "hours": scores.learning_curve_over_hours(run.episodes, run.timing, grids["hours"]),
        },
        settings=settings,
        warnings=run.warnings,
        provenance=flatten({name: value for name, value in run.provenance.items() if name != "config"}),
    )


def _known(values: Iterable[float]) -> Floats:
    """Those that are not NaN [n]."""
    array = np.array(list(values), dtype=np.float64)
    return array[~np.isnan(array)]


def mean_curves(runs: Sequence[RunSummary]) -> dict[Axis, Curve]:
    """Mean and standard error over runs, of which there may be none, at every point of the grids."""
    curves = {axis: np.array([run.curves[axis] for run in runs]).reshape(len(runs), GRID_POINTS) for axis in AXES}
    return {axis: Curve(*statistics.mean_and_standard_error(values)) for axis, values in curves.items()}


def _compare_with(baseline: str, arm: str, finals: Mapping[str, Floats]) -> Comparison | None:
    """An arm against the baseline; None for the baseline itself, or while one of the two has no score."""
    if arm == baseline or not len(finals[arm]) or not len(finals[baseline]):
        return None
    return compare(finals[arm], finals[baseline])


def median_times(runs: Sequence[RunSummary], threshold: float) -> dict[Axis, MedianTime]:
    """Median steps and hours to the threshold; a run that has not reached it counts with its progress so far.

    A run without its first episodes is left out: it is not known when it reached the threshold.
    """
    started = [run for run in runs if run.num_episodes and run.is_whole and not math.isnan(threshold)]
    is_reached = np.array([not math.isnan(run.to_threshold["steps"]) for run in started], dtype=bool)
    ends = [
        (run.to_threshold["steps"], run.to_threshold["hours"]) if reached else (run.reached, run.hours)
        for run, reached in zip(started, is_reached, strict=True)
    ]
    times = np.array(ends, dtype=float).reshape(len(started), 2)  # [runs, 2]
    timed = ~np.isnan(times[:, 1])
    return {
        "steps": statistics.median_time(times[:, 0], is_reached),
        "hours": statistics.median_time(times[timed, 1], is_reached[timed]),
    }


def aggregate(
    environments: Sequence[EnvironmentSummary], arms: Sequence[str], baseline: str
) -> tuple[ArmAggregate, ...]:
    """Interquartile mean and probability of improvement of each arm with a finished run everywhere, best first."""
    learnt = learnt_environments(environments)
    if not learnt:
        return ()
    complete = [arm for arm in arms if all(len(environment.arm(arm).final_scores) for environment in environments)]
    tasks = {arm: [normalised_finals(environment, arm) for environment in learnt] for arm in complete}
    aggregates = [
        ArmAggregate(
            arm=arm,
            interquartile_mean=statistics.interquartile_mean(finals, bootstrap_generator()),
            probability=(
                None if arm == baseline or baseline not in tasks else compare_over_environments(finals, tasks[baseline])
            ),
        )
        for arm, finals in tasks.items()
    ]
    return tuple(sorted(aggregates, key=lambda result: -result.interquartile_mean.value))


def learnt_environments(environments: Sequence[EnvironmentSummary]) -> tuple[EnvironmentSummary, ...]:
    """Those in which an arm has learned something; arms can be compared only over these."""
    return tuple(environment for environment in environments if environment.is_learnt)


def normalised_finals(environment: EnvironmentSummary, arm: str) -> Floats:
    """Final scores, scaled so that random play is 0 and the best arm's mean is 1."""
    assert environment.best is not None
    low, high = float(environment.random_scores.mean()), environment.best.final.value
    return statistics.normalise(environment.arm(arm).final_scores, low, high)


def _mean_of(values: Floats) -> Mean:
    mean, standard_error, _ = statistics.mean_and_standard_error(values)
    return Mean(float(mean), float(standard_error))


def _default_threshold(finals: Floats, random_scores: Floats) -> float:
    """The mean of the baseline's final scores as a threshold; NaN if random play also reaches it."""
    mean = _mean_of(finals).value
    return mean if mean > _mean_of(random_scores).value else math.nan


def _grid(end: float) -> Floats:
    return np.linspace(0.0, end, GRID_POINTS + 1)[1:]
