"""The command ``resume``: continues a stopped or killed run as if nothing had happened."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from lambda_replay.cli.options import CURVE, parse, split_path
from lambda_replay.cli.train import conduct, load_tensorboard, tidy
from lambda_replay.cli.trust import asking
from lambda_replay.config import MAX_THREADS, Device
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.rundir.directory import RunLock, is_finished, read_config
from lambda_replay.rundir.files import quoted
from lambda_replay.training.extending import Extension, find_extension
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import Run


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run that was stopped or killed; the result is the same as if it had never stopped."""

    steps: int | None = None  # go on for longer, up to this step; a finished run must have kept its memory
    stop_at_score: float | None = None  # go on up to this mean score of the last 100 games instead of the run's own
    device: Device | None = None  # a different device than so far; its arithmetic changes the last bits
    threads: int | None = None  # a different number of arithmetic threads than so far; changes the last bits
    keep_memory: bool = False  # keep the replay memory's files and the last checkpoints when the run is finished
    tensorboard: bool = False  # also write the metrics for TensorBoard into the run's directory
    trust: bool = False  # import the modules that a run names even if you did not create the run


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "resume")
    options = parse(ResumeOptions, rest, usage="lambda-replay resume RUN")
    assert path is not None
    if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
        raise ConfigError(f"--threads is {options.threads}; give a number from 1 to {MAX_THREADS}.")
    recorded = read_config(path)  # so that nothing is touched in a directory that is not a run
    extension = Extension(options.steps, options.stop_at_score)
    if is_finished(path) and find_extension(path, recorded, extension) is None:
        _tidy_finished(path)
        print(f"{path} is already finished; there was nothing left to do.")
        return 0
    if options.tensorboard:
        load_tensorboard()
    training = _restore(path, options)
    (path / CURVE).unlink(missing_ok=True)  # of a finished run that goes on
    step = training.loop.step
    print(f"resuming from step {step:,}" if step else "there is no checkpoint yet: starting over", flush=True)
    conduct(training, has_tensorboard=options.tensorboard)
    return 0


def _restore(path: Path, options: ResumeOptions) -> Run:
    try:
        return resume_run(
            path,
            _say,
            device=options.device,
            threads=options.threads,
            keep_memory=options.keep_memory,
            extension=Extension(options.steps, options.stop_at_score),
            may_import=asking(options.trust),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped before it resumed; try again with: lambda-replay resume {quoted(path)}"
        ) from None
    except EnvironmentFault as fault:
        fault.remedy += f"; try again with: lambda-replay resume {quoted(path)}"
        raise


def _tidy_finished(path: Path) -> None:
    """Do what a run does after its last step, in case it was killed just then."""
    lock = RunLock(path)
    try:
        tidy(path)
    finally:
        lock.release()


def _say(sentence: str) -> None:
    print(f"lambda-replay: {sentence}", file=sys.stderr)
