"""The paper's claims against our runs: prints the tables of docs/results.md from the CSV files beside this script.

    python results/claims.py            # print them
    python results/claims.py --write    # put them into docs/results.md

Rules, written down before the runs had ended. "Above" and "below": the 95% interval of the difference of mean final
scores (Welch) lies wholly on that side of zero; anything else is unclear. "Matches": not below. Where a claim speaks of
all games together, the 95% bootstrap interval of the probability of improvement takes the place of the difference, and
0.5 that of zero. A claim holds if every comparison it makes comes out as it says; it does not if one comes out the
other way round; otherwise it cannot be said. A "huge" gain is half of the baseline's score or more: where an interval
excludes that, the claim does not hold either.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results.md"
BEGIN, END = "<!-- python results/claims.py --write -->\n", "<!-- end of claims.py -->\n"
HOLDS, FAILS, OPEN = "**holds**", "**does not**", "cannot be said"
BASELINE, CACHED = "dqn-3step", "cached-3step"
PENG = ("peng-025", "peng-050", "peng-075", "peng-100")
ESTIMATORS = (*PENG, "watkins-075", "watkins-published-075", "median", "bounded")
HUGE = 0.5  # of the baseline's score
TARGET_FREE = "minatar/space_invaders"  # where the paper's cache beats the target network


@dataclass(frozen=True)
class Interval:
    """A number with its 95% interval, and the value that stands for a draw."""

    value: float
    low: float
    high: float
    draw: float = 0.0

    @property
    def side(self) -> str:
        if math.isnan(self.low):
            return "unknown"
        return "above" if self.low > self.draw else "below" if self.high < self.draw else "unclear"

    def reversed(self) -> Interval:
        twice = 2 * self.draw
        return Interval(twice - self.value, twice - self.high, twice - self.low, self.draw)

    def __str__(self) -> str:
        value = f"{self.value:{'' if self.draw else '+'}.2f}"
        between = "" if math.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})"
        return (value + between).replace("-", "−")


@dataclass(frozen=True)
class Results:
    """What a study's report left in ``figures``: runs.csv, pairs.csv and aggregate.csv."""

    runs: list[dict[str, str]]
    pairs: list[dict[str, str]]
    aggregate: list[dict[str, str]]

    @property
    def games(self) -> list[str]:
        return list(dict.fromkeys(row["environment"] for row in self.runs))

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(row["arm"] for row in self.runs))

    def finals(self, game: str, arm: str) -> np.ndarray:
        """Final scores of the finished runs [seeds]."""
        rows = [row for row in self.runs if (row["environment"], row["arm"]) == (game, arm)]
        return np.array([float(row["final_score"]) for row in rows if row["state"] == "finished"])

    def mean(self, game: str, arm: str) -> float:
        return float(self.finals(game, arm).mean())

    def best(self, game: str, arms: Sequence[str]) -> str:
        return max(arms, key=lambda arm: self.mean(game, arm))

    def difference(self, game: str, arm: str, other: str) -> Interval:
        """Mean final score of the arm minus that of the other."""
        return self._pair(game, arm, other, "difference", draw=0.0)

    def probability(self, arm: str, other: str) -> Interval:
        """Of a run of the arm scoring higher than one of the other, averaged over games."""
        return self._pair("all", arm, other, "better", draw=0.5)

    def _pair(self, game: str, arm: str, other: str, kind: str, draw: float) -> Interval:
        for row in self.pairs:
            if row["environment"] == game and {row["arm"], row["other"]} == {arm, other}:
                interval = Interval(*(number(row[kind + end]) for end in ("", "_low", "_high")), draw)
                return interval if row["arm"] == arm else interval.reversed()
        raise KeyError((game, arm, other))


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, what becomes of it here, and by which numbers."""

    text: str
    verdict: str
    numbers: str


def read_results(name: str) -> Results:
    def read(table: str) -> list[dict[str, str]]:
        with (HERE / name / "figures" / f"{table}.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return Results(read("runs"), read("pairs"), read("aggregate"))


def number(text: str) -> float:
    return float(text) if text else math.nan


def never(side: str, intervals: Iterable[Interval]) -> str:
    """The claim that nothing comes out on that side."""
    sides = [interval.side for interval in intervals]
    return FAILS if side in sides else OPEN if "unknown" in sides else HOLDS


def always(side: str, intervals: Iterable[Interval]) -> str:
    """The claim that everything comes out on that side."""
    sides = [interval.side for interval in intervals]
    if all(found == side for found in sides):
        return HOLDS
    opposite = {"above": "below", "below": "above"}[side]
    return FAILS if opposite in sides else OPEN


def at_least(sizes: Iterable[float], intervals: Iterable[Interval]) -> str:
    """The claim that everything is above, and by so much."""
    found = list(intervals)
    excluded = any(interval.high < size for interval, size in zip(found, sizes, strict=True))
    return FAILS if excluded else always("above", found)


def over_all(side: str, interval: Interval) -> str:
    """The claim about all games together."""
    return OPEN if interval.side in ("unclear", "unknown") else HOLDS if interval.side == side else FAILS


def main_claims(study: Results) -> list[Claim]:
    """Section 5 and the appendices, as far as ``studies/mini.toml`` speaks to them."""
    games = study.games
    best = {game: study.best(game, PENG) for game in games}
    best_gains = {f"{short(game)} {best[game]}": study.difference(game, best[game], BASELINE) for game in games}
    shared = ("minatar/breakout", "minatar/space_invaders")
    early_gains = {f"{short(game)} {arm}": study.difference(game, arm, BASELINE) for game in shared for arm in PENG[:2]}
    huge = [HUGE * study.mean(game, BASELINE) for game in shared for _ in PENG[:2]]
    watkins = {
        f"{short(game)} {arm}": study.difference(game, arm, "peng-075")
        for arm in ("watkins-075", "watkins-published-075")
        for game in games
    }
    textbook, published = (study.probability(arm, "peng-075") for arm in ("watkins-075", "watkins-published-075"))
    median = {short(game): study.difference(game, "median", BASELINE) for game in games}
    hand_picked = {f"{short(game)} {best[game]}": study.difference(game, "median", best[game]) for game in games}
    bounded = {short(game): study.difference(game, "bounded", BASELINE) for game in games}
    dynamic = study.probability("median", "bounded")
    cache = {short(game): study.difference(game, CACHED, BASELINE) for game in games}
    return [
        Claim(
            "For every game at least one of Peng's λ = 0.25, 0.5, 0.75, 1 matches or beats 3-step DQN (section 5)",
            never("below", best_gains.values()),
            f"best λ − baseline: {listed(best_gains)}; chosen after the fact, which flatters it",
        ),
        Claim(
            "λ = 0.25 and 0.5 give huge gains over 3-step DQN on Breakout and Space Invaders (section 5)",
            at_least(huge, early_gains.values()),
            f"− baseline: {listed(early_gains)}",
        ),
        Claim(
            "Watkins's Q(λ) outperforms Peng's on no game (section 5)",
            never("above", watkins.values()),
            f"λ = 0.75 alone; − peng-075: {listed(watkins)}",
        ),
        Claim(
            "Watkins's cut traces hamper performance overall, compared with Peng's (appendix E)",
            over_all("below", published),
            f"λ = 0.75; P(beats peng-075) over all games: as published {published}, textbook {textbook}",
        ),
        Claim(
            "Median λ with p = 0.1 always matches or outperforms 3-step DQN (section 5)",
            never("below", median.values()),
            f"− baseline: {listed(median)}",
        ),
        Claim(
            "Median λ does not improve on the best hand-picked λ (section 5)",
            never("above", hand_picked.values()),
            f"median − best Peng: {listed(hand_picked)}",
        ),
        Claim(
            "Bounded λ (δ = 0.025) with p = 0.1 improves on 3-step DQN on Breakout and Space Invaders (appendix C)",
            always("above", [bounded[short(game)] for game in shared]),
            f"− baseline: {listed(bounded)}",
        ),
        Claim(
            "Median λ works better than bounded λ (section 3.4, appendix C)",
            over_all("above", dynamic),
            f"P(median beats bounded) over all games: {dynamic}",
        ),
        Claim(
            "The cache outperforms the target network on Space Invaders, both with 3-step returns (section 3.2)",
            over_all("above", cache[short(TARGET_FREE)]),
            f"cached − target network: {listed(cache)}",
        ),
        estimators_matter_more(study),
    ]


def estimators_matter_more(study: Results) -> Claim:
    """Mean over λ-return arms of |arm − cached 3-step| against |cached 3-step − target network|, game by game."""
    effects = {
        short(game): (
            float(np.mean([abs(study.mean(game, arm) - study.mean(game, CACHED)) for arm in ESTIMATORS])),
            abs(study.mean(game, CACHED) - study.mean(game, BASELINE)),
        )
        for game in study.games
    }
    larger = [estimator > cache for estimator, cache in effects.values()]
    words = [f"{game} {estimator:.2f} and {cache:.2f}" for game, (estimator, cache) in effects.items()]
    return Claim(
        "The choice of the return estimator matters more than the cache's sampling correlations (section 3.2)",
        HOLDS if all(larger) else OPEN if any(larger) else FAILS,
        f"mean change by another estimator in the cache, change by the cache itself: {', '.join(words)}",
    )


def claim_table(claims: Sequence[Claim]) -> str:
    rows = [f"| {claim.text} | {claim.verdict} | {claim.numbers} |" for claim in claims]
    return "\n".join(["| the paper says | here | by these numbers |", "|---|---|---|", *rows]) + "\n"


def score_table(study: Results) -> str:
    """Mean final score ± standard error, and over all games what aggregate.csv holds."""
    totals = {row["arm"]: row for row in study.aggregate}
    columns = [*map(short, study.games), "IQM", "P(beats baseline)"]
    rows = [
        [arm, *(score(study.finals(game, arm)) for game in study.games), *overall(totals[arm])]
        for arm in sorted(study.arms, key=lambda arm: -float(totals[arm]["iqm"]))
    ]
    header = ["arm", *columns]
    return "\n".join(["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]) + "\n"


def score(finals: np.ndarray) -> str:
    error = f" ± {finals.std(ddof=1) / np.sqrt(len(finals)):.2f}" if len(finals) > 1 else ""
    return f"{finals.mean():.2f}{error}"


def overall(row: dict[str, str]) -> list[str]:
    pairs = [[row[kind + end] for end in ("", "_low", "_high")] for kind in ("iqm", "improves")]
    return [str(Interval(*map(number, ends), draw=0.5)) if ends[0] else "baseline" for ends in pairs]


def listed(intervals: dict[str, Interval]) -> str:
    return ", ".join(f"{name} {interval}" for name, interval in intervals.items())


def short(game: str) -> str:
    """minatar/space_invaders -> Space Invaders."""
    return game.rpartition("/")[2].replace("_", " ").title()


def origin(study: Results) -> str:
    """How much was run, and by which code."""
    finished = [row for row in study.runs if row["state"] == "finished"]
    seeds = sorted({len(study.finals(game, arm)) for game in study.games for arm in study.arms})
    commits = ", ".join(sorted({f"`{row['commit'][:12]}`" for row in finished}))
    part = "" if len(finished) == len(study.runs) else f"**Unfinished: {len(study.runs)} runs are planned.** "
    return (
        f"{part}{len(finished)} runs of {int(finished[0]['steps']):,} agent steps: {len(study.arms)} arms, "
        f"{len(study.games)} games, {' to '.join(map(str, seeds))} seeds; commit {commits}.\n"
    )


def make_tables() -> str:
    study = read_results("mini")
    return f"{origin(study)}\n{score_table(study)}\n{claim_table(main_claims(study))}"


def main() -> None:
    tables = make_tables()
    if sys.argv[1:] != ["--write"]:
        print(tables)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
