"""``lambda-replay inspect``: a picture of one block, from the run's own policy."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

from lambda_replay.agents.run_settings import override
from lambda_replay.cli import main
from lambda_replay.training.presets import make_config
from lambda_replay.training.run import train_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "run"
    small = {
        "steps": 600,
        "memory": {"capacity": 600, "start": 200},
        "cache": {"size": 200, "block_length": 20, "refresh_every": 200, "updates": 5},
    }
    train_run(path, override(make_config("minatar/breakout", "mini"), small))
    return path


def test_a_picture_is_drawn_and_repeats_itself(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run)]) == 0
    first = (run / "inspect.png").read_bytes()
    assert "under peng:0.75, nstep:3, watkins:0.75, median" in capsys.readouterr().out
    assert main(["inspect", str(run)]) == 0
    assert (run / "inspect.png").read_bytes() == first
    picture = imageio.imread(run / "inspect.png")
    assert picture.shape[0] > 1000
    assert np.unique(picture.reshape(-1, picture.shape[2]), axis=0).shape[0] > 50  # lines in several colours


def test_every_estimator_can_be_looked_at(run: Path, tmp_path: Path) -> None:
    names = ["retrace:0.9@0.1", "tree:0.9", "bounded:0.1", "sarsa:0.5@0.1", "watkins-published:0.5", "watkins-median/4"]
    assert main(["inspect", str(run), "--estimators", *names, "--length", "30", "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--estimators", "peng:7"], "peng:λ"),
        (["--length", "1"], "--length"),
        (["--epsilon", "2"], "--epsilon"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_a_mistake_is_one_sentence(
    run: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(run), *options, "--out", str(tmp_path / "b.png")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "b.png").exists()
