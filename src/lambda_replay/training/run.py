"""A run from its directory's birth to its final weights, resumed wherever it stopped; showing it is the caller's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lambda_replay.agents import Agent, check_agent, choose_threads, make_agent
from lambda_replay.config import Device, RunConfig, differing_fields, to_dict
from lambda_replay.envs import Environment, make_environment
from lambda_replay.errors import ConfigError, DamageError, DivergenceError, EnvironmentFault
from lambda_replay.randomness import make_streams
from lambda_replay.rundir.checkpoints import (
    CHECKPOINTS,
    STATE,
    STRAY,
    Checkpoint,
    MemoryChecksums,
    all_steps,
    find_damage,
    find_log_damage,
    forget_logs,
    form_of,
    has_form,
    keep_checkpoints,
    load_checkpoint,
    read_state,
    remove_checkpoint,
    save_checkpoint,
    saved_config,
    saved_steps,
    spare_slots,
    strays,
)
from lambda_replay.rundir.directory import (
    CONFIG,
    EPISODES,
    LOGS,
    MEMORY,
    METRICS,
    WEIGHTS,
    RunLock,
    RunLog,
    amend_provenance,
    changes_of_machinery,
    create_run,
    had_checkpoint,
    is_diverged,
    is_finished,
    read_config,
    read_provenance,
    record_divergence,
    renew_log,
)
from lambda_replay.rundir.files import file_checksum, save_tensors, set_aside, sync_directory
from lambda_replay.rundir.resources import check_room
from lambda_replay.rundir.trust import MayImport, check_trust, refuse, sign
from lambda_replay.training.loop import LARGEST_SEED, SCORE_WINDOW, Boundary, Event, GameEnd, Learned, Loop
from lambda_replay.training.policy import STOPPED_WEIGHTS

OnEvent = Callable[[Event], None]
Say = Callable[[str], None]

LOOP_FORM: dict[str, Any] = {
    "step": int,
    "num_games": int,
    "recent_scores": [float],
    "recent_lengths": [int],
    "games": [{"seed": int, "first_slot": int, "actions": [int], "score": float}],
}


class Run:
    """A run in progress: its loop, its files and its checkpoints; it has its directory to itself until ``close``."""

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
        """``recorded`` is the config in the directory; ``config`` differs from it in what was asked for on resuming."""
        self.path, self.config = path, config
        self.streams = make_streams(config.seed, config.envs)
        self.agent: Agent = make_agent(
            config,
            environments[0].spec,
            self.streams,
            network=network,
            spare_slots=spare_slots(config.checkpoint_interval, config.envs),
            memory_directory=path / MEMORY if config.memory.storage == "disk" else None,
            reopen_memory=reopen_memory,
        )
        if config.memory.storage == "disk":
            sync_directory(path / MEMORY)
            sync_directory(path)
        self.loop = Loop(config, environments, self.agent, self.streams)
        self.log: RunLog | None = None
        self._environments, self._lock, self.recorded = environments, lock, recorded
        self._checksums = MemoryChecksums()
        self._resumed_at: int | None = None

    def close(self) -> None:
        """Let go of everything, the run directory too; closing twice does no harm."""
        self._close_files()
        self._lock.release()

    def _close_files(self) -> None:
        if self.log is not None:
            self.log.close()
        for environment in self._environments:
            # An environment that fails now can spoil nothing any more, and must not hide how the run itself ended.
            with suppress(EnvironmentFault):
                environment.close()

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of another run."""
        self._check_state(checkpoint.state)
        _check_tensors("weights", checkpoint.weights, self.agent.learner.weights())
        _check_tensors("optimizer state", checkpoint.optimizer, self.agent.learner.optimizer_state())

    def restore(self, checkpoint: Checkpoint) -> list[int]:
        """Go back to a sound checkpoint of this run; the streams whose environment could not repeat its game."""
        state, learner = checkpoint.state, self.agent.learner
        learner.load_weights(checkpoint.weights)
        learner.load_optimizer_state(checkpoint.optimizer)
        self.agent.memory.set_state(state["memory"])
        self.agent.set_state(state["agent"])
        self.streams.set_state(state["streams"])
        self.log = RunLog(self.path, state["logs"], state["seconds"])
        self._checksums.adopt(state)
        self._resumed_at = checkpoint.step
        return self.loop.set_state(state["loop"])

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuse what a checksum cannot: values that were never those of a run like this one."""
        loop, memory = state["loop"], self.agent.memory
        num_actions = self._environments[0].spec.num_actions
        is_sound = (
            has_form(loop, LOOP_FORM)
            and has_form(state["agent"], form_of(self.agent.get_state()))
            and has_form(state["streams"], form_of(self.streams.get_state()))
            and set(state["logs"]) == set(LOGS)
            and state["slot_bytes"] == {name: array[:1].nbytes for name, array in memory.arrays.items()}
            and loop["step"] == state["step"] <= self.config.steps
            and len(loop["games"]) == self.config.envs
            and len(loop["recent_scores"]) == len(loop["recent_lengths"]) <= SCORE_WINDOW
            and all(0 <= game["seed"] < LARGEST_SEED for game in loop["games"])
            and all(0 <= action < num_actions for game in loop["games"] for action in game["actions"])
        )
        if is_sound:
            try:
                make_streams(self.config.seed, self.config.envs).set_state(state["streams"])
            except (ValueError, TypeError, OverflowError):
                is_sound = False
        if not is_sound:
            place = self.path / CHECKPOINTS / str(state["step"]) / STATE
            raise DamageError(f"{place} is damaged (it does not fit the environment or the agent of this run).")

    def train(self, on_event: OnEvent) -> None:
        """Go on to the last step, leaving metrics, episodes and checkpoints behind, and save the final weights.

        A run that diverges leaves word of it and no final weights; one whose environment fails, the weights it had.
        """
        self.log = RunLog(self.path) if self.log is None else self.log
        try:
            for event in self.loop.run():
                self._write(event, self.log)
                on_event(event)
            self.log.sync()
            self.agent.learner.check_finite()
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
        learner = self.agent.learner
        learner.check_finite()
        state: dict[str, Any] = {
            "config": to_dict(self.recorded),
            "device": learner.device.type,
            "threads": self.config.threads,
            "seconds": log.seconds,
            "loop": self.loop.get_state(),
            "agent": self.agent.get_state(),
            "streams": self.streams.get_state(),
            "memory": self.agent.memory.get_state(),
            "logs": log.sync(),
        }
        checkpoint = Checkpoint(step, state, learner.weights(), learner.optimizer_state())
        save_checkpoint(self.path, checkpoint, self.agent.memory, self._checksums)

    def _save_final_weights(self) -> None:
        """Their appearance is the end of the run; they vouch for its results, which nothing changes any more."""
        vouched = {name: file_checksum(self.path / name) for name in (METRICS, EPISODES)}
        save_tensors(self.path / WEIGHTS, self.agent.learner.weights(), vouched)

    def _save_stopped_weights(self) -> None:
        """What was learnt up to the environment's fault, unless that is of no use."""
        with suppress(DivergenceError):
            self.agent.learner.check_finite()
            save_tensors(self.path / STOPPED_WEIGHTS, self.agent.learner.weights())

    def _record_divergence(self, error: DivergenceError) -> DivergenceError:
        """The error with the step at which it was noticed, after leaving word of it in the run's directory."""
        sentence = f"at step {self.loop.step:,} {error}"
        record_divergence(self.path, self.loop.step, sentence)
        return DivergenceError(sentence)

    def last_checkpoint(self) -> int | None:
        """The step from which this run would go on if it stopped now."""
        steps = saved_steps(self.path)
        return steps[0] if steps else None


def _check_tensors(what: str, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    if {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} != {
        name: (tensor.shape, tensor.dtype) for name, tensor in wanted.items()
    }:
        raise ConfigError(
            f"the checkpoint's {what} are those of another network; resume with the one it was made with."
        )


def start_run(path: Path, config: RunConfig, network: nn.Module | None = None, *, keep_memory: bool = False) -> Run:
    """A new run in a new directory; everything that can be refused is refused before anything is written.

    ``keep_memory``: the replay memory's files and the last checkpoints stay when the run is finished.
    """
    environments = make_environments(config)
    spec = environments[0].spec
    check_agent(config, spec, network)
    check_room(config, spec, path, network)
    config = replace(config, threads=choose_threads(config, spec, network))  # a number, whatever machine resumes it
    lock = create_run(path, config, keep_memory=keep_memory, signature=sign(config))
    try:
        return Run(path, config, environments=environments, network=network, lock=lock, recorded=config)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)  # nothing has happened in it, and what was claimed of the disk is freed
        lock.release()
        raise


def resume_run(
    path: Path,
    say: Say,
    network: nn.Module | None = None,
    *,
    device: Device | None = None,
    threads: int | None = None,
    keep_memory: bool = False,
    may_import: MayImport = refuse,
) -> Run:
    """The run of a directory, restored from its newest sound checkpoint, or from its beginning if it has none yet.

    Where only logs are damaged, they are set aside and begin anew. ``say`` is told of everything that is not sound.
    ``device`` and ``threads``: others than the run's own so far.
    ``may_import`` is asked before the module of an environment is imported for a run that this user did not create.
    """
    recorded = read_config(path)
    check_trust(path, recorded, may_import)
    with ExitStack() as on_failure:
        lock = RunLock(path)
        on_failure.callback(lock.release)
        _refuse_unresumable(path, recorded)
        checkpoint, damaged_logs = _newest_usable(path, recorded, say)
        config = _effective_config(recorded, checkpoint, device, threads)
        environments = make_environments(config)
        if checkpoint is None:
            _make_way(path, say)
            _clear(path)
            on_failure.callback(_clear, path)  # so that what was claimed of a disk too small is freed
        run = Run(
            path,
            config,
            environments=environments,
            network=network,
            lock=lock,
            recorded=recorded,
            reopen_memory=checkpoint is not None,
        )
        on_failure.callback(run.close)
        if keep_memory:
            amend_provenance(path, recorded, keep_memory=True)
        if checkpoint is not None:
            run.check(checkpoint)
            keep_checkpoints(path, checkpoint.step)
            checkpoint = _renew_logs(run, checkpoint, damaged_logs, say) if damaged_logs else checkpoint
            _restore(run, checkpoint, say)
        (path / STOPPED_WEIGHTS).unlink(missing_ok=True)  # the run goes on, and its checkpoints will be newer
        on_failure.pop_all()
        return run


def _refuse_unresumable(path: Path, config: RunConfig) -> None:
    if is_finished(path):
        raise ConfigError(f"{path} is finished; there is nothing to resume.")
    if is_diverged(path):
        raise ConfigError(
            f"{path} diverged and would diverge again, for a run is deterministic; "
            "start a new run with a lower learning rate."
        )
    if config.checkpoint_every == 0:
        raise ConfigError(f"{path} was trained with checkpoint_every 0 and cannot be resumed; start it again.")


def _newest_usable(path: Path, recorded: RunConfig, say: Say) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is sound in all its parts; else the newest of which only logs, named here, are not.

    None if none was ever complete.
    """
    for stray in strays(path):
        say(f"{stray} is not a checkpoint; it is ignored.")
    saved, without_logs = saved_steps(path), None
    for step in all_steps(path):
        if step not in saved:
            say(f"checkpoint {step} has no {STATE}: writing it was interrupted, or the file was removed.")
            continue
        try:
            state = read_state(path, step)
            _refuse_changes(path, recorded, saved_config(state))
            damage, log_damage = list(find_damage(path, state, path / MEMORY)), find_log_damage(path, state)
            for sentence in (*damage, *log_damage.values()):
                say(f"checkpoint {step}: {sentence}")
            if not damage and not log_damage:
                return load_checkpoint(path, state), []
            if not damage and without_logs is None:
                without_logs = load_checkpoint(path, state), list(log_damage)
        except DamageError as error:
            say(f"checkpoint {step}: {error}")
    if without_logs is not None:
        return without_logs
    if saved or had_checkpoint(path, recorded):
        raise DamageError(
            f"no checkpoint of {path} is sound; the run cannot be resumed, start it again in a new directory."
        )
    _refuse_changes_since_birth(path, recorded)
    return None, []


def _renew_logs(run: Run, checkpoint: Checkpoint, names: list[str], say: Say) -> Checkpoint:
    """Let damaged logs begin anew at a checkpoint, which then relies on them no more.

    That comes last: whenever this is broken off, the next resume does the rest.
    """
    for log in (run.path / name for name in names):
        if log.exists() and not os.access(log, os.R_OK):  # it may well be sound
            raise ConfigError(f"{log} cannot be read; give access to it, then resume again.")
    for name in names:
        say(renew_log(run.path, run.recorded, name, checkpoint.step))
    return forget_logs(run.path, checkpoint, names)


def _refuse_changes(path: Path, recorded: RunConfig, saved: RunConfig) -> None:
    names = differing_fields(saved, recorded)
    if names:
        raise ConfigError(
            f"{path / CONFIG} was changed since this run began ({', '.join(names)}); "
            "undo that, or start a new run with the changed config."
        )


def _refuse_changes_since_birth(path: Path, recorded: RunConfig) -> None:
    """Without a checkpoint, the copy in the provenance says what the config was."""
    try:
        born = saved_config(read_provenance(path))
    except (DamageError, KeyError):
        return  # nothing to compare with
    _refuse_changes(path, recorded, born)


def _effective_config(
    recorded: RunConfig, checkpoint: Checkpoint | None, device: Device | None, threads: int | None
) -> RunConfig:
    """The config to go on with: device and threads stay those of the checkpoint unless others are asked for."""
    if checkpoint is not None:
        device = checkpoint.state["device"] if device is None else device
        threads = checkpoint.state["threads"] if threads is None else threads
    return replace(recorded, device=device or recorded.device, threads=threads or recorded.threads)


def _make_way(path: Path, say: Say) -> None:
    """Set aside what is in the way of a run that begins again: a file where it needs a directory, or the reverse."""
    for name in (*LOGS, CHECKPOINTS, MEMORY):
        place = path / name
        if os.path.lexists(place) and not (place.is_file() if name in LOGS else place.is_dir()):
            say(f"{place} is not what a run has there; it is kept as {set_aside(place, STRAY).name}.")


def _clear(path: Path) -> None:
    """Remove checkpoints and the memory's files; what else somebody put into their directories stays."""
    for step in all_steps(path):
        remove_checkpoint(path, step)
    for file in (path / MEMORY).glob("*.bin"):
        if file.is_file():
            file.unlink()
    for name in (CHECKPOINTS, MEMORY):
        with suppress(OSError):  # it is not empty, or a link, or was never made
            (path / name).rmdir()


def _restore(run: Run, checkpoint: Checkpoint, say: Say) -> None:
    path, step, config = run.path, checkpoint.step, run.config
    notes = [f"from step {step} on with {change}" for change in changes_of_machinery(path, config)]
    for name, before, now in (
        ("the device", checkpoint.state["device"], run.agent.learner.device.type),
        ("threads", checkpoint.state["threads"], config.threads),
    ):
        if before != now:
            notes.append(f"from step {step} on with {name} {now} instead of {before}")
    restarted = run.restore(checkpoint)
    if restarted:
        which = ", ".join(str(stream) for stream in restarted)
        notes.append(f"at step {step} the environment did not repeat its game and began a new one (stream {which})")
        say(
            f"{config.env} is not deterministic: at step {step} it did not repeat its game and began a new one "
            f"(stream {which}); this run is not an exact continuation."
        )
    if notes:
        amend_provenance(path, run.recorded, notes)


def make_environments(config: RunConfig) -> list[Environment]:
    """One environment per stream."""
    return [make_environment(config) for _ in range(config.envs)]


def finish_run(path: Path) -> None:
    """Remove what a finished run needs no more, the memory's files and the checkpoints, unless they are to stay."""
    assert is_finished(path)
    try:
        keeps_memory = read_provenance(path).get("keep_memory") is not False
    except DamageError:
        keeps_memory = True  # nobody knows what was asked for
    if not keeps_memory:
        _clear(path)


def train_run(
    path: Path,
    config: RunConfig,
    *,
    network: nn.Module | None = None,
    on_event: OnEvent = lambda event: None,
    keep_memory: bool = False,
) -> None:
    """Train a new run to its end: as ``lambda-replay train`` does, with a network of one's own if wanted."""
    run = start_run(path, config, network, keep_memory=keep_memory)
    try:
        run.train(on_event)
        finish_run(path)
    finally:
        run.close()
