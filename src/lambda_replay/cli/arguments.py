"""Checks arguments against the options of a command before they are parsed, so that a mistake is one plain sentence."""

from __future__ import annotations

import difflib
import types
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from lambda_replay.errors import ConfigError

LONGEST_SHOWN = 100  # characters of a wrong value in a message
LONGEST_NUMBER = 1_000  # digits; Python refuses to read integers with a few thousand


def check_arguments(arguments: list[str], options: Mapping[str, Any]) -> None:
    """Reject the first option that does not exist or has a wrong value; ``options`` gives the type of each."""
    remaining = deque(arguments)
    flags = {name for option, hint in options.items() if hint is bool for name in (option, _negated(option))}
    while remaining:
        option, equals, text = remaining.popleft().partition("=")
        if not option.startswith("-"):
            raise ConfigError(f"{option}{equals}{text} is an unexpected argument")
        option = option.replace("_", "-")
        if option in flags:
            if equals:
                raise ConfigError(f"{option} takes no value")
            continue
        if option not in options:
            meant = difflib.get_close_matches(option, [*options, *flags], n=1)
            raise ConfigError(f"there is no option {option}" + (f"; did you mean {meant[0]}?" if meant else ""))
        for given in [text] if equals else _take_values(remaining, option, options[option]):
            wanted = _wanted(_item_type(options[option]), given)
            if wanted is not None:
                raise ConfigError(f"{option} takes {wanted}, not {given[:LONGEST_SHOWN]!r}")


def _negated(flag: str) -> str:
    """``--no-x`` for ``--x``, and ``--part.no-x`` for ``--part.x``, as tyro spells them."""
    part, dot, name = flag.removeprefix("--").rpartition(".")
    return f"--{part}{dot}no-{name}"


def _take_values(remaining: deque[str], option: str, hint: Any) -> list[str]:
    """The values of an option: any number for a list, otherwise one."""
    is_list = get_origin(hint) is tuple
    values: list[str] = []
    while remaining and (is_list or not values) and not _is_option(remaining[0]):
        values.append(remaining.popleft())
    if not values and not is_list:
        raise ConfigError(f"{option} needs a value")
    return values


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and not _is_number(float, argument)


def _item_type(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def _wanted(hint: Any, text: str) -> str | None:
    """What a value must be instead; None if the text is one."""
    if get_origin(hint) in (Union, types.UnionType):
        wanted = [_wanted(part, text) for part in get_args(hint)]
        return None if None in wanted else next(words for words in wanted if words != "None")
    if hint is type(None):
        return None if text == "None" else "None"
    if get_origin(hint) is Literal:
        return None if text in get_args(hint) else f"one of {', '.join(get_args(hint))}"
    if hint in (int, float) and len(text) > LONGEST_NUMBER:
        return "a number with fewer digits"
    if hint is int:
        return None if _is_number(int, text) else "a whole number"
    if hint is float:
        return None if _is_number(float, text) else "a number"
    return None


def _is_number(kind: type[int] | type[float], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
