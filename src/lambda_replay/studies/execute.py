"""Executes the runs of a study in processes on this machine; the caller shows their progress."""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Generator

from lambda_replay.agents.q_learning import num_cores
from lambda_replay.envs import make_environment
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.directory import MEMORY, RunLock, is_diverged, is_finished
from lambda_replay.rundir.resources import Needs, available_ram, estimate, in_words
from lambda_replay.studies.attempt import ATTEMPTS, BUSY, SECONDS_TO_FREE, Attempt, is_free, record_failure, stop_all
from lambda_replay.studies.layout import Layout
from lambda_replay.studies.plan import PlannedRun, Study
from lambda_replay.training.assembly import check_agent
from lambda_replay.training.run import finish_run

POLL_SECONDS = 0.2
LOCK_TRIES = 10  # ``study status`` holds the lock briefly when it checks whether the study is running


def lock_study(layout: Layout) -> RunLock:
    """The study's lock, so that two ``study run`` commands do not collide."""
    try:
        layout.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{layout.directory} cannot be created ({error.strerror}); give another --out.") from None
    for _ in range(LOCK_TRIES - 1):
        try:
            return RunLock(layout.directory)
        except ConfigError:
            time.sleep(0.1)
    return RunLock(layout.directory)


def unfinished(study: Study, layout: Layout) -> list[PlannedRun]:
    """The runs still to do, in the study's order; one that diverged would only diverge again."""
    return [run for run in study.runs if not (is_finished(layout.run(run)) or is_diverged(layout.run(run)))]


def tidy_finished(study: Study, layout: Layout) -> None:
    """Remove the replay memory of runs whose process was killed after the last step, before it could do so itself."""
    for run in study.runs:
        path = layout.run(run)
        if (path / MEMORY).exists() and is_finished(path):
            lock = RunLock(path)
            try:
                finish_run(path)
            finally:
                lock.release()


def check_runs(study: Study) -> dict[PlannedRun, Needs]:
    """Create every arm's environment and agent once, to find mistakes before anything runs; return their needs."""
    needs: dict[tuple[str, str], Needs] = {}
    for run in study.runs:
        if (run.environment, run.arm) not in needs:
            needs[run.environment, run.arm] = _check_run(study, run)
    return {run: needs[run.environment, run.arm] for run in study.runs}


def _check_run(study: Study, run: PlannedRun) -> Needs:
    try:
        environment = make_environment(run.config)
        try:
            check_agent(run.config, environment.spec)
            return estimate(run.config, environment.spec)
        finally:
            environment.close()
    except ConfigError as error:
        raise study.mistake(run, error) from None


def default_workers(study: Study) -> int:
    """As many parallel runs as the cores can handle, given the threads of each."""
    return max(1, num_cores() // most_threads(study))


def most_threads(study: Study) -> int:
    """Threads per run; the most, if arms differ."""
    return max(run.config.threads or 1 for run in study.runs)


def check_room(study: Study, layout: Layout, needs: dict[PlannedRun, Needs], workers: int) -> None:
    """Refuse more workers than memory and disk can hold at once; an interrupted run already has its disk space."""
    runs = unfinished(study, layout)
    new = [run for run in runs if not layout.run(run).exists()]
    rooms = (
        ("disk", min(workers, len(new)), [needs[run].disk_bytes for run in new], _free_disk(layout)),
        ("memory", min(workers, len(runs)), [needs[run].ram_bytes for run in runs], available_ram()),
    )
    for what, count, each, free in rooms:
        wanted = count * max(each, default=0)
        if wanted > free:
            fitting = free // max(each)
            largest = max(runs, key=lambda run: needs[run].ram_bytes)
            setting = needs[largest].to_lower if what == "memory" else "memory.capacity"
            remedy = f"give --workers {fitting}" if fitting else f"lower {setting}, as not even one fits"
            raise ConfigError(
                f"{count} runs at once need {in_words(wanted)} of {what}, but only {in_words(free)} is free; {remedy}."
            )


def run_locally(study: Study, layout: Layout, *, workers: int) -> Generator[None, None, None]:
    """Execute all unfinished runs; yields several times a second, and stops the processes when closed early.

    Another process may be working on a run: one of an earlier study that was killed, which stops by itself, or a user's
    ``resume``. Such a run comes later, and counts as failed if it stays busy for too long.
    """
    waiting, attempts = deque(unfinished(study, layout)), Counter[PlannedRun]()
    running: dict[PlannedRun, Attempt] = {}
    busy: dict[PlannedRun, float] = {}  # another process has been working on them since that time
    try:
        while waiting or running or busy:
            while waiting and len(running) < workers:
                run = waiting.popleft()
                if is_free(layout.run(run)):
                    running[run] = Attempt(run, layout)
                    attempts[run] += 1
                else:
                    busy[run] = time.monotonic()
            for run in [run for run in busy if is_free(layout.run(run))]:
                del busy[run]
                waiting.appendleft(run)
            for run in [run for run, since in busy.items() if time.monotonic() - since > SECONDS_TO_FREE]:
                del busy[run]
                record_failure(run, layout, BUSY, attempts[run])
            for run in [run for run, attempt in running.items() if not attempt.is_running()]:
                reason = running.pop(run).close()
                if reason is not None and attempts[run] < ATTEMPTS:
                    waiting.appendleft(run)
                elif reason is not None:
                    record_failure(run, layout, reason, attempts[run])
            yield
            time.sleep(POLL_SECONDS)
    finally:
        stop_all(running.values())


def _free_disk(layout: Layout) -> int:
    return shutil.disk_usage(layout.directory).free
