"""λ-returns for experience replay: the library API, NumPy only; the commands live in ``lambda_replay.cli``.

``train``, ``resume`` and ``load`` import the rest of the package, and torch, when they are first used. They are not in
``__all__``, or a star import would do that. Type checkers read ``__init__.pyi``.
"""

import importlib
from typing import Any

from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.extras import needed_for
from lambda_replay.replay.cache import Cache, build_cache, prioritized, refresh
from lambda_replay.replay.critic import Critic, Promoted, QCritic, promote
from lambda_replay.replay.data import Block, Evaluation, Minibatch, ValueBlock
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory

__version__ = "0.1.0"

__all__ = [
    "Block",
    "Cache",
    "ConfigError",
    "Critic",
    "DivergenceError",
    "Estimator",
    "Evaluation",
    "Minibatch",
    "Promoted",
    "QCritic",
    "ReplayMemory",
    "ValueBlock",
    "build_cache",
    "parse_estimator",
    "prioritized",
    "promote",
    "refresh",
]

_IMPORTED_ON_USE = dict.fromkeys(("train", "resume", "load"), "lambda_replay.training.library")


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_for(f"lambda_replay.{name}"):
        return getattr(importlib.import_module(_IMPORTED_ON_USE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_IMPORTED_ON_USE])
