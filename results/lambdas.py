"""Which λ the dynamic estimators chose, and at which TD errors: a row per finished run, from its metrics.

python results/lambdas.py OUT/studies/mini > results/mini/lambdas.csv
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from lambda_replay.rundir.directory import is_finished

COLUMNS = ("lambda_mean", "lambda_share_0", "lambda_share_1", "td_error_abs_mean")  # docs/metrics.md


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["environment", "arm", "seed", *COLUMNS])
    for run in sorted(Path(sys.argv[1]).glob("runs/*/*/*/")):
        if is_finished(run) and (means := column_means(run / "metrics.jsonl")):
            config = json.loads((run / "config.json").read_text(encoding="utf-8"))
            writer.writerow([config["env"], run.parts[-2], config["seed"], *(f"{value:.4f}" for value in means)])


def column_means(metrics: Path) -> list[float]:
    """Of the refreshes that chose a λ; empty where the estimator does not choose one."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    choices = [row for row in rows if row.get(COLUMNS[0]) is not None]
    return [sum(row[name] for row in choices) / len(choices) for name in COLUMNS] if choices else []


if __name__ == "__main__":
    main()
