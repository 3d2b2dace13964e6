"""The race of benchmarks/race: equal time for all, and a table and pictures of the runs that had it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.race import __main__ as race
from benchmarks.race.contestants import for_steps, train
from benchmarks.race.log import GameLog, Over
from benchmarks.race.report import draw, read_results, table
from benchmarks.race.tasks import CONTESTANTS, DISCRETE, DQN, PPO, SAC, TASKS, Task, has_schedules
from lambda_replay.studies.plan import read_study
from lambda_replay.training.presets import make_config


class Clock:
    """Processor time that passes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        monkeypatch.setattr(time, "process_time", lambda: self.now)


def log_of(clock: Clock, *, seconds: float, steps: int, cycle: int, playing: float, learning: float) -> GameLog:
    """A contestant that plays ``cycle`` steps, then learns, each for some seconds, until its steps or time are over."""
    log = GameLog(seconds)
    try:
        for step in range(1, steps + 1):
            clock.now += playing / cycle
            log.ended(float(step))
            log.stepped(step)
            if step % cycle == 0:
                clock.now += learning
    except Over:
        pass
    return log


def test_every_task_has_settings_for_every_peer() -> None:
    for settings, contestant in ((PPO, "sb3-ppo"), (DQN, "sb3-dqn"), (SAC, "sb3-sac")):
        assert set(settings) == {name for name, task in TASKS.items() if contestant in task.contestants}


def test_the_race_has_seeds_that_no_setting_was_chosen_with() -> None:
    for file in (Path(__file__).parents[1] / "studies" / "choices").glob("*.toml"):
        assert not set(read_study(file).seeds) & set(race.SEEDS), file.name


def test_a_log_knows_its_speed_and_how_much_time_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(Clock(monkeypatch), seconds=10, steps=400, cycle=50, playing=0.5, learning=0.5)
    assert log.step == 400
    assert log.used == pytest.approx(0.75)  # eight times half a second of play and, but for the last, of learning
    assert log.speed == pytest.approx(400 / 7.5)
    whole = log_of(Clock(monkeypatch), seconds=10, steps=10_000, cycle=50, playing=0.5, learning=0.5)
    assert whole.used == pytest.approx(1, abs=0.01)
    assert 50 < len(whole.curve) <= 60
    assert whole.curve[-1]["seconds"] == pytest.approx(10, abs=0.1)
    assert whole.curve[-1]["score"] == pytest.approx(whole.step - 49.5)  # the mean of the last 100 games


def test_a_speed_from_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    log = GameLog(10.0)
    clock.now += 9.0
    log.stepped(90)
    assert race.speed_of(log) == 10.0


@pytest.mark.parametrize("contestant", ["sb3-ppo", "sb3-dqn"])
@pytest.mark.parametrize("probed", [0.6, 1.0, 1.6])
def test_a_wrong_plan_is_made_again_with_the_speed_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, probed: float, contestant: str
) -> None:
    """Whatever the probe says of 100 steps per second, the run that counts uses its time and its schedules, if any."""
    clock, planned = Clock(monkeypatch), []

    def train(contestant: str, task: Task, seed: int, steps: int, log: GameLog) -> Any:
        is_probe = steps == race.FIRST_GUESS
        speed = 100 * probed if is_probe else 100
        if not is_probe:
            planned.append(steps)
        try:
            for step in range(1, steps + 1):
                clock.now += 1 / speed
                log.stepped(step)
        except Over:
            pass
        return lambda state: 0

    monkeypatch.setattr(race, "train", train)
    out = tmp_path / "run.json"
    race.run_one(TASKS["CartPole-v1"], contestant, 0, out, minutes=1.0)
    result = json.loads(out.read_text())
    is_planned = contestant == "sb3-ppo"
    assert len(planned) == (2 if is_planned and probed != 1 else 1)
    expected = 6_300 if is_planned else 18_000 * probed
    assert result["planned_steps"] == planned[-1] == pytest.approx(expected, rel=0.01)
    assert result["cpu_seconds"] == pytest.approx(60, abs=0.1)
    assert result["steps"] == pytest.approx(6_000, abs=10)
    assert len(result["greedy_scores"]) == 30


def test_who_must_know_how_many_steps_there_will_be() -> None:
    """Falling rates and clip ranges do; the same numbers throughout do not."""
    assert {who for who in DISCRETE if has_schedules(who, "CartPole-v1")} == {"dqn-lambda", "pqn", "sb3-ppo"}
    assert {who for who in DISCRETE if has_schedules(who, "minatar/breakout")} == {"dqn-lambda", "pqn"}
    assert not has_schedules("sb3-sac", "Pendulum-v1")


def test_epsilon_of_pqn_falls_over_the_same_share_of_any_run() -> None:
    """A tenth on MinAtar, a fifth on the classic tasks: the authors' settings."""
    for env, share in (("minatar/breakout", 0.1), ("CartPole-v1", 0.2)):
        algorithm = for_steps(make_config(env, agent="pqn"), 4_000_000)
        assert algorithm.exploration.steps == pytest.approx(share * 4_000_000, rel=0.03)


def result(task: str, contestant: str, seed: int, minutes: float, score: float) -> dict[str, Any]:
    curve = [{"seconds": 60 * minutes * part / 4, "step": 250 * part, "games": part, "score": score} for part in (1, 4)]
    return {
        "task": task, "contestant": contestant, "seed": seed, "minutes": minutes, "steps": 1_000,
        "cpu_seconds": 59.4 * minutes, "wall_seconds": 70.0, "curve": curve, "greedy_scores": [score + 1] * 3,
    }  # fmt: skip


def test_the_table_and_the_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        result("CartPole-v1", who, seed, 2, 10.0 * place + seed)
        for place, who in enumerate(DISCRETE)
        for seed in (0, 2)
    ]
    runs.append(result("CartPole-v1", "pqn", 4, 0.1, 500.0))
    runs.append(result("Pendulum-v1", "sac-lambda", 2, 2, -150.0))
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    results = read_results(tmp_path)
    assert "8.json had 0.1 minutes and is left out" in capsys.readouterr().out
    text = table(results)
    assert "| CartPole-v1 (2) | 1.0 ± 1.0; greedy 2.0 ± 1.0; 1k steps |" in text
    assert "**31.0 ± 1.0**; greedy **32.0 ± 1.0**" in text
    assert "Seeds 0, 2; mean ± standard error. Every run used at least 99 % of its time." in text
    assert f"| task (minutes) | {' | '.join(CONTESTANTS[who] for who in DISCRETE)} |" in text
    assert "| Pendulum-v1 (2) | **-150.0**; greedy **-149.0**; 1k steps | – | – |" in text
    for axis in ("minutes", "steps"):
        draw(results, tmp_path / f"{axis}.png", axis)
        assert (tmp_path / f"{axis}.png").stat().st_size > 10_000


@pytest.mark.parametrize("contestant", TASKS["Pendulum-v1"].contestants)
def test_continuous_actions_reach_their_bounds(contestant: str) -> None:
    """Greedy actions are those of Pendulum, from −2 to 2, whoever takes them."""
    task = TASKS["Pendulum-v1"]
    act = train(contestant, task, 0, 20_000, GameLog(1.0))
    states = np.random.default_rng(0).uniform([-1, -1, -8], [1, 1, 8], (64, 3)).astype(np.float32)
    actions = np.array([act(state) for state in states])
    assert actions.shape == (64, 1)
    assert (np.abs(actions) <= 2).all()
    assert np.isfinite(race.play(task._replace(num_games=1), act, 0)).all()
