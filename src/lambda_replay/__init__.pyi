"""The types of the package's names, for type checkers: they cannot follow what is imported on first use."""

from lambda_replay.errors import ConfigError as ConfigError
from lambda_replay.errors import DivergenceError as DivergenceError
from lambda_replay.replay.cache import Cache as Cache
from lambda_replay.replay.cache import build_cache as build_cache
from lambda_replay.replay.cache import prioritized as prioritized
from lambda_replay.replay.cache import refresh as refresh
from lambda_replay.replay.critic import Critic as Critic
from lambda_replay.replay.critic import Promoted as Promoted
from lambda_replay.replay.critic import QCritic as QCritic
from lambda_replay.replay.critic import promote as promote
from lambda_replay.replay.data import Block as Block
from lambda_replay.replay.data import Evaluation as Evaluation
from lambda_replay.replay.data import Minibatch as Minibatch
from lambda_replay.replay.data import ValueBlock as ValueBlock
from lambda_replay.replay.estimator_names import parse_estimator as parse_estimator
from lambda_replay.replay.estimators import Estimator as Estimator
from lambda_replay.replay.memory import ReplayMemory as ReplayMemory
from lambda_replay.training.library import load as load
from lambda_replay.training.library import resume as resume
from lambda_replay.training.library import train as train

__version__: str
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
