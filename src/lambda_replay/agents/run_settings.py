"""Converts configs to and from plain values for JSON, study files and the command line; checks every name and type."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lambda_replay.agents.table import AGENTS, agent_kind
from lambda_replay.checks import shown
from lambda_replay.config import AtariConfig, MinAtarConfig, RunConfig, flatten
from lambda_replay.errors import ConfigError

ALGORITHM = "algorithm"  # the field whose own fields appear next to the run's in files and on the command line
FAMILIES: dict[str, Any] = {"atari": AtariConfig, "minatar": MinAtarConfig}  # tables that are None by default
# Settings that older configs lack, with the values that match what runs did before these settings existed.
ADDED: dict[str, Any] = {"scale": [], "recurrence": {"shortcut": False}}
_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "string": "a string",
    "bool": "true or false",
    "tuple": "a list",
    "dataclass": "a table of settings",
}


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The config as plain values for JSON, with the agent's settings among the run's."""
    values = asdict(config)
    algorithm = values.pop(ALGORITHM)
    return {**values, **algorithm}


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The config that ``to_dict`` wrote, now or in an earlier version; every other setting must be present."""
    values = _with_added(values)
    name = values.get("agent", RunConfig.agent)
    kind = agent_kind(name if isinstance(name, str) else json.dumps(name, default=str))
    own = [field.name for field in fields(kind.config)]
    known = [*(field.name for field in fields(RunConfig) if field.name != ALGORITHM), *own]
    for given in values:
        if given not in known:
            raise ConfigError(_unknown(given, known, f"agent {name}"), given)
    _refuse_missing(values, [RunConfig, kind.config])
    of_run = {name: value for name, value in values.items() if name not in own}
    of_agent = {name: value for name, value in values.items() if name in own}
    own_type: Any = kind.config
    return plain(_read(run_type(own_type), {**of_run, ALGORITHM: of_agent}))


def _with_added(values: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a config of an earlier version; a table of settings is completed where there is one."""
    return merge(
        {name: added for name, added in ADDED.items() if name in values or not isinstance(added, Mapping)}, values
    )


def override(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """A copy of the config with some settings replaced: ``{"steps": 1000, "cache": {"size": 400}}``."""
    return from_dict(merge(to_dict(config), values))


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; values in ``above`` take precedence."""
    merged = dict(below)
    for name, value in above.items():
        present = merged.get(name)
        is_table = isinstance(present, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(present, value) if is_table else value  # type: ignore[arg-type]
    return merged


def differing_fields(one: RunConfig, other: RunConfig) -> list[str]:
    """Names of the settings in which two configs differ: ``["seed", "cache.size"]``."""
    left, right = flatten(to_dict(one)), flatten(to_dict(other))
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]


def _refuse_missing(values: Mapping[str, Any], owners: Iterable[Any], prefix: str = "") -> None:
    """Reject a table with a missing setting: a default might not be what was meant."""
    for owner in owners:
        for field in (field for field in fields(owner) if field.name != ALGORITHM):
            if field.name not in values:
                raise ConfigError(f"the setting {prefix}{field.name} is missing.")
            table, kind = values[field.name], _tables(owner).get(field.name)
            if isinstance(table, Mapping) and kind is not None:
                _refuse_missing(table, [kind], f"{prefix}{field.name}.")


@cache
def _tables(owner: Any) -> dict[str, Any]:
    """The settings of a config that are tables of settings themselves, and what each is."""
    tables = {name: hint for name, hint in get_type_hints(owner).items() if is_dataclass(hint)}
    return {**tables, **FAMILIES} if owner is RunConfig else tables


@cache
def run_type(algorithm: Any) -> type[RunConfig]:
    """``RunConfig`` with the type of its agent's settings, for parsers that rely on types."""
    namespace = {
        "__annotations__": {ALGORITHM: algorithm},
        "__module__": RunConfig.__module__,
        "__doc__": RunConfig.__doc__,
    }
    return dataclass(frozen=True, kw_only=True)(type(RunConfig.__name__, (RunConfig,), namespace))


def plain(config: RunConfig) -> RunConfig:
    """A config of ``run_type`` as a plain ``RunConfig``."""
    return RunConfig(**{field.name: getattr(config, field.name) for field in fields(RunConfig)})


@cache
def _adapter(kind: Any) -> TypeAdapter[RunConfig]:
    return TypeAdapter(kind)


def _read(kind: Any, values: Mapping[str, Any]) -> RunConfig:
    try:
        return _adapter(kind).validate_json(json.dumps(values, default=str), strict=True, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        raise _sentence(dict(details), _tables(RunConfig) | _tables(get_type_hints(kind)[ALGORITHM])) from None
    except ValueError as error:  # a number with thousands of digits
        raise ConfigError(f"a setting cannot be read ({error}); give a smaller number.") from None


def _sentence(details: dict[str, Any], tables: Mapping[str, Any]) -> ConfigError:
    """What is wrong with a value, in our own words; ``tables`` are the tables of settings, by name."""
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):  # from one of our own checks
        return cause
    place = [part for part in details["loc"] if part != ALGORITHM]
    name = ".".join(str(part) for part in place if not isinstance(part, int))
    kind = details["type"]
    if kind == "missing":
        return ConfigError(f"the setting {name} is missing.")
    if kind == "unexpected_keyword_argument":
        known = [field.name for field in fields(tables[str(place[-2])])] if str(place[-2]) in tables else []
        prefix = ".".join(map(str, place[:-1])) + "."
        return ConfigError(_unknown(str(place[-1]), known, "", prefix=prefix), name)
    wanted = details.get("ctx", {}).get("expected") or _WANTED.get(kind.partition("_")[0], "another value")
    if not place:  # text that is not Unicode
        return ConfigError(f"a setting cannot be read ({details['msg']}); give another value.")
    if isinstance(place[-1], int):
        wanted = f"a list in which each item is {wanted}"
    return ConfigError(f"{name} is {shown(details['input'])}; give {wanted}.", name)


def part_owner(part: str, setting: str = "") -> str | None:
    """The owner of a table of settings that not every run has: "agent dqn", "atari/… environments".

    If any agent has the table with this setting in it, only such agents are named.
    """
    if part in ("atari", "minatar"):
        return f"{part}/… environments"
    configs: dict[str, Any] = {name: kind.config for name, kind in AGENTS.items()}
    owners = [name for name, config in configs.items() if part in {field.name for field in fields(config)}]
    tables = {name: _tables(configs[name]).get(part) for name in owners}
    with_it = [name for name, table in tables.items() if table and setting in {field.name for field in fields(table)}]
    return f"agent {_listed(with_it or owners)}" if owners else None


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unknown(name: str, known: Iterable[str], whose: str, prefix: str = "") -> str:
    owner = part_owner(name)
    if whose and owner is not None:
        return f"the {name} settings belong to {owner} only; this is {whose}."
    meant = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {prefix}{meant[0]}?" if meant else f"choose one of {', '.join(known)}."
    return f"there is no setting {prefix}{name}; {remedy}"
