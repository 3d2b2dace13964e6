"""λ-returns for experience replay: the library API, NumPy only; the commands live in ``lambda_replay.cli``."""

from lambda_replay.errors import ConfigError, DivergenceError
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
