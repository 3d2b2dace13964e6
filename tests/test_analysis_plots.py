"""Pictures of runs, and colours that everybody can tell apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_analysis_summary import make_config, write_run

from lambda_replay.analysis.palette import BASELINE_HUE, HUES, arm_styles
from lambda_replay.analysis.plots import plot_run, run_title
from lambda_replay.replay.data import Floats

# The picture of a run.


def test_a_run_gets_its_picture(tmp_path: Path) -> None:
    run = tmp_path / "dqn-3step" / "seed-3"
    write_run(run, make_config("minatar/breakout", "dqn-3step", 3), until=30_000)
    with (run / "episodes.csv").open("a") as file:
        file.write("999,30010,0,5")  # a line that is being written
    picture = plot_run(run, run / "curve.png").read_bytes()
    width, height = int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])
    assert (width, height) == (1600, 900)
    assert picture == plot_run(run, run / "again.png").read_bytes()
    config = json.loads((run / "config.json").read_text())
    assert run_title(config) == "minatar/breakout · dqn · nstep:3 · seed 3"


def test_a_run_without_an_episode_gets_a_picture_too(tmp_path: Path) -> None:
    assert plot_run(tmp_path, tmp_path / "curve.png").stat().st_size > 1_000


# The colours.


def simulated(colours: list[str], sight: list[list[float]]) -> Floats:
    """CIE Lab of colours [n, 3] as they are seen (Machado et al. 2009, severity 1)."""
    red_green_blue = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]) / 255
    linear = np.where(red_green_blue <= 0.04045, red_green_blue / 12.92, ((red_green_blue + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = np.clip(linear @ np.array(sight).T, 0, 1) @ to_xyz.T / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


SIGHTS = {
    "normal": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("ground", [0, 1])
def test_colours_are_apart_for_every_sight(sight: str, ground: int) -> None:
    colours = [hue[ground] for hue in (BASELINE_HUE, *HUES)]
    lab = simulated(colours, SIGHTS[sight])
    distances = np.linalg.norm(lab[:, None] - lab[None], axis=-1)[np.triu_indices(len(colours), 1)]
    assert distances.min() > 20
    lightness = (simulated([*colours, ("#ffffff", "#14171b")[ground]], SIGHTS["normal"])[:, 0] + 16) / 116
    luminance = lightness**3 + 0.05  # of WCAG's contrast, for lightness above 8
    contrast = np.maximum(luminance[:-1], luminance[-1]) / np.minimum(luminance[:-1], luminance[-1])
    assert contrast.min() >= 3


def test_arms_differ_in_colour_or_dash() -> None:
    names = [f"arm {number}" for number in range(31)]
    styles = arm_styles(names, "arm 4")
    assert len({(style.light, style.dash) for style in styles.values()}) == 31
    assert [style.index for style in styles.values()] == list(range(31))
