"""λ-returns for experience replay: the library half, NumPy only; the commands live in ``lambda_replay.cli``."""

from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.replay.cache import Cache, prioritized, refresh
from lambda_replay.replay.data import NO_ACTION, Block, Minibatch
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator
from lambda_replay.replay.memory import ReplayMemory

__version__ = "0.1.0"

__all__ = [
    "NO_ACTION",
    "Block",
    "Cache",
    "ConfigError",
    "DivergenceError",
    "Estimator",
    "Minibatch",
    "ReplayMemory",
    "parse_estimator",
    "prioritized",
    "refresh",
]
