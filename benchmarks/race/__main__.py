"""The race: every contestant on every task for the same time on one core; the best score wins.

    python -m benchmarks.race run [--seeds 30 31 32] [--tasks TEXT] [--minutes-factor 1]    # makes the missing runs
    python -m benchmarks.race one TASK CONTESTANT SEED OUT.json --minutes M              # one run, in this process
    python -m benchmarks.race table                                                      # picture and docs/results.md

Every run has one core and one thread, and its budget is processor time, so that other work on the machine does not
count against it; two runs are made at a time, one per core, in an order that mixes contestants and tasks. A run of 15
seconds measures the speed first, which tells the schedules how many steps there will be. If that turns out wrong, so
that the steps end before the time or the schedules are far from their ends, the run is repeated, planned with its own
speed. A contestant without schedules has more steps than it can make.
Scores: the mean of the last 100 training games against time and steps, and the mean of 30 greedy games at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from benchmarks.jobs import Job, make_missing
from benchmarks.race.contestants import Act, peers_environment, train
from benchmarks.race.log import GameLog
from benchmarks.race.tasks import CONTESTANTS, TASKS, Task, has_schedules
from lambda_replay.rundir.directory import provenance
from lambda_replay.training.presets import make_config

PLACE = Path(__file__).resolve().parents[1] / "results" / "race"
PROBE_SECONDS = 15.0
MARGIN = 1.05  # so that the time ends a run, and not its steps
AMPLE = 3.0  # the same without schedules
ATTEMPTS = 3  # at a run that uses its time and gets close to the end of its schedules
USED, DONE = 0.9, 0.8  # of the time and of the planned steps, at least
FIRST_GUESS = 200_000  # steps for which the first, short run makes its schedules
EVALUATION_SEED = 10_000
SEEDS = [30, 31, 32]  # no setting of ours was chosen with them


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.race", description="Race agents against each other.")
    commands = parser.add_subparsers(dest="command", required=True)
    every = commands.add_parser("run", help="make all missing runs")
    every.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    every.add_argument("--tasks", default="", help="only tasks whose names contain this")
    every.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    every.add_argument("--minutes-factor", type=float, default=1.0, help="of every task's budget")
    every.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    every.add_argument("--out", type=Path, default=PLACE)
    one = commands.add_parser("one", help="make one run")
    one.add_argument("task", choices=TASKS)
    one.add_argument("contestant", choices=CONTESTANTS)
    one.add_argument("seed", type=int)
    one.add_argument("out", type=Path)
    one.add_argument("--minutes", type=float, required=True)
    commands.add_parser("table", help="draw the picture and write the table")
    options = parser.parse_args()
    if options.command == "run":
        run_all(options)
    elif options.command == "one":
        if options.contestant not in TASKS[options.task].contestants:
            parser.error(f"{options.task} is for {', '.join(TASKS[options.task].contestants)}")
        run_one(TASKS[options.task], options.contestant, options.seed, options.out, options.minutes)
    else:
        from benchmarks.race.report import write

        write(PLACE)


def run_all(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = (
        make_job(name, contestant, seed, options)
        for seed in options.seeds
        for name in TASKS
        if options.tasks in name
        for contestant in TASKS[name].contestants
        if contestant in options.contestants
    )
    make_missing(jobs, options.cores)


def make_job(name: str, contestant: str, seed: int, options: argparse.Namespace) -> Job:
    minutes = TASKS[name].minutes * options.minutes_factor
    out = options.out / file_name(name, contestant, seed)
    command = [sys.executable, "-m", "benchmarks.race", "one", name, contestant, str(seed), str(out)]
    return Job(f"{name}, {contestant}, seed {seed}", out, [*command, "--minutes", str(minutes)])


def file_name(task: str, contestant: str, seed: int) -> str:
    return f"{task.replace('/', '-')}-{contestant}-seed{seed}.json"


def run_one(task: Task, contestant: str, seed: int, out: Path, minutes: float) -> None:
    """Measure the speed, train, play greedily, and write the result."""
    torch.set_num_threads(1)
    made_by = provenance(make_config(task.env, agent=task.contestants[0]))  # before the checkout can change
    seconds = 60 * minutes
    probe = GameLog(min(PROBE_SECONDS, seconds / 4))
    train(contestant, task, seed + EVALUATION_SEED, FIRST_GUESS, probe)
    speed = speed_of(probe)
    is_planned = has_schedules(contestant, task.env)
    for _ in range(ATTEMPTS):
        steps, log = int((MARGIN if is_planned else AMPLE) * speed * seconds), GameLog(seconds)
        act = train(contestant, task, seed, steps, log)
        if log.used >= USED and (log.step >= DONE * steps or not is_planned):
            break
        speed = log.speed
    result = {
        "task": task.env,
        "contestant": contestant,
        "seed": seed,
        "minutes": minutes,
        "planned_steps": steps,
        **log.summary(),
        "greedy_scores": [round(score, 3) for score in play(task, act, EVALUATION_SEED + seed)],
        "versions": {name: version(name) for name in ("lambda-replay", "stable-baselines3", "torch", "gymnasium")},
        **{name: made_by[name] for name in ("commit", "processor")},
    }
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n")
    partial.rename(out)


def speed_of(probe: GameLog) -> float:
    """Steps per second in the second half of a short run: the first includes imports and play before learning."""
    if len(probe.curve) < 2:
        return probe.speed
    middle, end = probe.curve[(len(probe.curve) - 1) // 2], probe.curve[-1]
    return float(end["step"] - middle["step"]) / (end["seconds"] - middle["seconds"])


def play(task: Task, act: Act, seed: int) -> list[float]:
    """The scores of greedy games."""
    environment = peers_environment(task, seed)
    scores: list[float] = []
    for _ in range(task.num_games):
        state, _ = environment.reset()
        score, is_over = 0.0, False
        for _ in range(task.longest_game):
            state, reward, terminated, truncated, _ = environment.step(act(np.asarray(state)))
            score += float(reward)
            is_over = terminated or truncated
            if is_over:
                break
        if not is_over:
            environment = peers_environment(task, seed + 1 + len(scores))
        scores.append(score)
    return scores


if __name__ == "__main__":
    main()
