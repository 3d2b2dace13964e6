"""The paper's claims against our runs: makes the tables of docs/results.md from the files beside this script.

python results/claims.py            # print them
python results/claims.py --write    # put them into docs/results.md
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lambda_replay.analysis import wording
from lambda_replay.analysis.pairs import ENOUGH_PER_ENVIRONMENT, is_enough
from lambda_replay.analysis.statistics import (
    LEVEL,
    RESAMPLES,
    Estimate,
    difference_of_means,
    probability_of_improvement,
)
from lambda_replay.analysis.summary import BOOTSTRAP_SEED
from lambda_replay.data import Floats

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results.md"
BENCHMARK = HERE.parent / "benchmarks" / "results" / "bench.json"
BEGIN, END = "<!-- python results/claims.py --write -->\n", "<!-- end of claims.py -->\n"
HOLDS, FAILS, OPEN = "**holds**", "**does not**", "cannot be said"
SIGNS = {HOLDS: "✓", FAILS: "✗", OPEN: "?"}
BASELINE, CACHED = "dqn-3step", "cached-3step"
PENG = ("peng-025", "peng-050", "peng-075", "peng-100")
WATKINS = ("watkins-075", "watkins-published-075")
BREAKOUT, SPACE_INVADERS = "minatar/breakout", "minatar/space_invaders"
HUGE = 1.5  # times the other's score
MATCH = 0.9  # times the other's score
OFTEN = 0.1  # of all steps
NEARLY_ALL = 0.9  # blocks
BOUND, ROUGHLY = 0.025, 2.0  # of the mean absolute TD error, and how many times that is still "roughly bounded"
RULES = """\
Each comparison has a sign: ✓ as the paper says, ✗ the other way round, ? unclear.
- *Beats*: the 95 % interval of the difference of mean final scores (Welch) lies wholly above zero; wholly below is ✗.
- *A huge gain*: the interval of the arm's score minus 1.5 times the baseline's lies wholly above zero; wholly below
  is ✗.
- *Matches*: the interval of the arm's score minus 0.9 times the other's lies wholly above zero, so that a loss of a
  tenth can be excluded; ✗ where the arm is clearly below the other, by however little.
- *Over all games*: the probability P that a run of one beats a run of the other, with its bootstrap interval, takes the
  place of the difference, and 0.5 that of zero; unclear with fewer than 20 runs of an arm or 5 in a game.

A claim about every game holds if all its comparisons have ✓ and does not if one has ✗; a claim that something can be so
holds with one ✓ and does not if all have ✗; a claim about most games needs either in more than half of them. Otherwise
it cannot be said. Nothing is corrected for the number of comparisons.
"""


@dataclass(frozen=True)
class Results:
    """What a study's report left in ``figures``, lambdas.csv and td_errors.csv."""

    runs: list[dict[str, str]]
    aggregate: list[dict[str, str]]
    lambdas: list[dict[str, str]]
    td_errors: list[dict[str, str]]

    @property
    def games(self) -> list[str]:
        return list(dict.fromkeys(row["environment"] for row in self.runs))

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(row["arm"] for row in self.runs))

    @property
    def finished(self) -> list[dict[str, str]]:
        return [row for row in self.runs if row["state"] == "finished"]

    def finals(self, game: str, arm: str) -> Floats:
        """Final scores [seeds]."""
        rows = [row for row in self.finished if (row["environment"], row["arm"]) == (game, arm)]
        return np.array([float(row["final_score"]) for row in rows])

    def mean(self, game: str, arm: str) -> float:
        return float(self.finals(game, arm).mean())

    def best(self, game: str, arms: Sequence[str]) -> str:
        return max(arms, key=lambda arm: self.mean(game, arm))

    def difference(self, game: str, arm: str, other: str, times: float = 1.0) -> Estimate:
        """Mean final score of the arm minus so many times that of the other."""
        return difference_of_means(self.finals(game, arm), times * self.finals(game, other))

    def probability(self, arm: str, other: str) -> Estimate:
        """Of a run of the arm scoring higher than one of the other, averaged over games."""
        ours, theirs = ([self.finals(game, name) for game in self.games] for name in (arm, other))
        chance = probability_of_improvement(ours, theirs, np.random.default_rng(BOOTSTRAP_SEED))
        enough = all(is_enough([len(task) for task in tasks]) for tasks in (ours, theirs))
        return chance if enough else Estimate(chance.value, math.nan, math.nan)

    def bounded(self, game: str, column: str) -> float:
        """A column of lambdas.csv for the arm ``bounded``, averaged over seeds."""
        rows = [row for row in self.lambdas if (row["environment"], row["arm"]) == (game, "bounded")]
        return float(np.mean([float(row[column]) for row in rows]))

    def rising(self, game: str) -> float:
        """Share of blocks whose TD error never falls when λ rises, averaged over moments of training."""
        return float(np.mean([float(row["rising"]) for row in self.td_errors if row["environment"] == game]))


@dataclass(frozen=True)
class Comparison:
    """One of the numbers by which a claim stands or falls."""

    name: str
    numbers: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.name} {self.numbers} {SIGNS[self.verdict]}"


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, what becomes of it here, and by which numbers."""

    text: str
    verdict: str
    numbers: str


def judge(estimate: Estimate, draw: float = 0.0) -> str:
    """The verdict on "it is above"."""
    return {"above": HOLDS, "below": FAILS}.get(wording.verdict(estimate, draw), OPEN)


def every(verdicts: Sequence[str]) -> str:
    return FAILS if FAILS in verdicts else HOLDS if set(verdicts) == {HOLDS} else OPEN


def some(verdicts: Sequence[str]) -> str:
    return HOLDS if HOLDS in verdicts else FAILS if set(verdicts) == {FAILS} else OPEN


def most(verdicts: Sequence[str]) -> str:
    counts = {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS)}
    return next((verdict for verdict, count in counts.items() if count > len(verdicts) / 2), OPEN)


def beats(study: Results, game: str, arm: str, other: str) -> Comparison:
    difference = study.difference(game, arm, other)
    return Comparison(minus(game, arm, other), signed(difference), judge(difference))


def gains_hugely(study: Results, game: str, arm: str) -> Comparison:
    verdict = judge(study.difference(game, arm, BASELINE, HUGE))
    return Comparison(minus(game, arm, BASELINE), signed(study.difference(game, arm, BASELINE)), verdict)


def matches(study: Results, game: str, arm: str, other: str) -> Comparison:
    difference = study.difference(game, arm, other)
    is_below = wording.verdict(difference, 0.0) == "below"
    is_match = wording.verdict(study.difference(game, arm, other, MATCH), 0.0) == "above"
    verdict = FAILS if is_below else HOLDS if is_match else OPEN
    return Comparison(minus(game, arm, other), signed(difference), verdict)


def is_better_overall(study: Results, arm: str, other: str) -> Comparison:
    chance = study.probability(arm, other)
    return Comparison(f"P({arm} beats {other}) =", plain(chance), judge(chance, 0.5))


def make_claim(
    text: str, rule: Callable[[Sequence[str]], str], comparisons: Iterable[Comparison], note: str = ""
) -> Claim:
    found = list(comparisons)
    lines = [*map(str, found), *([note] if note else [])]
    return Claim(text, rule([comparison.verdict for comparison in found]), "<br>".join(lines))


def estimator_claims(study: Results) -> list[Claim]:
    """Section 5 and appendix E."""
    return [
        at_least_one_matches(study),
        make_claim(
            "λ = 0.25 and 0.5 give huge gains over 3-step DQN on Breakout and Space Invaders (section 5)",
            every,
            (gains_hugely(study, game, arm) for game in (BREAKOUT, SPACE_INVADERS) for arm in PENG[:2]),
            "half of the baseline's score: "
            + ", ".join(
                f"{number((HUGE - 1) * study.mean(game, BASELINE))} on {short(game)}"
                for game in (BREAKOUT, SPACE_INVADERS)
            ),
        ),
        make_claim(
            "λ-returns can be a better alternative to n-step returns on Breakout (section 5)",
            some,
            (beats(study, BREAKOUT, arm, CACHED) for arm in PENG),
            f"{CACHED} has the cache and all else in common with them",
        ),
        make_claim(
            "Watkins's Q(λ) outperforms Peng's on no game (section 5)",
            every,
            (matches(study, game, "peng-075", arm) for arm in WATKINS for game in study.games),
            "λ = 0.75 alone",
        ),
        make_claim(
            "Watkins's cut traces hamper performance overall, compared with Peng's (appendix E)",
            every,
            (is_better_overall(study, "peng-075", arm) for arm in WATKINS),
            "λ = 0.75 alone",
        ),
    ]


def at_least_one_matches(study: Results) -> Claim:
    """Four values of λ in each game, of which the row shows the best."""
    games = [[matches(study, game, arm, BASELINE) for arm in PENG] for game in study.games]
    verdicts = [some([comparison.verdict for comparison in arms]) for arms in games]
    shown = [arms[PENG.index(study.best(game, PENG))] for game, arms in zip(study.games, games, strict=True)]
    return make_claim(
        "For every game at least one of Peng's λ = 0.25, 0.5, 0.75, 1 matches or beats 3-step DQN (section 5)",
        every,
        [replace(best, verdict=verdict) for best, verdict in zip(shown, verdicts, strict=True)],
        "the best λ of each game; the sign is that of all four",
    )


def dynamic_claims(study: Results) -> list[Claim]:
    """Prioritisation with dynamic λ: sections 3.4 and 5, appendix C."""
    extremes = {"exceeds": "lambda_share_0", "satisfies": "lambda_share_1"}
    return [
        make_claim(
            "Median λ with p = 0.1 always matches or outperforms 3-step DQN (section 5)",
            every,
            (matches(study, game, "median", BASELINE) for game in study.games),
        ),
        make_claim(
            "In general, median λ does not improve on the best hand-picked λ (section 5)",
            most,
            (matches(study, game, study.best(game, PENG), "median") for game in study.games),
            "the best λ was chosen after the fact, which helps the claim",
        ),
        make_claim(
            "Median λ works better than bounded λ (section 3.4, appendix C)",
            every,
            [is_better_overall(study, "median", "bounded")],
        ),
        make_claim(
            "Bounded λ (δ = 0.025) with p = 0.1 improves on 3-step DQN on Breakout and Space Invaders (appendix C)",
            every,
            (beats(study, game, "bounded", BASELINE) for game in (BREAKOUT, SPACE_INVADERS)),
        ),
        make_claim(
            "With bounded λ each block's mean absolute TD error is roughly bounded by δ = 0.025 (appendix C)",
            every,
            (at_most(game, study.bounded(game, "td_error_abs_mean"), ROUGHLY * BOUND) for game in study.games),
            f"mean over all refreshes; more than {ROUGHLY:g} times the bound is ✗",
        ),
        *(
            make_claim(
                f"λ = {value} often {does} the bound (appendix C)",
                every,
                (at_least(game, study.bounded(game, column), OFTEN) for game in study.games),
                f"share of steps at which `bounded` took λ = {value}; less than a tenth is ✗",
            )
            for value, (does, column) in enumerate(extremes.items())
        ),
        make_claim(
            "A block's mean absolute TD error rises monotonically with λ, which the search assumes (appendix C)",
            every,
            (at_least(game, study.rising(game), NEARLY_ALL) for game in study.games),
            "share of blocks in which it never falls from one tenth of λ to the next, at four moments of training "
            "([`td_errors.csv`](../results/mini/td_errors.csv)); less than nine tenths is ✗",
        ),
    ]


def cache_claims(study: Results) -> list[Claim]:
    """The cache against the target network: sections 3.2 and 5, appendix G."""
    return [
        make_claim(
            "The cache outperforms the target network on Space Invaders, both with 3-step returns (section 3.2)",
            every,
            [beats(study, SPACE_INVADERS, CACHED, BASELINE)],
        ),
        make_claim(
            "The choice of the return estimator matters significantly more than the cache's sampling correlations "
            "(section 3.2)",
            every,
            (matters_more(study, game) for game in study.games),
            "mean change of score by another estimator in the cache (Peng's and Watkins's, without priorities) minus "
            "change by the cache itself (cached against target network, 3-step), both absolute, which noise makes "
            "larger; bootstrap over seeds, unclear with fewer than 5",
        ),
        make_claim(
            "The cache can be more computationally efficient than a target network (section 5)",
            some,
            speed_comparisons(("atari", "minatar", "cartpole")),
            "steps per second of `dqn-lambda` over those of `dqn` in three rounds of `lambda-replay bench` "
            "([performance.md](performance.md)); ✓ if all are above 1",
        ),
        make_claim(
            "DQN(λ) completes training faster than DQN on five of six games (section 5, appendix G)",
            every,
            speed_comparisons(("atari",)),
            "the same, with the Atari network alone; the paper's reason, a GPU that likes large batches, is not here",
        ),
    ]


def matters_more(study: Results, game: str) -> Comparison:
    """Mean over λ-return arms of |arm − cached 3-step|, minus |cached 3-step − target network|."""
    estimators = (*PENG, *WATKINS)

    def gap(means: dict[str, Floats]) -> Floats:
        by_estimator = np.mean([np.abs(means[arm] - means[CACHED]) for arm in estimators], axis=0)
        return by_estimator - np.abs(means[CACHED] - means[BASELINE])

    finals = {arm: study.finals(game, arm) for arm in (*estimators, CACHED, BASELINE)}
    value = float(gap({arm: np.asarray(scores.mean()) for arm, scores in finals.items()}))
    estimate = Estimate(value, math.nan, math.nan)
    if min(map(len, finals.values())) >= ENOUGH_PER_ENVIRONMENT:
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        drawn = {arm: rng.choice(scores, (RESAMPLES, len(scores))).mean(axis=1) for arm, scores in finals.items()}
        ends = np.quantile(gap(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        estimate = Estimate(value, *map(float, ends))
    return Comparison(f"{short(game)}:", signed(estimate), judge(estimate))


def speed_comparisons(workloads: Sequence[str]) -> Iterable[Comparison]:
    """Steps per second of DQN(λ) over those of DQN, in each round of the benchmark."""
    rows = json.loads(BENCHMARK.read_text(encoding="utf-8"))["speed"]
    samples = {(row["workload"], row["envs"], row["contender"]): np.array(row["samples"]) for row in rows}
    for workload, envs in [key[:2] for key in samples if key[0] in workloads and key[2] == "dqn"]:
        ratios = samples[workload, envs, "dqn-lambda"] / samples[workload, envs, "dqn"]  # [rounds]
        verdict = HOLDS if (ratios > 1).all() else FAILS if (ratios < 1).all() else OPEN
        name = f"{workload}, {wording.count(envs, 'environment')}:"
        yield Comparison(name, " ".join(f"{ratio:.2f}" for ratio in ratios), verdict)


def at_most(game: str, value: float, limit: float) -> Comparison:
    return Comparison(f"{short(game)}:", wording.number(value, 3), HOLDS if value <= limit else FAILS)


def at_least(game: str, value: float, limit: float) -> Comparison:
    return Comparison(f"{short(game)}:", wording.number(value, 3), HOLDS if value >= limit else FAILS)


def claim_table(claims: Sequence[Claim]) -> str:
    rows = [f"| {claim.text} | {claim.verdict} | {claim.numbers} |" for claim in claims]
    return "\n".join(["| the paper says | here | by these numbers |", "|---|---|---|", *rows]) + "\n"


def score_table(study: Results) -> str:
    """Mean final score ± standard error, and over all games what aggregate.csv holds."""
    totals = {row["arm"]: row for row in study.aggregate}
    header = ["arm", *map(short, study.games), "IQM", "P(beats baseline)"]
    rows = [
        [arm, *(score(study.finals(game, arm)) for game in study.games), *overall(totals[arm])]
        for arm in sorted(study.arms, key=lambda arm: -float(totals[arm]["iqm"]))
    ]
    return "\n".join(["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]) + "\n"


def score(finals: Floats) -> str:
    error = f" ± {number(finals.std(ddof=1) / np.sqrt(len(finals)))}" if len(finals) > 1 else ""
    return number(float(finals.mean())) + error


def overall(row: dict[str, str]) -> list[str]:
    kinds = [[row[kind + end] for end in ("", "_low", "_high")] for kind in ("iqm", "improves")]
    return [plain(Estimate(*(float(end or "nan") for end in ends))) if ends[0] else "baseline" for ends in kinds]


def number(value: float) -> str:
    return wording.number(value, 2)


def plain(estimate: Estimate) -> str:
    return number(estimate.value) + between(estimate)


def signed(estimate: Estimate) -> str:
    return wording.signed(estimate.value, 2) + between(estimate)


def between(estimate: Estimate) -> str:
    return f" ({wording.interval(estimate, 2)})" if estimate.has_interval else ""


def minus(game: str, arm: str, other: str) -> str:
    return f"{short(game)}: {arm} − {other} ="


def short(game: str) -> str:
    """minatar/space_invaders -> Space Invaders."""
    return game.rpartition("/")[2].replace("_", " ").title()


def origin(study: Results) -> str:
    """How much was run, and by which code."""
    seeds = sorted({len(study.finals(game, arm)) for game in study.games for arm in study.arms})
    few_to_many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    commits = ", ".join(sorted({f"`{row['commit'][:12]}`" for row in study.finished}))
    is_whole = len(study.finished) == len(study.runs)
    return (
        f"{'' if is_whole else f'**Unfinished: {len(study.runs)} runs are planned.** '}"
        f"{len(study.finished)} runs of {int(study.finished[0]['steps']):,} agent steps: {len(study.arms)} arms, "
        f"{len(study.games)} games, {few_to_many} seeds; commit {commits}.\n"
    )


def read_results(name: str) -> Results:
    def read(table: str) -> list[dict[str, str]]:
        with (HERE / name / f"{table}.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return Results(read("figures/runs"), read("figures/aggregate"), read("lambdas"), read("td_errors"))


def make_tables() -> str:
    study = read_results("mini")
    claims = [*estimator_claims(study), *dynamic_claims(study), *cache_claims(study)]
    return f"{origin(study)}\n{score_table(study)}\n{RULES}\n{claim_table(claims)}"


def put_into(page: str, tables: str) -> str:
    """The page with other tables between its two marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(END) < page.index(BEGIN):
        raise SystemExit(f"{PAGE.name} must hold these two lines once each, in this order:\n{BEGIN}{END}")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    if sys.argv[1:] not in ([], ["--write"]):
        raise SystemExit(__doc__)
    if not sys.argv[1:]:
        print(make_tables())
        return
    PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), make_tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
