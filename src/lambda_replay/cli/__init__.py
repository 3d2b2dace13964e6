"""The command line: the only place that prints, parses arguments and exits; each command is a file beside this one."""

from lambda_replay.cli.main import main

__all__ = ["main"]
