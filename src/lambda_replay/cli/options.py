"""From arguments to settings: the options of every command come from dataclasses, there is no second list of names."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from lambda_replay.config import AgentName, RunConfig, from_dict, override
from lambda_replay.errors import ConfigError
from lambda_replay.training.presets import PRESETS, make_config

T = TypeVar("T")
HELP_ENV = "atari/pong"  # whose defaults, the paper's, the help of train shows when no environment is named


def parse(kind: type[T], arguments: list[str], *, usage: str, default: T | None = None) -> T:
    """The arguments as an instance of a dataclass; a mistake in them becomes one sentence."""
    if "-h" in arguments or "--help" in arguments:
        _call_tyro(kind, ["--help"], usage, default)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            return _call_tyro(kind, arguments, usage, default)
    except SystemExit as error:
        command = " ".join(itertools.takewhile(str.islower, usage.split()))  # before FILE, RUN or ENV
        raise ConfigError(f"{_first_sentence(complaint.getvalue())} (see {command} --help)") from error


def _call_tyro(kind: type[T], arguments: list[str], usage: str, default: T | None) -> T:
    markers: Any = (tyro.conf.AvoidSubcommands,)
    given: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(kind, args=arguments, prog=usage, config=markers, **given)


def _first_sentence(box: str) -> str:
    """What tyro says under the title of its box, without help texts and prefixes."""
    lines = [line.strip("│╭╰╮╯ ") for line in box.splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith(("---", "───"))]
    sentence = " ".join(lines[rules[0] + 1 : rules[1]] if len(rules) > 1 else lines)
    unknown = re.match(r"Unrecognized options: (\S+?),?( |$)", sentence)
    if unknown and not unknown[1].startswith("-"):
        return f"{unknown[1]} is one argument too many"
    if unknown:
        meant = next((line.split()[0] for line in lines if line.startswith("--") and line.strip("-")), None)
        return f"there is no option {unknown[1]}" + (f"; perhaps you meant {meant}" if meant else "")
    option = re.match(r"Error parsing (--\S+): ", sentence)
    literal = re.search(r"invalid literal for int\(\) with base 10: ('[^']*')", sentence)
    number = re.search(r"could not convert string to float: ('[^']*')", sentence)
    if option and literal:
        return f"{option[1]} takes a whole number, not {literal[1]}"
    if option and number:
        return f"{option[1]} takes a number, not {number[1]}"
    return re.sub(r"^Error parsing config[a-z_.]*: ", "", sentence).rstrip(".")


@dataclass(frozen=True)
class DescribeOptions:
    """What a run of these settings would be and need; describe --estimators lists the return estimators instead."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    preset: str | None = None  # paper, minatar or classic; by default the one that suits the environment
    json: bool = False  # one JSON object on standard output


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent; every setting of the run is an option."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    preset: str | None = None  # paper, minatar or classic; by default the one that suits the environment
    out: Path | None = None  # the run's directory; by default a new one under runs/
    keep_memory: bool = False  # keep the replay memory's files and the last checkpoints when the run is finished
    tensorboard: bool = False  # also write the metrics for TensorBoard into the run's directory


def parse_run(kind: Callable[[RunConfig], T], arguments: list[str], command: str) -> T:
    """ENV, the preset and the agent give the defaults; every other option changes one field of them."""
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    env, rest = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else (None, arguments)
    saved, rest = _take(rest, "--config")
    preset, _ = _take(rest, "--preset")
    agent, _ = _take(rest, "--agent")
    if saved is not None:
        if preset is not None:
            raise ConfigError("--config and --preset both give all settings; name one of them.")
        config = _read_saved(Path(saved), env)
    elif env is None and not wants_help:
        raise ConfigError(
            f"name an environment: lambda-replay {command} atari/pong, or minatar/breakout, or CartPole-v1."
        )
    else:
        config = make_config(HELP_ENV if env is None else env, preset, _as_agent(agent))
    default = kind(config)
    options = parse(type(default), rest, usage=f"lambda-replay {command} ENV [--config FILE]", default=default)
    named: str = options.config.env  # type: ignore[attr-defined]
    if named != config.env:
        raise ConfigError(f"two environments are named, {config.env} and {named}; name one.")
    return options


def _as_agent(name: str | None) -> AgentName:
    if name is None or name == "dqn-lambda":
        return "dqn-lambda"
    if name == "dqn":
        return "dqn"
    raise ConfigError(f"there is no agent {name!r}; choose dqn-lambda or dqn.")


def _take(arguments: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option that must be known before the others can be read, and the arguments without it."""
    for number, argument in enumerate(arguments):
        if argument == option:
            if number + 1 == len(arguments):
                raise ConfigError(f"{option} needs a value.")
            return arguments[number + 1], arguments[:number] + arguments[number + 2 :]
        if argument.startswith(f"{option}="):
            return argument.split("=", 1)[1], arguments[:number] + arguments[number + 1 :]
    return None, arguments


def _read_saved(path: Path, env: str | None) -> RunConfig:
    """The config of an earlier run; ``train --config RUN/config.json`` repeats it."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path} cannot be read ({error}); give a run's config.json.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path} is not a table of settings; give a run's config.json.")
    config = from_dict(values)
    return config if env is None else override(config, {"env": env})


def split_path(arguments: list[str], command: str, what: str = "RUN") -> tuple[Path | None, list[str]]:
    """The path that a command is about, which comes first, and its options; None where help is wanted."""
    if arguments and not arguments[0].startswith("-"):
        return Path(arguments[0]), arguments[1:]
    if {"-h", "--help"}.isdisjoint(arguments):
        raise ConfigError(f"{what} comes first: lambda-replay {command} {what}, then the options.")
    return None, arguments


def check_play_options(epsilon: float, seed: int | None, max_steps: int | None) -> None:
    """Refuse options of a game that cannot be played."""
    if not 0 <= epsilon <= 1:
        raise ConfigError(f"--epsilon is {epsilon}; give a number from 0 to 1.")
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed is {seed}; give a whole number of 0 or more.")
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"--max-steps is {max_steps}; give 1 or more agent steps.")


assert set(PRESETS) == {"paper", "minatar", "classic"}  # the help text of ``preset`` names them
