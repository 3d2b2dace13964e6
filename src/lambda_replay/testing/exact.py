"""Steps with exact numbers, and the returns that each estimator's definition gives for them.

Everything here is ``fractions.Fraction`` and follows the definitions literally. It shares no code with ``replay/``,
which the answers are used to test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

Row = tuple[Fraction, ...]
Returns = list[Fraction]  # [T]

TERMINATED, TRUNCATED, BOTH, GOES_ON = "T", "L", "B", "."  # L: a time limit


class State(NamedTuple):
    """What the critics say of one state. With an actor, ``q`` has one entry: the value of the policy's own action."""

    q: Row  # Q(s, ·)
    entropy: Fraction = Fraction(0)  # −α·log π(ã|s) of the action ã drawn from the policy
    second: Fraction = Fraction(0)  # the second critic's value of the policy's action


@dataclass(frozen=True, eq=False)
class Steps:
    """T steps in a row, of one episode or of several."""

    rewards: Row  # [T]
    ends: str  # [T]  how the episode ends at t
    states: tuple[State, ...]  # [T+1]  where the actions were taken
    actions: tuple[int, ...]  # [T+1]
    behaviour_probs: Row  # [T+1]  μ(a|s)
    final: State  # the final observation of every episode that ends: a state in which no action is taken
    gamma: Fraction
    lambda_: Fraction
    n: int
    epsilon: Fraction  # π is ε-greedy
    k: int  # of the median: λ = 0/k, 1/k, …, k/k
    bound: Fraction  # δ on the mean error of the block, which is all T steps
    scale: int = 1  # in a batch: how many times the first sequence's rewards and values these are

    @property
    def length(self) -> int:
        return len(self.rewards)

    def with_lambda(self, lambda_: Fraction) -> Steps:
        return replace(self, lambda_=lambda_)

    def next_state(self, t: int) -> State:
        return self.states[t + 1] if self.ends[t] == GOES_ON else self.final


def policy(row: Row, epsilon: Fraction) -> Row:
    """π(a|s) = ε/A + (1−ε)·[a greedy]; tied actions share the greedy part."""
    best = max(row)
    return tuple(epsilon / len(row) + (1 - epsilon) * (q == best) / row.count(best) for q in row)


class Moment(NamedTuple):
    """A step t and its successor, which is what a rule may look at."""

    state: State
    action: int
    behaviour_prob: Fraction
    next_state: State
    next_action: int
    next_behaviour_prob: Fraction
    lambda_: Fraction
    epsilon: Fraction


Quantity = Callable[[Moment], Fraction]


def greedy(m: Moment) -> Fraction:
    return max(m.next_state.q)


def expected(m: Moment) -> Fraction:
    row = m.next_state.q
    return sum((p * q for p, q in zip(policy(row, m.epsilon), row, strict=True)), Fraction(0))


def taken(m: Moment) -> Fraction:
    return m.next_state.q[m.next_action]


def soft(m: Moment) -> Fraction:
    return m.next_state.q[0] + m.next_state.entropy


def first_critic(m: Moment) -> Fraction:
    return m.next_state.q[0]


def second_critic(m: Moment) -> Fraction:
    return m.next_state.second


def smaller_critic(m: Moment) -> Fraction:
    return min(m.next_state.q[0], m.next_state.second)


def whole_trace(m: Moment) -> Fraction:
    return m.lambda_


def trace_if_greedy(m: Moment) -> Fraction:
    return m.lambda_ * (taken(m) == greedy(m))


def target_prob(m: Moment) -> Fraction:
    return policy(m.next_state.q, m.epsilon)[m.next_action]


def trace_of_tree(m: Moment) -> Fraction:
    return m.lambda_ * target_prob(m)


def trace_of_retrace(m: Moment) -> Fraction:
    return m.lambda_ * min(Fraction(1), target_prob(m) / m.next_behaviour_prob)


class Rule(NamedTuple):
    """V, b and c of G_t = r_t + γ_t · [ V_{t+1} + c_{t+1} · (G_{t+1} − b_{t+1}) ]."""

    value: Quantity
    baseline: Quantity
    trace: Quantity


Rules = tuple[Rule, ...]  # one for each return whose minimum is the answer
_PENG, _WATKINS = Rule(greedy, greedy, whole_trace), Rule(greedy, greedy, trace_if_greedy)
RULES: dict[str, Rules] = {
    "peng": (_PENG,),
    "watkins": (_WATKINS,),
    "nstep": (Rule(greedy, greedy, whole_trace),),
    "sarsa": (Rule(expected, expected, whole_trace),),
    "tree": (Rule(expected, taken, trace_of_tree),),
    "retrace": (Rule(expected, taken, trace_of_retrace),),
    "qstar": (Rule(greedy, taken, whole_trace),),
    "soft": (Rule(soft, first_critic, whole_trace),),
    "soft-nstep": (Rule(soft, first_critic, whole_trace),),
    "twin": (Rule(smaller_critic, smaller_critic, whole_trace),),
    "twin-return": (
        Rule(first_critic, first_critic, whole_trace),
        Rule(second_critic, second_critic, whole_trace),
    ),
    "median": (_PENG,),
    "watkins-median": (_WATKINS,),
    "bounded": (_PENG,),
    "watkins-bounded": (_WATKINS,),
}


class Parts(NamedTuple):
    """The numbers of one recursion, index t of the ``next_`` ones being t+1; all [T]."""

    rewards: list[Fraction]
    discounts: list[Fraction]  # γ·(1 − terminated)
    next_values: list[Fraction]
    next_baselines: list[Fraction]
    next_traces: list[Fraction]  # before they are cut where ``goes_on`` is False
    goes_on: list[bool]  # whether G_{t+1} exists: False at the end of an episode and of the sequence


def moments(steps: Steps) -> list[Moment]:
    return [
        Moment(
            steps.states[t],
            steps.actions[t],
            steps.behaviour_probs[t],
            steps.next_state(t),
            steps.actions[t + 1],
            steps.behaviour_probs[t + 1],
            steps.lambda_,
            steps.epsilon,
        )
        for t in range(steps.length)
    ]


def make_parts(steps: Steps, seen: list[Moment], rule: Rule) -> Parts:
    return Parts(
        rewards=list(steps.rewards),
        discounts=[steps.gamma * (end in {GOES_ON, TRUNCATED}) for end in steps.ends],
        next_values=[rule.value(moment) for moment in seen],
        next_baselines=[rule.baseline(moment) for moment in seen],
        next_traces=[rule.trace(moment) for moment in seen],
        goes_on=[end == GOES_ON and t + 1 < steps.length for t, end in enumerate(steps.ends)],
    )


def lambda_returns(parts: Parts, _steps: Steps) -> Returns:
    """G_t = r_t + γ_t · [ V_{t+1} + c_{t+1} · (G_{t+1} − b_{t+1}) ], without the correction where nothing follows."""
    returns: Returns = []
    for t in reversed(range(len(parts.rewards))):
        target = parts.next_values[t]
        if parts.goes_on[t]:
            target += parts.next_traces[t] * (returns[0] - parts.next_baselines[t])
        returns.insert(0, parts.rewards[t] + parts.discounts[t] * target)
    return returns


def nstep_returns(parts: Parts, steps: Steps) -> Returns:
    """Σ_{i<m} γⁱ·r_{t+i} + Σ_{0<i<m} γⁱ·e_{t+i} + γᵐ·V_{t+m}, with m = n or what is left of the episode or sequence.

    e = V − b is the entropy that a soft value includes, and zero for all others.
    """
    returns: Returns = []
    for start in range(len(parts.rewards)):
        total, weight = Fraction(0), Fraction(1)
        for t in range(start, start + steps.n):
            total += weight * parts.rewards[t]
            weight *= parts.discounts[t]
            if t == start + steps.n - 1 or not parts.goes_on[t]:
                total += weight * parts.next_values[t]
                break
            total += weight * (parts.next_values[t] - parts.next_baselines[t])
        returns.append(total)
    return returns


# λ chosen from the data. The T steps are one block.

SEARCH_DEPTH = 7
Fixed = Callable[[Steps], Returns]  # returns with λ = steps.lambda_


def median_returns(fixed: Fixed, steps: Steps) -> Returns:
    """At each step the median of the k+1 returns with λ = 0/k, 1/k, …, k/k; k is even, so it is one of them."""
    candidates = [fixed(steps.with_lambda(Fraction(i, steps.k))) for i in range(steps.k + 1)]
    return [sorted(each)[steps.k // 2] for each in zip(*candidates, strict=True)]


def td_errors(returns: Returns, steps: Steps) -> Returns:
    """G_t − Q(s_t, a_t)."""
    return [g - steps.states[t].q[steps.actions[t]] for t, g in enumerate(returns)]


def mean_error(returns: Returns, steps: Steps) -> Fraction:
    """(1/T)·Σ_t |G_t − Q(s_t, a_t)|."""
    return sum(map(abs, td_errors(returns, steps)), Fraction(0)) / steps.length


def largest_lambda(satisfies: Callable[[Fraction], bool]) -> Fraction:
    """1 if it satisfies the bound, 0 if even 0 does not, else the largest that a search of depth 7 finds."""
    low, high = Fraction(0), Fraction(1)
    if satisfies(high):
        return high
    if not satisfies(low):
        return low
    for _ in range(SEARCH_DEPTH):
        middle = (low + high) / 2
        low, high = (middle, high) if satisfies(middle) else (low, middle)
    return low


def bounded_returns(fixed: Fixed, steps: Steps) -> Returns:
    """The returns with the largest λ whose mean |G_t − Q(s_t, a_t)| is at most δ."""

    def satisfies(lambda_: Fraction) -> bool:
        return mean_error(fixed(steps.with_lambda(lambda_)), steps) <= steps.bound

    return fixed(steps.with_lambda(largest_lambda(satisfies)))


CHOICES: dict[str, Callable[[Fixed, Steps], Returns]] = {
    "median": median_returns,
    "watkins-median": median_returns,
    "bounded": bounded_returns,
    "watkins-bounded": bounded_returns,
}


def choose_lambda(estimator: str, fixed: Fixed, steps: Steps) -> Returns:
    """The returns with the λ that an estimator chooses, or with the λ of the steps if it chooses none."""
    return CHOICES[estimator](fixed, steps) if estimator in CHOICES else fixed(steps)


def fixed_returns(steps: Steps, estimator: str) -> Returns:
    """The exact returns [T] with λ = steps.lambda_."""
    solve = nstep_returns if estimator.endswith("nstep") else lambda_returns
    seen = moments(steps)
    finished = [solve(make_parts(steps, seen, rule), steps) for rule in RULES[estimator]]
    return [min(candidates) for candidates in zip(*finished, strict=True)]


def right_returns(steps: Steps, estimator: str) -> Returns:
    """The exact returns [T] of an estimator."""
    return choose_lambda(estimator, lambda each: fixed_returns(each, estimator), steps)
