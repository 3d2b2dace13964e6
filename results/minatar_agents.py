"""Our agents on MinAtar: collects the study's files, and makes the table of docs/results.md.

python results/minatar_agents.py collect OUT/studies/minatar-agents     # after lambda-replay study report
python results/minatar_agents.py write
"""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import numpy as np

from lambda_replay.analysis.arm_comparison import compare_over_environments

HERE = Path(__file__).resolve().parent
PLACE = HERE / "minatar-agents"
PAGE = HERE.parent / "docs" / "results.md"
BEGIN, END = "<!-- python results/minatar_agents.py write -->\n", "<!-- end of minatar_agents.py -->\n"
ARMS = {"dqn-lambda": "DQN(λ)", "dqn-3step": "3-step DQN", "pqn": "PQN"}
FILES = ("report.html", *(f"figures/{name}" for name in ("runs.csv", "seeds.csv", "pairs.csv", "all-steps.png")))

Row = dict[str, str]


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "collect":
        (PLACE / "figures").mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copyfile(Path(arguments[1]) / name, PLACE / name)
    elif arguments == ["write"]:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + make_tables() + "\n" + END + rest.split(END)[1], encoding="utf-8")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


def read(name: str) -> list[Row]:
    with (PLACE / "figures" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def make_tables() -> str:
    """Final scores of every game and arm, and how often a run of one arm beats one of another."""
    every = read("runs.csv")
    runs = [row for row in every if row["state"] == "finished"]
    environments = list(dict.fromkeys(row["environment"] for row in runs))
    lines = [f"| game | {' | '.join(ARMS.values())} | DQN after 5,000,000 frames (Young & Tian 2019) |"]
    lines.append(f"|---|{'---|' * (len(ARMS) + 1)}")
    for environment in environments:
        published = next(row["threshold"] for row in runs if row["environment"] == environment)
        lines.append(f"{_means(runs, environment, 'final_score')} {published} |")
    has_greedy = all(row.get("greedy_score") for row in runs)
    if has_greedy:
        lines += ["", f"| greedy games after training | {' | '.join(ARMS.values())} |", f"|---|{'---|' * len(ARMS)}"]
        lines += [_means(runs, environment, "greedy_score") for environment in environments]
    done = f"All {len(every)} runs are" if len(runs) == len(every) else f"{len(runs)} of {len(every)} runs are"
    lines += [
        "",
        *_by_seed(runs, environments),
        "",
        *_comparisons(runs, environments, has_greedy=has_greedy),
        "",
        f"{done} done.",
    ]
    return "\n".join(lines) + "\n"


def _means(runs: list[Row], environment: str, column: str) -> str:
    """A game's row with the mean of each arm; the highest is bold."""
    scores = {arm: scores_of(runs, environment, arm, column) for arm in ARMS}
    best = max(scores, key=lambda arm: float(np.mean(scores[arm])))
    cells = [f"**{mean(scores[arm])}**" if arm == best else mean(scores[arm]) for arm in ARMS]
    return f"| {game(environment)} | {' | '.join(cells)} |"


def _by_seed(runs: list[Row], environments: list[str]) -> list[str]:
    seeds = sorted({int(row["seed"]) for row in runs})
    lines = [f"| every run, seeds {', '.join(map(str, seeds))} | {' | '.join(ARMS.values())} |"]
    lines.append(f"|---|{'---|' * len(ARMS)}")
    for environment in environments:
        cells = []
        for arm in ARMS:
            own = {int(row["seed"]): float(row["final_score"]) for row in of_arm(runs, environment, arm)}
            cells.append(", ".join(f"{own[seed]:.1f}" if seed in own else "–" for seed in seeds))
        lines.append(f"| {game(environment)} | {' | '.join(cells)} |")
    return lines


def _comparisons(runs: list[Row], environments: list[str], *, has_greedy: bool) -> list[str]:
    """How often a run of DQN(λ) beats one of another arm, over all games; with and without random actions."""
    columns = {"probability over all games (95 % interval)": "final_score"}
    columns |= {"in greedy games": "greedy_score"} if has_greedy else {}
    lines = [f"| a run of DQN(λ) beats one of | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for other in [arm for arm in ARMS if arm != "dqn-lambda"]:
        cells = []
        for column in columns.values():
            ours, theirs = (
                [
                    np.array([float(row[column]) for row in of_arm(runs, environment, arm)])
                    for environment in environments
                ]
                for arm in ("dqn-lambda", other)
            )
            found = compare_over_environments(ours, theirs)
            cells.append(f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})")
        lines.append(f"| {ARMS[other]} | {' | '.join(cells)} |")
    return lines


def of_arm(runs: list[Row], environment: str, arm: str) -> list[Row]:
    return [row for row in runs if (row["environment"], row["arm"]) == (environment, arm)]


def scores_of(runs: list[Row], environment: str, arm: str, column: str) -> list[float]:
    return [float(row[column]) for row in of_arm(runs, environment, arm)]


def mean(scores: list[float]) -> str:
    """The mean and its standard error, if there is more than one score."""
    if len(scores) < 2:
        return f"{np.mean(scores):.1f}"
    return f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1) / np.sqrt(len(scores)):.1f}"


def game(environment: str) -> str:
    return environment.split("/")[1].replace("_", " ").title()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
