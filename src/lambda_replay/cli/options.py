"""Turns arguments into settings; every command's options come from dataclasses, so there is no second list of names."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import tyro

from lambda_replay.agents.run_settings import from_dict, override, part_owner, plain, run_type, to_dict
from lambda_replay.agents.table import AGENTS, agent_kind
from lambda_replay.cli.arguments import check_arguments
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.directory import CONFIG
from lambda_replay.rundir.files import first_line
from lambda_replay.training.assembly import default_agent
from lambda_replay.training.presets import PRESETS, make_config

T = TypeVar("T")
Config = TypeVar("Config")  # RunConfig with the type of its agent's settings, which gives the options
CURVE = "curve.png"  # the picture in a finished run's directory
LARGEST_CONFIG_BYTES = 1 << 20  # far above any config.json
_FLAT = tyro.conf.arg(name="")  # for a field whose own fields are options without its name as a prefix
HELP_ENV = "atari/pong"  # whose defaults the help of train shows when no environment is named


def parse(kind: type[T], arguments: list[str], *, usage: str, default: T | None = None) -> T:
    """The arguments as an instance of a dataclass; a mistake in them becomes one sentence."""
    if "-h" in arguments or "--help" in arguments:
        _call_tyro(kind, ["--help"], usage, default)
    with _pointing_to_help(" ".join(itertools.takewhile(str.islower, usage.split()))):  # up to FILE, RUN or ENV
        check_arguments(arguments, _option_types(kind))
        return _call_quietly(kind, arguments, usage, default)


@contextlib.contextmanager
def _pointing_to_help(command: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{str(error).rstrip('.')} (see {command} --help)", *error.settings) from None


def _call_quietly(kind: type[T], arguments: list[str], usage: str, default: T | None) -> T:
    """Parse checked arguments; what is left to reject are combinations of values, by the settings themselves."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return _call_tyro(kind, arguments, usage, default)
    except SystemExit as error:  # tyro's answer to any error
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConfigError):
            cause = cause.__cause__ or cause.__context__
        raise cause or ConfigError("the arguments cannot be read") from None


def _call_tyro(kind: type[T], arguments: list[str], usage: str, default: T | None) -> T:
    markers: Any = (tyro.conf.AvoidSubcommands,)
    given: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(kind, args=arguments, prog=usage, config=markers, **given)


@dataclass(frozen=True)
class DescribeOptions(Generic[Config]):
    """Show the settings of a run and what it would need; describe --estimators lists the return estimators instead."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    preset: str | None = None  # paper, atari, mini, minatar, classic, continuous or goals; by default the suitable one
    json: bool = False  # one JSON object on standard output


@dataclass(frozen=True)
class TrainOptions(Generic[Config]):
    """Train an agent; every setting of the run is an option."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    preset: str | None = None  # paper, atari, mini, minatar, classic, continuous or goals; by default the suitable one
    out: Path | None = None  # the run's directory; by default a new one under runs/
    keep_memory: bool = False  # keep the replay memory's files and the last checkpoints when the run is finished
    tensorboard: bool = False  # also write the metrics for TensorBoard into the run's directory


def parse_run(kind: Any, arguments: list[str], command: str) -> Any:
    """Options of ``kind``: ENV, the preset and the agent give the defaults; every other option changes one setting."""
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    saved, rest = _take(arguments, "--config")
    agent, _ = _take(rest, "--agent")
    env, rest = _split_env(rest, _possible_types(kind, agent))
    if env is None:
        env, _ = _take(rest, "--env")
    preset, _ = _take(rest, "--preset")
    if saved is not None:
        if preset is not None:
            raise ConfigError("--config and --preset both give all settings; use only one of them.")
        config = _read_saved(Path(saved), env)
    elif env is None and not wants_help:
        raise ConfigError(
            f"name an environment: lambda-replay {command} atari/pong, or minatar/breakout, or CartPole-v1."
        )
    else:
        env = HELP_ENV if env is None else env
        if agent is None and not wants_help:
            with _pointing_to_help(f"lambda-replay {command}"):  # before an environment is created
                check_arguments(rest, _possible_types(kind, agent))
        config = make_config(env, preset, agent or default_agent(env, _values_of(rest, "--env-args")))
    _refuse_foreign(rest, config)
    typed = _run_type(config.agent)
    default = kind(typed(**{field.name: getattr(config, field.name) for field in fields(config)}))
    options = parse(kind[typed], rest, usage=f"lambda-replay {command} ENV [--config FILE]", default=default)
    if options.config.env != config.env:
        raise ConfigError(f"two environments are named, {config.env} and {options.config.env}; name only one.")
    if options.config.agent != config.agent:
        raise ConfigError(
            f"the config is for agent {config.agent}, but --agent is {options.config.agent}; leave one of them out."
        )
    return replace(options, config=plain(options.config))


def _refuse_foreign(arguments: list[str], config: RunConfig) -> None:
    """Reject settings of another agent or of another family of environments."""
    for argument in arguments:
        option = argument.removeprefix("--").partition("=")[0] if argument.startswith("--") else ""
        part, _, setting = option.replace("-", "_").partition(".")
        owner = part_owner(part, setting.removeprefix("no_"))
        if owner is not None and to_dict(config).get(part) is None:
            raise ConfigError(f"{argument} belongs to {owner} only; this is agent {config.agent} on {config.env}.")


def _run_type(agent: str) -> type[RunConfig]:
    """An agent's config as tyro reads it: the agent's settings are options like the run's."""
    return run_type(Annotated[agent_kind(agent).config, tyro.conf.arg(name="")])


def _split_env(arguments: list[str], types: dict[str, Any]) -> tuple[str | None, list[str]]:
    """ENV, the first argument that is neither an option nor the value of one, and the other arguments."""
    expected: Any = bool  # what the previous option takes; bool: nothing
    for number, argument in enumerate(arguments):
        if argument.startswith("-"):
            expected = types.get(argument.replace("_", "-"), bool)  # --steps=10 and unknown options also take nothing
        elif get_origin(expected) is tuple and argument.isdecimal():
            continue
        elif expected is bool or get_origin(expected) is tuple:
            return argument, arguments[:number] + arguments[number + 1 :]
        else:
            expected = bool
    return None, arguments


def _possible_types(kind: Any, agent: str | None) -> dict[str, Any]:
    """The types of the options of ``kind`` for an agent, or for all of them if it is not known yet."""
    agents = AGENTS if agent is None else [agent]
    return {option: hint for name in agents for option, hint in _option_types(kind[_run_type(name)]).items()}


def _option_types(kind: Any, prefix: str = "--") -> dict[str, Any]:
    """The type of every option that the fields of a dataclass become."""
    types: dict[str, Any] = {}
    hints = get_type_hints(get_origin(kind) or kind, include_extras=True)
    for name, hint in hints.items():
        given = get_args(kind)[0] if get_args(hint)[:1] == (Config,) else hint  # the actual type for the type variable
        option = prefix + name.replace("_", "-")
        is_flat = any(isinstance(part, type(_FLAT)) for part in get_args(hint))
        part = next((part for part in (given, *get_args(given)) if is_dataclass(part)), None)
        if part is None:
            types[option] = given
        else:
            types.update(_option_types(part, prefix if is_flat else f"{option}."))
    return types


def _take(arguments: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option that must be known before the others can be read, and the arguments without it.

    If given twice, the last one counts, as for every other option.
    """
    value: str | None = None
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == option:
            value = next(remaining, None)
            if value is None:
                raise ConfigError(f"{option} needs a value.")
        elif argument.startswith(f"{option}="):
            value = argument.split("=", 1)[1]
        else:
            rest.append(argument)
    return value, rest


def _values_of(arguments: list[str], option: str) -> tuple[str, ...]:
    """The values of an option that takes several and must be known before the others can be read."""
    values: list[str] = []
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == option:
            following = itertools.takewhile(lambda text: not text.startswith("--"), arguments[number + 1 :])
            values = [value] if equals else list(following)
    return tuple(values)


def _read_saved(path: Path, env: str | None) -> RunConfig:
    """The config of an earlier run; ``train --config RUN/config.json`` repeats it."""
    try:
        with path.open("rb") as file:  # may be a pipe, whose size is unknown
            values = json.loads(file.read(LARGEST_CONFIG_BYTES))
        if not isinstance(values, dict):
            raise ConfigError(f"--config {path} is not a JSON object; give a run's config.json.")
        config = from_dict(values)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path} cannot be read ({first_line(error)}); give a run's config.json.") from None
    return config if env is None else override(config, {"env": env})


def split_path(arguments: list[str], command: str, what: str = "RUN") -> tuple[Path | None, list[str]]:
    """A command's path, which comes first, and its options; None if help is wanted."""
    if arguments and not arguments[0].startswith("-"):
        return Path(arguments[0]), arguments[1:]
    if {"-h", "--help"}.isdisjoint(arguments):
        raise ConfigError(f"give {what} first: lambda-replay {command} {what}, then the options.")
    return None, arguments


def check_file(out: Path, *endings: str) -> None:
    """Refuse an ``--out`` that cannot be written as such a file, before anything is computed for it."""
    if out.suffix not in endings:
        raise ConfigError(f"--out {out} does not end in {' or '.join(endings)}; give a file name that does.")
    try:
        if not out.parent.is_dir():
            raise ConfigError(f"--out {out}: there is no directory {out.parent}; create it first.")
        if out.exists() and not out.is_file():
            raise ConfigError(f"--out {out} is not a file; give another file name.")
        if out.name == CURVE and (out.parent / CONFIG).exists():
            raise ConfigError(f"--out {out} is the learning curve of a run; give another file name.")
        _check_access(out, out if out.exists() else out.parent, out.parent)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error.strerror}); give another file name.") from None


def check_directory(out: Path) -> None:
    """Refuse an ``--out`` that is not a directory and cannot be created, before anything is computed for it."""
    try:
        place = next(place for place in (out, *out.parents) if place.exists() or place.is_symlink())
        if not place.is_dir():
            raise ConfigError(f"--out {out}: {place} is not a directory; give another --out.")
        _check_access(out, place)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be created ({error.strerror}); give another --out.") from None


def _check_access(out: Path, *places: Path) -> None:
    for place in places:
        if not os.access(place, os.W_OK):
            raise ConfigError(f"--out {out}: you have no permission to write to {place}; give another --out.")


def check_play_options(epsilon: float, seed: int | None, max_steps: int | None) -> None:
    """Refuse options with which no game can be played."""
    if not 0 <= epsilon <= 1:
        raise ConfigError(f"--epsilon is {epsilon}; give a number from 0 to 1.")
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed is {seed}; give a whole number of 0 or more.")
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"--max-steps is {max_steps}; give 1 or more agent steps.")


assert set(PRESETS) == {
    "paper",
    "atari",
    "mini",
    "minatar",
    "classic",
    "continuous",
    "goals",
}  # the help text of ``preset`` names them
