"""Scores of SAC(λ), TD3(λ), their baselines and Stable-Baselines3's SAC after equal steps, as docs/results.md has them.

    python -m benchmarks.continuous_scores run [--only TEXT] [--seeds N ...] [--runs DIR]    # makes the missing runs
    python -m benchmarks.continuous_scores one TASK ARM SEED OUT.json [--runs DIR]           # one run, in this process
    python -m benchmarks.continuous_scores write                                             # the tables

Every run has one core and one thread. Its score is the mean of 20 greedy games after the last step, with evaluations on
the way. A run of ours that was stopped is resumed; a finished one leaves its results in results/continuous.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.continuous_scores.tasks import ARMS, EVALUATIONS, GAMES, TASKS, THEIRS, Task
from benchmarks.jobs import Job, make_missing

PLACE = Path(__file__).resolve().parents[2] / "results" / "continuous"

Result = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.continuous_scores", description="Compare continuous agents.")
    commands = parser.add_subparsers(dest="command", required=True)
    every = commands.add_parser("run", help="make all missing runs")
    every.add_argument("--only", default="", help="only runs whose names, such as hopper-sac-seed0, contain this")
    every.add_argument("--seeds", type=int, nargs="+", help="only these of a task's seeds")
    every.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    one = commands.add_parser("one", help="make one run")
    one.add_argument("task", choices=TASKS)
    one.add_argument("arm", choices=ARMS)
    one.add_argument("seed", type=int)
    one.add_argument("out", type=Path)
    for command in (every, one):
        command.add_argument("--runs", type=Path, default=Path("runs/continuous"), help="where our runs live meanwhile")
    commands.add_parser("write", help="write the tables")
    options = parser.parse_args()
    if options.command == "run":
        make_missing(make_jobs(options), options.cores)
    elif options.command == "one":
        name = f"{options.task}-{options.arm}-seed{options.seed}"
        write_result(options.out, run_one(options.task, options.arm, options.seed, options.runs / name))
    else:
        from benchmarks.continuous_scores.report import write

        write(PLACE)


def make_jobs(options: argparse.Namespace) -> list[Job]:
    """All runs, those of a task's first seed before those of its second."""
    PLACE.mkdir(exist_ok=True)
    names = [
        (f"{name}-{arm}-seed{task.seeds[number]}", [name, arm, str(task.seeds[number])])
        for name, task in TASKS.items()
        for number in range(len(task.seeds))
        if options.seeds is None or task.seeds[number] in options.seeds
        for arm in task.arms
    ]
    module = [sys.executable, "-m", "benchmarks.continuous_scores", "one"]
    return [
        Job(name, out := PLACE / f"{name}.json", [*module, *which, str(out), "--runs", str(options.runs)])
        for name, which in names
        if options.only in name
    ]


def run_one(name: str, arm: str, seed: int, run: Path) -> Result:
    evaluate = evaluate_theirs if arm == THEIRS else evaluate_ours
    evaluations, made_by = evaluate(TASKS[name], arm, seed, run)
    return {"task": name, "arm": arm, "seed": seed, "evaluations": evaluations, **made_by}


def evaluate_ours(task: Task, arm: str, seed: int, run: Path) -> tuple[list[Result], Result]:
    """Train in the directory, or go on there; the evaluations, and what made them."""
    import lambda_replay as lr
    from lambda_replay.rundir.directory import read_provenance

    if run.exists():
        lr.resume(run)
    else:
        lr.train(
            task.env,
            out=run,
            agent=ARMS[arm].agent,
            env_args=task.env_args,
            steps=task.steps,
            seed=seed,
            threads=1,
            evaluate_every=task.steps // EVALUATIONS,
            evaluate_games=GAMES,
            **ARMS[arm].settings,
        )
    rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    evaluations = [{name: row[name] for name in ("step", "score_mean", "score_error")} for row in rows]
    return evaluations, {name: read_provenance(run)[name] for name in ("commit", "versions", "processor")}


def evaluate_theirs(task: Task, arm: str, seed: int, run: Path) -> tuple[list[Result], Result]:
    """The same by Stable-Baselines3's SAC, which starts to learn when ours does."""
    import gymnasium
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    from lambda_replay.rundir.directory import provenance
    from lambda_replay.training.presets import make_config

    torch.set_num_threads(1)
    evaluations: list[Result] = []
    games = gymnasium.make(task.env, **task.env_args)
    games.reset(seed=seed + 10_000)

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % (task.steps // EVALUATIONS) == 0:
                scores: Any = evaluate_policy(
                    self.model, games, n_eval_episodes=GAMES, warn=False, return_episode_rewards=True
                )[0]
                error = statistics.stdev(scores) / len(scores) ** 0.5
                evaluations.append(
                    {"step": self.num_timesteps, "score_mean": statistics.fmean(scores), "score_error": error}
                )
            return True

    config = make_config(task.env, agent="sac-lambda")
    environment = gymnasium.make(task.env, **task.env_args)
    model = SAC("MlpPolicy", environment, learning_starts=config.memory.start, seed=seed, device="cpu")
    model.learn(task.steps, callback=Evaluate())
    made_by = provenance(config)
    return evaluations, {name: made_by[name] for name in ("commit", "versions", "processor")}


def write_result(out: Path, result: Result) -> None:
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n")
    partial.rename(out)


if __name__ == "__main__":
    main()
