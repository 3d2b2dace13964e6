"""A run, from creating its directory to its final weights; ``resuming.py`` continues a stopped one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn

from lambda_replay.agents.protocol import Tensors
from lambda_replay.agents.run_settings import to_dict
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment
from lambda_replay.errors import ConfigError, DamageError, DivergenceError, EnvironmentFault
from lambda_replay.learning.device import find_device
from lambda_replay.rundir.atomic import sync_directory
from lambda_replay.rundir.checkpoints import (
    BEST,
    CHECKPOINTS,
    STATE,
    Checkpoint,
    all_steps,
    remove_checkpoint,
    save_checkpoint,
    saved_steps,
)
from lambda_replay.rundir.directory import (
    BEST_WEIGHTS,
    MEMORY,
    TIMING,
    WEIGHTS,
    RunLock,
    RunLog,
    create_run,
    is_finished,
    log_names,
    read_metrics,
    read_provenance,
    record_divergence,
)
from lambda_replay.rundir.files import file_checksum, save_tensors
from lambda_replay.rundir.memory_checksums import MemoryChecksums, spare_slots
from lambda_replay.rundir.resources import check_room
from lambda_replay.rundir.trust import sign
from lambda_replay.training.assembly import assemble, check_agent, make_environments, with_threads
from lambda_replay.training.beside import Beside, make_beside
from lambda_replay.training.evaluating import Best
from lambda_replay.training.events import (
    Checkpointed,
    Evaluated,
    Event,
    Finished,
    GameEnd,
    Learned,
    OnEvent,
    RunEvent,
    Warned,
)
from lambda_replay.training.health import HealthMonitor
from lambda_replay.training.policy import STOPPED_WEIGHTS
from lambda_replay.training.saved_state import check_tensors, is_sound


class Run:
    """A run in progress: its loop, its files and its checkpoints; it locks its directory until ``close``."""

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        environments: list[Environment],
        network: nn.Module | None,
        beside: Beside,
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
        self._environments, self._beside, self._lock = environments, beside, lock
        self._checksums = MemoryChecksums()
        self._resumed_at: int | None = None
        self.is_saving = False  # a checkpoint or the final weights
        self._is_leaving = False

    def close(self) -> None:
        """Release everything, including the run directory; closing twice does no harm."""
        self._close_files()
        self._lock.release()

    def _close_files(self) -> None:
        if self.log is not None:
            self.log.close()
        for environment in (*self._environments, *self._beside.environments):
            # An environment that fails now does no more harm, and must not hide how the run itself ended.
            with suppress(EnvironmentFault):
                environment.close()

    def check(self, checkpoint: Checkpoint) -> None:
        """Reject a checkpoint of another run."""
        state, layout = checkpoint.state, {name: array[:1].nbytes for name, array in self._memory.arrays.items()}
        spec, plain_values = self._environments[0].spec, self._agent.get_state()
        if state["slot_bytes"] != layout or not is_sound(state, self.config, spec, plain_values):
            place = self.path / CHECKPOINTS / str(state["step"]) / STATE
            raise DamageError(f"{place} is damaged (it does not match this run's environment or agent).")
        check_tensors(checkpoint, self._agent.get_tensors())

    def restore(self, checkpoint: Checkpoint) -> list[int]:
        """Restore a sound checkpoint of this run; returns the streams whose environment could not repeat its game."""
        state = checkpoint.state
        self._agent.set_tensors({name: tensors for name, tensors in checkpoint.tensors.items() if name != BEST})
        self._memory.set_state(state["memory"])
        self._agent.set_state(state["agent"])
        self._streams.set_state(state["streams"])
        self.log = RunLog(self.path, state["logs"], state["seconds"], names=log_names(self.config))
        self._checksums.adopt(state)
        if self._beside.evaluator is not None:
            best = state["best"]
            self._restore_best(None if best is None else Best(**best, weights=checkpoint.tensors[BEST]))
        self._resumed_at = checkpoint.step
        for row in read_metrics(self.path):
            self.health.see(row)
        return self.loop.set_state(state["loop"])

    def _restore_best(self, best: Best | None) -> None:
        """The best weights up to now; later ones, if any, will be found again."""
        assert self._beside.evaluator is not None
        self._beside.evaluator.best = best
        if best is None:
            (self.path / BEST_WEIGHTS).unlink(missing_ok=True)
        else:
            save_tensors(self.path / BEST_WEIGHTS, best.weights)

    def leave_soon(self) -> None:
        """Stop at the next boundary, with a checkpoint there, as if interrupted."""
        self._is_leaving = True

    def train(self, on_event: OnEvent) -> None:
        """Train to the last step, writing metrics, episodes and checkpoints, and save the final weights.

        A run that diverges records that and saves no final weights; one whose environment fails saves what it had.
        """
        if self.log is None:
            self.log = RunLog(self.path, names=log_names(self.config))
            (self.path / BEST_WEIGHTS).unlink(missing_ok=True)  # of a run without a checkpoint that starts over
        try:
            for event in self.loop.run():
                further = list(self._record(event, self.log))
                on_event(event)
                for other in further:
                    on_event(other)
            self._agent.check_finite()
            if self._beside.evaluator is not None:
                on_event(self._evaluate(self.loop.step, self.log))
            if self._beside.filmer is not None:
                on_event(self._beside.filmer.film(self.path, self.loop.step, self.weights()))
            self.log.sync()
        except DivergenceError as error:
            raise self._record_divergence(error) from None
        except EnvironmentFault:
            self._save_stopped_weights()
            raise
        finally:
            self._close_files()
        with self._saving():
            self._save_final_weights()
        on_event(Finished(self.loop.step, self.loop.score, self.path))

    def _record(self, event: Event, log: RunLog) -> Iterator[RunEvent]:
        """Write down what happened, do what is due, and yield what else there is to tell."""
        if isinstance(event, GameEnd):
            log.write_episode(event._asdict())
        elif isinstance(event, Learned):
            log.write_metrics(event.step, event.metrics)
            yield from (Warned(event.step, *warning) for warning in self.health.see(event.metrics))
        else:
            if event.step != self._resumed_at:  # else everything due here was done before the checkpoint
                yield from self._do_what_is_due(event.step, log)
            if self._is_leaving:
                raise KeyboardInterrupt

    def _do_what_is_due(self, step: int, log: RunLog) -> Iterator[RunEvent]:
        """The checkpoint comes last, so that it includes the rest."""
        config = self.config
        if config.is_due(config.evaluate_every, step):
            yield self._evaluate(step, log)
        if self._beside.filmer is not None and config.is_due(config.film_every, step):
            yield self._beside.filmer.film(self.path, step, self.weights())
        if self._is_checkpoint_due(step):
            with self._saving():
                self._checkpoint(step, log)
            yield Checkpointed(step)

    def _is_checkpoint_due(self, step: int) -> bool:
        """Every interval, where the run is to stop and, if it keeps its memory, at its last boundary: to go on from."""
        interval = self.config.checkpoint_interval
        if interval == 0:
            return False
        is_last = self.config.steps - step <= self.config.algorithm.boundary_every
        is_regular = (step - self.config.memory.start) % interval == 0
        return self._is_leaving or is_regular or (is_last and keeps_memory(self.path))

    @contextmanager
    def _saving(self) -> Iterator[None]:
        self.is_saving = True
        try:
            yield
        finally:
            self.is_saving = False

    def _evaluate(self, step: int, log: RunLog) -> Evaluated:
        assert self._beside.evaluator is not None
        self._agent.check_finite()
        weights = {name: tensor.clone() for name, tensor in self.weights().items()}
        evaluated = self._beside.evaluator.evaluate(step, weights)
        log.write_evaluation(evaluated._asdict())
        if evaluated.is_best:
            save_tensors(self.path / BEST_WEIGHTS, weights)
        return evaluated

    def _checkpoint(self, step: int, log: RunLog) -> None:
        self._agent.check_finite()
        best = None if self._beside.evaluator is None else self._beside.evaluator.best
        state: dict[str, Any] = {
            "config": to_dict(self.recorded),
            "device": self.device,
            "threads": self.config.threads,
            "seconds": log.seconds,
            "loop": self.loop.get_state(),
            "agent": self._agent.get_state(),
            "streams": self._streams.get_state(),
            "memory": self._memory.get_state(),
            "best": None if best is None else {"step": best.step, "score": best.score},
            "logs": log.sync(),
        }
        tensors = {**self._agent.get_tensors(), **({} if best is None else {BEST: best.weights})}
        checkpoint = Checkpoint(step, state, tensors)
        save_checkpoint(self.path, checkpoint, self._memory, self._checksums)

    def _save_final_weights(self) -> None:
        """Their appearance marks the end of the run; they hold checksums of its results, which no longer change."""
        vouched = {name: file_checksum(self.path / name) for name in log_names(self.config) if name != TIMING}
        save_tensors(self.path / WEIGHTS, self.weights(), vouched)

    def weights(self) -> Tensors:
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


def start_run(
    path: str | os.PathLike[str],
    config: RunConfig,
    network: nn.Module | None = None,
    *,
    env: Any = None,
    keep_memory: bool = False,
) -> Run:
    """A new run in a new directory; everything that can be rejected is rejected before anything is written.

    ``network`` and ``env`` are the user's own: a module, and a ``gymnasium.Env`` or a function that returns one.
    ``keep_memory``: the replay memory's files and the last checkpoints stay when the run is finished.
    """
    path = Path(path)
    if keep_memory and config.checkpoint_interval == 0:
        raise ConfigError(
            "keep_memory keeps the memory beside the last checkpoints, but checkpoint_every is 0; leave it out, or set "
            "checkpoint_every above 0."
        )
    environments = make_environments(config, env)
    spec = environments[0].spec
    check_agent(config, spec, network)
    check_room(config, spec, path, network)
    config = with_threads(config, spec, network)
    beside = make_beside(config, network, env)
    lock = create_run(path, config, keep_memory=keep_memory, signature=sign(config))
    try:
        return Run(path, config, environments=environments, network=network, beside=beside, lock=lock, recorded=config)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)  # nothing has happened in it, and this frees the disk space claimed
        lock.release()
        raise


def finish_run(path: str | os.PathLike[str]) -> None:
    """Remove what a finished run no longer needs, the memory's files and the checkpoints, unless told to keep them."""
    path = Path(path)
    assert is_finished(path)
    if not keeps_memory(path):
        clear_run(path)


def keeps_memory(path: Path) -> bool:
    """Whether the memory's files and the checkpoints stay when the run is finished."""
    try:
        return read_provenance(path).get("keep_memory") is not False
    except DamageError:
        return True  # what was asked for is unknown


def train_run(
    path: str | os.PathLike[str],
    config: RunConfig,
    *,
    network: nn.Module | None = None,
    env: Any = None,
    on_event: OnEvent = lambda event: None,
    keep_memory: bool = False,
) -> Run:
    """Train a new run to its end, as ``lambda-replay train`` does, optionally with your own network or environment."""
    return complete(start_run(path, config, network, env=env, keep_memory=keep_memory), on_event)


def complete(run: Run, on_event: OnEvent = lambda event: None) -> Run:
    """Train a new or resumed run to its end and tidy up."""
    try:
        run.train(on_event)
        finish_run(run.path)
    finally:
        run.close()
    return run


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
