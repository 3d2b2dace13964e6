"""The command line, with one module per command; only code in here prints, parses arguments and exits."""

from lambda_replay.cli.main import main

__all__ = ["main"]
