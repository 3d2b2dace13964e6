"""The loop on tape: who acts when, what is stored, what is learnt from, and how games, lives and faults are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from environments import (
    Constant,
    Misbehaving,
    Observation,
    Scripted,
    Tape,
    TapeNetwork,
    make_loop,
    reward_of,
    tiny_config,
)
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from lambda_replay.agents.epsilon_greedy import epsilon_greedy
from lambda_replay.agents.protocol import Acted, Tensors
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, EnvironmentSpec, Step
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.errors import EnvironmentFault
from lambda_replay.learning.device import QNetwork, find_device
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.training_summary import TrainingSummary
from lambda_replay.randomness import make_streams
from lambda_replay.replay.critic import QFunction
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.training.assembly import Assembly
from lambda_replay.training.loop import Boundary, GameEnd, Learned, Loop
from lambda_replay.training.playing import PlayedGame, make_memory, play, play_block, store
from lambda_replay.training.worker import Worker

NUM_ACTIONS = 3
SCRIPT = "....T......U...L..T..."  # games of 5, 7 and 7 steps, the last one with two lives, and so on


def scripted_config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "steps": 60,
        "memory": {"capacity": 300, "start": 20},
        "cache": {"size": 10, "block_length": 5, "refresh_every": 10, "updates": 3},
        "exploration": {"start": 0.9, "end": 0.1, "steps": 50},
        "optimizer": {"batch_size": 4},
    }
    for name, value in changes.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) and name in values else value
    return tiny_config("Scripted-v0", **values)


def run_on_tape(config: RunConfig, script: str = SCRIPT) -> tuple[Tape, Assembly, list[Any]]:
    """The tape, everything after the loop's end, and all events."""
    tape = Tape()
    environments: list[Environment] = [
        Scripted(script, NUM_ACTIONS, first_observation=1 + 1_000 * stream, tape=tape) for stream in range(config.envs)
    ]
    assembly = make_loop(config, environments, TapeNetwork(tape, NUM_ACTIONS, config.memory.history))
    return tape, assembly, list(assembly.loop.run())


def outline(tape: Tape) -> list[Any]:
    """Only who acted and on how many states."""
    return [(kind, len(rest[0])) if kind in ("q", "update") else kind for kind, *rest in tape]


def stored_steps(memory: ReplayMemory, stream: int = 0) -> NDArray[np.intp]:
    """Slots of the stream's transitions, in the order of time; the ring has not wrapped."""
    slots = memory.ring.slot(stream, np.arange(memory.written[stream]))
    return slots[memory.is_step[slots]]


# --- Algorithm 1 ------------------------------------------------------------------------------------------------------


def test_the_tape_of_algorithm_1() -> None:
    """Random play up to the start; from there on every F steps a refresh, then its updates, then acting again.

    A refresh asks for the Q-values of 2 blocks of 5 + 1 states; acting, once it is not random, for those of one.
    """
    config = scripted_config()
    tape, _, _ = run_on_tape(config)
    expected: list[Any] = ["reset"]
    for step in range(60):
        if step >= 20 and (step - 20) % 10 == 0:
            expected += [("q", 12), *[("update", 4)] * 3]
        if step >= 20:
            expected += [("q", 1)]
        expected += ["step"]
        if SCRIPT[step % len(SCRIPT)] in "TU":
            expected += ["reset"]
    assert outline(tape) == expected


@pytest.mark.parametrize("start", [25, 30])
def test_refreshes_are_counted_from_the_start_not_from_the_first_step(start: int) -> None:
    _, _, events = run_on_tape(scripted_config(memory={"start": start}))
    boundaries = [event.step for event in events if isinstance(event, Boundary)]
    assert boundaries == list(range(start, 60, 10))
    assert [event.step for event in events if isinstance(event, Learned)] == [*boundaries, 60]


def test_the_tape_with_two_environments() -> None:
    """They advance together: one batched pass, then a step of each; a refresh is still due every 10 steps of both."""
    tape, _, _ = run_on_tape(scripted_config(envs=2))
    expected: list[Any] = ["reset", "reset"]
    for step in range(0, 60, 2):
        if step >= 20 and (step - 20) % 10 == 0:
            expected += [("q", 12), *[("update", 4)] * 3]
        if step >= 20:
            expected += [("q", 2)]
        for _ in range(2):
            expected += ["step"]
            if SCRIPT[(step // 2) % len(SCRIPT)] in "TU":
                expected += ["reset"]
    assert outline(tape) == expected


def test_no_updates_beyond_the_last_step_and_none_without_a_start() -> None:
    tape, _, events = run_on_tape(scripted_config(steps=20))
    assert {kind for kind, *_ in tape} == {"reset", "step"}
    assert [event.step for event in events if isinstance(event, Learned)] == [20]


def test_epsilon_and_the_stored_probability_of_every_step() -> None:
    """μ(a|s) = ε/3 + (1−ε)·[a greedy], with ε on the ramp that counts from step 0; uniform before the start."""
    config = scripted_config()
    tape, (_, agent, memory, _), _ = run_on_tape(config)
    slots = stored_steps(memory)
    actions, probs = memory.actions[slots], memory.behaviour_probs[slots]
    acting = [q_values for kind, *rest in tape if kind == "q" and len(q_values := rest[1]) == 1]
    assert [action for kind, *rest in tape if kind == "step" for action in rest] == actions.tolist()
    assert_allclose(probs[:20], 1 / 3, rtol=1e-6)
    assert len(acting) == 40
    for step, q_values in zip(range(20, 60), acting, strict=True):
        epsilon = max(0.1, 0.9 - 0.8 * step / 50)
        assert agent.describe(step) == {"epsilon": pytest.approx(epsilon)}
        is_greedy = actions[step] == q_values[0].argmax()
        assert probs[step] == pytest.approx(epsilon / 3 + (1 - epsilon) * is_greedy, rel=1e-5)


def test_the_start_is_random_and_what_follows_greedy_without_epsilon() -> None:
    tape, (_, _, memory, _), _ = run_on_tape(scripted_config(exploration={"start": 0.0, "end": 0.0}))
    actions = memory.actions[stored_steps(memory)]
    assert set(actions[:20]) == {0, 1, 2}
    acting = [rest[1] for kind, *rest in tape if kind == "q" and len(rest[1]) == 1]
    assert_array_equal(actions[20:], [q_values[0].argmax() for q_values in acting])


def test_only_transitions_of_the_memory_are_learnt_from() -> None:
    """Never a closing slot, and never an observation that had not been seen by then."""
    tape, (_, _, memory, _), _ = run_on_tape(scripted_config(cache={"size": 100, "updates": 20}))
    has_action = memory.observations[stored_steps(memory), 0]
    newest, num_learnt = 0, 0
    for kind, *rest in tape:
        if kind in ("step", "reset"):
            newest += 1  # each brings one observation
        if kind == "update":
            numbers = rest[0][:, 0, 0]
            assert np.isin(numbers, has_action).all()
            assert (numbers < newest).all()
            num_learnt += len(numbers)
    assert num_learnt == 4 * 20 * 4


@pytest.mark.parametrize("tail", [0, 3])
@pytest.mark.parametrize("script", [SCRIPT, "..............", "U", "LT."])
def test_returns_are_frozen_at_the_refresh(monkeypatch: pytest.MonkeyPatch, tail: int, script: str) -> None:
    """Each sample's return is Peng's, by its literal definition, from the Q-values of the refresh before it."""
    samples = record_minibatches(monkeypatch)
    config = scripted_config(
        steps=120, discount=0.9, estimator="peng:0.8", cache={"size": 8, "block_length": 8, "tail": tail}
    )  # one block a refresh, so that its states are on the tape in order
    tape, (_, _, memory, _), _ = run_on_tape(config, script)
    first_slots: dict[float, int] = {}  # by the observation's number; the end of a life has its number twice
    for slot in stored_steps(memory):
        first_slots[float(memory.observations[slot, 0])] = int(slot)
    refreshes = [rest for kind, *rest in tape if kind == "q" and len(rest[0]) == 8 + tail + 1]
    assert len(refreshes) == len(samples) == 10
    for (states, q_values), batches in zip(refreshes, samples, strict=True):
        numbers = states[:, 0, 0]
        for batch in batches:
            for state, action, found in zip(batch.states, batch.actions, batch.returns, strict=True):
                slot = first_slots[float(state[0, 0])]
                at = int(np.flatnonzero(numbers == state[0, 0])[-1])
                assert at < 8
                expected = literal_peng(memory, slot, q_values[at:].max(axis=1).astype(np.float64), 0.9, 0.8)
                assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
                assert action == memory.actions[slot]


def literal_peng(
    memory: ReplayMemory, slot: int, values: NDArray[np.float64], discount: float, lambda_: float
) -> float:
    """R_t = r_t + γ·[(1 − λ)·max Q(s_{t+1}) + λ·R_{t+1}] up to the block's or the episode's end (paper §3)."""
    if len(values) == 1:
        return float(values[0])
    reward = float(memory.rewards[slot])
    if memory.terminated[slot]:
        return reward
    if not memory.is_step[slot + 1]:  # truncated
        return reward + discount * float(values[1])
    following = literal_peng(memory, slot + 1, values[1:], discount, lambda_)
    return reward + discount * ((1 - lambda_) * float(values[1]) + lambda_ * following)


def record_minibatches(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What the learner is given, one list per call; it learns from it as always."""
    calls: list[list[Any]] = []
    original = Learner.train

    def train(self: Learner, minibatches: Any, first: int = 0, progress: float = 0.0) -> TrainingSummary:
        calls.append(list(minibatches))
        return original(self, calls[-1], first, progress)

    monkeypatch.setattr(Learner, "train", train)
    return calls


@pytest.mark.parametrize(("updates", "expected"), [(None, 2), (1, 1), (7, 7)])
def test_updates_per_refresh(updates: int | None, expected: int) -> None:
    """None means a quarter of F = 10 steps, rounded down."""
    tape, _, _ = run_on_tape(scripted_config(cache={"updates": updates}))
    assert sum(kind == "update" for kind, *_ in tape) == 4 * expected


def test_priority_falls_linearly_to_zero_at_the_last_step() -> None:
    """p = 0.6·(1 − t/60): at the refreshes of steps 20 … 50 it is 0.4, 0.3, 0.2, 0.1."""
    _, _, events = run_on_tape(scripted_config(cache={"priority": 0.6}))
    priorities = [
        event.metrics["priority"] for event in events if isinstance(event, Learned) and "loss" in event.metrics
    ]
    assert priorities == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_a_refresh_asks_for_a_bounded_number_of_states_at_once() -> None:
    tape, _, _ = run_on_tape(scripted_config(cache={"size": 400}))
    sizes = [len(rest[0]) for kind, *rest in tape if kind == "q"]
    chunk = QNetwork(TapeNetwork(Tape()), find_device("cpu")).chunk_size
    assert max(sizes) <= chunk < 80 * 6
    assert sum(size for size in sizes if size > 1) == 4 * 80 * 6  # four refreshes of 80 blocks of 5 + 1 states


# --- games, lives and scores ------------------------------------------------------------------------------------------


def test_a_lost_life_is_a_new_episode_for_learning_and_nothing_else() -> None:
    """Script ..L.LT: one game of 6 steps with three lives, of 3, 2 and 1 steps."""
    config = scripted_config(steps=12, memory={"history": 2, "start": 12})
    environment = Scripted("..L.LT", NUM_ACTIONS)
    loop, _, memory, _ = make_loop(config, [environment])
    games = [event for event in loop.run() if isinstance(event, GameEnd)]

    # One reset per game, the one after the last game included; observations 1 … 7 are the first game's.
    assert len(environment.seeds) == 3
    first_score = sum(10 * reward_of(number) for number in range(2, 8))
    assert games[0] == GameEnd(0, 6, 0, first_score, 6, environment.seeds[0], "terminated")
    assert (games[1].episode, games[1].step, games[1].length) == (1, 12, 6)

    # Observations 4 and 6 end a life and begin the next, so they have two slots, the first of them without an action.
    numbers, actions = memory.observations[:10, 0].tolist(), memory.actions[:10]
    assert numbers == [1, 2, 3, 4, 4, 5, 6, 6, 7, 8]
    assert memory.is_step[:10].tolist() == [n not in (3, 6, 8) for n in range(10)]
    assert actions[[3, 6, 8]].tolist() == [0, 0, 0]
    assert memory.terminated[:10].tolist() == [n in (2, 5, 7) for n in range(10)]
    assert_allclose(memory.rewards[:3], [reward_of(2), reward_of(3), reward_of(4)])

    # The first state of a life does not look back over its beginning: the frame before it is blank.
    states = memory.states(np.array([3, 4, 5, 7]))
    assert states[:, :, 0].tolist() == [[3, 4], [0, 4], [4, 5], [0, 6]]


def test_truncated_games_bootstrap_and_terminated_ones_do_not() -> None:
    config = scripted_config(steps=6, memory={"start": 6})
    loop, _, memory, _ = make_loop(config, [Scripted("..U..T", NUM_ACTIONS)])
    games = [event for event in loop.run() if isinstance(event, GameEnd)]
    assert [game.ended for game in games] == ["truncated", "terminated"]
    assert memory.is_step[:8].tolist() == [n not in (3, 7) for n in range(8)]
    assert memory.terminated[:8].tolist() == [False] * 6 + [True, False]


def test_the_score_is_the_mean_of_the_last_hundred_games() -> None:
    config = scripted_config(steps=150, memory={"start": 150})
    loop = make_loop(config, [Scripted("T", NUM_ACTIONS)]).loop
    scores: list[float] = []
    for event in loop.run():
        if isinstance(event, GameEnd):
            scores.append(event.score)
            assert loop.score == pytest.approx(np.mean(scores[-100:]))
        elif isinstance(event, Learned):
            assert event.metrics["episodes"] == 150
            assert event.metrics["score_mean_100"] == pytest.approx(np.mean(scores[-100:]))
            assert event.metrics["length_mean_100"] == 1
    assert len(scores) == 150
    # Every game brings two observations, the second of which pays.
    assert scores == pytest.approx([10 * reward_of(2 * game) for game in range(1, 151)])


@pytest.mark.parametrize(("num_envs", "begun"), [(1, 4), (2, 4)])
def test_random_play_is_judged_by_the_games_that_began_with_it(num_envs: int, begun: int) -> None:
    """Games begin after 0, 5, 12 and 19 steps of a stream; 20 steps of all streams are random."""
    _, assembly, events = run_on_tape(scripted_config(envs=num_envs))
    games = [event for event in events if isinstance(event, GameEnd)]
    first = [game.score for game in games[:begun]]  # in each stream as many, as they are equally long
    assert assembly.loop.random_scores == first
    assert sum(game.step <= 20 for game in games) < begun
    described = assembly.loop.progress()
    assert described["score_random"] == np.mean(first)
    assert described["score_random_error"] == pytest.approx(np.std(first, ddof=1) / np.sqrt(begun))


def test_without_a_finished_game_there_is_no_score() -> None:
    loop = make_loop(scripted_config(), [Scripted(".", NUM_ACTIONS)]).loop
    events = list(loop.run())
    assert loop.score is None
    assert not [event for event in events if isinstance(event, GameEnd)]
    assert {event.metrics["score_mean_100"] for event in events if isinstance(event, Learned)} == {None}


def test_every_game_has_a_seed_of_its_own_from_the_run_s() -> None:
    def seeds(seed: int) -> list[int]:
        environment = Scripted("..T", NUM_ACTIONS)
        loop = make_loop(scripted_config(seed=seed), [environment]).loop
        told = [event.seed for event in loop.run() if isinstance(event, GameEnd)]
        assert told == environment.seeds[:-1]
        return told

    assert len(set(seeds(0))) == 20
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_progress_is_in_every_row() -> None:
    _, (loop, *_), events = run_on_tape(scripted_config())
    rows = [event for event in events if isinstance(event, Learned)]
    assert [row.step for row in rows] == [20, 30, 40, 50, 60]
    for row in rows:
        assert row.metrics["epsilon"] == pytest.approx(max(0.1, 0.9 - 0.8 * row.step / 50))
        ended = [event for event in events if isinstance(event, GameEnd) and event.step <= row.step]
        assert row.metrics["episodes"] == len(ended)
    assert rows[-1].metrics == loop.progress()


# --- several streams --------------------------------------------------------------------------------------------------


class Replaying:
    """An agent that repeats given actions with probability 1 and never learns."""

    def __init__(self, actions: list[int]) -> None:
        self._remaining = iter(actions)

    def act(self, states: NDArray[Any], step: int) -> Acted:
        assert len(states) == 1
        return Acted(np.array([next(self._remaining)]), np.ones(1, dtype=np.float32))

    def learn(self, step: int) -> None:
        return None

    def describe(self, step: int) -> Metrics:
        return {}

    def get_tensors(self) -> dict[str, Tensors]:
        return {}

    def set_tensors(self, tensors: Mapping[str, Tensors]) -> None: ...

    def check_finite(self) -> None: ...

    def get_state(self) -> dict[str, float]:
        return {}

    def set_state(self, state: Mapping[str, float]) -> None: ...


def test_a_stream_among_others_stores_what_it_would_alone() -> None:
    """Three CartPoles in lock-step, and each of them again alone with the same seeds of games and the same actions."""
    changes: dict[str, Any] = {"envs": 3, "steps": 600, "cache": {"refresh_every": 60}}
    config = tiny_config("CartPole-v1", **changes, memory={"start": 600, "capacity": 900, "history": 2})
    together, _, memory, _ = make_loop(config, [GymnasiumEnvironment("CartPole-v1") for _ in range(3)])
    games = [event for event in together.run() if isinstance(event, GameEnd)]
    for stream in range(3):
        alone_config = tiny_config("CartPole-v1", steps=200, memory={"start": 200, "capacity": 300, "history": 2})
        streams = replace(make_streams(config.seed, 3), envs=(make_streams(config.seed, 3).envs[stream],))
        environment = GymnasiumEnvironment("CartPole-v1")
        alone_memory = make_memory(environment, 300, history=2)
        alone = Loop(
            alone_config,
            [environment],
            agent=Replaying(memory.actions[stored_steps(memory, stream)].tolist()),
            memory=alone_memory,
            worker=Worker(is_concurrent=False, threads=1),
            streams=streams,
        )
        alone_games = [event for event in alone.run() if isinstance(event, GameEnd)]

        assert alone_memory.written[0] == memory.written[stream] > 205
        numbers = np.arange(memory.written[stream])
        slots = memory.ring.slot(stream, numbers)
        for name in ("observations", "actions", "rewards", "terminated", "is_step", "frames"):
            assert_array_equal(memory.arrays[name][slots], alone_memory.arrays[name][numbers], err_msg=name)
        assert_array_equal(memory.states(slots), alone_memory.states(numbers))
        told = [(game.score, game.length, game.seed, game.ended) for game in games if game.stream == stream]
        assert told == [(game.score, game.length, game.seed, game.ended) for game in alone_games]
        # The step of a game's end: 3 steps per lock-step, this stream's being number ``stream`` of them.
        steps = [game.step for game in games if game.stream == stream]
        assert steps == [3 * (game.step - 1) + stream + 1 for game in alone_games]


def test_games_of_several_streams_are_numbered_as_they_end() -> None:
    _, _, events = run_on_tape(scripted_config(envs=2))
    games = [event for event in events if isinstance(event, GameEnd)]
    assert [game.episode for game in games] == list(range(len(games)))
    assert [game.stream for game in games] == [0, 1] * (len(games) // 2)
    assert [game.step for game in games] == sorted(game.step for game in games)


# --- faults of the environment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("NanObservation-v0", "an observation that is not finite"),
        ("InfiniteObservation-v0", "an observation that is not finite"),
        ("NanReward-v0", "the reward nan"),
        ("InfiniteReward-v0", "the reward inf"),
        ("NoReward-v0", "the reward None"),
        ("FourValues-v0", "4 values from step"),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_wrong_value_stops_the_run_and_is_told_with_its_step(env: str, words: str, num_envs: int) -> None:
    """Each environment misbehaves at its own step 100; the first one is then at step 100 times their number."""
    config = tiny_config(f"environments:{env}", envs=num_envs)
    loop, _, memory, _ = make_loop(config, [GymnasiumEnvironment(env) for _ in range(num_envs)])
    with pytest.raises(EnvironmentFault) as caught:
        list(loop.run())
    sentence = str(caught.value)
    assert f"{env} returned {words}" in sentence
    assert f"at step {100 * num_envs};" in sentence
    assert "\n" not in sentence
    assert loop.step == 100 * num_envs
    assert np.isfinite(memory.observations).all()
    assert np.isfinite(memory.rewards).all()
    assert loop.num_games == 5 * num_envs  # games of 20 steps: five of them ended on each stream before that


class Falling:
    """Raises a fault in its ``at``-th call, whether that is a reset or a step; its games end after 20 steps."""

    spec = EnvironmentSpec((2,), np.dtype(np.float32), 2, ("a", "b"))

    def __init__(self, at: int) -> None:
        self._left, self._length = at, 0

    def reset(self, seed: int) -> Observation:
        self._count()
        self._length = 0
        return np.zeros(2, dtype=np.float32)

    def step(self, action: int) -> Step:
        self._count()
        self._length += 1
        is_over = self._length == 20
        return Step(np.zeros(2, dtype=np.float32), 0.0, False, is_over, is_over, 0.0)

    def _count(self) -> None:
        if self._left == 0:
            raise EnvironmentFault("Falling-v0 fell over")
        self._left -= 1

    def render(self) -> NDArray[np.uint8]:
        raise AssertionError("never reached")

    def close(self) -> None: ...


@pytest.mark.parametrize(("at", "step"), [(0, 0), (1, 0), (20, 19), (21, 19), (22, 20), (43, 40)])
def test_a_fault_is_told_with_its_step_in_a_reset_too(at: int, step: int) -> None:
    """Calls 0, 21 and 42 are resets, the last two after the steps 19 and 39 that ended a game."""
    with pytest.raises(EnvironmentFault) as caught:
        list(make_loop(tiny_config("Falling-v0"), [Falling(at)]).loop.run())
    assert str(caught.value) == f"Falling-v0 fell over at step {step}; fix the environment."


def test_a_fault_of_the_second_environment_is_told_with_its_own_step() -> None:
    with pytest.raises(EnvironmentFault, match="at step 7;"):  # 0 and 1, 2 and 3, 4 and 5, 6 and 7
        list(make_loop(tiny_config("Falling-v0", envs=2), [Falling(100), Falling(4)]).loop.run())


def test_a_fault_in_a_played_game_is_told_with_its_seed() -> None:
    with pytest.raises(EnvironmentFault, match="at step 3 of the game with seed 5; fix"):
        play(Falling(4), always(0, 2), history=1, epsilon=0.0, seed=5)


def test_an_error_of_the_environments_own_is_a_fault_with_its_cause() -> None:
    loop = make_loop(tiny_config("environments:Raising-v0"), [GymnasiumEnvironment("Raising-v0")]).loop
    with pytest.raises(EnvironmentFault, match=r"RuntimeError: the simulator fell over \(.*\) at step 100;") as caught:
        list(loop.run())
    assert isinstance(caught.value.__cause__, RuntimeError)


# --- games without end ------------------------------------------------------------------------------------------------


def test_a_game_that_does_not_end_is_truncated_and_begun_anew() -> None:
    """At most 7 steps: "....T" ends by itself, the endless game after it does not; a lost life does not begin anew."""
    script = "....T......L......L.....T" + "." * 100
    _, (loop, _, memory, _), events = run_on_tape(scripted_config(max_game_steps=7), script)
    games = [event for event in events if isinstance(event, GameEnd)]
    assert [(game.length, game.ended) for game in games[:5]] == [
        (5, "terminated"),
        (7, "terminated"),  # the life that is lost on the last step allowed
        (7, "terminated"),
        (6, "terminated"),
        (7, "truncated"),
    ]
    assert [game.step for game in games[:5]] == [5, 12, 19, 25, 32]
    slots = stored_steps(memory)
    assert not memory.is_step[slots[31] + 1]  # the closing slot of the truncated game …
    assert not memory.terminated[slots[31]]  # … from which a return bootstraps
    assert max(len(game["actions"]) for game in loop.get_state()["games"]) < 7


def test_a_limit_that_no_game_reaches_changes_nothing() -> None:
    tape, _, events = run_on_tape(scripted_config())
    other_tape, _, other_events = run_on_tape(scripted_config(max_game_steps=8))  # games of 5, 7 or 8 steps
    assert outline(tape) == outline(other_tape)
    assert events == other_events


# --- playing without learning -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Playing:
    """A policy of any Q-function."""

    critic: QFunction

    def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
        return epsilon_greedy(self.critic(states), epsilon, rng)


def always(action: int, num_actions: int = NUM_ACTIONS) -> Playing:
    return Playing(lambda states: np.eye(num_actions, dtype=np.float32)[[action] * len(states)])


def test_a_played_game_is_told_whole() -> None:
    """Script ..L.T: a lost life does not end it."""
    tape = Tape()
    game = play(Scripted("..L.T", NUM_ACTIONS, tape=tape), always(2), history=1, epsilon=0.0, seed=5)
    score = sum(10 * reward_of(number) for number in range(2, 7))
    assert game == PlayedGame(score, 5, 5, "terminated")
    assert tape == [("reset", 5), *[("step", 2)] * 5]
    assert play(Scripted("..U", NUM_ACTIONS), always(0), history=1, epsilon=0.0, seed=5).ended == "truncated"


@pytest.mark.parametrize("script", [".", "..L", "...L", "L", ".L"])
@pytest.mark.parametrize("max_steps", [1, 3, 4, 7])
def test_a_game_is_stopped_after_max_steps_wherever_lives_are_lost(script: str, max_steps: int) -> None:
    class Enough(Exception):
        pass

    def impatient(states: NDArray[Any]) -> NDArray[np.float32]:
        calls.append(len(states))
        if len(calls) > 50:
            raise Enough
        return np.zeros((1, NUM_ACTIONS), dtype=np.float32)

    calls: list[int] = []
    environment = Scripted(script, NUM_ACTIONS)
    game = play(environment, Playing(impatient), history=1, epsilon=0.0, seed=0, max_steps=max_steps)
    assert (game.length, game.ended) == (max_steps, "stopped")


def test_a_game_that_ends_by_itself_at_max_steps_ended_by_itself() -> None:
    game = play(Scripted("..T", NUM_ACTIONS), always(0), history=1, epsilon=0.0, seed=0, max_steps=3)
    assert (game.length, game.ended) == (3, "terminated")


def test_a_frame_is_drawn_at_every_state_the_last_one_included() -> None:
    environment = Scripted("..L.T", NUM_ACTIONS)
    frames: list[int] = []
    play(
        environment,
        always(0),
        history=1,
        epsilon=0.0,
        seed=0,
        on_frame=lambda: frames.append(int(environment.render()[0, 0, 0])),
    )
    assert frames == [1, 2, 3, 4, 5, 6]


def test_playing_sees_the_states_that_training_saw() -> None:
    """History of 3 over a lost life: frames from before it are blank."""
    seen = []

    def looking(states: NDArray[Any]) -> NDArray[np.float32]:
        seen.append(states[0, :, 0].tolist())
        return np.zeros((1, NUM_ACTIONS), dtype=np.float32)

    play(Scripted("...L..T", NUM_ACTIONS), Playing(looking), history=3, epsilon=0.0, seed=0)
    assert seen == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 5], [0, 5, 6], [5, 6, 7]]


def test_playing_explores_by_its_seed_alone() -> None:
    def actions(seed: int, epsilon: float) -> list[int]:
        tape = Tape()
        environment = Scripted("." * 199 + "T", NUM_ACTIONS, tape=tape)
        play(environment, always(1), history=1, epsilon=epsilon, seed=seed)
        return [rest[0] for kind, *rest in tape if kind == "step"]

    assert actions(3, 0.5) == actions(3, 0.5)
    assert actions(3, 0.5) != actions(4, 0.5)
    assert set(actions(3, 0.0)) == {1}
    assert 0.55 < np.mean(np.array(actions(3, 0.5)) == 1) < 0.78  # 2/3 expected, standard deviation 0.033


def test_a_policy_and_its_game_draw_different_numbers_from_one_seed() -> None:
    """Else an action would be random just where the game's own number is small."""
    drawn: dict[str, list[float]] = {"game": [], "policy": []}

    class Drawing(Constant):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            drawn["game"].append(float(self.np_random.random()))
            return super().step(action)

    class Recording:
        def act(self, states: NDArray[Any], epsilon: float, rng: np.random.Generator) -> Acted:
            drawn["policy"].append(float(rng.random()))
            return Acted(np.zeros(1, dtype=np.int64), np.ones(1))

    environment = GymnasiumEnvironment("object/Drawing", given=Drawing)
    play(environment, Recording(), history=1, epsilon=0.5, seed=7)  # type: ignore[arg-type]
    assert len(drawn["policy"]) == len(drawn["game"]) == 10
    assert not set(drawn["policy"]) & set(drawn["game"])


def test_a_block_is_played_over_as_many_games_as_it_takes() -> None:
    """Script ..L.T: observations 1 … 6 are the first game's, 4 being the end of one life and the start of the next.

    The block's 12 slots include those that close an episode. Each game has a seed of its own.
    """
    tape = Tape()
    environment = Scripted("..L.T", NUM_ACTIONS, tape=tape)
    rng = np.random.default_rng(0)
    memory = play_block(environment, always(2), length=12, history=2, epsilon=0.0, rng=rng)
    assert memory.observations[:13, 0].tolist() == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 10, 11]
    assert memory.is_step[:12].tolist() == [number not in (3, 6, 10) for number in range(12)]
    assert set(memory.actions[:12][memory.is_step[:12]].tolist()) == {2}
    assert (memory.behaviour_probs[:12] == 1).all()
    assert memory.sample_blocks(1, 12, rng).shape == (1, 13)  # a whole block of that length
    seeds = [seed for kind, *rest in tape if kind == "reset" for seed in rest]
    assert len(set(seeds)) == len(seeds) >= 2


def test_a_step_is_stored_with_its_ends() -> None:
    """A lost life closes an episode and begins another with the same observation; the end of a game only closes it."""
    memory = make_memory(Scripted("."), capacity=20, history=1)

    def step(number: int, **ends: bool) -> Step:
        values = {"terminated": False, "truncated": False, "game_over": False, **ends}
        return Step(np.full(2, number, dtype=np.float32), float(number), score=0.0, **values)

    memory.begin(np.zeros(2, dtype=np.float32))
    store(memory, 0, 1, 0.5, step(1))
    store(memory, 0, 2, 0.25, step(2, terminated=True))
    store(memory, 0, 0, 1.0, step(3, truncated=True, game_over=True))
    assert memory.observations[:5, 0].tolist() == [0, 1, 2, 2, 3]
    assert memory.is_step[:5].tolist() == [True, True, False, True, False]
    assert memory.actions[:5].tolist() == [1, 2, 0, 0, 0]
    assert memory.rewards[:5].tolist() == [1, 2, 0, 3, 0]
    assert memory.behaviour_probs[[0, 1, 3]].tolist() == [0.5, 0.25, 1]
    assert memory.terminated[:5].tolist() == [False, True, False, False, False]
    assert memory.written == (5,)


def test_the_misbehaving_environment_behaves_until_its_step() -> None:
    environment = Misbehaving("raises", at=3)
    environment.reset()
    for _ in range(3):
        environment.step(0)
    with pytest.raises(RuntimeError):
        environment.step(0)
