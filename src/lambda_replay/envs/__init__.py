"""One interface over Atari, MinAtar and any Gymnasium environment."""

from lambda_replay.envs.interface import Environment, EnvironmentSpec, Step
from lambda_replay.envs.make import make_environment

__all__ = ["Environment", "EnvironmentSpec", "Step", "make_environment"]
