"""Mistakes: the right definition of a return with one thing changed; ``traps.py`` names and explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from lambda_replay.testing.exact import (
    BOTH,
    GOES_ON,
    RULES,
    TERMINATED,
    TRUNCATED,
    Moment,
    Parts,
    Quantity,
    Returns,
    Rule,
    Steps,
    choose_lambda,
    first_critic,
    lambda_returns,
    make_parts,
    moments,
    nstep_returns,
    policy,
    right_returns,
    second_critic,
    target_prob,
)
from lambda_replay.testing.stories import WRAPS_AFTER, older_steps

Wrong = Callable[[Steps, str], Returns]
Solver = Callable[[Parts, Steps], Returns]


def solver(estimator: str) -> Solver:
    return nstep_returns if estimator.endswith("nstep") else lambda_returns


def smallest(finished: list[Returns]) -> Returns:
    return [min(candidates) for candidates in zip(*finished, strict=True)]


def with_any_lambda(fixed: Wrong) -> Wrong:
    """A mistake in the returns themselves; where λ is chosen, it is chosen from the wrong returns."""
    return lambda steps, estimator: choose_lambda(estimator, lambda each: fixed(each, estimator), steps)


def seeing(look: Callable[[Steps], list[Moment]]) -> Wrong:
    """The right rules, applied to the wrong states or actions."""

    def fixed(steps: Steps, estimator: str) -> Returns:
        solve = solver(estimator)
        return smallest([solve(make_parts(steps, look(steps), rule), steps) for rule in RULES[estimator]])

    return with_any_lambda(fixed)


def altering(alter: Callable[[Parts, Steps], Parts]) -> Wrong:
    """Wrong numbers in the right recursion."""

    def fixed(steps: Steps, estimator: str) -> Returns:
        solve, seen = solver(estimator), moments(steps)
        return smallest([solve(alter(make_parts(steps, seen, rule), steps), steps) for rule in RULES[estimator]])

    return with_any_lambda(fixed)


def solving(solve: Solver) -> Wrong:
    """The right numbers in a wrong recursion."""
    return with_any_lambda(
        lambda steps, estimator: smallest(
            [solve(make_parts(steps, moments(steps), rule), steps) for rule in RULES[estimator]]
        )
    )


def with_rules(change: Callable[[Rule], Rule]) -> Wrong:
    """Another V, b or c."""
    return with_any_lambda(
        lambda steps, estimator: smallest(
            [
                solver(estimator)(make_parts(steps, moments(steps), change(rule)), steps)
                for rule in RULES[estimator][:1]  # two critics: whatever replaces their rules replaces both
            ]
        )
    )


def with_trace(trace: Quantity) -> Wrong:
    return with_rules(lambda rule: rule._replace(trace=trace))


def with_values(value: Quantity) -> Wrong:
    """V replaced, and with it the baseline where that is V."""
    return with_rules(
        lambda rule: rule._replace(value=value, baseline=value if rule.baseline is rule.value else rule.baseline)
    )


def of_other_steps(change: Callable[[Steps], Steps]) -> Wrong:
    return lambda steps, estimator: right_returns(change(steps), estimator)


# Episode ends.


def never_terminal(parts: Parts, steps: Steps) -> Parts:
    return parts._replace(discounts=[steps.gamma] * steps.length)


def discount_at(kind: str, *, is_terminal: bool) -> Callable[[Parts, Steps], Parts]:
    """Every end of this kind taken as a termination, or as none."""

    def alter(parts: Parts, steps: Steps) -> Parts:
        forced = steps.gamma * (not is_terminal)
        both = zip(parts.discounts, steps.ends, strict=True)
        return parts._replace(discounts=[forced if end == kind else discount for discount, end in both])

    return alter


def running_over(kinds: str) -> Callable[[Parts, Steps], Parts]:
    """Ends of these kinds do not stop the recursion."""

    def alter(parts: Parts, steps: Steps) -> Parts:
        passes = [end in kinds and t + 1 < steps.length for t, end in enumerate(steps.ends)]
        return parts._replace(goes_on=[go or over for go, over in zip(parts.goes_on, passes, strict=True)])

    return alter


def no_ends(parts: Parts, steps: Steps) -> Parts:
    return running_over(TERMINATED + TRUNCATED + BOTH)(never_terminal(parts, steps), steps)


def with_flags(shift: Callable[[str], str]) -> Wrong:
    """The flags of another step."""

    def alter(parts: Parts, steps: Steps) -> Parts:
        shifted = replace(steps, ends=shift(steps.ends))
        flags = make_parts(shifted, moments(steps), RULES["peng"][0])
        return parts._replace(discounts=flags.discounts, goes_on=flags.goes_on)

    return altering(alter)


def last_is_terminal(parts: Parts, _steps: Steps) -> Parts:
    return parts._replace(discounts=[*parts.discounts[:-1], Fraction(0)])


def see_the_next_row(steps: Steps) -> list[Moment]:
    return [moment._replace(next_state=steps.states[t + 1]) for t, moment in enumerate(moments(steps))]


def see_the_same_row(steps: Steps) -> list[Moment]:
    return [
        moment._replace(next_state=moment.state, next_action=moment.action, next_behaviour_prob=moment.behaviour_prob)
        for moment in moments(steps)
    ]


# What is returned.


def minus_values(steps: Steps, estimator: str) -> Returns:
    seen = see_the_same_row(steps)
    values = smallest([[rule.value(moment) for moment in seen] for rule in RULES[estimator]])
    return [g - v for g, v in zip(right_returns(steps, estimator), values, strict=True)]


def minus_action_values(steps: Steps, estimator: str) -> Returns:
    values = [moment.state.q[moment.action] for moment in moments(steps)]
    return [g - q for g, q in zip(right_returns(steps, estimator), values, strict=True)]


# The recursion over λ.


def following_undiscounted(parts: Parts, _steps: Steps) -> Returns:
    returns: Returns = []
    for t in reversed(range(len(parts.rewards))):
        target = parts.rewards[t] + parts.discounts[t] * parts.next_values[t]
        if parts.goes_on[t]:
            trace = parts.next_traces[t] * (parts.discounts[t] > 0)
            target += trace * (returns[0] - parts.discounts[t] * parts.next_baselines[t])
        returns.insert(0, target)
    return returns


def zero_return_after(where: Callable[[Steps, int], bool]) -> Callable[[Parts, Steps], Parts]:
    """A return of zero, in place of none, follows these steps: V loses the share that the trace has."""

    def alter(parts: Parts, steps: Steps) -> Parts:
        values = [
            value - trace * baseline if where(steps, t) else value
            for t, (value, trace, baseline) in enumerate(
                zip(parts.next_values, parts.next_traces, parts.next_baselines, strict=True)
            )
        ]
        return parts._replace(next_values=values)

    return alter


def is_last(steps: Steps, t: int) -> bool:
    return t + 1 == steps.length and steps.ends[t] == GOES_ON


def is_truncated(steps: Steps, t: int) -> bool:
    return steps.ends[t] == TRUNCATED


def value_lost_at_cuts(parts: Parts, steps: Steps) -> Parts:
    values = [
        value - (steps.lambda_ - trace) * value if go else value
        for value, trace, go in zip(parts.next_values, parts.next_traces, parts.goes_on, strict=True)
    ]
    return parts._replace(next_values=values)


# Traces.


def trace_one_early(m: Moment) -> Fraction:
    return m.lambda_ * (m.state.q[m.action] == max(m.state.q))


def trace_by_index(m: Moment) -> Fraction:
    return m.lambda_ * (m.next_action == m.next_state.q.index(max(m.next_state.q)))


def prob_one_early(m: Moment) -> Fraction:
    return policy(m.state.q, m.epsilon)[m.action]


def ratio(m: Moment) -> Fraction:
    return target_prob(m) / m.next_behaviour_prob


def inverted(m: Moment) -> Fraction:
    prob = target_prob(m)
    return m.lambda_ * min(Fraction(1), m.next_behaviour_prob / prob) if prob else m.lambda_


# n-step returns.


def nstep_with(
    weigh: Callable[[Fraction, int, Steps], Fraction], reward_weight: Callable[[Fraction], Fraction] = Fraction
) -> Solver:
    """n-step returns whose bootstrap weighs ``weigh(right weight, steps summed, steps)``."""

    def solve(parts: Parts, steps: Steps) -> Returns:
        returns: Returns = []
        for start in range(steps.length):
            total, weight = Fraction(0), Fraction(1)
            for t in range(start, start + steps.n):
                total += reward_weight(weight) * parts.rewards[t]
                weight *= parts.discounts[t]
                if t == start + steps.n - 1 or not parts.goes_on[t]:
                    total += weigh(weight, t + 1 - start, steps) * parts.next_values[t]
                    break
                total += weight * (parts.next_values[t] - parts.next_baselines[t])
            returns.append(total)
        return returns

    return solve


def gamma_to_the_n(weight: Fraction, _summed: int, steps: Steps) -> Fraction:
    return steps.gamma**steps.n if weight else weight


def gamma_once(weight: Fraction, _summed: int, steps: Steps) -> Fraction:
    return steps.gamma if weight else weight


def only_when_complete(weight: Fraction, summed: int, steps: Steps) -> Fraction:
    return weight * (summed == steps.n)


def flag_of_the_first_step(parts: Parts, steps: Steps) -> Returns:
    """The bootstrap's mask is read where the return begins, not where its rewards end."""
    alive = [end not in {TERMINATED, BOTH} for end in steps.ends]
    everywhere = nstep_returns(never_terminal(parts, steps), steps)
    return [everywhere[t] if alive[t] else right for t, right in enumerate(nstep_returns(parts, steps))]


# Entropies and several critics.


def soft_with(entropy: Callable[[Moment], Fraction]) -> Wrong:
    return with_rules(lambda rule: rule._replace(value=lambda m: m.next_state.q[0] + entropy(m)))


def mean_critic(m: Moment) -> Fraction:
    return (first_critic(m) + second_critic(m)) / 2


def larger_critic(m: Moment) -> Fraction:
    return max(first_critic(m), second_critic(m))


# A ring.


def past_the_newest(steps: Steps, estimator: str) -> Returns:
    older = older_steps(steps)
    return choose_lambda(estimator, lambda each: _returns_from_joined(each, older, estimator), steps)


def _returns_from_joined(steps: Steps, older: Steps, estimator: str) -> Returns:
    """The newest step still knows its own next state; only what follows it is wrong."""
    joined = replace(
        steps,
        rewards=steps.rewards + older.rewards,
        ends=steps.ends + older.ends,
        states=steps.states[:-1] + older.states,
        actions=steps.actions[:-1] + older.actions,
        behaviour_probs=steps.behaviour_probs[:-1] + older.behaviour_probs,
    )
    right, wrong = moments(steps), moments(joined)
    newest = wrong[steps.length - 1]._replace(next_state=right[-1].next_state)
    seen = [*right[:-1], newest, *wrong[steps.length :]]
    finished = [solver(estimator)(make_parts(joined, seen, rule), joined) for rule in RULES[estimator]]
    return smallest(finished)[: steps.length]


def stopping_at_the_wrap(parts: Parts, _steps: Steps) -> Parts:
    return parts._replace(goes_on=[go and t != WRAPS_AFTER for t, go in enumerate(parts.goes_on)])
