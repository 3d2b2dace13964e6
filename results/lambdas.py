"""Which λ the dynamic estimators chose: a row per run, from the metrics of a finished study.

python results/lambdas.py OUT/studies/mini > results/mini/lambdas.csv
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

COLUMNS = ("lambda_mean", "lambda_share_0", "lambda_share_1")  # docs/metrics.md


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["environment", "arm", "seed", *COLUMNS])
    for path in sorted(Path(sys.argv[1]).glob("runs/*/*/*/metrics.jsonl")):
        config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
        if config["estimator"].partition(":")[0] in ("median", "bounded"):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            means = [mean([row[name] for row in rows if row.get(name) is not None]) for name in COLUMNS]
            writer.writerow([config["env"], path.parts[-3], config["seed"], *(f"{value:.4f}" for value in means)])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
