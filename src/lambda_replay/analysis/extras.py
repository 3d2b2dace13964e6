"""Loads the packages of the optional extra `report`; the only place that knows how to say that one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lambda_replay.errors import ConfigError


def load_extra(module: str) -> Any:
    """The module, imported on first use so that training needs neither SciPy nor matplotlib."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ConfigError(f"{package} is missing; install it with: pip install 'lambda-replay[report]'.") from error
