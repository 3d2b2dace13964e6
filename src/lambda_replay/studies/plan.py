"""Turns a study file into the complete config of every run, and finds every mistake that it can without running one.

A study file is data: environments × arms × seeds. docs/studies.md describes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli

from lambda_replay.agents.run_settings import merge, override, part_owner, to_dict
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig, environment_directory
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.files import first_line
from lambda_replay.studies.key_lines import KeyPath, find_key_lines, line_of
from lambda_replay.training.presets import make_config

# The top-level keys of a study file, with the form to show when one is missing or wrong.
FORMS = {
    "name": 'name = "peng-mini"',
    "environments": 'environments = ["minatar/breakout", "minatar/asterix"]',
    "seeds": "seeds = 5 (at most 1,000), or a list of different seeds: seeds = [0, 1, 2]",
    "baseline": 'baseline = "dqn-3step", the name of one of the arms',
    "defaults": "[defaults] with settings below it, such as steps = 400_000",
    "arms": '[arms.NAME] with settings below it, such as estimator = "peng:0.75"',
    "thresholds": '[thresholds] with scores below it, such as "minatar/breakout" = 10',
}
OPTIONAL = ("defaults", "thresholds")
PER_ENVIRONMENT = "on"  # [arms.NAME.on."atari/pong"]: settings of an arm on one environment
DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAME_FORM = "at most 100 letters, digits, '-', '_' and '.'"
MOST_SEEDS = 1_000  # if given as a number; a list may be longer

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    environment: str
    arm: str
    seed: int
    config: RunConfig

    @property
    def label(self) -> str:
        return f"{self.environment} · {self.arm} · seed {self.seed}"

    @property
    def place(self) -> Path:
        """Where the run is stored below any of the study's directories."""
        return Path(environment_directory(self.environment), self.arm, f"seed-{self.seed}")


@dataclass(frozen=True)
class Source:
    """The file itself: its values, and their lines."""

    path: Path
    values: Settings
    lines: Mapping[KeyPath, int]

    def mistake(self, path: KeyPath, sentence: str) -> ConfigError:
        """One sentence with the file and the line of a key."""
        return ConfigError(f"{self.path}, line {line_of(self.lines, path)}: {sentence}")


@dataclass(frozen=True)
class Study:
    """A resolved study file; ``runs`` has the seeds outermost, so that the first few are balanced over all else."""

    source: Source
    name: str
    environments: tuple[str, ...]
    arms: tuple[str, ...]
    baseline: str  # one of the arms
    seeds: tuple[int, ...]
    thresholds: Mapping[str, float]  # environment -> score
    defaults: Mapping[str, RunConfig]  # environment -> the config before any arm
    runs: tuple[PlannedRun, ...]

    @property
    def file(self) -> Path:
        return self.source.path

    @property
    def steps(self) -> int:
        """Agent steps per run; of the longest one, if arms differ."""
        return max(run.config.steps for run in self.runs)

    def mistake(self, run: PlannedRun, error: ConfigError) -> ConfigError:
        """The error with the line of the setting at fault, or else of the environments."""
        layers = _layers(self.source, run.environment, run.arm)
        return self.source.mistake(_guilty_key(error, layers, ("environments",)), str(error))


def read_study(path: Path) -> Study:
    """Read a study file and check every name, value and combination in it."""
    source = _read_source(path)
    _check_top(source)
    environments, arms = _environments(source), _arms(source)
    seeds, baseline = _seeds(source), source.values["baseline"]
    if baseline not in arms:
        names = ", ".join(arms)
        raise source.mistake(("baseline",), f"baseline is {baseline!r}, which is not an arm; choose one of {names}.")
    _check_settings(source, environments)
    configs = {(env, arm): _arm_config(source, env, arm) for env in environments for arm in arms}
    _check_parts_matter(source, list(configs.values()))
    _check_arms_differ(source, configs, environments, arms)
    return Study(
        source=source,
        name=source.values["name"],
        environments=environments,
        arms=arms,
        baseline=baseline,
        seeds=seeds,
        thresholds=_thresholds(source, environments),
        defaults={env: config for env in environments if (config := _default_config(source, env)) is not None},
        runs=tuple(
            PlannedRun(env, arm, seed, override(configs[env, arm], {"seed": seed}))
            for seed in seeds
            for env in environments
            for arm in arms
        ),
    )


def _read_source(path: Path) -> Source:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        return Source(path, tomli.loads(text), find_key_lines(text))
    except FileNotFoundError:
        raise ConfigError(f"there is no study file {path}; give a .toml file, for example studies/mini.toml.") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: this is not UTF-8, as TOML must be; save the file as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error}); give a study file (.toml).") from None
    except tomli.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}: this is not TOML ({error.msg}); a line is [arms.NAME] or key = value, each "
            'only once, where a value is 5, 0.1, true, "text" or ["a", "list"].'
        ) from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or thousands of brackets
        raise ConfigError(f"{path} cannot be read ({first_line(error)}); give a study file (.toml).") from None


def _check_top(source: Source) -> None:
    for name in source.values:
        if name not in FORMS:
            raise source.mistake((name,), f"{name!r} is not a key of a study file; the keys are {', '.join(FORMS)}.")
    for name, form in FORMS.items():
        if name not in source.values and name not in OPTIONAL:
            raise source.mistake((), f"{name} is missing; write {form}.")
    name = source.values["name"]
    if not (isinstance(name, str) and DIRECTORY_NAME.fullmatch(name)):
        raise source.mistake(("name",), f"name is {name!r}; write {FORMS['name']}, with {NAME_FORM}.")
    for table in ("defaults", "arms", "thresholds"):
        if not isinstance(source.values.get(table, {}), dict):
            raise source.mistake((table,), f"{table} is {source.values[table]!r}; write {FORMS[table]}.")


def _environments(source: Source) -> tuple[str, ...]:
    names = source.values["environments"]
    if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
        raise source.mistake(("environments",), f"environments is {names!r}; write {FORMS['environments']}.")
    directories = [environment_directory(name).casefold() for name in names]
    for number, name in enumerate(names):
        if directories[number] in directories[:number]:
            raise source.mistake(("environments",), f"environments has {name} twice; name each one once.")
    return tuple(names)


def _seeds(source: Source) -> tuple[int, ...]:
    seeds = source.values["seeds"]
    if type(seeds) is int and 0 < seeds <= MOST_SEEDS:
        return tuple(range(seeds))
    is_list = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not is_list or len(set(seeds)) < len(seeds):
        raise source.mistake(("seeds",), f"seeds is {seeds!r}; write {FORMS['seeds']}.")
    return tuple(seeds)


def _arms(source: Source) -> tuple[str, ...]:
    arms = source.values["arms"]
    if not arms:
        raise source.mistake(("arms",), f"there is no arm; write {FORMS['arms']}.")
    for arm, settings in arms.items():
        if not DIRECTORY_NAME.fullmatch(arm):
            raise source.mistake(("arms", arm), f"the arm {arm!r} needs another name, with {NAME_FORM}.")
        if not isinstance(settings, dict):
            raise source.mistake(("arms", arm), f"arms.{arm} is {settings!r}; write {FORMS['arms']}.")
        if any(name.isdigit() for name in settings):  # TOML reads peng-0.75 as a table 75 in a table peng-0
            whole = next(f"{arm}.{name}" for name in settings if name.isdigit())
            raise source.mistake(("arms", arm), f'a name with a dot needs quotes; write [arms."{whole}"].')
        if sum(other.casefold() == arm.casefold() for other in arms) > 1:
            raise source.mistake(("arms", arm), f"the arm {arm} differs from another only in case; rename one.")
    return tuple(arms)


def _check_settings(source: Source, environments: tuple[str, ...]) -> None:
    """Refuse a seed or an environment in a table of settings, and an ``on`` for an environment not in the study."""
    for arm, settings in source.values["arms"].items():
        on: Any = settings.get(PER_ENVIRONMENT, {})
        path: KeyPath = ("arms", arm, PER_ENVIRONMENT)
        form = f'[arms.{arm}.on."{environments[0]}"] with settings below it'
        if not isinstance(on, dict):
            raise source.mistake(path, f"arms.{arm}.on is {on!r}; write {form}.")
        for name, table in on.items():
            if name not in environments:
                known = ", ".join(environments)
                raise source.mistake((*path, name), f"arms.{arm}.on names {name}, which is not among {known}.")
            if not isinstance(table, dict):
                raise source.mistake((*path, name), f"arms.{arm}.on has {name} = {table!r}; write {form}.")
    for table_path, table in _tables(source):
        for name, remedy in (("seed", "seeds"), ("env", "environments")):
            if name in table:
                raise source.mistake(
                    (*table_path, name), f"{name} cannot be set here; use {remedy} at the top of the file."
                )


def _tables(source: Source) -> Iterator[tuple[KeyPath, Settings]]:
    yield ("defaults",), source.values.get("defaults", {})
    for arm, settings in source.values["arms"].items():
        yield ("arms", arm), settings
        yield from ((("arms", arm, "on", name), table) for name, table in settings.get(PER_ENVIRONMENT, {}).items())


def _thresholds(source: Source, environments: tuple[str, ...]) -> dict[str, float]:
    thresholds = source.values.get("thresholds", {})
    for name, score in thresholds.items():
        if name not in environments:
            known = ", ".join(environments)
            raise source.mistake(("thresholds", name), f"thresholds names {name}, which is not among {known}.")
        if type(score) not in (int, float) or not abs(score) <= sys.float_info.max:
            raise source.mistake(("thresholds", name), f"thresholds has {score!r}; write {FORMS['thresholds']}.")
    return {name: float(score) for name, score in thresholds.items()}


def _default_config(source: Source, env: str) -> RunConfig | None:
    """A run with the study's defaults alone, to show in what an arm differs; None if they need an arm's agent."""
    try:
        return _resolve(source, env, {("defaults",): source.values.get("defaults", {})})
    except ConfigError:
        return None


def _arm_config(source: Source, env: str, arm: str) -> RunConfig:
    return _resolve(source, env, _layers(source, env, arm))


def _layers(source: Source, env: str, arm: str) -> dict[KeyPath, Settings]:
    """The tables that make up the config of an arm on an environment; later ones override earlier ones."""
    settings = source.values["arms"][arm]
    return {
        ("defaults",): source.values.get("defaults", {}),
        ("arms", arm): {name: value for name, value in settings.items() if name != PER_ENVIRONMENT},
        ("arms", arm, PER_ENVIRONMENT, env): settings.get(PER_ENVIRONMENT, {}).get(env, {}),
    }


def _resolve(source: Source, env: str, layers: dict[KeyPath, Settings]) -> RunConfig:
    """The preset's config with the layers' settings; later ones override earlier ones."""
    merged: dict[str, Any] = {}
    for settings in layers.values():
        merged = merge(merged, settings)
    preset, agent = merged.pop("preset", None), merged.get("agent", RunConfig.agent)
    try:
        base = replace(make_config(env, preset, agent), threads=1)  # parallel runs, not threads, use the cores
        for part in [name for name in merged if _is_foreign(name, base)]:
            _refuse_part(part, base, layers)
            merged.pop(part)
        config = override(base, merged)
        agent_kind(config.agent).estimator(config)
    except ConfigError as error:
        uppermost = next((path for path, settings in reversed(layers.items()) if settings), ())
        raise source.mistake(_guilty_key(error, layers, uppermost), str(error)) from None
    return config


def _refuse_part(part: str, base: RunConfig, layers: Mapping[KeyPath, Settings]) -> None:
    """An arm's own settings must apply to it; those in [defaults] are for the arms that they fit."""
    if any(part in settings for path, settings in layers.items() if path != ("defaults",)):
        sentence = f"the {part} settings belong to {part_owner(part)}; this is agent {base.agent} on {base.env}."
        raise ConfigError(sentence, part)


def _check_parts_matter(source: Source, configs: list[RunConfig]) -> None:
    for part in source.values.get("defaults", {}):
        if all(_is_foreign(part, config) for config in configs):
            sentence = f"the {part} settings belong to {part_owner(part)}, which no arm has."
            raise source.mistake(("defaults", part), sentence)


def _is_foreign(part: str, config: RunConfig) -> bool:
    """Whether settings belong to another agent or another family of environments."""
    return part_owner(part) is not None and to_dict(config).get(part) is None


def _check_arms_differ(
    source: Source, configs: Mapping[tuple[str, str], RunConfig], environments: tuple[str, ...], arms: tuple[str, ...]
) -> None:
    """Two arms with the same settings and seeds would give the same runs twice."""
    for number, arm in enumerate(arms):
        for other in arms[:number]:
            if all(configs[env, arm] == configs[env, other] for env in environments):
                raise source.mistake(("arms", arm), f"the arms {other} and {arm} have the same settings; remove one.")


def _guilty_key(error: ConfigError, layers: dict[KeyPath, Settings], otherwise: KeyPath) -> KeyPath:
    """The first setting at fault that the file has, in the topmost layer that has it."""
    for setting in error.settings:
        for path, settings in reversed(list(layers.items())):
            if _has(settings, setting.split(".")):
                return (*path, *setting.split("."))
    return otherwise


def _has(settings: Any, path: list[str]) -> bool:
    for name in path:
        if not (isinstance(settings, dict) and name in settings):
            return False
        settings = settings[name]
    return True
