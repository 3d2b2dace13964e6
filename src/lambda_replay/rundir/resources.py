"""How much memory and disk a run needs, checked before any of it is taken."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.memory_checksums import spare_slots

NUMBER_BYTES = 4  # of an action, or of each number of a vector action
SLOT_FIELDS_BYTES = (
    NUMBER_BYTES + 4 + 4 + 1 + 1 + 1
)  # action, reward, probability, terminated, whether it is a step, frames
PROCESS_BYTES = 600_000_000  # Python, torch and the environments, measured on the Atari network


@dataclass(frozen=True)
class Needs:
    """Bytes a run needs; ``memory.storage`` decides whether RAM or disk holds the replay memory."""

    replay_bytes: int
    cache_bytes: int  # while it is used
    ram_bytes: int
    disk_bytes: int
    q_values_bytes: int = 0  # of the cache's states, while it is computed
    to_lower: str = "memory.capacity"  # the setting that takes most of the RAM


def estimate(config: RunConfig, spec: EnvironmentSpec, network: nn.Module | None = None) -> Needs:
    """What a run of this config will need; ``network`` is the user's own."""
    spare = spare_slots(config.checkpoint_interval, config.envs)
    slots = config.envs * (config.memory.capacity // config.envs + spare)
    observation_bytes = math.prod(spec.observation_shape) * np.dtype(spec.observation_dtype).itemsize
    further_numbers = math.prod(spec.action_shape) - 1  # of a vector action
    columns = agent_kind(config.agent).columns(config, spec).values()
    columns_bytes = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in columns)
    replay = slots * (observation_bytes + SLOT_FIELDS_BYTES + further_numbers * NUMBER_BYTES + columns_bytes)
    on_disk = config.memory.storage == "disk"
    agent = agent_kind(config.agent).needs(config, spec, network)
    takers = [(0 if on_disk else replay, f"memory.capacity ({config.memory.capacity})"), *agent.takers]
    ram = PROCESS_BYTES + sum(num_bytes for num_bytes, _ in takers)
    disk = replay if on_disk else 0
    return Needs(replay, agent.cache_bytes, ram, disk, agent.q_values_bytes, to_lower=max(takers)[1])


def check_room(config: RunConfig, spec: EnvironmentSpec, path: Path, network: nn.Module | None = None) -> None:
    """Reject a run that does not fit, saying how much is needed and what to lower."""
    needs = estimate(config, spec, network)
    remedy = f"lower memory.capacity ({config.memory.capacity}) or give"
    check_disk(path, needs.disk_bytes, "the replay memory", remedy)
    check_ram(needs)


def check_disk(path: Path, num_bytes: int, what: str, remedy: str = "give") -> None:
    """Reject what does not fit on the disk on which ``path`` will be."""
    free = shutil.disk_usage(_existing_parent(path)).free
    if num_bytes > free:
        raise ConfigError(
            f"{what} needs {in_words(num_bytes)} of disk, but only {in_words(free)} is free; "
            f"{remedy} an --out with more room."
        )


def check_ram(needs: Needs) -> None:
    """Reject what does not fit in this machine's memory."""
    free = available_ram()
    if needs.ram_bytes > free:
        raise ConfigError(
            f"this run needs {in_words(needs.ram_bytes)} of memory, but only {in_words(free)} is free; "
            f"lower {needs.to_lower}."
        )


def available_ram() -> int:
    """Bytes of memory available to a new process."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: all memory, for lack of a better estimate
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_words(num_bytes: float) -> str:
    """A human-readable number of bytes: 7.07 GB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB", "EB"):
        if num_bytes < 999.5 or unit == "EB":
            return f"{num_bytes:.3g} {unit}" if num_bytes < 999.5 else f"{num_bytes:,.0f} {unit}"
        num_bytes /= 1000
    raise AssertionError


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
