"""Shared by agents with target networks: samples of the whole memory that look n steps ahead."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.replay.data import Booleans, Floats, Integers
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import NStep
from lambda_replay.replay.memory import ReplayMemory

WINDOW_STEP_BYTES = 8 + 4 + 4 + 4 + 1 + 1  # slot, action, reward, probability, terminated, whether it is a step


def parse_n_step(run: RunConfig) -> NStep:
    """The run's estimator, if an agent with target networks can compute it."""
    estimator = parse_estimator(run.estimator)
    if not isinstance(estimator, NStep):
        raise ConfigError(
            f"agent {run.agent} takes the estimator nstep:n, not {run.estimator}; "
            f"use agent {run.agent}-lambda for λ-returns.",
            "estimator",
            "agent",
        )
    steps = (estimator.n + run.memory.history) * run.envs
    slots = steps + run.envs  # of two neighbours, at least one is a step to start at: no two slots in a row are closing
    if run.memory.start < steps or run.memory.capacity < slots:
        raise ConfigError(
            f"memory.start ({run.memory.start}) must be at least {steps} and memory.capacity ({run.memory.capacity}) "
            f"at least {slots} for {run.estimator}; raise them or lower n.",
            "memory.start",
            "memory.capacity",
            "estimator",
        )
    return estimator


def shortest_start(run: RunConfig) -> int:
    """Steps per stream that a sample needs."""
    return parse_n_step(run).n + run.memory.history


def sample_slots(memory: ReplayMemory, batch_size: int, n: int, rng: np.random.Generator) -> Integers:
    """Slots [B, n+1] that start uniformly at random at a transition; closing slots are drawn again."""
    slots = memory.sample_blocks(batch_size, n, rng)
    while (is_closing := ~memory.is_step[slots[:, 0]]).any():
        slots[is_closing] = memory.sample_blocks(int(is_closing.sum()), n, rng)
    return slots


class Window(NamedTuple):
    """B samples with the n steps that follow each."""

    actions: NDArray[Any]  # [B] or [B, D], of the first step
    rewards: Floats  # [B, n]
    discounts: Floats  # [B, n]  γ·(1 − terminated)
    continues: Booleans  # [B, n]  False where the episode ends


def look_ahead(memory: ReplayMemory, slots: Integers, discount: float) -> Window:
    """What the memory holds at slots [B, n+1]; what comes after an episode's end belongs to another."""
    found = memory.transitions(slots)
    terminated = found.terminated[:, :-1]
    return Window(
        found.actions[:, 0],
        found.rewards[:, :-1],
        np.where(terminated, np.float32(0), np.float32(discount)),
        ~terminated & found.is_step[:, 1:],
    )
