"""The command ``resume``: a stopped or killed run goes on as if nothing had happened."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from lambda_replay.cli.options import parse, split_path
from lambda_replay.cli.train import conduct
from lambda_replay.config import Device
from lambda_replay.runner import finish_run, resume_run
from lambda_replay.runs import is_finished, read_config


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run that was stopped or killed; the result is the same as if it never had been."""

    device: Device | None = None  # another device than the run's own; its arithmetic changes the last bits
    keep_memory: bool = False  # keep the replay memory's files and the last checkpoints when the run is finished
    tensorboard: bool = False  # also write the metrics for TensorBoard into the run's directory


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "resume")
    options = parse(ResumeOptions, rest, usage="lambda-replay resume RUN")
    assert path is not None
    config = read_config(path)
    if is_finished(path):
        finish_run(path, options.keep_memory)
        print(f"{path} is finished already; nothing was left to do.")
        return 0
    if options.device is not None:
        config = replace(config, device=options.device)
    training = resume_run(path, lambda sentence: print(f"lambda-replay: {sentence}", file=sys.stderr), config=config)
    print(f"going on from step {training.loop.step:,}", flush=True)
    conduct(training, keep_memory=options.keep_memory, has_tensorboard=options.tensorboard)
    return 0
