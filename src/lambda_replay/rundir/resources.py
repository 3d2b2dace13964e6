"""What a run will need of memory and disk, said before any of it is taken."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.networks import make_network
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Median, NStep
from lambda_replay.rundir.checkpoints import spare_slots

SLOT_FIELDS_BYTES = 4 + 4 + 4 + 1 + 1  # action, reward, probability, terminated, frames
CACHE_ROW_BYTES = 8 + 4 + 4 + 4  # slot, action, return, TD error
Q_VALUE_BYTES = 4
PROCESS_BYTES = 600_000_000  # Python, torch and the environments, measured on the Atari network
FLOAT_BYTES = 4
LEARNER_COPIES = 8  # of the weights: themselves, Adam's two moments, gradients, and what writing a checkpoint takes
FROZEN_COPIES = 3  # of the weights in a second learner: themselves, Adam's two moments
DRAWN_ROW_BYTES = 4 * 8  # a random number, its product, the place found, the row
CANDIDATE_BYTES = 3 * FLOAT_BYTES  # a return, its trace, a sorted copy
WINDOW_STEP_BYTES = 8 + 4 + 4 + 4 + 1  # slot, action, reward, probability, terminated


@dataclass(frozen=True)
class Needs:
    """Bytes a run needs; the replay memory is in one of the two, by ``memory.storage``."""

    replay_bytes: int
    cache_bytes: int  # while it is used
    ram_bytes: int
    disk_bytes: int
    q_values_bytes: int = 0  # of the cache's states, while it is computed
    to_lower: str = "memory.capacity"  # the setting that takes most of the RAM


def estimate(config: RunConfig, spec: EnvironmentSpec, network: nn.Module | None = None) -> Needs:
    """What a run of this config will need; ``network``: one of the user's own."""
    spare = spare_slots(config.checkpoint_interval, config.envs)
    slots = config.envs * (config.memory.capacity // config.envs + spare)
    observation_bytes = math.prod(spec.observation_shape) * np.dtype(spec.observation_dtype).itemsize
    replay = slots * (observation_bytes + SLOT_FIELDS_BYTES)
    cache = q_values = 0
    if config.cache is not None:
        states = config.cache.num_blocks * (config.cache.block_length + config.cache.tail + 1)
        cache, q_values = config.cache.size * CACHE_ROW_BYTES, states * spec.num_actions * Q_VALUE_BYTES
    on_disk = config.memory.storage == "disk"
    takers = [
        (0 if on_disk else replay, f"memory.capacity ({config.memory.capacity})"),
        (cache + q_values, "" if config.cache is None else f"cache.size ({config.cache.size})"),
        (_learner_bytes(config, spec, network), f"network.hidden ({', '.join(map(str, config.network.hidden))})"),
        (_minibatch_bytes(config, spec), f"optimizer.batch_size ({config.optimizer.batch_size})"),
        _drawn(config),
        _of_estimator(config, spec),
    ]
    ram = PROCESS_BYTES + sum(num_bytes for num_bytes, _ in takers)
    return Needs(replay, cache, ram, replay if on_disk else 0, q_values, to_lower=max(takers)[1])


def _learner_bytes(config: RunConfig, spec: EnvironmentSpec, network: nn.Module | None) -> int:
    """The network and Adam; once more for a target network, or for acting while training goes on."""
    if network is None:
        with torch.device("meta"):  # sizes without memory
            shape = (config.memory.history, *spec.observation_shape)
            network = make_network(config.network, shape, spec.num_actions, seed=0)
    has_second = config.cache is None or config.cache.schedule == "concurrent"
    weights = sum(parameter.numel() for parameter in network.parameters())
    return weights * FLOAT_BYTES * (LEARNER_COPIES + (FROZEN_COPIES if has_second else 0))


def _minibatch_bytes(config: RunConfig, spec: EnvironmentSpec) -> int:
    """States as they are stored and as floats, and the units of an mlp with their gradients."""
    numbers = config.memory.history * math.prod(spec.observation_shape)
    units = 0 if len(spec.observation_shape) > 1 else sum(config.network.hidden)
    stored = numbers * np.dtype(spec.observation_dtype).itemsize
    return config.optimizer.batch_size * (stored + FLOAT_BYTES * (numbers + 2 * units))


def _drawn(config: RunConfig) -> tuple[int, str]:
    """The rows of all minibatches of a refresh, which are drawn at once, and the larger of their two numbers."""
    if config.cache is None:
        return 0, ""
    updates, size = config.cache.updates_per_refresh, config.optimizer.batch_size
    larger = f"cache.updates ({updates})" if updates > size else f"optimizer.batch_size ({size})"
    return updates * size * DRAWN_ROW_BYTES, larger


def _of_estimator(config: RunConfig, spec: EnvironmentSpec) -> tuple[int, str]:
    """The candidates of a median over the whole cache; the steps that each sample of agent dqn looks ahead."""
    estimator = parse_estimator(config.estimator)
    name = f"the number in estimator ({config.estimator})"
    if config.cache is not None and isinstance(estimator, Median):
        steps = config.cache.num_blocks * (config.cache.block_length + config.cache.tail)
        return (estimator.k + 1) * steps * CANDIDATE_BYTES, name
    if config.cache is None and isinstance(estimator, NStep):
        steps = config.optimizer.batch_size * (estimator.n + 1)
        return steps * (WINDOW_STEP_BYTES + spec.num_actions * FLOAT_BYTES), name
    return 0, name


def check_room(config: RunConfig, spec: EnvironmentSpec, path: Path, network: nn.Module | None = None) -> None:
    """Refuse a run that does not fit, saying how much is needed and what to lower."""
    needs = estimate(config, spec, network)
    free_disk = shutil.disk_usage(_existing_parent(path)).free
    if needs.disk_bytes > free_disk:
        raise ConfigError(
            f"the replay memory needs {in_words(needs.disk_bytes)} of disk, but {in_words(free_disk)} are free there; "
            f"lower memory.capacity ({config.memory.capacity}) or give an --out with more room."
        )
    check_ram(needs)


def check_ram(needs: Needs) -> None:
    """Refuse what does not fit into the memory of this machine."""
    free = available_ram()
    if needs.ram_bytes > free:
        raise ConfigError(
            f"this run needs {in_words(needs.ram_bytes)} of memory, but {in_words(free)} are free; "
            f"lower {needs.to_lower}."
        )


def available_ram() -> int:
    """Bytes of memory that a new process can have."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: all of it, as nothing better is known
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_words(num_bytes: float) -> str:
    """A number of bytes for people: 7.07 GB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB", "EB"):
        if num_bytes < 999.5 or unit == "EB":
            return f"{num_bytes:.3g} {unit}" if num_bytes < 999.5 else f"{num_bytes:,.0f} {unit}"
        num_bytes /= 1000
    raise AssertionError


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
