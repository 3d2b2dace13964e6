"""Dispatches to the commands, and turns every failure into one sentence and an exit code."""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from lambda_replay import __version__
from lambda_replay.cli.encoding import spell_what_cannot_be_shown
from lambda_replay.errors import ConfigError, DamageError, EnvironmentFault
from lambda_replay.extras import needed_for

DONE, FAULT, MISTAKE, INTERRUPTED = 0, 1, 2, 130


SETTINGS = "memory.capacity, cache.size, cache.updates, optimizer.batch_size or network.hidden"


class Command(NamedTuple):
    """Where a command lives; its module is imported only when needed, so that the others start fast."""

    module: str
    summary: str
    to_lower: str = ""  # what saves memory


COMMANDS = {
    "train": Command(
        "train", "train an agent:  lambda-replay train ENV [--preset P] [--estimator E] [--steps N] …", SETTINGS
    ),
    "resume": Command("resume", "continue a run that was stopped or killed:  lambda-replay resume RUN", SETTINGS),
    "evaluate": Command("evaluate", "let a trained agent play, without learning:  lambda-replay evaluate RUN"),
    "watch": Command("watch", "film a trained agent (GIF or MP4):  lambda-replay watch RUN", "--max-steps"),
    "describe": Command(
        "describe", "show a run's settings and needs:  lambda-replay describe ENV [options of train]", SETTINGS
    ),
    "inspect": Command("inspect", "draw one refresh under several estimators:  lambda-replay inspect RUN", "--length"),
    "compare": Command("compare", "several runs in one table and one picture:  lambda-replay compare RUN RUN …"),
    "verify": Command("verify", "check a run directory's files:  lambda-replay verify RUN"),
    "pack": Command("pack", "write an unfinished run into one small file:  lambda-replay pack RUN"),
    "unpack": Command("unpack", "write a packed run into a directory again:  lambda-replay unpack FILE"),
    "study": Command(
        "study",
        "many runs and their report:  lambda-replay study run|status|report FILE.toml",
        f"--workers, {SETTINGS}",
    ),
    "bench": Command("bench", "measure how fast training is on this machine:  lambda-replay bench", "--envs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    spell_what_cannot_be_shown()
    try:
        code = _run(arguments)
        sys.stdout.flush()  # so that a broken pipe or a full disk is noticed here, not at exit
        return code
    except (ConfigError, DamageError) as error:
        _say(str(error))
        return MISTAKE
    except EnvironmentFault as fault:
        if fault.__cause__ is not None:  # for the environment's author: only its own part of the traceback
            traceback.print_exception(fault.__cause__)
        _say(str(fault))
        return FAULT
    except BrokenPipeError:  # whoever reads the output has stopped
        return DONE
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _say(_memory_sentence(error, COMMANDS[arguments[0]]))
        return FAULT
    except OSError as error:
        if error.errno is None:
            raise
        where = f" ({error.filename})" if error.filename else ""
        _say(f"the system refused: {error.strerror}{where}; free space or fix permissions, then {_remedy(error)}.")
        return FAULT
    except KeyboardInterrupt as error:
        if error.args:
            _say(str(error))
        return INTERRUPTED
    finally:
        _write_or_discard_output()


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return DONE
    if arguments[0] == "--version":
        print(f"lambda-replay {__version__}")
        return DONE
    name, *rest = arguments
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; the commands are {', '.join(COMMANDS)}."
        raise ConfigError(f"there is no command {name!r}{hint}")
    with needed_for(name):
        run = importlib.import_module(f"lambda_replay.cli.{COMMANDS[name].module}").run
    result: int = run(rest)
    return result


def _overview() -> str:
    lines = [f"  {name:<9} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "lambda-replay: λ-returns with experience replay (Daley & Amato 2019)",
            "",
            *lines,
            "",
            "ENV is atari/pong, minatar/breakout, or any Gymnasium id:",
            "CartPole-v1, or package:Env-v0 for one in your own package or file.",
            "Every command has --help.",
        ]
    )


def _remedy(error: BaseException) -> str:
    """What to do after freeing resources; a run in progress has noted how to continue it."""
    note: str = getattr(error, "__notes__", ["try again"])[0]
    return note


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether NumPy, torch or Python ran out of memory; torch says so only in its message."""
    words = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in words or "out of memory" in words


def _memory_sentence(error: BaseException, command: Command) -> str:
    remedy = f"there is not enough memory; free some, then {_remedy(error)}"
    return f"{remedy}; or start again with a lower {command.to_lower}." if command.to_lower else f"{remedy}."


def _write_or_discard_output() -> None:
    """Discard output that cannot be written; otherwise Python would try again at exit and complain."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(sentence: str) -> None:
    print(f"lambda-replay: {sentence}", file=sys.stderr)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
