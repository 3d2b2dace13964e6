"""The known mistakes by name: what each does, in a sentence, and the estimators whose code can make it."""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction

from lambda_replay.testing import mistakes
from lambda_replay.testing.dynamic_traps import DYNAMIC_TRAPS
from lambda_replay.testing.exact import (
    BOTH,
    GOES_ON,
    TRUNCATED,
    Steps,
    first_critic,
    greedy,
    right_returns,
    smaller_critic,
    taken,
    trace_if_greedy,
    trace_of_tree,
    whole_trace,
)
from lambda_replay.testing.stories import RING
from lambda_replay.testing.trap import (
    ACTORS,
    ALL,
    CHOOSING,
    CORRECTED,
    EXPECTED,
    LAMBDA,
    NSTEP,
    PENG,
    SOFT,
    WATKINS,
    Trap,
)

TRAPS: tuple[Trap, ...] = (
    Trap(
        "ends ignored",
        "ignores the ends of episodes: returns run from one episode into the next",
        ALL,
        mistakes.altering(mistakes.no_ends),
    ),
    Trap(
        "bootstrap at a terminal state",
        "bootstraps through the end of an episode: the value of a terminal state must count as 0",
        ALL,
        mistakes.altering(mistakes.never_terminal),
    ),
    Trap(
        "time limit as termination",
        "treats the time limit as a termination: a truncated step bootstraps from its final observation",
        ALL,
        mistakes.altering(mistakes.discount_at(TRUNCATED, is_terminal=True)),
    ),
    Trap(
        "termination as time limit",
        "bootstraps where a step both terminates and reaches the time limit: termination comes first",
        ALL,
        mistakes.altering(mistakes.discount_at(BOTH, is_terminal=False)),
    ),
    Trap(
        "over the time limit",
        "runs over the time limit: it stops at terminated steps only, and adds rewards of the next episode",
        ALL,
        mistakes.altering(mistakes.running_over(TRUNCATED)),
    ),
    Trap(
        "first state of the next episode",
        "bootstraps a truncated step from the first state of the next episode instead of its final observation",
        ALL,
        mistakes.seeing(mistakes.see_the_next_row),
    ),
    Trap(
        "ends one step late",
        "sees the end of an episode one step late: index t must say whether a_t ended it",
        ALL,
        mistakes.with_flags(lambda ends: GOES_ON + ends[:-1]),
    ),
    Trap(
        "ends one step early",
        "sees the end of an episode one step early: index t must say whether a_t ended it",
        ALL,
        mistakes.with_flags(lambda ends: ends[1:] + GOES_ON),
    ),
    Trap(
        "no bootstrap at the last step",
        "treats the end of the sequence as a termination: the last step bootstraps from the state after it",
        ALL,
        mistakes.altering(mistakes.last_is_terminal),
    ),
    Trap(
        "values of the same state",
        "bootstraps from s_t instead of s_(t+1): the values are off by one step",
        ALL,
        mistakes.seeing(mistakes.see_the_same_row),
    ),
    Trap(
        "advantages",
        "gives advantages, which are returns minus V(s_t): add the values back",
        ALL,
        mistakes.minus_values,
    ),
    Trap(
        "TD errors",
        "gives TD errors, which are returns minus Q(s_t, a_t): add the values back",
        ALL - ACTORS,
        mistakes.minus_action_values,
    ),
    Trap(
        "gamma and lambda swapped",
        "swaps γ and λ",
        LAMBDA - CHOOSING,
        mistakes.of_other_steps(lambda steps: replace(steps, gamma=steps.lambda_, lambda_=steps.gamma)),
    ),
    Trap(
        "lambda upside down",
        "uses 1 − λ instead of λ",
        LAMBDA - CHOOSING,
        mistakes.of_other_steps(lambda steps: replace(steps, lambda_=1 - steps.lambda_)),
    ),
    Trap(
        "following return undiscounted",
        "does not discount the following return: γ must multiply λ·G_(t+1) too",
        LAMBDA,
        mistakes.solving(mistakes.following_undiscounted),
    ),
    Trap(
        "starts from zero",
        "starts the recursion from a return of 0: the last step has the whole of V, not a share of 1 − λ",
        LAMBDA,
        mistakes.altering(mistakes.zero_return_after(mistakes.is_last)),
    ),
    Trap(
        "share of V at a time limit",
        "bootstraps a truncated step with a share of 1 − λ: where nothing follows, V has the whole weight",
        LAMBDA,
        mistakes.altering(mistakes.zero_return_after(mistakes.is_truncated)),
    ),
    Trap(
        "cut one step early",
        "cuts the trace one step early: what counts is whether a_(t+1) is greedy in s_(t+1), not a_t in s_t",
        WATKINS,
        mistakes.with_trace(mistakes.trace_one_early),
    ),
    Trap(
        "tie by index",
        "compares indices where it should compare values: a tied action is greedy too",
        WATKINS,
        mistakes.with_trace(mistakes.trace_by_index),
    ),
    Trap(
        "no cut",
        "never cuts the trace: this is Peng's Q(λ)",
        WATKINS,
        mistakes.with_trace(whole_trace),
    ),
    Trap(
        "V lost at a cut",
        "leaves V with a share of 1 − λ where the trace is cut: it must have the whole weight there",
        WATKINS,
        mistakes.altering(mistakes.value_lost_at_cuts),
    ),
    Trap(
        "cuts like Watkins",
        "cuts the trace where an action is not greedy: this is Watkins's Q(λ)",
        PENG,
        mistakes.with_trace(trace_if_greedy),
    ),
    Trap(
        "value of the taken action",
        "bootstraps from the action that was taken next, as Sarsa does, instead of the target policy's value",
        ALL - ACTORS,
        mistakes.with_values(taken),
    ),
    Trap(
        "maximum for expectation",
        "bootstraps from the maximum instead of the expectation under π",
        EXPECTED,
        mistakes.with_values(greedy),
    ),
    Trap(
        "baseline V",
        "subtracts V(s') instead of Q(s', a') of the action taken",
        CORRECTED,
        mistakes.with_rules(lambda rule: rule._replace(baseline=rule.value)),
    ),
    Trap(
        "trace without pi",
        "uses λ alone as the trace: the probability or ratio of a_(t+1) is missing",
        frozenset({"tree", "retrace"}),
        mistakes.with_trace(whole_trace),
    ),
    Trap(
        "probability one step early",
        "uses π(a_t|s_t) instead of π(a_(t+1)|s_(t+1))",
        frozenset({"tree"}),
        mistakes.with_trace(lambda m: m.lambda_ * mistakes.prob_one_early(m)),
    ),
    Trap(
        "ratio one step early",
        "uses the ratio of a_t instead of that of a_(t+1)",
        frozenset({"retrace"}),
        mistakes.with_trace(lambda m: m.lambda_ * min(Fraction(1), mistakes.prob_one_early(m) / m.behaviour_prob)),
    ),
    Trap(
        "ratio not clipped",
        "does not clip the ratio π/μ at 1: this is plain importance sampling",
        frozenset({"retrace"}),
        mistakes.with_trace(lambda m: m.lambda_ * mistakes.ratio(m)),
    ),
    Trap(
        "lambda inside the minimum",
        "computes min(λ, π/μ) instead of λ·min(1, π/μ)",
        frozenset({"retrace"}),
        mistakes.with_trace(lambda m: min(m.lambda_, mistakes.ratio(m))),
    ),
    Trap(
        "ratio upside down",
        "divides μ by π: the ratio is π/μ",
        frozenset({"retrace"}),
        mistakes.with_trace(mistakes.inverted),
    ),
    Trap(
        "mu ignored",
        "ignores μ: with the trace λ·π it is Tree Backup",
        frozenset({"retrace"}),
        mistakes.with_trace(trace_of_tree),
    ),
    Trap(
        "gamma to the n for fewer rewards",
        "discounts the bootstrap by γⁿ although fewer than n rewards were summed",
        NSTEP,
        mistakes.solving(mistakes.nstep_with(mistakes.gamma_to_the_n)),
    ),
    Trap(
        "gamma for gamma to the n",
        "discounts the bootstrap by γ instead of γⁿ",
        NSTEP,
        mistakes.solving(mistakes.nstep_with(mistakes.gamma_once)),
    ),
    Trap(
        "short returns without bootstrap",
        "does not bootstrap where fewer than n steps are left",
        NSTEP,
        mistakes.solving(mistakes.nstep_with(mistakes.only_when_complete)),
    ),
    Trap(
        "flag of the first step",
        "checks whether the first step terminated instead of the last, and so bootstraps at terminal states",
        NSTEP,
        mistakes.solving(mistakes.flag_of_the_first_step),
    ),
    Trap(
        "rewards undiscounted",
        "sums the rewards without discounting them",
        NSTEP,
        mistakes.solving(
            mistakes.nstep_with(lambda weight, _summed, _steps: weight, lambda weight: Fraction(weight > 0))
        ),
    ),
    Trap(
        "one step too many",
        "sums n + 1 rewards",
        NSTEP,
        mistakes.of_other_steps(lambda steps: replace(steps, n=steps.n + 1)),
    ),
    Trap(
        "one step too few",
        "sums n − 1 rewards",
        NSTEP,
        mistakes.of_other_steps(lambda steps: replace(steps, n=max(1, steps.n - 1))),
    ),
    Trap(
        "share of the entropies",
        "keeps a share of 1 − λ of each entropy: subtract Q(s', ã'), not V(s'), from the following return",
        frozenset({"soft"}),
        mistakes.with_rules(lambda rule: rule._replace(baseline=rule.value)),
    ),
    Trap(
        "intermediate entropies dropped",
        "drops the entropies in between: only the bootstrap has one, but every state on the way must have its own",
        frozenset({"soft-nstep"}),
        mistakes.with_rules(lambda rule: rule._replace(baseline=rule.value)),
    ),
    Trap(
        "no entropy",
        "leaves out the entropy: V(s') is Q(s', ã') − α·log π(ã'|s')",
        SOFT,
        mistakes.soft_with(lambda _m: Fraction(0)),
    ),
    Trap(
        "sign of the entropy",
        "gets the sign of the entropy wrong: −α·log π is added to Q",
        SOFT,
        mistakes.soft_with(lambda m: -m.next_state.entropy),
    ),
    Trap(
        "entropy one step early",
        "adds the entropy of s_t instead of that of s_(t+1)",
        SOFT,
        mistakes.soft_with(lambda m: m.state.entropy),
    ),
    Trap(
        "minimum of the returns",
        "takes the smaller of two finished returns instead of the smaller critic at each step",
        frozenset({"twin"}),
        lambda steps, _estimator: right_returns(steps, "twin-return"),
    ),
    Trap(
        "minimum of each step",
        "takes the smaller critic at each step instead of the smaller of the two finished returns",
        frozenset({"twin-return"}),
        mistakes.with_values(smaller_critic),
    ),
    Trap(
        "first critic alone",
        "uses the first critic alone",
        frozenset({"twin", "twin-return"}),
        mistakes.with_values(first_critic),
    ),
    Trap(
        "mean of the critics",
        "averages the critics instead of taking the smaller one",
        frozenset({"twin", "twin-return"}),
        mistakes.with_values(mistakes.mean_critic),
    ),
    Trap(
        "larger critic",
        "takes the larger critic instead of the smaller one",
        frozenset({"twin", "twin-return"}),
        mistakes.with_values(mistakes.larger_critic),
    ),
    *DYNAMIC_TRAPS,
    Trap(
        "past the newest step",
        "reads past the newest step of the ring: the slot after it holds the oldest one",
        ALL,
        mistakes.past_the_newest,
        layouts=(RING,),
    ),
    Trap(
        "stops at the wrap",
        "stops at the last slot of the array: in a ring, slot 0 comes next",
        ALL,
        mistakes.altering(mistakes.stopping_at_the_wrap),
        layouts=(RING,),
    ),
)


def traps(estimator: str, layout: str) -> list[Trap]:
    """The traps that an estimator can fall into."""
    return [trap for trap in TRAPS if estimator in trap.estimators and layout in trap.layouts]


@functools.cache
def wrong_returns(trap: Trap, steps: Steps, estimator: str) -> tuple[Fraction, ...]:
    """What a function that makes this mistake returns; kept, because exact arithmetic is slow."""
    return tuple(trap.wrong(steps, estimator))
