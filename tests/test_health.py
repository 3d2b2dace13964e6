"""Runs that say when they are sick: the rules on made-up metrics, runs made sick on purpose, and healthy ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from lambda_replay.agents.run_settings import override
from lambda_replay.config import RunConfig
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.network_health import describe_network
from lambda_replay.training.health import MANY_GAMES, MANY_ROWS, HealthMonitor, Row, find_warnings
from lambda_replay.training.presets import make_config
from lambda_replay.training.run import start_run

HEALTHY: Row = {
    "q_std_states": 0.5,
    "td_error_abs_mean": 1.0,
    "q_mean": 3.0,
    "reward_sum_max_100": 5.0,
    "score_mean_100": 30.0,
    "score_random": 20.0,
    "score_random_error": 1.0,
    "episodes": 50.0,
}


def kinds(rows: Sequence[Row]) -> list[str]:
    return [warning.kind for warning in find_warnings(rows)]


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sick", "kind"),
    [
        ({"q_std_states": 0.019}, "values alike"),
        ({"q_std_states": 0.0}, "values alike"),
        ({"q_mean": 25.1}, "values away"),
        ({"q_mean": -25.1}, "values away"),
        ({"q_mean": 5.1, "reward_sum_max_100": 0.0}, "values away"),
    ],
    ids=str,
)
def test_values_are_judged_over_many_rows(sick: Row, kind: str) -> None:
    rows = [{**HEALTHY, **sick}] * MANY_ROWS
    assert kinds(rows) == [kind]
    assert kinds(rows[1:]) == []
    assert kinds([*rows[1:], HEALTHY, *rows[1:]]) == []  # not in a row
    assert kinds([*rows, HEALTHY]) == []  # recovered


def test_dead_units_are_mentioned_even_if_the_last_row_did_not_look() -> None:
    """The network is looked at less often than every row."""
    alike = {**HEALTHY, "q_std_states": 0.0}
    rows = [alike] * MANY_ROWS + [{**alike, "dead_share_1": 0.2, "dead_share_2": 0.75}] + [alike] * 3
    assert "and 75 % of a layer's units are dead" in find_warnings(rows)[0].sentence
    assert "dead" not in find_warnings([*rows, {**alike, "dead_share_1": 0.2, "dead_share_2": 0.5}])[0].sentence


@pytest.mark.parametrize("healthy", [{"q_std_states": 0.021}, {"q_mean": 24.9}, {"q_mean": -24.9}], ids=str)
def test_values_within_the_limits_are_healthy(healthy: Row) -> None:
    assert kinds([{**HEALTHY, **healthy}] * 3 * MANY_ROWS) == []


def test_no_reward_and_no_error_is_not_a_sickness_of_the_values() -> None:
    """Before the first reward of a sparse task, everything is zero."""
    still: Row = {**HEALTHY, "q_std_states": 0.0, "td_error_abs_mean": 0.0, "q_mean": 0.0, "reward_sum_max_100": 0.0}
    assert kinds([still] * 3 * MANY_ROWS) == []


@pytest.mark.parametrize(("score", "words"), [(21.9, "no better than"), (18.1, "no better than"), (17.9, "below")])
def test_a_score_like_random_plays_after_many_games(score: float, words: str) -> None:
    rows = [{**HEALTHY, "score_mean_100": score, "episodes": 50.0 + games} for games in (0, MANY_GAMES - 1, MANY_GAMES)]
    assert kinds(rows[:2]) == []
    assert kinds(rows) == ["score"]
    assert f"is {words} random play's 20" in find_warnings(rows)[0].sentence
    assert kinds([*rows, {**rows[-1], "score_mean_100": 22.1}]) == []


def test_values_before_the_first_reward_are_not_away() -> None:
    assert kinds([{**HEALTHY, "q_mean": 0.1, "reward_sum_max_100": 0.0}] * MANY_ROWS) == []


def test_games_played_mostly_at_random_do_not_count() -> None:
    bad: Row = {**HEALTHY, "score_mean_100": 20.0}
    rows = [{**bad, "epsilon": 0.6, "episodes": 50.0}, {**bad, "epsilon": 0.51, "episodes": 5_000.0}]
    assert kinds(rows) == []
    later = [{**bad, "epsilon": 0.5, "episodes": 5_010.0 + games} for games in (0, MANY_GAMES - 1, MANY_GAMES)]
    assert kinds([*rows, *later[:2]]) == []
    assert kinds([*rows, *later]) == ["score"]
    assert f"after {MANY_GAMES} games of learning" in find_warnings([*rows, *later])[0].sentence


def test_a_score_that_has_collapsed() -> None:
    """From 60 with random play's 20, a quarter of the way is 30."""
    best: Row = {**HEALTHY, "score_mean_100": 60.0, "episodes": 1_000.0}
    low = [{**best, "score_mean_100": 29.9, "episodes": 2_000.0 + games} for games in (0, MANY_GAMES - 1, MANY_GAMES)]
    assert kinds([best, *low[:2]]) == []
    assert kinds([best, *low]) == ["fall"]
    assert "has fallen from 60 to 29.9, close to random play's 20:" in find_warnings([best, *low])[0].sentence
    assert kinds([best, *low, {**low[-1], "score_mean_100": 19.0}]) == ["fall"]  # and no second sentence about it
    assert kinds([best, *low, {**low[-1], "score_mean_100": 30.1}]) == []  # recovered
    assert kinds([best, low[0], {**low[1], "score_mean_100": 30.1}, low[2]]) == []  # not for long
    flat = [{**HEALTHY, "episodes": 100.0 * number} for number in range(100)]
    assert kinds(flat) == []
    lucky: Row = {**best, "score_mean_100": 29.0}  # within ten standard errors of random play
    assert kinds([lucky, *({**row, "score_mean_100": 22.1} for row in low)]) == []


def test_a_row_without_values_changes_nothing() -> None:
    """The last row of a run has scores only; a user's critic may have no row of Q-values."""
    rows = [{**HEALTHY, "q_std_states": 0.0}] * MANY_ROWS
    assert kinds([*rows, {"score_mean_100": 1.0, "episodes": 60.0}]) == ["values alike"]
    assert kinds([{"score_mean_100": None, "episodes": 0.0}] * 3 * MANY_ROWS) == []


def test_soft_values_hold_the_entropy_ahead_too() -> None:
    """α·H·γ/(1 − γ) = 0.5·0.7·9 = 3.15 and rewards of 0.1: values up to 5·3.25 = 16.25 are sound."""
    soft: Row = {**HEALTHY, "reward_sum_max_100": 0.1, "alpha": 0.5, "entropy": 0.7}

    def kinds_of(rows: Sequence[Row]) -> list[str]:
        return [warning.kind for warning in find_warnings(rows, discount=0.9)]

    for sign in (1, -1):  # a negative entropy makes values smaller
        assert kinds_of([{**soft, "q_mean": 16.2 * sign, "entropy": 0.7 * sign}] * 3 * MANY_ROWS) == []
        assert kinds_of([{**soft, "q_mean": 16.3 * sign}] * MANY_ROWS) == ["values away"]
    # Values keep an entropy for a while when α has fallen.
    assert kinds_of([{**soft, "q_mean": 16.2}, *[{**soft, "q_mean": 16.2, "alpha": 0.01}] * MANY_ROWS]) == []
    hard = {name: value for name, value in soft.items() if name != "alpha"}
    assert kinds_of([{**hard, "q_mean": 0.51}] * MANY_ROWS) == ["values away"]
    assert find_warnings([{**soft, "q_mean": 1e9}] * MANY_ROWS, discount=1.0) == []  # no limit is known


def test_a_warning_is_news_once() -> None:
    monitor = HealthMonitor()
    news = [monitor.see({**HEALTHY, "q_std_states": 0.0}) for _ in range(MANY_ROWS + 3)]
    assert [len(warnings) for warnings in news] == [0] * (MANY_ROWS - 1) + [1, 0, 0, 0]
    assert len(monitor.warnings) == 1


# --- what is measured -------------------------------------------------------------------------------------------------


class OwnNetwork(nn.Module):
    """Two filters, of which the second never fires, and three units, of which two never do."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.hidden, self.output = nn.Conv2d(1, 2, 1), nn.Linear(8, 3), nn.Linear(3, 2)
        self.relu = nn.ModuleList([nn.ReLU(), nn.ReLU()])
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        self.filters.bias = nn.Parameter(torch.tensor([1.0, -1.0]))
        self.hidden.bias = nn.Parameter(torch.tensor([-1.0, 2.0, -3.0]))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        features = self.relu[0](self.filters(states))
        q_values: torch.Tensor = self.output(self.relu[1](self.hidden(features.flatten(1))))
        return q_values


def test_dead_units_and_the_norm_of_the_weights_by_hand() -> None:
    """Biases 1, −1, and −1, 2, −3: the norm is √(1 + 1 + 1 + 4 + 9) = 4; one of two filters and two of three units."""
    network = QNetwork(OwnNetwork(), torch.device("cpu"))
    found = describe_network(network, np.ones((5, 1, 2, 2), dtype=np.float32))
    assert found == pytest.approx({"dead_share_1": 1 / 2, "dead_share_2": 2 / 3, "weight_norm": 4.0})


def test_a_unit_that_fires_in_one_state_is_alive() -> None:
    module = OwnNetwork()
    with torch.no_grad():
        module.filters.weight[1] = 2.0  # 2x − 1 > 0 only where x > 0.5
    states = np.zeros((5, 1, 2, 2), dtype=np.float32)
    states[3, 0, 1, 1] = 1.0
    assert describe_network(QNetwork(module, torch.device("cpu")), states)["dead_share_1"] == 0


# --- runs -------------------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "steps": 4_000,
    "device": "cpu",
    "checkpoint_every": 0,
    "memory": {"capacity": 4_000, "start": 1_000, "storage": "ram"},
    "cache": {"size": 1_000, "block_length": 50, "refresh_every": 100, "updates": 25},
    "exploration": {"steps": 2_000},
    "optimizer": {"batch_size": 64, "final_learning_rate": None, "rectified": False, "epsilon": 1e-5},
    "network": {"layer_norm": False},
}


def warnings_of(path: Path, env: str = "CartPole-v1", network: nn.Module | None = None, **values: Any) -> list[str]:
    return warnings_with(path, override(make_config(env), {**SHORT, **values}), network)


def warnings_with(path: Path, config: RunConfig, network: nn.Module | None = None) -> list[str]:
    run = start_run(path, config, network)
    try:
        run.train(lambda event: None)
    finally:
        run.close()
    return [warning.kind for warning in run.health.warnings]


def test_a_learning_rate_that_kills_the_network(tmp_path: Path) -> None:
    found = warnings_of(tmp_path / "run", optimizer={**SHORT["optimizer"], "learning_rate": 10.0, "loss": "squared"})
    assert found == ["values alike", "score"]


def test_weights_that_are_dead_from_the_start(tmp_path: Path) -> None:
    hidden = nn.Linear(4, 32)
    nn.init.constant_(hidden.bias, -1_000.0)
    network = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(32, 2))
    assert "values alike" in warnings_of(tmp_path / "run", network=network)


def test_observations_that_are_all_alike(tmp_path: Path) -> None:
    assert "values alike" in warnings_of(tmp_path / "run", "environments:Constant-v0")


def test_a_healthy_run_says_nothing(tmp_path: Path) -> None:
    assert warnings_of(tmp_path / "run") == []


def test_a_healthy_run_of_the_preset_says_nothing(tmp_path: Path) -> None:
    preset = {"steps": 10_000, "device": "cpu", "checkpoint_every": 0, "memory": {"storage": "ram"}}
    assert warnings_with(tmp_path / "run", override(make_config("CartPole-v1"), preset)) == []


class Idle(gymnasium.Env[Any, Any]):
    """Nothing is ever rewarded, so a soft value is the entropy alone; ten steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, shape=(2,))
    action_space = gymnasium.spaces.Box(-1, 1, shape=(1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, False, {}


gymnasium.register("Idle-v0", Idle, max_episode_steps=10)  # type: ignore[arg-type]


def test_a_soft_critic_without_rewards_is_not_away(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "env": "Idle-v0",
        "steps": 1_500,
        "discount": 0.9,
        "device": "cpu",
        "checkpoint_every": 0,
        "memory": {"capacity": 2_000, "start": 300, "storage": "ram"},
        "cache": {"size": 400, "block_length": 10, "refresh_every": 30, "updates": 15},
        "network": {"hidden": (16,)},
        "optimizer": {"batch_size": 32, "learning_rate": 2e-3},
        "entropy": {"alpha": 1.0},
    }
    run = start_run(tmp_path / "run", override(make_config("Pendulum-v1", agent="sac-lambda"), small))
    try:
        run.train(lambda event: None)
    finally:
        run.close()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-2]["q_mean"] > 1  # far above any sum of rewards
    assert "values away" not in [warning.kind for warning in run.health.warnings]
