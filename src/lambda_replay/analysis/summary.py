"""From a study's runs to every number that its figures and its report show; saying and drawing them lives elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lambda_replay.analysis import scores, statistics
from lambda_replay.analysis.records import (
    Run,
    RunRecord,
    StudyData,
    config_differences,
    read_run,
    varying_settings,
)
from lambda_replay.analysis.statistics import Estimate, MedianTime
from lambda_replay.config import flatten
from lambda_replay.data import Floats, Integers

Axis = Literal["steps", "hours"]
AXES: tuple[Axis, ...] = ("steps", "hours")
GRID_POINTS = 200  # of every curve; one per 5 pixels of a wide screen
BOOTSTRAP_SEED = 2019  # each interval starts from it, so none depends on which others are computed


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean learning curve of an arm, over the runs that have got so far."""

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
    final_score: float  # last 100 episodes so far
    area: float  # mean height of the curve; NaN until the run has finished
    to_threshold: Mapping[Axis, float]  # NaN where it has not got there
    curve: Floats  # [G]  over steps
    settings: Mapping[str, Any]  # what sets its config apart
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class Mean:
    """Over finished runs; NaN without any."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class Comparison:
    """An arm against another, mostly the baseline, by final scores."""

    difference: Estimate  # of the means
    probability: Estimate  # of improvement


@dataclass(frozen=True, eq=False)
class ArmSummary:
    """One arm in one environment: scores of finished runs, curves and times of all of them."""

    arm: str
    runs: tuple[RunSummary, ...]
    final_scores: Floats  # [finished runs]
    final: Mean
    area: Mean
    comparison: Comparison | None  # None for the baseline itself, and while one of the two has no finished run
    to_threshold: Mapping[Axis, MedianTime]
    curves: Mapping[Axis, Curve]


@dataclass(frozen=True, eq=False)
class EnvironmentSummary:
    """One environment: its grids, its reference scores and its arms in the order of the study."""

    environment: str
    grids: Mapping[Axis, Floats]  # [G] each
    random_scores: Floats  # [runs]  of uniformly random play
    threshold: float  # score whose reaching is timed; NaN without one
    arms: tuple[ArmSummary, ...]

    def has_curves(self, axis: Axis) -> bool:
        return any(arm.curves[axis].count.any() for arm in self.arms)

    def arm(self, name: str) -> ArmSummary:
        return next(arm for arm in self.arms if arm.arm == name)

    @property
    def best(self) -> ArmSummary | None:
        """The arm with the highest mean final score; None before any run has finished."""
        ready = [arm for arm in self.arms if len(arm.final_scores)]
        return max(ready, key=lambda arm: arm.final.value, default=None)

    @property
    def is_learnt(self) -> bool:
        """Whether the best arm is above random play by more than three standard errors, pooled over arms."""
        if self.best is None:
            return False
        gain = self.best.final.value - float(self.random_scores.mean())
        variances = [np.var(arm.final_scores, ddof=1) for arm in self.arms if len(arm.final_scores) > 1]
        error = math.sqrt(np.mean(variances) / len(self.best.final_scores)) if variances else 0.0
        return gain > 3 * error

    def lead(self, baseline: str) -> Estimate | None:
        """The best arm minus the baseline, with an interval that knows of how many arms it is the best.

        None where the baseline is the best, or one of the two is missing.
        """
        best, compared = self.best, [arm for arm in self.arms if arm.comparison is not None]
        if best is None or best.comparison is None:
            return None
        return statistics.difference_of_means(best.final_scores, self.arm(baseline).final_scores, len(compared))


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
    arm has learnt anything are left out of them.
    """

    study: StudyData
    environments: tuple[EnvironmentSummary, ...]
    aggregates: tuple[ArmAggregate, ...]

    @property
    def aggregated(self) -> tuple[EnvironmentSummary, ...]:
        return tuple(environment for environment in self.environments if environment.is_learnt)

    @property
    def num_finished(self) -> int:
        return sum(run.state == "finished" for run in self.study.runs)


def summarise(study: StudyData) -> StudySummary:
    """Read all runs of the study, one environment after the other, and compute every number of its report."""
    environments = tuple(summarise_environment(study, environment) for environment in study.environments)
    return StudySummary(study, environments, aggregate(environments, study.arms, study.baseline))


def summarise_environment(study: StudyData, environment: str) -> EnvironmentSummary:
    """The numbers of one environment."""
    runs = {arm: [read_run(record) for record in study.runs_of(environment, arm)] for arm in study.arms}
    everyone = [run for arm_runs in runs.values() for run in arm_runs]
    finals = {arm: final_scores(arm_runs) for arm, arm_runs in runs.items()}
    random_scores = random_play(everyone)
    threshold = study.thresholds.get(environment, _above(finals[study.baseline], random_scores))
    most_hours = max((_hours(run) for run in everyone if len(run.timing.steps)), default=0.0)
    grids: dict[Axis, Floats] = {"steps": _grid(study.steps), "hours": _grid(most_hours)}
    varying = varying_settings(run.config for run in everyone if run.config)
    summaries = {
        arm: tuple(summarise_run(run, study, threshold, grids["steps"], varying) for run in arm_runs)
        for arm, arm_runs in runs.items()
    }
    arms = [
        ArmSummary(
            arm=arm,
            runs=summaries[arm],
            final_scores=finals[arm],
            curves=mean_curves(arm_runs, summaries[arm], grids["hours"]),
            final=_mean_of(finals[arm]),
            area=_mean_of(np.array([_area(run, study.steps) for run in arm_runs])),
            comparison=None if arm == study.baseline else compare(finals[arm], finals[study.baseline]),
            to_threshold=median_times(summaries[arm], threshold),
        )
        for arm, arm_runs in runs.items()
    ]
    return EnvironmentSummary(environment, grids, random_scores, threshold, tuple(arms))


def summarise_run(run: Run, study: StudyData, threshold: float, grid: Floats, varying: set[str]) -> RunSummary:
    """The numbers of one run, its curve at the steps of a grid [G].

    Its settings are those that differ from the study's defaults. Where the study gives no defaults for the environment,
    they are those in which the study's runs differ. Its config stands in the provenance too, and is left out there.
    """
    defaults = study.defaults.get(run.record.environment)
    if defaults is None:
        settings = {name: value for name, value in flatten(run.config).items() if name in varying}
    else:
        settings = config_differences(run.config, defaults)
    arrival = scores.steps_to_threshold(run.episodes, threshold)
    return RunSummary(
        record=run.record,
        reached=scores.reached_step(run, study.steps),
        hours=_hours(run),
        num_episodes=len(run.episodes.steps),
        final_score=scores.final_score(run.episodes),
        area=_area(run, study.steps),
        to_threshold={
            "steps": math.nan if arrival is None else arrival,
            "hours": math.nan if arrival is None else scores.hours_at_step(run.timing, arrival),
        },
        curve=scores.learning_curve(run.episodes, grid, scores.reached_step(run, study.steps)),
        settings=settings,
        provenance=flatten({name: value for name, value in run.provenance.items() if name != "config"}),
    )


def random_play(runs: Sequence[Run]) -> Floats:
    """Mean score of each run before memory.start, when every agent plays uniformly at random [runs with a game]."""
    starts = [int(run.config.get("memory", {}).get("start", 0)) for run in runs]
    known = np.array([scores.random_play_score(run.episodes, start) for run, start in zip(runs, starts, strict=True)])
    return known[~np.isnan(known)]


def final_scores(runs: Sequence[Run]) -> Floats:
    """Last-100 scores of the finished runs [finished runs]."""
    finals = [scores.final_score(run.episodes) for run in runs if run.record.state == "finished"]
    return np.array([score for score in finals if not math.isnan(score)])


def mean_curves(runs: Sequence[Run], summaries: Sequence[RunSummary], hours: Floats) -> dict[Axis, Curve]:
    """Mean and standard error over runs: of their curves over steps, and at every point of a grid of hours."""
    over_steps = [summary.curve for summary in summaries]
    over_hours = [scores.learning_curve_over_hours(run.episodes, run.timing, hours) for run in runs]
    curves: dict[Axis, list[Floats]] = {"steps": over_steps, "hours": over_hours}
    return {axis: _mean_curve(np.array(values).reshape(len(runs), GRID_POINTS)) for axis, values in curves.items()}


def compare(finals: Floats, baseline: Floats) -> Comparison | None:
    """Difference and probability of improvement; None while there is nothing to compare."""
    if len(finals) == 0 or len(baseline) == 0:
        return None
    return Comparison(
        difference=statistics.difference_of_means(finals, baseline),
        probability=compare_over_environments([finals], [baseline]),
    )


def compare_over_environments(tasks: Sequence[Floats], baseline: Sequence[Floats]) -> Estimate:
    """Probability of improvement, averaged over environments; it needs a finished run in each."""
    return statistics.probability_of_improvement(tasks, baseline, _generator())


def median_times(runs: Sequence[RunSummary], threshold: float) -> dict[Axis, MedianTime]:
    """Median steps and hours to the threshold; a run that has not reached it counts with what it has done so far."""
    started = [run for run in runs if run.num_episodes and not math.isnan(threshold)]
    is_reached = np.array([not math.isnan(run.to_threshold["steps"]) for run in started], dtype=bool)
    ends = [(run.to_threshold["steps"], run.to_threshold["hours"]) for run in started]
    so_far = [(float(run.reached), run.hours) for run in started]
    times = np.where(is_reached[:, None], ends, so_far).reshape(len(started), 2)  # [runs, 2]
    timed = ~np.isnan(times[:, 1])
    return {
        "steps": statistics.median_time(times[:, 0], is_reached),
        "hours": statistics.median_time(times[timed, 1], is_reached[timed]),
    }


def aggregate(
    environments: Sequence[EnvironmentSummary], arms: Sequence[str], baseline: str
) -> tuple[ArmAggregate, ...]:
    """Interquartile mean and probability of improvement of each arm that has a finished run everywhere, best first."""
    learnt = [environment for environment in environments if environment.is_learnt]
    complete = [arm for arm in arms if all(len(environment.arm(arm).final_scores) for environment in environments)]
    tasks = {arm: [normalised_finals(environment, arm) for environment in learnt] for arm in complete}
    aggregates = [
        ArmAggregate(
            arm=arm,
            interquartile_mean=statistics.interquartile_mean(finals, _generator()),
            probability=(
                None if arm == baseline or baseline not in tasks else compare_over_environments(finals, tasks[baseline])
            ),
        )
        for arm, finals in tasks.items()
        if learnt
    ]
    return tuple(sorted(aggregates, key=lambda result: -result.interquartile_mean.value))


def normalised_finals(environment: EnvironmentSummary, arm: str) -> Floats:
    """Final scores between random play (0) and the best arm's mean (1)."""
    assert environment.best is not None
    low, high = float(environment.random_scores.mean()), environment.best.final.value
    return statistics.normalise(environment.arm(arm).final_scores, low, high)


def _mean_of(values: Floats) -> Mean:
    mean, standard_error, _ = statistics.mean_and_standard_error(values)
    return Mean(float(mean), float(standard_error))


def _above(finals: Floats, random_scores: Floats) -> float:
    """The mean of the baseline's final scores as a threshold; NaN where random play reaches it as well."""
    mean = _mean_of(finals).value
    return mean if mean > _mean_of(random_scores).value else math.nan


def _mean_curve(values: Floats) -> Curve:
    """[R, G], where R may be 0."""
    return Curve(*statistics.mean_and_standard_error(values))


def _area(run: Run, steps: int) -> float:
    if run.record.state != "finished":
        return math.nan
    return scores.area_under_curve(run.episodes, scores.reached_step(run, steps))


def _hours(run: Run) -> float:
    return float(run.timing.seconds[-1]) / scores.SECONDS_PER_HOUR if len(run.timing.seconds) else math.nan


def _grid(end: float) -> Floats:
    return np.linspace(0.0, end, GRID_POINTS + 1)[1:]


def _generator() -> np.random.Generator:
    return np.random.default_rng(BOOTSTRAP_SEED)
