"""Scores of one run: files read as far as they go, the learning curve, and the numbers that sum it up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lambda_replay.analysis.records import (
    Episodes,
    RunRecord,
    StudyData,
    Timing,
    config_differences,
    read_episodes,
    read_object,
    read_run,
    read_timing,
    varying_settings,
)
from lambda_replay.analysis.scores import (
    area_under_curve,
    final_score,
    hours_at_step,
    learning_curve,
    learning_curve_over_hours,
    random_play_score,
    reached_step,
    recent_means,
    steps_at_hours,
    steps_to_threshold,
)
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.states import State

HEADER = "episode,step,stream,score,length,seed,ended\n"
TWO_HOURS = Timing(np.array([100, 200]), np.array([3600.0, 10_800.0]))  # 100 steps in one hour, 100 more in two


def some_episodes(seed: int, count: int) -> Episodes:
    rng = np.random.default_rng(seed)
    return Episodes(np.cumsum(rng.integers(0, 30, count)), rng.normal(5, 3, count))


def literal_curve(episodes: Episodes, step: float) -> float:
    """The paper's sentence: the mean of the scores of the past 100 completed episodes."""
    past = [score for end, score in zip(episodes.steps, episodes.scores, strict=True) if end <= step]
    return sum(past[-100:]) / len(past[-100:]) if past else math.nan


def record(path: Path, state: State = "running") -> RunRecord:
    return RunRecord("minatar/breakout", "peng", 0, path, state)


# Golden.


def test_recent_means_use_fewer_episodes_at_the_start() -> None:
    # 1 | (1+2)/2 | (2+3)/2 | (3+8)/2
    assert_allclose(recent_means(np.array([1.0, 2.0, 3.0, 8.0]), window=2), [1.0, 1.5, 2.5, 5.5])


def test_learning_curve_counts_episodes_that_ended_by_then() -> None:
    episodes = Episodes(np.array([10, 20, 20, 50]), np.array([1.0, 3.0, 5.0, 7.0]))
    grid = np.array([5.0, 10.0, 19.0, 20.0, 50.0, 60.0])
    # nothing yet | 1 | 1 | (1+3+5)/3 | (1+3+5+7)/4 | the run has not got to 60
    assert_allclose(learning_curve(episodes, grid, reached=55), [math.nan, 1, 1, 3, 4, math.nan])


def test_steps_and_hours_translate_into_each_other() -> None:
    hours = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 3.5])
    assert_allclose(steps_at_hours(TWO_HOURS, hours), [0, 50, 100, 150, 200, math.nan])
    assert hours_at_step(TWO_HOURS, 150) == pytest.approx(2.0)
    assert hours_at_step(TWO_HOURS, 205) == pytest.approx(3.0)  # after the last refresh: its time
    assert math.isnan(hours_at_step(Timing(np.empty(0, dtype=np.int64), np.empty(0)), 150))


def test_learning_curve_over_hours_goes_through_the_timing() -> None:
    episodes = Episodes(np.array([50, 150]), np.array([2.0, 6.0]))
    hours = np.array([0.25, 0.5, 1.9, 2.0, 3.0, 3.1])
    # step 25: none | step 50: 2 | step 145: 2 | step 150: 4 | step 200: 4 | unknown
    assert_allclose(learning_curve_over_hours(episodes, TWO_HOURS, hours), [math.nan, 2, 2, 4, 4, math.nan])


def test_final_score_is_the_mean_of_the_last_hundred() -> None:
    assert final_score(Episodes(np.arange(150), np.arange(150.0))) == pytest.approx(99.5)  # 50 … 149
    assert final_score(Episodes(np.arange(2), np.array([1.0, 4.0]))) == pytest.approx(2.5)
    assert math.isnan(final_score(Episodes(np.empty(0, dtype=np.int64), np.empty(0))))


def test_area_under_the_curve_is_its_mean_height() -> None:
    # height 2 from step 0 to 20 (the first stair reaches back to the start), 3 from 20 to 40: (40 + 60) / 40
    episodes = Episodes(np.array([10, 20, 45]), np.array([2.0, 4.0, 99.0]))
    assert area_under_curve(episodes, 40) == pytest.approx(2.5)
    assert math.isnan(area_under_curve(episodes, 5))


def test_a_threshold_is_not_reached_by_one_lucky_game() -> None:
    lucky = Episodes(np.arange(10, 410, 10), np.array([50.0] + [0.0] * 19 + [10.0] * 20))
    # the mean of 20 games is 50/20 = 2.5 at step 200, then (50 + 10 k)/(20 + k) >= 4 first at k = 5
    assert steps_to_threshold(lucky, 4.0) == 250
    assert steps_to_threshold(lucky, 2.5) == 200
    assert steps_to_threshold(lucky, 20.0) is None


def test_random_play_is_what_began_before_learning() -> None:
    episodes = Episodes(np.array([10, 20, 30]), np.array([1.0, 3.0, 50.0]))
    assert random_play_score(episodes, start=20) == pytest.approx(2.0)
    assert random_play_score(episodes, start=5) == pytest.approx(1.0)
    assert random_play_score(episodes, start=0) == pytest.approx(1.0)  # none began by then: the first


def test_with_many_environments_random_play_is_not_that_of_short_games_alone() -> None:
    """Ten environments; a game of 3 steps ends at step 21 + its number, one of 30 steps at 291 + its number."""
    short, long = np.arange(3), np.arange(3, 10)
    steps = np.concatenate([21 + short, 291 + long, 321 + short])  # the short ones have a second game of 30 steps
    lengths, streams = np.repeat([3, 30, 30], [3, 7, 3]), np.concatenate([short, long, short])
    episodes = Episodes(steps, np.repeat([0.0, 10.0, 99.0], [3, 7, 3]), lengths=lengths, streams=streams)
    assert episodes.begins(10).tolist() == [0] * 10 + [30] * 3
    assert random_play_score(episodes, start=30, num_envs=10) == pytest.approx(7.0)
    assert random_play_score(episodes, start=31, num_envs=10) == pytest.approx((70 + 297) / 13)


# Identities.


@pytest.mark.parametrize("seed", range(3))
def test_learning_curve_is_the_papers_sentence(seed: int) -> None:
    episodes = some_episodes(seed, 400)
    grid = np.linspace(0, 7_000, 50)
    expected = [literal_curve(episodes, step) for step in grid]
    assert_allclose(learning_curve(episodes, grid, reached=math.inf), expected)


def test_area_is_the_mean_over_every_single_step() -> None:
    episodes = some_episodes(7, 300)
    heights = [literal_curve(episodes, max(step, int(episodes.steps[0]))) for step in range(2_000)]
    assert area_under_curve(episodes, 2_000) == pytest.approx(np.mean(heights))


def test_inputs_are_left_as_they_are() -> None:
    episodes = some_episodes(1, 200)
    before = episodes.steps.copy(), episodes.scores.copy()
    learning_curve(episodes, np.linspace(0, 100, 5), 80)
    area_under_curve(episodes, 500)
    steps_to_threshold(episodes, 5.0)
    assert_array_equal(before[0], episodes.steps)
    assert_array_equal(before[1], episodes.scores)


# Files.


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").write_text(HEADER + "0,12,0,1.5,12,7,terminated\n1,30,0,2")  # was to be 25.0
    (tmp_path / "timing.jsonl").write_text('{"step": 10, "seconds": 1.5}\n{"step": 20, "sec')
    run = read_run(record(tmp_path))
    assert_array_equal(run.episodes.steps, [12])
    assert_array_equal(run.episodes.scores, [1.5])
    assert_array_equal(run.timing.steps, [10])
    assert reached_step(run, steps=1_000) == 12


def test_a_run_that_has_not_started_is_empty(tmp_path: Path) -> None:
    run = read_run(record(tmp_path / "nowhere"))
    assert run.config == {}
    assert len(run.episodes.steps) == len(run.timing.steps) == 0
    assert reached_step(run, steps=1_000) == 0
    assert_array_equal(learning_curve(run.episodes, np.array([1.0]), 10), [math.nan])


def test_a_header_alone_is_no_episode(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").write_text(HEADER)
    assert len(read_episodes(tmp_path / "episodes.csv").steps) == 0


def test_a_directory_in_the_place_of_a_log_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").mkdir()
    with pytest.raises(ConfigError, match=r"episodes\.csv cannot be read \(Is a directory\)"):
        read_episodes(tmp_path / "episodes.csv")


def test_what_needs_the_first_episodes_is_unknown_when_the_log_begins_in_the_middle(tmp_path: Path) -> None:
    """The log was damaged and begun anew at step 300: what is left of random play, the area, or an arrival is wrong."""
    rows = [f"{7 + i},{310 + 10 * i},0,{i}.0,10,7,terminated\n" for i in range(30)]
    (tmp_path / "episodes.csv").write_text(HEADER + "".join(rows))
    episodes = read_episodes(tmp_path / "episodes.csv")
    assert not episodes.is_whole
    assert math.isnan(random_play_score(episodes, start=100))
    assert math.isnan(area_under_curve(episodes, 600))
    assert steps_to_threshold(episodes, 5.0) is None
    assert final_score(episodes) == pytest.approx(14.5)
    assert_array_equal(learning_curve(episodes, np.array([300.0, 310.0, 320.0]), 600), [math.nan, 0.0, 0.5])
    (tmp_path / "episodes.csv").write_text(HEADER + rows[0].replace("7,", "0,", 1))
    assert read_episodes(tmp_path / "episodes.csv").is_whole  # no game had ended when it was begun anew


def test_a_finished_run_has_reached_all_its_steps(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"steps": 500}))
    assert reached_step(read_run(record(tmp_path, "finished")), steps=1_000) == 500


def test_a_run_that_stopped_at_its_score_has_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"steps": 500, "stop_at_score": 80.0}))
    (tmp_path / "episodes.csv").write_text(HEADER + "0,200,0,90.0,200,7,terminated\n")
    (tmp_path / "timing.jsonl").write_text('{"step": 210, "seconds": 1.5}\n')
    assert reached_step(read_run(record(tmp_path, "finished")), steps=1_000) == 210


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("episodes.csv", "episode,when,points\n0,1,2\n", "needs step and score"),
        ("episodes.csv", HEADER + "0,12,0,high,12,7,terminated\n", "damaged"),
        ("timing.jsonl", '{"step": 1, "seconds": 1}\n{"step": 2,\n{"step": 3, "seconds": 3}\n', "line 2"),
        ("timing.jsonl", '{"step": 1}\n', "seconds"),
        ("config.json", "[1]", "not a JSON object"),
        ("config.json", "[" * 100_000, "not JSON"),
        ("episodes.csv", HEADER + "0,12,0,\xff,12,7,terminated\n", "damaged"),
        ("timing.jsonl", "\xff\n", "damaged"),
        ("timing.jsonl", '{"step": "x", "seconds": 1}\n', "damaged"),
        ("timing.jsonl", '{"step": Infinity, "seconds": 1}\n', "damaged"),
        ("timing.jsonl", '{"step": 1, "seconds": []}\n', "damaged"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    readers = {"episodes.csv": read_episodes, "timing.jsonl": read_timing, "config.json": read_object}
    with pytest.raises(ConfigError, match=words) as error:
        readers[name](tmp_path / name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


# Configs and studies.


def test_config_differences_say_what_an_arm_changes() -> None:
    defaults = {"agent": "dqn-lambda", "seed": 0, "cache": {"size": 400, "tail": 0}, "target": None, "hidden": (8, 8)}
    same = {"agent": "dqn-lambda", "seed": 5, "cache": {"size": 400, "tail": 0}, "target": None, "hidden": [8, 8]}
    baseline = {"agent": "dqn", "seed": 5, "cache": None, "target": {"copy_every": 10}, "hidden": [8, 8]}
    assert config_differences(same, defaults) == {}
    assert config_differences(baseline, defaults) == {"agent": "dqn", "cache": None, "target.copy_every": 10}
    assert varying_settings([same, {**same, "seed": 6, "cache": {"size": 800, "tail": 0}}]) == {"cache.size"}


def test_a_study_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="baseline 'dqn' is not an arm"):
        StudyData("s", ("minatar/breakout",), ("peng",), "dqn", (0,), 10, ())
    with pytest.raises(ConfigError, match="which the study does not list"):
        StudyData("s", ("CartPole-v1",), ("peng",), "peng", (0,), 10, (record(tmp_path),))
