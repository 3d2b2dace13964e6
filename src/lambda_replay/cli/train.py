"""The command ``train``: takes a new run from ENV and options to final weights and a learning curve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lambda_replay.analysis.plots import plot_run
from lambda_replay.cli.display import Display, RunConsole
from lambda_replay.cli.leaving import leaving_at_a_checkpoint
from lambda_replay.cli.options import CURVE, TrainOptions, check_directory, parse_run
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.extras import needed_for
from lambda_replay.rundir.directory import free_name, is_finished
from lambda_replay.rundir.files import quoted
from lambda_replay.training.events import Evaluated, Learned, OnEvent, RunEvent
from lambda_replay.training.run import Run, finish_run, start_run


def run(arguments: list[str]) -> int:
    options = parse_run(TrainOptions, arguments, "train")
    if options.tensorboard:
        load_tensorboard()
    path = free_name(Path("runs"), options.config) if options.out is None else options.out
    check_directory(path)
    training = start_run(path, options.config, keep_memory=options.keep_memory)
    conduct(training, has_tensorboard=options.tensorboard)
    return 0


def conduct(run: Run, *, has_tensorboard: bool) -> None:
    """Train a run to its end while showing its progress, and leave the directory tidy whatever happens."""
    console = RunConsole(markup=False, emoji=False)  # a path may look like either
    try:
        write_tensorboard = _tensorboard_sink(run.path) if has_tensorboard else None
        with Display(run.config, run.loop, run.health, title_of(run.config), console) as display:

            def on_event(event: RunEvent) -> None:
                display.on_event(event)
                if write_tensorboard is not None:
                    write_tensorboard(event)

            with leaving_at_a_checkpoint(run):
                run.train(on_event)
        tidy(run.path)
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or whoever reads the output has stopped
        raise KeyboardInterrupt(_how_to_resume(run)) from None
    except EnvironmentFault as fault:
        fault.remedy += f"; {_way_on(run)}"
        raise
    except (OSError, MemoryError, RuntimeError) as error:  # torch reports a lack of memory as RuntimeError
        can_resume = run.config.checkpoint_every > 0
        error.add_note(f"continue with: lambda-replay resume {quoted(run.path)}" if can_resume else "start it again")
        raise
    finally:
        run.close()
    score = "no game ended" if run.loop.score is None else f"mean score of the last 100 games {run.loop.score:.4g}"
    console.print(f"done: {score}; everything is in {run.path}", highlight=False, soft_wrap=True)
    if run.loop.step < run.config.steps:
        sentence = (
            f"stopped at step {run.loop.step:,} of {run.config.steps:,}: the score reached {run.config.stop_at_score:g}"
        )
        console.print(sentence, highlight=False, soft_wrap=True)
    for warning in run.health.warnings:
        console.print(f"warning: {warning.sentence}.", highlight=False, soft_wrap=True)
    if run.config.steps <= run.config.memory.start:
        sentence = (
            f"nothing was learned: the first {run.config.memory.start:,} steps (memory.start) only fill the memory; "
            "raise --steps or lower --memory.start."
        )
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(
        f"next: lambda-replay evaluate {quoted(run.path)} · lambda-replay watch {quoted(run.path)}",
        highlight=False,
        soft_wrap=True,
    )


def tidy(path: Path) -> None:
    """Remove what a finished run no longer needs, and draw its learning curve if it has none yet."""
    finish_run(path)
    if not (path / CURVE).exists():
        _draw_curve(path)


def title_of(config: RunConfig) -> str:
    return f"{config.env} · {config.agent} · {config.estimator} · seed {config.seed}"


def _how_to_resume(run: Run) -> str:
    if is_finished(run.path):
        return f"stopped after the last step, while tidying up; finish with: lambda-replay resume {quoted(run.path)}"
    return f"stopped at step {run.loop.step:,}; {_way_on(run)}."


def _way_on(run: Run) -> str:
    if run.config.checkpoint_every == 0:
        return "this run has no checkpoints (checkpoint_every 0) and cannot be resumed"
    last, step = run.last_checkpoint(), run.loop.step
    repeated = step if last is None else step - last
    return f"continue with: lambda-replay resume {quoted(run.path)} ({repeated:,} steps will be repeated)"


def _draw_curve(path: Path) -> None:
    try:
        plot_run(path, path / CURVE)
    except ConfigError as error:
        print(f"lambda-replay: no learning curve was drawn: {error}", file=sys.stderr)


def load_tensorboard() -> Any:
    """TensorBoard's writer; ConfigError with how to install it if it is missing."""
    with needed_for("--tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter


def _tensorboard_sink(path: Path) -> OnEvent:
    writer = load_tensorboard()(str(path / "tensorboard"))

    def write(event: RunEvent) -> None:
        if isinstance(event, Evaluated):
            writer.add_scalar("evaluation_score_mean", event.score_mean, event.step)
        if isinstance(event, Learned):
            for name, value in event.metrics.items():
                if value is not None:
                    writer.add_scalar(name, value, event.step)
        if isinstance(event, Evaluated | Learned):
            writer.flush()

    return write
