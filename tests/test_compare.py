"""The command ``compare``: its table, its picture, the settings that differ, and mistakes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_replay.analysis.comparison import compare_runs, differing_settings
from lambda_replay.analysis.records import Episodes, Run, RunRecord, Timing
from lambda_replay.cli.main import main

STUDIES = Path(__file__).resolve().parents[1] / "docs" / "studies.md"


def write_run(path: Path, scores: list[float], *, is_finished: bool = True, **settings: Any) -> Path:
    """A run directory with an episode every 10 steps and a refresh every 20, a second apart."""
    path.mkdir(parents=True)
    config = {"env": "CartPole-v1", "agent": "dqn-lambda", "seed": 0, "steps": 10 * len(scores), **settings}
    (path / "config.json").write_text(json.dumps(config))
    rows = [f"{number},{10 * (number + 1)},0,{score},10,1,terminated" for number, score in enumerate(scores)]
    (path / "episodes.csv").write_text("\n".join(["episode,step,stream,score,length,seed,ended", *rows]) + "\n")
    marks = range(20, 10 * len(scores) + 1, 20)
    (path / "timing.jsonl").write_text("".join(f'{{"step": {at}, "seconds": {at / 20}}}\n' for at in marks))
    if is_finished:
        (path / "weights.safetensors").write_bytes(b"")
    return path


def run_of(name: str, scores: list[float]) -> Run:
    steps = np.arange(10, 10 * len(scores) + 1, 10)
    record = RunRecord("CartPole-v1", name, 0, Path(name), "finished")
    config = {"steps": 10 * len(scores)}
    return Run(record, config, {}, Episodes(steps, np.array(scores)), Timing(steps, steps * 36.0))


def test_numbers_by_hand() -> None:
    """Four episodes of 10 steps: running means 2, 3, 4, 5, which hold until the next one ends; 360 seconds each."""
    found, nothing = compare_runs([run_of("a", [2.0, 4.0, 6.0, 8.0]), run_of("b", [])])
    assert (found.final_score, found.steps, found.games) == (5.0, 40, 4)
    assert found.mean_score == pytest.approx((2 * 20 + 3 * 10 + 4 * 10) / 40)
    assert found.hours == pytest.approx(0.4)
    assert math.isnan(nothing.final_score)
    assert math.isnan(nothing.mean_score)


def test_settings_that_differ_are_named_with_every_value() -> None:
    one = {"seed": 0, "cache": {"size": 10, "tail": 0}, "estimator": "peng:0.5"}
    other = {"seed": 1, "target": {"copy_every": 5}, "estimator": "nstep:3", "cache": {"size": 10, "tail": 0}}
    assert differing_settings([one, other]) == {"estimator": ["peng:0.5", "nstep:3"], "target.copy_every": [None, 5]}


def test_the_command_shows_a_table_the_differences_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "peng" / "seed-0", [1.0, 2.0, 3.0], estimator="peng:0.5")
    write_run(tmp_path / "nstep" / "seed-0", [4.0, 5.0, 6.0], estimator="nstep:3", is_finished=False)
    assert main(["compare", "peng/seed-0", "nstep/seed-0"]) == 0
    said = capsys.readouterr().out
    assert "scores on CartPole-v1" in said
    assert [line.split()[:4] for line in said.splitlines() if line.strip().startswith(("peng/", "nstep/"))] == [
        ["peng/seed-0", "finished", "0", "2.00"],
        ["nstep/seed-0", "not", "finished", "0"],
    ]
    assert "estimator: peng:0.5 (peng/seed-0) · nstep:3 (nstep/seed-0)" in said
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_json_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / "a", [1.0, 2.0]), write_run(tmp_path / "b", [], env="minatar/breakout", seed=7)]
    assert main(["compare", *map(str, runs), "--json", "--out", str(tmp_path / "both.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["runs"]] == ["a", "b"]
    assert found["runs"][1]["final_score"] is None
    assert found["runs"][1]["seed"] == 7
    assert found["differences"] == {"steps": {"a": 20, "b": 0}}
    assert (tmp_path / "both.png").exists()


def test_the_documentation_has_every_column_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the table of two environments, wide enough for a header of one line, and of JSON."""
    monkeypatch.setenv("COLUMNS", "200")
    runs = [str(write_run(tmp_path / name, [1.0, 2.0], env=name)) for name in ("a", "b")]
    picture = str(tmp_path / "both.png")
    assert main(["compare", *runs, "--out", picture]) == 0
    (header,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("run ")]
    assert main(["compare", *runs, "--json", "--out", picture]) == 0
    fields = list(json.loads(capsys.readouterr().out)["runs"][0])
    rows = re.findall(r"^\| ?([a-z0-9 ]*?) ?\| `(\w+)` \|", STUDIES.read_text(encoding="utf-8"), re.MULTILINE)
    assert [column for column, _ in rows if column] == re.split(r"\s{2,}", header.strip())
    assert sorted(field for _, field in rows) == sorted(fields)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give two runs or more"),
        (["a"], "give two runs or more"),
        (["a", "nowhere"], "there is no run nowhere; give the directory of a run"),
        (["a", "./a"], "a is named twice; name every run once"),
        (["a", "b", "--out", "picture.pdf"], "picture.pdf does not end in .png"),
        (["a", "b", "--steps", "3"], "--steps"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_run(tmp_path / name, [1.0])
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not list(tmp_path.glob("*.p*"))


def test_names_are_neither_markup_nor_mathematics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["lr[low]", "lr[red]", "cost_$1_$2", ":smile:"]
    runs = [write_run(tmp_path / "r" / name, [1.0, 2.0]) for name in names[:2]]
    runs += [write_run(tmp_path / name, [1.0, 2.0]) for name in names[2:]]
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "all.png")]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names)
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_a_directory_of_something_else_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    assert main(["compare", str(write_run(tmp_path / "a", [1.0])), str(tmp_path / "model")]) == 2
    assert f"there is no run {tmp_path / 'model'}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "provenance.json"])
def test_a_damaged_byte_is_one_sentence(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / "a", [1.0]), write_run(tmp_path / "b", [1.0])]
    (runs[1] / name).write_bytes(b'{"env": "\xff"}')
    assert main(["compare", *map(str, runs)]) == 2
    said = capsys.readouterr().err
    assert f"{runs[1] / name} is not JSON" in said
    assert said.count("\n") == 1
