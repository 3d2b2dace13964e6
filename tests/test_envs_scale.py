"""``--scale`` multiplies the components of a vector observation, and is refused where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from small_runs import differences, resume_to_end, small_config, train_to_end, train_until

from lambda_replay.agents.run_settings import override
from lambda_replay.envs import make_environment
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.errors import ConfigError
from lambda_replay.training.presets import make_config


def test_every_component_that_is_seen_has_its_factor() -> None:
    whole = GymnasiumEnvironment("CartPole-v1")
    scaled = make_environment(override(make_config("CartPole-v1"), {"observe": [2, 0], "scale": [16, 0.5]}))
    assert scaled.spec.observation_shape == (2,)
    first, own = whole.reset(7), scaled.reset(7)
    assert own.dtype == np.float32
    assert_array_equal(own, [16 * first[2], 0.5 * first[0]])
    for action in (0, 1, 1, 0, 1):
        seen, all_ = scaled.step(action), whole.step(action)
        assert_array_equal(seen.observation, [16 * all_.observation[2], 0.5 * all_.observation[0]])
        assert seen[1:] == all_[1:]


@pytest.mark.parametrize(
    ("env", "settings", "sentence"),
    [
        (
            "minatar/breakout",
            {"scale": [2]},
            r"scale is 2, but .* images; the network scales them itself, so leave scale out",
        ),
        ("CartPole-v1", {"scale": [2, 3]}, r"scale is 2 3, but .* that the agent sees is 4; give as many factors\.$"),
        (
            "CartPole-v1",
            {"scale": [1, 2], "observe": [0]},
            r"scale is 1 2, but .* that the agent sees is 1; give as many factors\.$",
        ),
        ("CartPole-v1", {"scale": [1, 1, 0, 1]}, r"scale is .*; give numbers above 0\.$"),
        ("CartPole-v1", {"scale": [1, 1, float("nan"), 1]}, r"scale is .*; give numbers above 0\.$"),
        ("CartPole-v1", {"scale": ["x"]}, r"scale is 'x'; give a list in which each item is a number\.$"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(env: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        make_environment(override(make_config(env), settings))
    assert caught.value.settings == ("scale",)


def test_goals_keep_their_units() -> None:
    """The environment computes the rewards of other goals from unscaled ones, so the agent cannot relabel."""
    environment = make_environment(override(make_config("goals/bitflip-3", agent="uvfa-lambda"), {"scale": [2] * 6}))
    assert environment.spec.goals is None


def test_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    config = small_config(scale=[1, 1, 10, 1])
    whole = train_to_end(tmp_path / "whole", config)
    train_until(tmp_path / "run", config, 350)
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(whole, tmp_path / "run")
