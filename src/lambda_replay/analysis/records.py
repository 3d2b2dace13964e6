"""Reads the runs of a study and the files of a run directory; scores.py computes with them.

A run may be in progress while it is read. Its writers end every line with a newline, so a last line without one is
incomplete and is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lambda_replay.config import RunConfig, flatten
from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Floats, Integers
from lambda_replay.rundir.states import State
from lambda_replay.training.health import find_warnings


@dataclass(frozen=True)
class RunRecord:
    """One planned run of a study and its state."""

    environment: str
    arm: str
    seed: int
    path: Path  # the run directory, which need not exist yet
    state: State
    reason: str = ""  # why it failed or diverged, in one sentence


@dataclass(frozen=True)
class StudyData:
    """A study as plain data: environments × arms × seeds, and every planned run."""

    name: str
    environments: tuple[str, ...]
    arms: tuple[str, ...]
    baseline: str  # one of the arms
    seeds: tuple[int, ...]
    steps: int  # agent steps per run
    runs: tuple[RunRecord, ...]
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # environment -> config before any arm
    thresholds: Mapping[str, float] = field(default_factory=dict)  # environment -> score; else baseline's final mean
    has_one_length: bool = True  # whether all runs have the same number of steps

    def __post_init__(self) -> None:
        if self.baseline not in self.arms:
            raise ConfigError(
                f"baseline {self.baseline!r} is not an arm of the study; choose one of {', '.join(self.arms)}."
            )
        for run in self.runs:
            if run.environment not in self.environments or run.arm not in self.arms:
                raise ConfigError(
                    f"the run {run.path} is for {run.environment}, {run.arm}, which the study does not list."
                )

    def runs_of(self, environment: str, arm: str) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.runs if run.environment == environment and run.arm == arm)


@dataclass(frozen=True, eq=False)
class Episodes:
    """Whole games, in the order they ended."""

    steps: Integers  # [E]  agent step at which the game ended, never decreasing
    scores: Floats  # [E]  unclipped
    is_whole: bool = True  # False: the log was damaged and restarted, and the first games are missing
    lengths: Integers | None = None  # [E]  agent steps of the game in its own environment; None: not known
    streams: Integers | None = None  # [E]  number of that environment

    def begins(self, num_envs: int) -> Integers:  # [E]
        """The agent step, over all environments, at which each game began; one after another if lengths are unknown.

        Environments advance together, so the others make steps too while a game lasts, and of those that take the
        same time, the number of the environment counts.
        """
        if self.lengths is None or self.streams is None:
            return np.concatenate([[0], self.steps[:-1]])[: len(self.steps)]
        return self.steps - 1 - self.streams - num_envs * (self.lengths - 1)


@dataclass(frozen=True, eq=False)
class Timing:
    """How long training took up to some of its steps."""

    steps: Integers  # [R]
    seconds: Floats  # [R]  since training started


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that an analysis needs from a run directory."""

    record: RunRecord
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    episodes: Episodes
    timing: Timing
    greedy_score: float = math.nan  # mean score of the last evaluation; NaN without any
    warnings: tuple[str, ...] = ()  # that hold at its end, or now


def read_run(record: RunRecord) -> Run:
    """The contents of the run directory so far; a directory that does not exist yet gives an empty run."""
    config = read_object(record.path / "config.json")
    warnings = find_warnings(read_lines(record.path / "metrics.jsonl"), config.get("discount", RunConfig.discount))
    return Run(
        record=record,
        config=config,
        provenance=read_object(record.path / "provenance.json"),
        episodes=read_episodes(record.path / "episodes.csv"),
        timing=read_timing(record.path / "timing.jsonl"),
        greedy_score=read_greedy_score(record.path / "evaluations.jsonl"),
        warnings=tuple(warning.sentence for warning in warnings),
    )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    if not path.exists():
        return {}
    return _parse_object(path.read_bytes(), str(path))


def read_episodes(path: Path) -> Episodes:
    """The complete rows of an episodes.csv."""
    lines = complete_lines(path)
    columns = lines[0].split(",") if lines else ["step", "score"]
    if "step" not in columns or "score" not in columns:
        raise ConfigError(f"{path} has the columns {', '.join(columns)}; it needs step and score.")
    if len(lines) < 2:
        return Episodes(np.empty(0, dtype=np.int64), np.empty(0))
    names = ("step", "score", *(("length", "stream") if {"length", "stream"} <= set(columns) else ()))
    wanted = [columns.index(name) for name in names]
    try:
        table = np.loadtxt(lines[1:], delimiter=",", usecols=wanted, ndmin=2, comments=None)  # [E, 2 or 4]
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it or repeat the run.") from error
    if not np.isfinite(table).all():
        raise ConfigError(f"{path} is damaged (a number is not finite); restore it or repeat the run.")
    is_whole = "episode" not in columns or lines[1].split(",")[columns.index("episode")] == "0"  # counted from 0
    lengths, streams = table[:, 2:].T.astype(np.int64) if len(names) > 2 else (None, None)
    return Episodes(table[:, 0].astype(np.int64), table[:, 1], is_whole, lengths, streams)


def read_timing(path: Path) -> Timing:
    """The complete lines of a timing.jsonl."""
    rows = read_lines(path)
    try:
        steps, seconds = [int(row["step"]) for row in rows], [float(row["seconds"]) for row in rows]
    except KeyError as error:
        raise ConfigError(f"{path} has a line without {error}; each needs step and seconds.") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it or repeat the run.") from error
    return Timing(np.array(steps, dtype=np.int64), np.array(seconds, dtype=np.float64))


def read_greedy_score(path: Path) -> float:
    """The mean score of the last complete line of an evaluations.jsonl; NaN if there is none."""
    rows = read_lines(path)
    try:
        return float(rows[-1]["score_mean"]) if rows else math.nan
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged (its last line has no score_mean); repeat the run.") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of the complete lines of a file."""
    return [_parse_object(line, f"{path}, line {n}") for n, line in enumerate(complete_lines(path), start=1)]


def complete_lines(path: Path) -> list[str]:
    """The lines of a text file that end with a newline; none if there is no such file."""
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
        return content[: content.rfind(b"\n") + 1].decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it or repeat the run.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); restore it or repeat the run.") from error


def config_differences(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in which a run differs from its study's defaults; env and seed, which always differ, are left out.

    A section that the run lacks (cache: null) is one difference, not one for each of its fields.
    """
    default_values = flatten(json.loads(json.dumps(defaults)))  # as in JSON, where a tuple is a list
    own = {name: value for name, value in flatten(config).items() if name not in ("env", "seed")}
    absent = object()
    return {name: value for name, value in own.items() if default_values.get(name, absent) != value}


def varying_settings(configs: Iterable[Mapping[str, Any]]) -> set[str]:
    """Dotted names of the settings that are not the same in all configs; env and seed are left out."""
    flat = [flatten(config) for config in configs]
    names = {name for values in flat for name in values} - {"env", "seed"}
    return {name for name in names if len({json.dumps(values.get(name)) for values in flat}) > 1}


def _parse_object(text: str | bytes, source: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON ({error}); restore it or repeat the run.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{source} holds {type(value).__name__}, not a JSON object.")
    return value
