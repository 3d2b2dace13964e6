"""Stable-Baselines3's agents with and without LambdaReplayBuffer, at the hyper-parameters of its zoo: score and time.

    python benchmarks/sb3_dropin.py [--only NAME ...] [--seeds 5] [--steps N] [--out DIR]     runs what is missing
    python benchmarks/sb3_dropin.py --settings [--seeds 5] [--out DIR]                        with other settings
    python benchmarks/sb3_dropin.py --write [--out DIR]                                       the tables in docs/sb3.md

Each run is one process with one thread and one file DIR/TASK-ARM-SEED.json; a run whose file exists is skipped, so an
interrupted benchmark goes on where it stopped. All arms of a seed run one after the other. The only difference between
them is the buffer: Stable-Baselines3's, ours with its default settings, and with --settings, ours with one of them
changed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "sb3.md", ROOT / "benchmarks" / "results" / "sb3"
BEGIN, END = "<!-- python benchmarks/sb3_dropin.py --write: {} -->", "<!-- end of {} -->"
ARMS = {"plain": "Stable-Baselines3's", "lambda": "LambdaReplayBuffer"}
SETTINGS: dict[str, dict[str, Any]] = {  # what differs from the defaults, one at a time
    "peng-0": {"estimator": "peng:0"},
    "peng-0.4": {"estimator": "peng:0.4"},
    "peng-0.9": {"estimator": "peng:0.9"},
    "watkins-0.7": {"estimator": "watkins:0.7"},
    "updates-25": {"updates_per_refresh": 25},
    "updates-400": {"updates_per_refresh": 400},
    "cache-2500": {"cache_size": 2_500},
    "priority-0.1": {"priority": 0.1},
}
SETTINGS_TASK = "dqn-cartpole"
GAMES = 50  # played after training, without exploration
BINS = 20  # of a learning curve

# rl-baselines3-zoo, hyperparams/dqn.yml and sac.yml: agent, environment, steps, and what differs from the defaults.
_LUNAR_LANDER = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
_CARTPOLE = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
TASKS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "dqn-cartpole": ("DQN", "CartPole-v1", 50_000, _CARTPOLE),
    "dqn-lunarlander": ("DQN", "LunarLander-v3", 100_000, _LUNAR_LANDER),
    "sac-pendulum": ("SAC", "Pendulum-v1", 20_000, {"learning_rate": 1e-3}),
    "sac-hopper": ("SAC", "Hopper-v5", 1_000_000, {"learning_starts": 10_000}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Stable-Baselines3 with and without LambdaReplayBuffer.")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="instead of the zoo's")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--settings", action="store_true", help=f"other settings of the buffer, on {SETTINGS_TASK}")
    parser.add_argument("--write", action="store_true", help="only write the tables into docs/sb3.md")
    parser.add_argument("--run", nargs=4, metavar=("TASK", "ARM", "SEED", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        task, arm, seed, steps = options.run
        print(json.dumps(measure(task, arm, int(seed), int(steps))))
    elif options.write:
        write_tables(options.out)
    elif options.settings:
        run_missing([SETTINGS_TASK], [*ARMS, *SETTINGS], options.seeds, options.steps, options.out)
        print(settings_table(read_runs(options.out)))
    else:
        run_missing(options.only, list(ARMS), options.seeds, options.steps, options.out)
        print(tasks_table(read_runs(options.out)))


def run_missing(tasks: list[str], arms: list[str], seeds: int, steps: int | None, out: Path) -> None:
    """Run every task, arm and seed whose file does not exist."""
    out.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        for task in tasks:
            for arm in arms:
                run_one(out / f"{task}-{arm}-{seed}.json", task, arm, seed, steps or TASKS[task][2])


def run_one(path: Path, task: str, arm: str, seed: int, steps: int) -> None:
    """Run it in a process of its own, unless its file exists."""
    if path.exists():
        if json.loads(path.read_text())["steps"] != steps:
            sys.exit(f"{path} is a run of another length than {steps} steps; give another directory with --out.")
        return
    print(f"{path.stem} …", flush=True)
    command = [sys.executable, __file__, "--run", task, arm, str(seed), str(steps)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **threads})
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(ended.stdout)
    unfinished.replace(path)


def measure(task: str, arm: str, seed: int, steps: int) -> dict[str, Any]:
    """One run: its learning curve, the score of the final policy, and what it took."""
    import gymnasium
    import numpy as np
    import stable_baselines3
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy

    from lambda_replay.sb3 import AttachCallback, LambdaReplayBuffer

    torch.set_num_threads(1)
    agent, env, _, zoo = TASKS[task]
    ours = {"replay_buffer_class": LambdaReplayBuffer, "replay_buffer_kwargs": SETTINGS.get(arm, {})}
    changes = {} if arm == "plain" else ours
    # A window of all steps keeps every episode.
    arguments = {"seed": seed, "device": "cpu", "stats_window_size": steps, **zoo, **changes}
    model = getattr(stable_baselines3, agent)("MlpPolicy", env, **arguments)
    start, start_cpu = time.perf_counter(), time.process_time()
    model.learn(steps, callback=None if arm == "plain" else AttachCallback())
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    scores = np.array([episode["r"] for episode in model.ep_info_buffer])
    ends = np.cumsum([episode["l"] for episode in model.ep_info_buffer])
    bins = np.minimum(ends * BINS // steps, BINS - 1)
    final, _ = evaluate_policy(
        model, gymnasium.make(env), n_eval_episodes=GAMES, warn=False, return_episode_rewards=True
    )
    return {
        "task": task,
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "final_scores": np.asarray(final).tolist(),
        "training_score": float(scores.mean()),
        "curve": [float(scores[bins == number].mean()) if (bins == number).any() else None for number in range(BINS)],
        "versions": {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__},
        "machine": platform.machine(),
    }


def read_runs(out: Path) -> list[dict[str, Any]]:
    """The finished runs."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]


def tasks_table(runs: list[dict[str, Any]]) -> str:
    """A row per task and buffer."""
    lines = [
        "| agent, task | steps | buffer | seeds | final score | score in training | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, (agent, env, _, _) in TASKS.items():
        for arm, buffer in ARMS.items():
            found = [run for run in runs if (run["task"], run["arm"]) == (task, arm)]
            if found:
                steps = " / ".join(f"{steps:,}" for steps in sorted({run["steps"] for run in found}))
                lines.append(f"| {agent}, {env} | {steps} | {buffer} | {len(found)} | {results(found)} |")
    return "\n".join(lines)


def settings_table(runs: list[dict[str, Any]]) -> str:
    """A row per changed setting."""
    lines = ["| setting | seeds | final score | score in training | minutes |", "|---|---|---|---|---|"]
    changes = {
        arm: ", ".join(f"`{name}={value!r}`" for name, value in changed.items()) for arm, changed in SETTINGS.items()
    }
    for arm, words in {"lambda": "the defaults", **changes}.items():
        found = [run for run in runs if (run["task"], run["arm"]) == (SETTINGS_TASK, arm)]
        if found:
            lines.append(f"| {words} | {len(found)} | {results(found)} |")
    return "\n".join(lines)


def results(runs: list[dict[str, Any]]) -> str:
    """The last columns of a row: final score, score in training, minutes."""
    finals = [statistics.mean(run["final_scores"]) for run in runs]
    minutes = statistics.mean(run["cpu_seconds"] for run in runs) / 60
    return f"{spread(finals)} | {spread([run['training_score'] for run in runs])} | {minutes:.1f}"


def spread(values: list[float]) -> str:
    """The mean, and the lowest and highest."""
    return f"{statistics.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def write_tables(out: Path) -> None:
    """Replace what stands between the markers on the page."""
    page, runs = PAGE.read_text(encoding="utf-8"), read_runs(out)
    for name, table in {"tasks": tasks_table(runs), "settings": settings_table(runs)}.items():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
