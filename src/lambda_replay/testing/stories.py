"""The named situations: the exact steps that every estimator is tested with.

Every number is a multiple of a power of two, so float32 holds it exactly, and a wrong answer is not a matter of
rounding. Values of final observations are large: whoever uses one by mistake is far off.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from lambda_replay.testing.exact import State, Steps


class Story(NamedTuple):
    """A situation: its name, what is special about it, and its steps."""

    name: str
    about: str
    steps: Steps


def _row(*numbers: float) -> tuple[Fraction, ...]:
    return tuple(Fraction(number) for number in numbers)


def _states(values: Sequence[float], entropies: Sequence[float], seconds: Sequence[float]) -> tuple[State, ...]:
    columns = zip(_row(*values), _row(*entropies), _row(*seconds), strict=True)
    return tuple(State((value,), entropy, second) for value, entropy, second in columns)


# Greedy throughout: the larger of two Q-values was taken in every state.
_GREEDY = Steps(
    rewards=_row(1, -2, 4, 3, 5),
    ends=".....",
    states=tuple(State(_row(*q)) for q in [(8, 6), (4, 10), (12, 2), (6, 14), (16, 4), (10, 20)]),
    actions=(0, 1, 0, 1, 0, 1),
    behaviour_probs=_row(0.75, 0.75, 0.75, 0.75, 0.75, 0.75),
    final=State(_row(40, 24)),
    gamma=Fraction(1, 2),
    lambda_=Fraction(3, 4),
    n=3,
    epsilon=Fraction(0),
    k=20,
    bound=Fraction(7, 2),
)
# An ε-greedy target policy, π = 3/4 and 1/4, and a behaviour that takes either action more or less often than π.
_OFF_POLICY = replace(
    _GREEDY,
    actions=(0, 1, 1, 1, 1, 0),
    behaviour_probs=_row(0.5, 0.25, 0.5, 1, 0.125, 0.5),
    epsilon=Fraction(1, 2),
)
# An actor with two critics, and the entropy of its action in each state, which is negative for a narrow density.
_ACTOR = replace(
    _GREEDY,
    states=_states((8, 4, 12, 6, 16, 10), (1, 3, 0.5, -1, 2.5, 1.5), (6, 10, 2, 14, 4, 20)),
    actions=(0,) * 6,
    final=_states((40,), (6,), (24,))[0],
)
# Returns that rise and fall again as λ grows: their median is not the return of λ = 1/2.
_UNEVEN = replace(_GREEDY, rewards=_row(2, 14, 6, 10, -4))
# Errors that grow with λ, so every search for the largest λ within a bound ends on the same one.
_FALLING = replace(_GREEDY, final=State(_row(-40, -56)))
_BASES: dict[str, Steps] = {
    "peng": _GREEDY,
    "watkins": _GREEDY,
    "nstep": _GREEDY,
    "sarsa": _OFF_POLICY,
    "tree": _OFF_POLICY,
    "retrace": _OFF_POLICY,
    "qstar": replace(_OFF_POLICY, epsilon=Fraction(0)),
    "soft": _ACTOR,
    "soft-nstep": _ACTOR,
    "twin": _ACTOR,
    "twin-return": _ACTOR,
    "median": _UNEVEN,
    "watkins-median": _UNEVEN,
    "bounded": _FALLING,
    "watkins-bounded": _FALLING,
}

# What every estimator must get right: name, what is special, changes of the steps.
_ENDS: list[tuple[str, str, Mapping[str, Any]]] = [
    ("no end", "no episode ends; the last step bootstraps from V of the state after it", {}),
    ("terminated inside", "the episode terminates at step 2, and another one follows", {"ends": "..T.."}),
    ("terminated last", "the episode terminates at the last step", {"ends": "....T"}),
    ("truncated inside", "a time limit ends the episode at step 2, and another one follows", {"ends": "..L.."}),
    ("truncated last", "a time limit ends the episode at the last step", {"ends": "....L"}),
    ("terminated at the limit", "step 2 terminates and reaches the time limit: it is terminal", {"ends": "..B.."}),
    ("two borders", "step 1 terminates and a time limit ends step 3: three episodes", {"ends": ".T.L."}),
    ("ends in a row", "steps 1 and 2 are truncated and terminated: an episode of one step", {"ends": ".LT.."}),
    ("gamma 0", "nothing after the reward counts", {"gamma": Fraction(0)}),
    ("gamma 1", "nothing is discounted", {"gamma": Fraction(1)}),
]
_LAMBDAS: list[tuple[str, str, Mapping[str, Any]]] = [
    ("lambda 0", "the one-step return", {"lambda_": Fraction(0)}),
    ("lambda 1", "the longest return", {"lambda_": Fraction(1)}),
    (
        "lambda 1, terminated last",
        "γ and λ are 1 and the episode terminates",
        {"gamma": Fraction(1), "lambda_": Fraction(1), "ends": "....T"},
    ),
]
_LENGTHS: list[tuple[str, str, Mapping[str, Any]]] = [
    ("n 1", "the one-step return", {"n": 1}),
    ("n 5", "n is the length of the sequence, so only the first return has n steps", {"n": 5}),
    ("n 9", "n is longer than the sequence", {"n": 9}),
    ("n 9, truncated inside", "n is longer than either episode", {"n": 9, "ends": "..L.."}),
]
_EXPLORING: list[tuple[str, str, Mapping[str, Any]]] = [
    ("explores inside", "the action of step 2 is not greedy", {"actions": (0, 1, 1, 1, 0, 1)}),
    ("explores first", "only the first action is not greedy", {"actions": (1, 1, 0, 1, 0, 1)}),
    ("explores last", "only the action after the last step is not greedy", {"actions": (0, 1, 0, 1, 0, 0)}),
    (
        "explores after a border",
        "the first action after a termination is not greedy",
        {"ends": "..T..", "actions": (0, 1, 0, 0, 0, 1)},
    ),
    (
        "tie",
        "both actions of step 2 have the same value, and the second was taken: it is greedy",
        {"states": (*_GREEDY.states[:2], State(_row(12, 12)), *_GREEDY.states[3:]), "actions": (0, 1, 1, 1, 0, 1)},
    ),
]
_POLICIES: list[tuple[str, str, Mapping[str, Any]]] = [
    ("greedy target", "π is greedy: actions that are not greedy have probability 0", {"epsilon": Fraction(0)}),
    ("uniform target", "π is uniform", {"epsilon": Fraction(1)}),
]
_RATIOS: list[tuple[str, str, Mapping[str, Any]]] = [
    ("on policy", "μ = π, so every ratio is 1", {"behaviour_probs": _row(0.75, 0.75, 0.25, 0.75, 0.25, 0.25)}),
    ("rare actions", "μ is far below π, so every ratio is above 1", {"behaviour_probs": _row(*(0.0625,) * 6)}),
    ("certain actions", "μ = 1, so every ratio is π", {"behaviour_probs": _row(*(1,) * 6)}),
]
_CANDIDATES: list[tuple[str, str, Mapping[str, Any]]] = [
    ("k 2", "three candidates: λ = 0, 1/2, 1", {"k": 2}),
    ("k 4", "five candidates: λ = 0, 1/4, 1/2, 3/4, 1", {"k": 4}),
    ("falling", "returns fall as λ grows, so the median is the return of λ = 1/2", {"rewards": _GREEDY.rewards}),
]
_WITHIN: list[tuple[str, str, Mapping[str, Any]]] = [
    ("within the bound", "λ = 1 satisfies the bound", {"bound": Fraction(6)}),
    ("beyond the bound", "even λ = 0 breaks the bound, so λ is 0", {"bound": Fraction(2)}),
    (
        "barely within the bound",
        "λ = 0 satisfies the bound, but no larger λ that the search tries",
        {"bound": Fraction(333, 128)},
    ),
    (
        "large lambdas alone",
        "the mean error falls as λ grows: λ = 0 breaks the bound, but λ = 1 satisfies it, so λ is 1",
        {"bound": Fraction(17, 4), "final": _GREEDY.final, "ends": "..L.."},
    ),
    (
        "small errors",
        "errors are below 1, so their squares are smaller still; the action of step 2 is not greedy",
        {
            "bound": Fraction(19, 32),
            "rewards": _row(2.5, 3, 4.75, 5.75, 5.25),
            "states": (*_GREEDY.states[:2], State(_row(12, 11.5)), *_GREEDY.states[3:]),
            "actions": (0, 1, 1, 1, 0, 1),
        },
    ),
]
# δ of cases that other estimators have too, if not the base's: the search ends between λ = 0 and 1.
_BOUNDS: dict[str, Fraction] = {
    "terminated inside": Fraction(9, 2),
    "terminated last": Fraction(6),
    "truncated inside": Fraction(11),
    "truncated last": Fraction(11),
    "terminated at the limit": Fraction(19, 4),
    "two borders": Fraction(11),
    "ends in a row": Fraction(12),
    "gamma 1": Fraction(11),
    "explores inside": Fraction(35, 8),
    "explores first": Fraction(23, 8),
    "explores after a border": Fraction(5),
}
_OWN: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {
    "peng": [*_LAMBDAS, *_EXPLORING],
    "watkins": [*_LAMBDAS, *_EXPLORING],
    "nstep": [*_LENGTHS, *_EXPLORING[:2]],
    "sarsa": [*_LAMBDAS, *_POLICIES],
    "tree": [*_LAMBDAS, *_POLICIES],
    "retrace": [*_LAMBDAS, *_POLICIES, *_RATIOS],
    "qstar": _LAMBDAS,
    "soft": _LAMBDAS,
    "soft-nstep": _LENGTHS,
    "twin": _LAMBDAS,
    "twin-return": _LAMBDAS,
    "median": [*_CANDIDATES, *_EXPLORING],
    "watkins-median": [*_CANDIDATES, *_EXPLORING],
    "bounded": [*_WITHIN, *_EXPLORING],
    "watkins-bounded": [*_WITHIN, *_EXPLORING],
}

ESTIMATORS = tuple(_BASES)
SEQUENCE, BATCH, TIME_FIRST, RING = LAYOUTS = ("sequence", "batch", "time-first", "ring")
BATCH_SIZE = 3
WRAPS_AFTER = 1  # in a ring, step 1 lies in the last slot of the array and step 2 in the first


@functools.cache
def stories(estimator: str) -> tuple[Story, ...]:
    """Every situation that an estimator is tested with; the shortest comes last."""
    base = _BASES[estimator]
    told = [
        Story(name, about, replace(base, **{"bound": _BOUNDS.get(name, base.bound), **changes}))
        for name, about, changes in [*_ENDS, *_OWN[estimator]]
    ]
    single = replace(
        base,
        rewards=base.rewards[:1],
        ends=".",
        states=base.states[:2],
        actions=base.actions[:2],
        behaviour_probs=base.behaviour_probs[:2],
    )
    return (*told, Story("one step", "the sequence is a single step", single))


@functools.cache
def older_steps(steps: Steps) -> Steps:
    """Two steps that a ring still holds from long before: the end of another episode."""
    return replace(
        steps,
        rewards=_row(64, 128),
        ends=".L",
        states=(*steps.states[:2], steps.final),
        actions=(*steps.actions[:2], 0),
        behaviour_probs=_row(1, 1, 1),
    )


def sequences(steps: Steps, layout: str) -> tuple[Steps, ...]:
    """The sequences of a layout: the steps alone, or a batch of them."""
    return batch_of(steps) if layout in {BATCH, TIME_FIRST} else (steps,)


@functools.cache
def batch_of(steps: Steps) -> tuple[Steps, ...]:
    """The steps with all rewards and values times 1, 2, 3."""
    return (steps, *(scaled(steps, scale) for scale in range(2, BATCH_SIZE + 1)))


def scaled(steps: Steps, scale: int) -> Steps:
    """The same steps as the sequence of a batch whose rewards and values are ``scale`` times the first one's."""
    factor = Fraction(scale, steps.scale)

    def multiple(state: State) -> State:
        return State(tuple(factor * q for q in state.q), factor * state.entropy, factor * state.second)

    return replace(
        steps,
        rewards=tuple(factor * reward for reward in steps.rewards),
        states=tuple(map(multiple, steps.states)),
        final=multiple(steps.final),
        scale=scale,
    )
