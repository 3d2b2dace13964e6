"""Check the paper's claims against our runs: makes the tables of docs/results.md from the files in this directory.

python results/claims.py            # print them
python results/claims.py --write    # write them into docs/results.md
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lambda_replay.analysis import numbers
from lambda_replay.analysis.arm_comparison import BOOTSTRAP_SEED
from lambda_replay.analysis.pairs import ENOUGH_PER_ENVIRONMENT, is_enough
from lambda_replay.analysis.statistics import (
    LEVEL,
    RESAMPLES,
    Estimate,
    Mean,
    difference_of_means,
    mean_and_standard_error,
    probability_of_improvement,
)
from lambda_replay.replay.data import Floats

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
BEATS, GAINS_HUGELY, MATCHES = 1.0, 1.5, 0.9  # multiples of the other arm's score
OFTEN = 0.1  # of all steps
NEARLY_ALL = 0.9  # of all blocks or steps
BOUND, ROUGHLY = 0.025, 2.0  # on the mean absolute TD error, and the multiple of it that is still "roughly bounded"
Pair = tuple[str, str, str]  # game, arm, other

RULES = """\
Each comparison has a sign: ✓ as the paper says, ✗ the opposite, ? unclear. The number before the sign is the one that
was tested, with its 95 % interval: ✓ if the whole interval is above the value for a tie (0 for a difference, 0.5 for a
probability, 1 for a ratio), ✗ if all of it is below.
- *Beats*: difference of mean final scores (Welch).
- *Gains hugely*: the arm's score minus 1.5 times the other's.
- *Matches*: the arm's score minus 0.9 times the other's. ✓ rules out a loss of more than a tenth, ✗ shows one.
- *Better over all games*: the probability P that a run of one beats a run of the other in the same game (bootstrap).

A comparison with fewer than 5 runs of an arm in a game is unclear. Intervals of differences and ratios are widened so
that all those of one claim hold at once (Bonferroni). This is done even where the claim does not require it: it can
only make a clear verdict unclear, never reverse it. There is no correction across claims.

A claim about every game holds if all its comparisons are ✓ and does not if any is ✗. A claim that something *can*
happen holds if any comparison is ✓ and does not if all are ✗. A claim about most games needs the same sign in more than
half of them. Otherwise it cannot be said.
"""


@dataclass(frozen=True)
class Results:
    """The files that a study's report wrote to ``figures``, lambdas.csv and td_errors.csv."""

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

    def difference(self, game: str, arm: str, other: str, times: float = 1.0, comparisons: int = 1) -> Estimate:
        """Mean final score of the arm minus ``times`` that of the other; no interval if there are too few runs."""
        ours, theirs = self.finals(game, arm), self.finals(game, other)
        difference = difference_of_means(ours, times * theirs, comparisons)
        return difference if min(len(ours), len(theirs)) >= ENOUGH_PER_ENVIRONMENT else without_interval(difference)

    def probability(self, arm: str, other: str) -> Estimate:
        """That a run of the arm scores higher than a run of the other, averaged over games."""
        ours, theirs = ([self.finals(game, name) for game in self.games] for name in (arm, other))
        chance = probability_of_improvement(ours, theirs, np.random.default_rng(BOOTSTRAP_SEED))
        enough = all(is_enough([len(task) for task in tasks]) for tasks in (ours, theirs))
        return chance if enough else without_interval(chance)

    def bounded(self, game: str, column: str) -> float:
        """A column of lambdas.csv for the arm ``bounded``, averaged over seeds."""
        rows = [row for row in self.lambdas if (row["environment"], row["arm"]) == (game, "bounded")]
        return float(np.mean([float(row[column]) for row in rows]))

    def can_bound(self, game: str) -> bool:
        """Whether δ can be met at all: where λ = 0 exceeds it nearly everywhere, ``bounded`` has no choice."""
        return self.bounded(game, "lambda_share_0") < NEARLY_ALL

    def rising(self, game: str) -> float:
        """Share of blocks whose TD error never falls when λ rises, averaged over points in training."""
        return float(np.mean([float(row["rising"]) for row in self.td_errors if row["environment"] == game]))

    @property
    def largest_fall(self) -> float:
        """How far the mean TD error over blocks falls below its value at λ = 0, as a share of it."""
        curves = [[float(row[name]) for name in row if name.startswith("lambda_")] for row in self.td_errors]
        return max(1 - min(curve) / curve[0] for curve in curves)


@dataclass(frozen=True)
class Comparison:
    """One of the numbers that decide a claim."""

    name: str
    numbers: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.name} {self.numbers} {SIGNS[self.verdict]}"


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, the verdict on it here, and the numbers behind the verdict."""

    text: str
    verdict: str
    numbers: str


def judge(estimate: Estimate, draw: float = 0.0) -> str:
    """The verdict on "it is above the draw"."""
    return {"above": HOLDS, "below": FAILS}.get(estimate.verdict(draw), OPEN)


def without_interval(estimate: Estimate) -> Estimate:
    return Estimate(estimate.value, math.nan, math.nan)


def every(verdicts: Sequence[str]) -> str:
    return FAILS if FAILS in verdicts else HOLDS if set(verdicts) == {HOLDS} else OPEN


def some(verdicts: Sequence[str]) -> str:
    return HOLDS if HOLDS in verdicts else FAILS if set(verdicts) == {FAILS} else OPEN


def most(verdicts: Sequence[str]) -> str:
    counts = {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS)}
    return next((verdict for verdict, count in counts.items() if count > len(verdicts) / 2), OPEN)


def compare_scores(study: Results, pairs: Sequence[Pair], times: float = BEATS) -> list[Comparison]:
    """All comparisons of a claim: final scores of the arms minus ``times`` those of the others."""
    found = []
    for game, arm, other in pairs:
        difference = study.difference(game, arm, other, times, len(pairs))
        scaled = other if times == 1 else f"{times:g} × {other}"
        found.append(Comparison(f"{short(game)}: {arm} − {scaled} =", signed(difference), judge(difference)))
    return found


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
    shared = [(game, arm) for game in (BREAKOUT, SPACE_INVADERS) for arm in PENG[:2]]
    return [
        at_least_one_matches(study),
        make_claim(
            "λ = 0.25 and 0.5 give huge gains over 3-step DQN on Breakout and Space Invaders (section 5)",
            every,
            compare_scores(study, [(game, arm, BASELINE) for game, arm in shared], GAINS_HUGELY),
        ),
        make_claim(
            "λ-returns can be a better alternative to n-step returns on Breakout (section 5)",
            some,
            compare_scores(study, [(BREAKOUT, arm, CACHED) for arm in PENG]),
            f"{CACHED} differs from them only in its return",
        ),
        make_claim(
            "At λ = 0.75 Watkins's Q(λ) outperforms Peng's on no game (section 5 says so for four λ)",
            every,
            compare_scores(study, [(game, "peng-075", arm) for arm in WATKINS for game in study.games], MATCHES),
            "cuts shorten the trace, so at the same λ Watkins's looks less far ahead; ✗ may only mean that 0.75 is too "
            "long for Peng's there",
        ),
        make_claim(
            "At λ = 0.75 Watkins's cut traces hamper performance overall (appendix E, which says so for four λ)",
            every,
            [is_better_overall(study, "peng-075", arm) for arm in WATKINS],
        ),
    ]


def at_least_one_matches(study: Results) -> Claim:
    """Tests four values of λ in each game; the row shows the best one."""
    shown = []
    for game in study.games:
        arms = compare_scores(study, [(game, arm, BASELINE) for arm in PENG], MATCHES)
        verdict = some([comparison.verdict for comparison in arms])
        shown.append(replace(arms[PENG.index(study.best(game, PENG))], verdict=verdict))
    return make_claim(
        "For every game, at least one of Peng's λ = 0.25, 0.5, 0.75, 1 matches or beats 3-step DQN (section 5)",
        every,
        shown,
        "the λ with the highest mean in each game, its interval widened for four values; ✓ if any of the four matches",
    )


def dynamic_claims(study: Results) -> list[Claim]:
    """Prioritisation with dynamic λ: sections 3.4 and 5."""
    best = [(game, study.best(game, PENG), "median") for game in study.games]
    return [
        make_claim(
            "Median λ with p = 0.1 always matches or outperforms 3-step DQN (section 5)",
            every,
            compare_scores(study, [(game, "median", BASELINE) for game in study.games], MATCHES),
        ),
        make_claim(
            "In general, median λ does not improve on the best hand-picked λ (section 5)",
            most,
            compare_scores(study, best, MATCHES),
            "the best λ was chosen after the fact, which favours the claim",
        ),
        *bounded_claims(study),
        make_claim(
            "A block's mean absolute TD error rises monotonically with λ, which the search assumes (appendix C)",
            every,
            (share(game, study.rising(game), NEARLY_ALL) for game in study.games),
            "share of blocks in which it never falls as λ rises in steps of a tenth, at four points in training with "
            "one seed of peng:0.75 ([`td_errors.csv`](../results/mini/td_errors.csv)); less than nine tenths is ✗. The "
            f"mean over blocks falls by {study.largest_fall:.0%} at most",
        ),
    ]


def bounded_claims(study: Results) -> list[Claim]:
    """Appendix C: there is no verdict where δ = 0.025 leaves no choice."""
    too_tight = [game for game in study.games if not study.can_bound(game)]
    names = numbers.listed([short(game) for game in too_tight]) if too_tight else ""
    note = f"no verdict for {names}, where even λ = 0 exceeds the bound nearly everywhere" if too_tight else ""

    def where_it_can(game: str, comparison: Comparison) -> Comparison:
        return replace(comparison, verdict=OPEN) if game in too_tight else comparison

    shared = [(game, "bounded", BASELINE) for game in (BREAKOUT, SPACE_INVADERS)]
    overall_comparison = is_better_overall(study, "median", "bounded")
    errors = [(game, study.bounded(game, "td_error_abs_mean")) for game in study.games]
    return [
        make_claim(
            "Median λ works better than bounded λ (section 3.4, appendix C)",
            every,
            [replace(overall_comparison, verdict=OPEN) if too_tight else overall_comparison],
            note,
        ),
        make_claim(
            "Bounded λ (δ = 0.025) with p = 0.1 improves on 3-step DQN on Breakout and Space Invaders (appendix C)",
            every,
            [
                where_it_can(pair[0], comparison)
                for pair, comparison in zip(shared, compare_scores(study, shared), strict=True)
            ],
            note,
        ),
        make_claim(
            "With bounded λ, the mean absolute TD error is roughly bounded by δ = 0.025 (appendix C)",
            every,
            (
                where_it_can(game, Comparison(f"{short(game)}:", numbers.fixed(error, 3), within(error)))
                for game, error in errors
            ),
            f"mean over all refreshes; more than {ROUGHLY:g} times the bound is ✗; {note}",
        ),
        *(
            make_claim(
                f"λ = {value} often {does} the bound (appendix C)",
                every,
                (
                    where_it_can(game, share(game, study.bounded(game, f"lambda_share_{value}"), OFTEN))
                    for game in study.games
                ),
                f"share of steps at which `bounded` chose λ = {value}; less than a tenth is ✗; {note}",
            )
            for value, does in enumerate(("exceeds", "satisfies"))
        ),
    ]


def within(error: float) -> str:
    return HOLDS if error <= ROUGHLY * BOUND else FAILS


def share(game: str, value: float, least: float) -> Comparison:
    return Comparison(f"{short(game)}:", numbers.fixed(value, 3), HOLDS if value >= least else FAILS)


def cache_claims(study: Results) -> list[Claim]:
    """The cache against the target network: sections 3.2 and 5."""
    return [
        make_claim(
            "The cache outperforms the target network on Space Invaders, both with 3-step returns (section 3.2)",
            every,
            compare_scores(study, [(SPACE_INVADERS, CACHED, BASELINE)]),
        ),
        make_claim(
            "The choice of the return estimator matters significantly more than the cache's sampling correlations "
            "(section 3.2)",
            every,
            (matters_more(study, game) for game in study.games),
            "median over Peng's and Watkins's arms, without priorities, of the change in score due to the estimator "
            f"(against {CACHED}), minus the change due to the cache itself ({CACHED} against {BASELINE}); both are "
            "absolute values, which noise makes larger; bootstrap over seeds",
        ),
        make_claim(
            "The cache can be more computationally efficient than a target network (section 5)",
            some,
            speed_comparisons({"MinAtar's and CartPole's networks": ("minatar", "cartpole"), "Atari's": ("atari",)}),
            "steps per second of `dqn-lambda` divided by those of `dqn` in the same round of `python -m "
            "benchmarks.speed` ([performance.md](performance.md)); geometric mean over rounds, with 1 and with 8 "
            "environments (Student)",
        ),
    ]


def matters_more(study: Results, game: str) -> Comparison:
    """Median over λ-return arms of |arm − cached 3-step|, minus |cached 3-step − target network|."""
    estimators = (*PENG, *WATKINS)

    def gap(means: dict[str, Floats]) -> Floats:
        by_estimator = np.median([np.abs(means[arm] - means[CACHED]) for arm in estimators], axis=0)
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


def speed_comparisons(groups: Mapping[str, Sequence[str]]) -> list[Comparison]:
    """Steps per second of DQN(λ) divided by those of DQN, over all rounds of the workloads in a group."""
    rows = json.loads(BENCHMARK.read_text(encoding="utf-8"))["speed"]
    samples = {(row["workload"], row["envs"], row["contender"]): np.array(row["samples"]) for row in rows}
    found = []
    for name, workloads in groups.items():
        keys = [key[:2] for key in samples if key[0] in workloads and key[2] == "dqn"]
        ratios = np.concatenate([samples[*key, "dqn-lambda"] / samples[*key, "dqn"] for key in keys])  # [rounds]
        ratio = mean_ratio(ratios, comparisons=len(groups))
        found.append(Comparison(f"{name}:", plain(ratio), judge(ratio, draw=1.0)))
    return found


def mean_ratio(ratios: Floats, comparisons: int) -> Estimate:
    """Geometric mean, with Student's interval for the logarithms."""
    logarithms = difference_of_means(np.log(ratios), np.zeros(len(ratios)), comparisons)
    return Estimate(*np.exp([logarithms.value, logarithms.low, logarithms.high]))


def claim_table(claims: Sequence[Claim]) -> str:
    rows = [f"| {claim.text} | {claim.verdict} | {claim.numbers} |" for claim in claims]
    return "\n".join(["| the paper says | here | based on |", "|---|---|---|", *rows]) + "\n"


def score_table(study: Results) -> str:
    """Mean final score ± standard error and, if there are enough runs, the totals in aggregate.csv; best first."""
    runs = {game: {len(study.finals(game, arm)) for arm in study.arms} for game in study.games}
    header = [f"{short(game)} (n = {few_to_many(found)})" for game, found in runs.items()]
    totals = {row["arm"]: row for row in study.aggregate} if is_enough([min(found) for found in runs.values()]) else {}
    arms = sorted(study.arms, key=lambda arm: -float(totals[arm]["iqm"])) if totals else study.arms
    rows = [
        [arm, *(score(study.finals(game, arm)) for game in study.games), *(overall(totals[arm]) if totals else "––")]
        for arm in arms
    ]
    table = [["arm", *header, "IQM", "P(beats baseline)"], ["---"] * (len(header) + 3), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"


def few_to_many(found: set[int]) -> str:
    return f"{min(found)}" if len(found) == 1 else f"{min(found)} to {max(found)}"


def score(finals: Floats) -> str:
    mean, standard_error, _ = mean_and_standard_error(finals)
    return numbers.mean_and_error(Mean(float(mean), float(standard_error)), 2)


def overall(row: dict[str, str]) -> list[str]:
    kinds = [[row[kind + end] for end in ("", "_low", "_high")] for kind in ("iqm", "improves")]
    return [plain(Estimate(*(float(end or "nan") for end in ends))) if ends[0] else "baseline" for ends in kinds]


def plain(estimate: Estimate) -> str:
    return numbers.with_interval(estimate, 2)


def signed(estimate: Estimate) -> str:
    between = f" ({numbers.interval(estimate, 2)})" if estimate.has_interval else ""
    return numbers.signed(estimate.value, 2) + between


def short(game: str) -> str:
    """minatar/space_invaders -> Space Invaders."""
    return game.rpartition("/")[2].replace("_", " ").title()


def origin(study: Results) -> str:
    """How much was run, and with which commit."""
    seeds = {len(study.finals(game, arm)) for game in study.games for arm in study.arms}
    commits = ", ".join(sorted({f"`{row['commit'][:12]}`" for row in study.finished}))
    is_whole = len(study.finished) == len(study.runs)
    return (
        f"{'' if is_whole else f'**Unfinished: {len(study.runs)} runs are planned.** '}"
        f"{len(study.finished)} runs of {int(study.finished[0]['steps']):,} agent steps: {len(study.arms)} arms, "
        f"{len(study.games)} games, {few_to_many(seeds)} seeds; commit {commits}.\n"
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
    """The page with these tables between its two marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(END) < page.index(BEGIN):
        raise SystemExit(f"{PAGE.name} must contain these two lines once each, in this order:\n{BEGIN}{END}")
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
