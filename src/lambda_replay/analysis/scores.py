"""Scores of one run: its learning curve over steps and hours, and its summary numbers; no statistics over runs.

The protocol is the paper's (Daley & Amato 2019, section 5): performance at a step is the mean score of the last 100
episodes completed by then, or of all of them if there are fewer.
"""

from __future__ import annotations

import math

import numpy as np

from lambda_replay.analysis.records import Episodes, Run, Timing
from lambda_replay.replay.data import Floats

WINDOW = 100  # episodes, as in the paper
THRESHOLD_EPISODES = 20  # a mean of fewer does not count as reaching a threshold: one lucky early game could
SECONDS_PER_HOUR = 3600.0


def recent_means(scores: Floats, window: int = WINDOW) -> Floats:
    """At each episode, the mean score of the last ``window`` episodes up to and including it.

    m_i = (1/w) Σ_{j=i−w+1..i} score_j with w = min(i + 1, window).
    """
    ends = np.arange(1, len(scores) + 1)  # [E]
    begins = np.maximum(ends - window, 0)  # [E]
    sums = np.concatenate([[0.0], np.cumsum(scores)])  # [E+1]
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def learning_curve(episodes: Episodes, grid: Floats, reached: float) -> Floats:
    """The score at each step of the grid [G]; NaN before the first episode ends and beyond the step ``reached``."""
    if len(episodes.steps) == 0:
        return np.full(len(grid), np.nan)
    counts = np.searchsorted(episodes.steps, grid, side="right")  # [G]  episodes completed by then
    values = recent_means(episodes.scores)[np.maximum(counts - 1, 0)]
    return np.where((counts > 0) & (grid <= reached), values, np.nan)


def learning_curve_over_hours(episodes: Episodes, timing: Timing, hours: Floats) -> Floats:
    """The score at each of the hours [G]; NaN before the first episode ends and beyond the last known time."""
    steps = steps_at_hours(timing, hours)
    return learning_curve(episodes, steps, reached=math.inf)  # comparisons with a NaN step are false


def steps_at_hours(timing: Timing, hours: Floats) -> Floats:
    """The agent step that training had reached by each hour, by linear interpolation; NaN after the last known time."""
    steps, seconds = _with_origin(timing)
    return np.asarray(np.interp(hours, seconds / SECONDS_PER_HOUR, steps, right=np.nan))


def hours_at_step(timing: Timing, step: float) -> float:
    """Hours of training up to a step, by linear interpolation; NaN without any timing.

    Steps after the last timed one (less than one refresh) are given its time.
    """
    if len(timing.steps) == 0:
        return math.nan
    steps, seconds = _with_origin(timing)
    return float(np.interp(step, steps, seconds)) / SECONDS_PER_HOUR


def final_score(episodes: Episodes) -> float:
    """The mean score of the last 100 episodes; NaN without any."""
    return float(np.mean(episodes.scores[-WINDOW:])) if len(episodes.scores) else math.nan


def random_play_score(episodes: Episodes, start: int, num_envs: int = 1) -> float:
    """The mean score of uniformly random play: the episodes begun before step ``start``, or the first if none was.

    Of those that also ended by then, too many would be short where many environments share few steps. NaN if the first
    episodes are missing.
    """
    if not episodes.is_whole or not len(episodes.scores):
        return math.nan
    is_random = episodes.begins(num_envs) < start
    return float(np.mean(episodes.scores[is_random] if is_random.any() else episodes.scores[:1]))


def random_play_of(run: Run) -> float:
    """The same of a run: its games begun before memory.start, until when every agent plays uniformly at random."""
    start, num_envs = run.config.get("memory", {}).get("start", 0), run.config.get("envs", 1)
    return random_play_score(run.episodes, int(start), int(num_envs))


def hours_of(run: Run) -> float:
    """Hours of training so far; NaN if none is recorded."""
    return float(run.timing.seconds[-1]) / SECONDS_PER_HOUR if len(run.timing.seconds) else math.nan


def area_under_curve(episodes: Episodes, steps: int) -> float:
    """The mean height of the learning curve over ``steps`` agent steps, exactly; NaN without the first episodes.

    (1/T) ∫₀ᵀ curve(t) dt. The curve is a step function that changes at each episode's end; before the first end it has
    the value of that episode. Dividing by T gives the result the unit of a score.
    """
    inside = episodes.steps <= steps
    if not inside.any() or not episodes.is_whole:
        return math.nan
    ends = episodes.steps[inside]  # [E]
    edges = np.concatenate([[0], ends[1:], [steps]])  # [E+1]
    return float(np.sum(recent_means(episodes.scores[inside]) * np.diff(edges)) / steps)


def steps_to_threshold(episodes: Episodes, threshold: float) -> int | None:
    """The step at which the learning curve first reaches the threshold, as a mean of at least 20 episodes.

    None if it never does, or if the first episodes are missing, since it may have done so in those.
    """
    if not episodes.is_whole:
        return None
    above = recent_means(episodes.scores) >= threshold  # [E]
    above[: THRESHOLD_EPISODES - 1] = False
    return int(episodes.steps[np.argmax(above)]) if above.any() else None


def reached_step(run: Run, steps: int) -> int:
    """The step a run has reached: all of its config's steps (or ``steps``) if finished, else the last one recorded.

    A run that was to stop at a score may have finished earlier.
    """
    if run.record.state == "finished" and run.config.get("stop_at_score") is None:
        return int(run.config.get("steps", steps))
    return max([int(known[-1]) for known in (run.episodes.steps, run.timing.steps) if len(known)], default=0)


def _with_origin(timing: Timing) -> tuple[Floats, Floats]:
    """Step 0 took no time."""
    return np.concatenate([[0.0], timing.steps]), np.concatenate([[0.0], timing.seconds])
