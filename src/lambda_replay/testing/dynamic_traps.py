"""The known mistakes in choosing λ, by name; part of ``TRAPS`` in ``traps.py``."""

from __future__ import annotations

from lambda_replay.testing import dynamic_mistakes as mistakes
from lambda_replay.testing.exact import SEARCH_DEPTH, mean_error
from lambda_replay.testing.stories import BATCH, TIME_FIRST
from lambda_replay.testing.trap import BOUNDED, MEDIAN, Trap

DYNAMIC_TRAPS: tuple[Trap, ...] = (
    Trap(
        "mean for median",
        "averages the k + 1 returns of a step instead of taking their median",
        MEDIAN,
        mistakes.mean_of_candidates,
    ),
    Trap(
        "one lambda per block",
        "picks one λ for the whole block, by the block's mean return: every step has a median of its own",
        MEDIAN,
        mistakes.one_lambda_per_block,
    ),
    Trap(
        "lambda one half",
        "gives the returns of λ = 1/2: take the median of the finished returns, not of the λ",
        MEDIAN,
        mistakes.lambda_one_half,
    ),
    Trap(
        "one candidate too few",
        "has only k candidates, λ = 0/(k−1), …, 1: there must be k + 1, λ = 0/k, …, k/k",
        MEDIAN,
        mistakes.one_candidate_too_few,
    ),
    Trap(
        "error against the maximum",
        "bounds |G − max Q(s_t, ·)| instead of |G − Q(s_t, a_t)| of the action taken",
        BOUNDED,
        mistakes.bounding(mistakes.mean_from_maximum),
    ),
    Trap(
        "squared error",
        "bounds the mean squared error instead of the mean absolute error",
        BOUNDED,
        mistakes.bounding(mistakes.mean_square),
    ),
    Trap(
        "squared error against the maximum",
        "bounds the mean of (G − max Q(s_t, ·))² instead of |G − Q(s_t, a_t)|, as the paper's released code does",
        BOUNDED,
        mistakes.bounding(mistakes.mean_square_from_maximum, mistakes.largest_or_last),
    ),
    Trap(
        "sum of the errors",
        "bounds the sum of the errors instead of their mean",
        BOUNDED,
        mistakes.bounding(mistakes.sum_of_errors),
    ),
    Trap(
        "largest error",
        "bounds the largest error of the block instead of the mean",
        BOUNDED,
        mistakes.bounding(mistakes.largest_error),
    ),
    Trap(
        "errors cancel",
        "averages signed errors, which cancel: take |G − Q(s_t, a_t)| before the mean",
        BOUNDED,
        mistakes.bounding(mistakes.mean_of_signed_errors),
    ),
    Trap(
        "closing slots counted",
        "counts slots without an action in the mean: divide by the number of real transitions",
        BOUNDED,
        mistakes.bounding(mistakes.mean_over_slots),
    ),
    Trap(
        "a lambda for each step",
        "gives each step a λ that bounds its own error: a block has one λ, which bounds its mean error",
        BOUNDED,
        mistakes.lambda_for_each_step,
    ),
    Trap(
        "bound over all blocks",
        "bounds the mean over all blocks with a single λ: every block has a λ of its own",
        BOUNDED,
        mistakes.bound_over_all_blocks,
        layouts=(BATCH, TIME_FIRST),
    ),
    Trap(
        "last lambda tried",
        "takes the last λ that the search tried even if it breaks the bound: keep the largest one that does not",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.after_the_ends(lambda bracket: bracket.last)),
    ),
    Trap(
        "no lambda found",
        "takes the last λ tried if none in the search satisfies the bound: fall back on λ = 0, which does",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.largest_or_last),
    ),
    Trap(
        "upper end of the search",
        "takes the upper end of the search interval, which breaks the bound: take the lower end",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.after_the_ends(lambda bracket: bracket.high)),
    ),
    Trap(
        "lambda 1 not tried",
        "does not try λ = 1 first: the search never reaches it",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.without_lambda_one),
    ),
    Trap(
        "lambda 0 tried first",
        "gives up if λ = 0 breaks the bound, without trying λ = 1",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.lambda_zero_first),
    ),
    Trap(
        "one halving too many",
        "halves the interval of λ 8 times: the search has a depth of 7",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.after_the_ends(lambda bracket: bracket.low, SEARCH_DEPTH + 1)),
    ),
    Trap(
        "one halving too few",
        "halves the interval of λ 6 times: the search has a depth of 7",
        BOUNDED,
        mistakes.bounding(mean_error, mistakes.after_the_ends(lambda bracket: bracket.low, SEARCH_DEPTH - 1)),
    ),
)
