"""A run from its directory's birth to its final weights, resumed wherever it stopped; what is shown meanwhile is the caller's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from lambda_replay.agents import Agent, make_agent, parse_agent_estimator
from lambda_replay.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    MemoryChecksums,
    all_steps,
    check_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    saved_steps,
    spare_slots,
)
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, make_environment
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.files import load_tensors, save_tensors
from lambda_replay.loop import Boundary, Event, GameEnd, Learned, Loop
from lambda_replay.randomness import make_streams
from lambda_replay.resources import check_room
from lambda_replay.runs import MEMORY, WEIGHTS, RunLock, RunLog, add_note, create_run, is_finished, read_config

OnEvent = Callable[[Event], None]


class Run:
    """A run in progress: its loop, its files and its checkpoints."""

    def __init__(
        self, path: Path, config: RunConfig, environments: list[Environment], network: nn.Module | None
    ) -> None:
        self.path, self.config = path, config
        self.streams = make_streams(config.seed, config.envs)
        self.agent: Agent = make_agent(
            config,
            environments[0].spec,
            self.streams,
            network=network,
            spare_slots=spare_slots(config.checkpoint_interval, config.envs),
            memory_directory=path / MEMORY if config.memory.storage == "disk" else None,
        )
        self.loop = Loop(config, environments, self.agent, self.streams)
        self.log: RunLog | None = None
        self._environments = environments
        self._checksums = MemoryChecksums()
        self._resumed_at: int | None = None

    def restore(self, step: int) -> list[int]:
        """Go back to a sound checkpoint; the streams whose environment could not repeat its game."""
        checkpoint = load_checkpoint(self.path, step)
        state = checkpoint.state
        self.agent.learner.load_weights(checkpoint.weights)
        self.agent.learner.load_optimizer_state(checkpoint.optimizer)
        self.agent.memory.set_state(state["memory"])
        self.agent.set_state(state["agent"])
        self.streams.set_state(state["streams"])
        self.log = RunLog(self.path, state["logs"])
        self._resumed_at = step
        return self.loop.set_state(state["loop"])

    def train(self, on_event: OnEvent) -> None:
        """Go on to the last step, leaving metrics, episodes and checkpoints behind, and save the final weights."""
        self.log = RunLog(self.path) if self.log is None else self.log
        try:
            for event in self.loop.run():
                self._write(event, self.log)
                on_event(event)
        finally:
            self.log.sync()
            self.log.close()
            for environment in self._environments:
                environment.close()
        self.save_weights()

    def _write(self, event: Event, log: RunLog) -> None:
        if isinstance(event, GameEnd):
            log.write_episode(event._asdict())
        elif isinstance(event, Learned):
            log.write_metrics(event.step, event.metrics)
        elif self._is_checkpoint_due(event):
            self._checkpoint(event.step, log)

    def _is_checkpoint_due(self, boundary: Boundary) -> bool:
        interval = self.config.checkpoint_interval
        return (
            interval > 0
            and (boundary.step - self.config.memory.start) % interval == 0
            and boundary.step != self._resumed_at
        )

    def _checkpoint(self, step: int, log: RunLog) -> None:
        state: dict[str, Any] = {
            "loop": self.loop.get_state(),
            "agent": self.agent.get_state(),
            "streams": self.streams.get_state(),
            "memory": self.agent.memory.get_state(),
            "logs": log.sync(),
        }
        learner = self.agent.learner
        checkpoint = Checkpoint(step, state, learner.weights(), learner.optimizer_state())
        save_checkpoint(self.path, checkpoint, self.agent.memory, self._checksums)

    def save_weights(self) -> None:
        save_tensors(self.path / WEIGHTS, self.agent.learner.weights())

    def last_checkpoint(self) -> int | None:
        """The step from which this run would go on if it stopped now."""
        steps = saved_steps(self.path)
        return steps[0] if steps else None


def start_run(path: Path, config: RunConfig, network: nn.Module | None = None) -> Run:
    """A new run in a new directory; everything that can be refused is refused before anything is written."""
    parse_agent_estimator(config)
    environments = make_environments(config)
    check_room(config, environments[0].spec, path)
    create_run(path, config)
    return Run(path, config, environments, network)


def resume_run(
    path: Path, on_damage: Callable[[str], None], network: nn.Module | None = None, config: RunConfig | None = None
) -> Run:
    """The run of a directory, restored from its newest sound checkpoint, or from its beginning if it has none yet.

    ``on_damage`` is told of everything that is not sound. ``config``: the run's own, with another device perhaps.
    """
    config = read_config(path) if config is None else config
    if is_finished(path):
        raise ConfigError(f"{path} is finished; there is nothing to resume.")
    if config.checkpoint_every == 0:
        raise ConfigError(f"{path} was trained with checkpoint_every 0 and cannot be resumed; start it again.")
    if not saved_steps(path):
        shutil.rmtree(path / CHECKPOINTS, ignore_errors=True)
        shutil.rmtree(path / MEMORY, ignore_errors=True)
        return Run(path, config, make_environments(config), network)
    run = Run(path, config, make_environments(config), network)
    step = _newest_sound(path, run.agent, on_damage)
    for newer in all_steps(path):
        if newer > step:
            remove_checkpoint(path, newer)
    for stream in run.restore(step):
        note = f"at step {step} environment {stream} did not repeat its game and began a new one"
        add_note(path, note)
        on_damage(f"{config.env} is not deterministic: {note}; this run is not an exact continuation.")
    return run


def _newest_sound(path: Path, agent: Agent, on_damage: Callable[[str], None]) -> int:
    for step in saved_steps(path):
        damage = list(check_checkpoint(path, step, agent.memory))
        for sentence in damage:
            on_damage(f"checkpoint {step}: {sentence}")
        if not damage:
            return step
    raise DamageError(
        f"no checkpoint of {path} is sound; the run cannot be resumed, start it again in a new directory."
    )


class Finding(NamedTuple):
    """One thing that ``verify_run`` looked at."""

    what: str
    is_sound: bool
    sentence: str


def verify_run(path: Path) -> list[Finding]:
    """What is sound in a run directory and what is not; nothing is changed, except that nothing may be running in it."""
    config = read_config(path)
    findings = [Finding("config.json", True, "read")]
    if is_finished(path):
        findings.append(_verify_weights(path))
    steps = saved_steps(path)
    if not steps:
        state = "finished" if is_finished(path) else "not finished, and there is no checkpoint: resume starts afresh"
        return [*findings, Finding("checkpoints", True, f"none; the run is {state}")]
    lock = RunLock(path)
    try:
        memory = Run(path, config, make_environments(config), network=None).agent.memory
        for step in steps:
            damage = list(check_checkpoint(path, step, memory))
            findings += [Finding(f"checkpoint {step}", False, sentence) for sentence in damage]
            if not damage:
                findings.append(Finding(f"checkpoint {step}", True, "every checksum fits, the replay memory's too"))
    except DamageError as error:
        findings.append(Finding("memory", False, str(error)))
    finally:
        lock.release()
    return findings


def _verify_weights(path: Path) -> Finding:
    try:
        load_tensors(path / WEIGHTS)
    except DamageError as error:
        return Finding(WEIGHTS, False, str(error))
    return Finding(WEIGHTS, True, "readable")


def make_environments(config: RunConfig) -> list[Environment]:
    """One environment per stream."""
    return [make_environment(config) for _ in range(config.envs)]


def finish_run(path: Path, keep_memory: bool) -> None:
    """Remove what a finished run needs no more: the memory's files and the checkpoints."""
    if not keep_memory:
        shutil.rmtree(path / CHECKPOINTS, ignore_errors=True)
        shutil.rmtree(path / MEMORY, ignore_errors=True)


def train_run(
    path: Path,
    config: RunConfig,
    *,
    network: nn.Module | None = None,
    on_event: OnEvent = lambda event: None,
    keep_memory: bool = False,
) -> None:
    """Train a new run to its end; the Python way to do what ``lambda-replay train`` does, with a network of one's own."""
    run = start_run(path, config, network)
    lock = RunLock(path)
    try:
        run.train(on_event)
    finally:
        lock.release()
    finish_run(path, keep_memory)
