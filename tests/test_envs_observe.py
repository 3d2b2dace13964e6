"""``--observe`` keeps some components of a vector observation, in every command, and is refused where it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from processes import Server, command_line
from small_runs import differences, resume_to_end, small_config, train_to_end, train_until

from lambda_replay.agents.run_settings import from_dict, override, to_dict
from lambda_replay.envs import make_environment
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.envs.observe import Observe
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.files import load_tensors
from lambda_replay.studies.plan import read_study
from lambda_replay.training.presets import make_config

TINY = [
    "--steps", "300", "--memory.start", "120", "--memory.capacity", "240", "--checkpoint-every", "60", "--threads", "1",
    "--cache.size", "60", "--cache.block-length", "20", "--cache.refresh-every", "60", "--cache.updates", "4",
]  # fmt: skip
STUDY = """
name = "blind"
environments = ["CartPole-v1"]
seeds = 1
baseline = "all"
[arms.all]
[arms.places]
observe = [0, 2]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line() as server:
        yield server


def test_the_chosen_components_are_seen_in_the_order_given() -> None:
    whole, part = GymnasiumEnvironment("CartPole-v1"), Observe(GymnasiumEnvironment("CartPole-v1"), (2, 0))
    assert (part.spec.observation_shape, part.spec.observation_dtype) == ((2,), np.dtype(np.float32))
    assert part.spec.num_actions == whole.spec.num_actions
    assert_array_equal(part.reset(7), whole.reset(7)[[2, 0]])
    for action in (0, 1, 1, 0, 1):
        seen, all_ = part.step(action), whole.step(action)
        assert_array_equal(seen.observation, all_.observation[[2, 0]])
        assert seen[1:] == all_[1:]


def test_bytes_stay_bytes_unless_they_are_scaled() -> None:
    class Bytes(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, shape=(4,), dtype=np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.array([1, 2, 3, 200], dtype=np.uint8), {}

    for factors, expected in (((), [200, 1]), ((0.5, 2.0), [100.0, 2.0])):
        view = Observe(GymnasiumEnvironment("object/Bytes", given=Bytes), (3, 0), factors)
        observation = view.reset(0)
        assert observation.tolist() == expected
        assert observation.dtype == view.spec.observation_dtype == (np.float32 if factors else np.uint8)


def test_people_see_the_whole_picture() -> None:
    whole, part = GymnasiumEnvironment("CartPole-v1"), Observe(GymnasiumEnvironment("CartPole-v1"), (1,))
    for environment in (whole, part):
        environment.reset(3)
        environment.step(1)
    assert_array_equal(part.render(), whole.render())
    for environment in (whole, part):
        environment.close()


def test_without_it_nothing_is_wrapped() -> None:
    assert isinstance(make_environment(make_config("CartPole-v1")), GymnasiumEnvironment)
    assert isinstance(make_environment(override(make_config("CartPole-v1"), {"observe": [3]})), Observe)


@pytest.mark.parametrize(
    ("env", "observe", "sentence"),
    [
        ("minatar/breakout", [0], r"observe is 0, but .* have shape \(10, 10, 4\) and are images; use flicker"),
        ("atari/pong", [0, 1], r"observe is 0 1, but .* are images; use flicker for them, or leave observe out\.$"),
        ("CartPole-v1", [0, 4], r"observe is 0 4, but .* have 4 components; give numbers from 0 to 3\.$"),
        ("CartPole-v1", [1, 1], r"observe is 1 1; give component numbers from 0, each only once\.$"),
        ("CartPole-v1", [-1], r"observe is -1; give component numbers from 0, each only once\.$"),
        ("CartPole-v1", [10**400], r"observe is 10\^400; give component numbers from 0, each only once\.$"),
        ("CartPole-v1", ["x"], r"observe is 'x'; give a list in which each item is a whole number\.$"),
        ("CartPole-v1", 1, r"observe is 1; give a list\.$"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(env: str, observe: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        make_environment(override(make_config(env), {"observe": observe}))
    assert caught.value.settings == ("observe",)


def test_it_is_a_setting_like_others() -> None:
    config = override(make_config("CartPole-v1"), {"observe": [0, 2]})
    assert config.observe == (0, 2)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_studies_have_it(tmp_path: Path) -> None:
    (tmp_path / "blind.toml").write_text(STUDY)
    runs = read_study(tmp_path / "blind.toml").runs
    assert {run.arm: run.config.observe for run in runs} == {"all": (), "places": (0, 2)}


def test_every_command_knows_it(server: Server, tmp_path: Path) -> None:
    run, film = tmp_path / "run", tmp_path / "film.gif"
    ended = server.run("train", "CartPole-v1", "--observe", "0", "2", *TINY, "--out", run)
    assert ended.code == 0, ended.err
    assert load_tensors(run / "weights.safetensors")["layers.0.weight"].shape == (128, 2)
    assert json.loads(server.run("evaluate", run, "--games", "2", "--json").out)["games"] == 2
    assert server.run("watch", run, "--max-steps", "5", "--out", film).code == 0
    assert server.run("inspect", run, "--length", "20", "--out", tmp_path / "block.png").code == 0
    described = server.run("describe", "--observe", "0", "2", "CartPole-v1", *TINY)
    assert "CartPole-v1: observations 2 float32" in described.out, described.err
    refused = server.run("train", "CartPole-v1", "--observe", "9", "--out", tmp_path / "none")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "4 components" in refused.err
    assert not (tmp_path / "none").exists()


def test_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    config = small_config(observe=[0, 2])
    whole = train_to_end(tmp_path / "whole", config)
    train_until(tmp_path / "run", config, 350)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(whole, tmp_path / "run")
