"""A run, from creating its directory to its final weights; ``resuming.py`` continues a stopped one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic reads this one before Python 3.12

from lambda_replay.agents.run_settings import to_dict
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment
from lambda_replay.errors import ConfigError, DamageError, DivergenceError, EnvironmentFault
from lambda_replay.learning.device import find_device
from lambda_replay.randomness import make_streams
from lambda_replay.rundir.atomic import sync_directory
from lambda_replay.rundir.checkpoints import (
    CHECKPOINTS,
    STATE,
    Checkpoint,
    all_steps,
    remove_checkpoint,
    save_checkpoint,
    saved_steps,
)
from lambda_replay.rundir.directory import (
    EPISODES,
    LOGS,
    MEMORY,
    METRICS,
    WEIGHTS,
    RunLock,
    RunLog,
    create_run,
    is_finished,
    read_metrics,
    read_provenance,
    record_divergence,
)
from lambda_replay.rundir.files import file_checksum, has_type, save_tensors
from lambda_replay.rundir.memory_checksums import MemoryChecksums, spare_slots
from lambda_replay.rundir.resources import check_room
from lambda_replay.rundir.trust import sign
from lambda_replay.training.assembly import assemble, check_agent, make_environments, with_threads
from lambda_replay.training.health import HealthMonitor
from lambda_replay.training.loop import SCORE_WINDOW, Boundary, Event, GameEnd, Learned
from lambda_replay.training.playing import LARGEST_SEED
from lambda_replay.training.policy import STOPPED_WEIGHTS

OnEvent = Callable[[Event], None]


class GameState(TypedDict):
    """A game being played, as saved in a checkpoint."""

    seed: int
    first_slot: int
    actions: list[int] | list[list[float]]
    score: float
    reward_sum: float
    reward_sum_max: float


class LoopState(TypedDict):
    """The loop, as saved in a checkpoint."""

    step: int
    num_games: int
    recent_scores: list[float]
    recent_lengths: list[int]
    recent_reward_sums: list[float]
    random_scores: list[float]
    games: list[GameState]


class Run:
    """A run in progress: its loop, its files and its checkpoints; it locks its directory until ``close``."""

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        environments: list[Environment],
        network: nn.Module | None,
        lock: RunLock,
        recorded: RunConfig,
        reopen_memory: bool = False,
    ) -> None:
        """``recorded`` is the config in the directory; ``config`` differs from it in what the resume changed."""
        self.path, self.config, self.recorded = path, config, recorded
        self.device = find_device(config.device).type
        self.loop, self._agent, self._memory, self._streams = assemble(
            config,
            environments,
            network,
            spare_slots=spare_slots(config.checkpoint_interval, config.envs),
            memory_directory=path / MEMORY if config.memory.storage == "disk" else None,
            reopen_memory=reopen_memory,
        )
        if config.memory.storage == "disk":
            sync_directory(path / MEMORY)
            sync_directory(path)
        self.log: RunLog | None = None
        self.health = HealthMonitor(config.discount)
        self._environments, self._lock = environments, lock
        self._checksums = MemoryChecksums()
        self._resumed_at: int | None = None

    def close(self) -> None:
        """Release everything, including the run directory; closing twice does no harm."""
        self._close_files()
        self._lock.release()

    def _close_files(self) -> None:
        if self.log is not None:
            self.log.close()
        for environment in self._environments:
            # An environment that fails now does no more harm, and must not hide how the run itself ended.
            with suppress(EnvironmentFault):
                environment.close()

    def check(self, checkpoint: Checkpoint) -> None:
        """Reject a checkpoint of another run."""
        self._check_state(checkpoint.state)
        wanted = self._agent.get_tensors()
        if wanted.keys() != checkpoint.tensors.keys():
            raise ConfigError("the checkpoint belongs to another agent; resume with the one it was made with.")
        for name, tensors in wanted.items():
            _check_tensors(name, checkpoint.tensors[name], tensors)

    def restore(self, checkpoint: Checkpoint) -> list[int]:
        """Restore a sound checkpoint of this run; returns the streams whose environment could not repeat its game."""
        state = checkpoint.state
        self._agent.set_tensors(checkpoint.tensors)
        self._memory.set_state(state["memory"])
        self._agent.set_state(state["agent"])
        self._streams.set_state(state["streams"])
        self.log = RunLog(self.path, state["logs"], state["seconds"])
        self._checksums.adopt(state)
        self._resumed_at = checkpoint.step
        for row in read_metrics(self.path):
            self.health.see(row)
        return self.loop.set_state(state["loop"])

    def _check_state(self, state: dict[str, Any]) -> None:
        """Reject what a checksum cannot: values that cannot come from a run like this one."""
        loop, spec = state["loop"], self._environments[0].spec
        is_sound = (
            has_type(loop, LoopState)
            and has_type(state["agent"], dict[str, float])
            and _is_like(state["agent"], self._agent.get_state())
            and set(state["logs"]) == set(LOGS)
            and state["slot_bytes"] == {name: array[:1].nbytes for name, array in self._memory.arrays.items()}
            and loop["step"] == state["step"] <= self.config.steps
            and len(loop["games"]) == self.config.envs
            and len(loop["recent_scores"]) == len(loop["recent_lengths"]) <= SCORE_WINDOW
            and len(loop["recent_reward_sums"]) == len(loop["recent_scores"])
            and len(loop["random_scores"]) <= SCORE_WINDOW
            and all(0 <= game["seed"] < LARGEST_SEED for game in loop["games"])
            and all(spec.accepts(action) for game in loop["games"] for action in game["actions"])
            and make_streams(self.config.seed, self.config.envs).accepts(state["streams"])
        )
        if not is_sound:
            place = self.path / CHECKPOINTS / str(state["step"]) / STATE
            raise DamageError(f"{place} is damaged (it does not match this run's environment or agent).")

    def train(self, on_event: OnEvent) -> None:
        """Train to the last step, writing metrics, episodes and checkpoints, and save the final weights.

        A run that diverges records that and saves no final weights; one whose environment fails saves what it had.
        """
        self.log = RunLog(self.path) if self.log is None else self.log
        try:
            for event in self.loop.run():
                self._write(event, self.log)
                on_event(event)
            self.log.sync()
            self._agent.check_finite()
        except DivergenceError as error:
            raise self._record_divergence(error) from None
        except EnvironmentFault:
            self._save_stopped_weights()
            raise
        finally:
            self._close_files()
        self._save_final_weights()

    def _write(self, event: Event, log: RunLog) -> None:
        if isinstance(event, GameEnd):
            log.write_episode(event._asdict())
        elif isinstance(event, Learned):
            log.write_metrics(event.step, event.metrics)
            self.health.see(event.metrics)
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
        self._agent.check_finite()
        state: dict[str, Any] = {
            "config": to_dict(self.recorded),
            "device": self.device,
            "threads": self.config.threads,
            "seconds": log.seconds,
            "loop": self.loop.get_state(),
            "agent": self._agent.get_state(),
            "streams": self._streams.get_state(),
            "memory": self._memory.get_state(),
            "logs": log.sync(),
        }
        checkpoint = Checkpoint(step, state, self._agent.get_tensors())
        save_checkpoint(self.path, checkpoint, self._memory, self._checksums)

    def _save_final_weights(self) -> None:
        """Their appearance marks the end of the run; they hold checksums of its results, which no longer change."""
        vouched = {name: file_checksum(self.path / name) for name in (METRICS, EPISODES)}
        save_tensors(self.path / WEIGHTS, self.weights(), vouched)

    def weights(self) -> dict[str, Tensor]:
        """The current weights, from which a policy is loaded."""
        return self._agent.get_tensors()["weights"]

    def _save_stopped_weights(self) -> None:
        """Save what was learnt before the environment failed, unless it diverged."""
        with suppress(DivergenceError):
            self._agent.check_finite()
            save_tensors(self.path / STOPPED_WEIGHTS, self.weights())

    def _record_divergence(self, error: DivergenceError) -> DivergenceError:
        """The error with the step at which it was noticed, after recording it in the run's directory."""
        sentence = f"at step {self.loop.step:,} {error}"
        record_divergence(self.path, self.loop.step, sentence)
        return DivergenceError(sentence)

    def last_checkpoint(self) -> int | None:
        """The step from which this run would resume if it stopped now."""
        steps = saved_steps(self.path)
        return steps[0] if steps else None


def _is_like(found: dict[str, float], own: dict[str, float]) -> bool:
    """Whether plain values have the same names, are finite, and are whole numbers where ours are."""
    return found.keys() == own.keys() and all(
        math.isfinite(value) and (type(value) is int or type(own[name]) is float) for name, value in found.items()
    )


def _check_tensors(what: str, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    if {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} != {
        name: (tensor.shape, tensor.dtype) for name, tensor in wanted.items()
    }:
        raise ConfigError(
            f"the checkpoint's {what} tensors belong to another network; resume with the one it was made with."
        )


def start_run(path: Path, config: RunConfig, network: nn.Module | None = None, *, keep_memory: bool = False) -> Run:
    """A new run in a new directory; everything that can be rejected is rejected before anything is written.

    ``keep_memory``: the replay memory's files and the last checkpoints stay when the run is finished.
    """
    environments = make_environments(config)
    spec = environments[0].spec
    check_agent(config, spec, network)
    check_room(config, spec, path, network)
    config = with_threads(config, spec, network)
    lock = create_run(path, config, keep_memory=keep_memory, signature=sign(config))
    try:
        return Run(path, config, environments=environments, network=network, lock=lock, recorded=config)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)  # nothing has happened in it, and this frees the disk space claimed
        lock.release()
        raise


def finish_run(path: Path) -> None:
    """Remove what a finished run no longer needs, the memory's files and the checkpoints, unless told to keep them."""
    assert is_finished(path)
    try:
        keeps_memory = read_provenance(path).get("keep_memory") is not False
    except DamageError:
        keeps_memory = True  # what was asked for is unknown
    if not keeps_memory:
        clear_run(path)


def train_run(
    path: Path,
    config: RunConfig,
    *,
    network: nn.Module | None = None,
    on_event: OnEvent = lambda event: None,
    keep_memory: bool = False,
) -> None:
    """Train a new run to its end, as ``lambda-replay train`` does, optionally with your own network."""
    run = start_run(path, config, network, keep_memory=keep_memory)
    try:
        run.train(on_event)
        finish_run(path)
    finally:
        run.close()


def clear_run(path: Path) -> None:
    """Remove checkpoints and the memory's files; anything else in their directories stays."""
    for step in all_steps(path):
        remove_checkpoint(path, step)
    for file in (path / MEMORY).glob("*.bin"):
        if file.is_file():
            file.unlink()
    for name in (CHECKPOINTS, MEMORY):
        with suppress(OSError):  # not empty, a link, or never created
            (path / name).rmdir()
