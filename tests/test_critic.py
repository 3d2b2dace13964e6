"""From the memory through a critic to a cache: promoted blocks, critics of one's own, several critics at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import lambda_replay as lr
from lambda_replay.replay.critic import QFunction, as_critic, promote_slots

NUM_STATES, NUM_ACTIONS = 50, 3
ROWS = ("slots", "actions", "returns", "td_errors", "is_transition")


def frame(value: int) -> NDArray[np.uint8]:
    """An observation that is one number."""
    return np.array(value, dtype=np.uint8)


def worked_memory(**settings: Any) -> lr.ReplayMemory:
    """γ = 0.9, rewards 10, −10, 20 (terminated) in the states 0, 1, 2 and 3; vector actions with log μ = −1."""
    memory = lr.ReplayMemory(4, (), np.uint8, action_shape=(2,), columns={"reached": ((), np.uint8)}, **settings)
    memory.begin(frame(0))
    for number, reward in enumerate((10.0, -10.0, 20.0)):
        memory.append(
            [number, 0.5],
            reward,
            frame(number + 1),
            terminated=number == 2,
            behaviour_prob=-1.0,
            reached=number + 1,
        )
    return memory


def random_memory(steps: int = 300, end_probability: float = 0.1, **settings: Any) -> lr.ReplayMemory:
    """States are numbers 0 … 49; episodes end, by termination or truncation, with ``end_probability`` a step."""
    memory = lr.ReplayMemory(**{"capacity": 1_000, "observation_shape": (), "observation_dtype": np.uint8, **settings})
    store = storing(memory, np.random.default_rng(5), end_probability)
    for _ in range(steps):
        store()
    return memory


def storing(memory: lr.ReplayMemory, rng: np.random.Generator, end_probability: float) -> Callable[[], None]:
    """A function that stores one more random step in a random stream."""

    def store() -> None:
        stream = int(rng.integers(memory.num_streams))
        if not memory.get_state()["is_open"][stream]:
            memory.begin(frame(int(rng.integers(NUM_STATES))), stream)
        has_ended, kind = rng.random() < end_probability, rng.random() < 0.5
        memory.append(
            int(rng.integers(NUM_ACTIONS)),
            float(rng.normal()),
            frame(int(rng.integers(NUM_STATES))),
            terminated=bool(has_ended and kind),
            truncated=bool(has_ended and not kind),
            behaviour_prob=float(rng.uniform(0.1, 1)),
            stream=stream,
        )

    return store


def tabular(seed: int = 0) -> tuple[NDArray[np.float32], QFunction]:
    """A random table [states, A] and the Q-function that looks up the newest frame in it."""
    table = np.random.default_rng(seed).normal(size=(NUM_STATES, NUM_ACTIONS)).astype(np.float32)
    return table, lambda states: table[states[:, -1].astype(int)]


@dataclass(frozen=True)
class ActorCritic:
    """V(s) of a table, Q(s, a) = V(s) − a·a/100, and π a density worth ``log_density`` everywhere."""

    table: NDArray[np.float32]  # [states]
    log_density: float = -1.0
    entropy: float = 0.0

    def evaluate(self, blocks: lr.Promoted) -> lr.ValueBlock:
        states = blocks.memory.states(blocks.slots.reshape(-1))[:, -1].reshape(blocks.slots.shape)
        baselines = self.table[states]
        actions = blocks.transitions.actions
        return lr.ValueBlock(
            rewards=blocks.rewards,
            discounts=blocks.discounts,
            values=baselines + np.float32(self.entropy),
            action_values=baselines - (actions * actions).sum(axis=-1) / np.float32(100),
            continues=blocks.continues,
            baselines=baselines,
            ratios=np.exp(self.log_density - blocks.transitions.behaviour_probs),
            is_step=blocks.transitions.is_step,
        )


@dataclass(frozen=True)
class Critics:
    """Several Q-functions as a leading axis."""

    q_functions: tuple[QFunction, ...]

    def evaluate(self, blocks: lr.Promoted) -> lr.Block:
        each = [lr.QCritic(q_function).evaluate(blocks) for q_function in self.q_functions]
        return replace(each[0], q_values=np.stack([block.q_values for block in each]))


def build(memory: lr.ReplayMemory, critic: Any, spelling: str = "peng:0.7", **changes: Any) -> lr.Cache:
    arguments: dict[str, Any] = {"discount": 0.9, "size": 400, "block_length": 20, "rng": np.random.default_rng(1)}
    return lr.refresh(memory, critic, lr.parse_estimator(spelling), **{**arguments, **changes})


def worked_cache(spelling: str, **settings: Any) -> lr.Cache:
    table = np.array([100, 200, 300, 7], dtype=np.float32)
    return build(worked_memory(), ActorCritic(table, **settings), spelling, size=3, block_length=3)


def assert_same_cache(found: lr.Cache, wanted: lr.Cache) -> None:
    for name in ROWS:
        assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert found.metrics == wanted.metrics


# --- golden -----------------------------------------------------------------------------------------------------------


def test_promoted_blocks_of_one_worked_episode() -> None:
    blocks = lr.promote(worked_memory(), discount=0.9, size=3, block_length=3, rng=np.random.default_rng(0))
    assert_array_equal(blocks.slots, [[0, 1, 2, 3]])
    assert_array_equal(blocks.rewards, [[10, -10, 20]])
    assert_array_equal(blocks.has_future, [[True, True, False]])
    assert_array_equal(blocks.discounts, np.array([[0.9, 0.9, 0]], dtype=np.float32))
    assert_array_equal(blocks.continues, [[True, True, False]])
    assert_array_equal(blocks.ages, [[3, 2, 1, 0]])
    assert blocks.lifetimes == {0: 4}  # the fifth slot overwrites the first
    assert blocks.length == 3
    assert_array_equal(blocks.transitions.actions[0], [[0, 0.5], [1, 0.5], [2, 0.5], [0, 0]])
    assert_array_equal(blocks.transitions.is_step, [[True, True, True, False]])
    assert_array_equal(blocks.transitions.columns["reached"], [[1, 2, 3, 0]])


def test_an_actor_and_its_critic_give_the_worked_returns() -> None:
    # G₂ = 20, G₁ = −10 + 0.9·(0.2·300 + 0.8·20) = 58.4, G₀ = 10 + 0.9·(0.2·200 + 0.8·58.4) = 88.048
    # Q(s, a) = 100 − 0.0025, 200 − 0.0125, 300 − 0.0425
    cache = worked_cache("peng:0.8")
    assert_allclose(cache.returns, [88.048, 58.4, 20], rtol=1e-6)
    assert_allclose(cache.td_errors, [88.048 - 99.9975, 58.4 - 199.9875, 20 - 299.9575], rtol=1e-5)
    assert_array_equal(cache.actions, [[0, 0.5], [1, 0.5], [2, 0.5]])
    assert cache.actions.dtype == np.float32
    batch = cache.minibatch(np.array([2, 0]))
    assert_array_equal(batch.actions, [[2, 0.5], [0, 0.5]])
    assert_array_equal(batch.states, [[2], [0]])


def test_a_soft_critic_gives_every_entropy_in_full() -> None:
    # An entropy worth 5 everywhere: G₁ = −10 + 0.9·(305 + 0.8·(20 − 300)) = 62.9,
    # G₀ = 10 + 0.9·(205 + 0.8·(62.9 − 200)) = 95.788
    assert_allclose(worked_cache("peng:0.8", entropy=5.0).returns, [95.788, 62.9, 20], rtol=1e-6)
    # 10 + 0.9·(5 − 10 + 0.9·(5 + 20)) = 25.75, −10 + 0.9·25 = 12.5
    assert_allclose(worked_cache("nstep:3", entropy=5.0).returns, [25.75, 12.5, 20], rtol=1e-6)


def test_retrace_reads_the_density_that_the_memory_keeps() -> None:
    # log μ = −1 and log π = −1 − log 2: π/μ = ½, so c = 0.8·½ = 0.4
    # G₁ = −10 + 0.9·(300 + 0.4·(20 − 299.9575)) = 159.2153
    # G₀ = 10 + 0.9·(200 + 0.4·(159.2153 − 199.9875)) = 175.322008
    cache = worked_cache("retrace:0.8", log_density=-1 - float(np.log(2)))
    assert_allclose(cache.returns, [175.322008, 159.2153, 20], rtol=1e-6)
    # A larger density than μ counts as 1: as with π = μ.
    assert_array_equal(worked_cache("retrace:0.8", log_density=3).returns, worked_cache("retrace:0.8").returns)


def test_the_smaller_return_of_two_critics_and_the_error_of_their_mean_value() -> None:
    # Critic 0: V(s₁) = 4, Q(s₀, a₀) = 1; critic 1: V(s₁) = 2, Q(s₀, a₀) = 6. One step, r = 1, γ = ½:
    # returns 1 + ½·4 = 3 and 1 + ½·2 = 2, of which 2 is kept; the error is 2 − (1 + 6)/2 = −1.5
    memory = lr.ReplayMemory(4, (), np.uint8)
    memory.begin(frame(0))
    memory.append(0, 1.0, frame(1))
    tables = [np.array([[1, 9], [4, 0]], dtype=np.float32), np.array([[6, 0], [1, 2]], dtype=np.float32)]
    critics = Critics((lambda states: tables[0][states[:, 0]], lambda states: tables[1][states[:, 0]]))
    cache = build(memory, critics, "nstep:1", discount=0.5, size=1, block_length=1)
    assert_array_equal(cache.returns, [2])
    assert_array_equal(cache.td_errors, [-1.5])
    assert cache.metrics["return_mean"] == 2
    assert cache.metrics["q_mean"] == 3.5


def test_the_newest_block_of_every_stream_comes_after_the_random_ones() -> None:
    """Stream 0 has written slots 0 to 7 of its ring of ten, stream 1 slots 10 to 14; slot 3 closes an episode."""
    memory = lr.ReplayMemory(20, (), np.uint8, num_streams=2)
    for stream, lengths in ((0, (3, 3)), (1, (4,))):
        for length in lengths:
            memory.begin(frame(0), stream=stream)
            for number in range(1, length + 1):
                memory.append(0, 1.0, frame(number), terminated=number == length, stream=stream)
    blocks = lr.promote(memory, discount=0.9, size=12, block_length=4, rng=np.random.default_rng(0), newest=True)
    assert_array_equal(blocks.slots[1:], [[3, 4, 5, 6, 7], [10, 11, 12, 13, 14]])
    assert_array_equal(blocks.transitions.is_step[1], [False, True, True, True, False])
    assert blocks.ages[1:, -1].tolist() == [0, 0]


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["peng:0.7", "watkins:0.9", "nstep:3", "median", "bounded:0.5", "retrace:0.9@0.1"])
@pytest.mark.parametrize("settings", [{}, {"num_streams": 3, "history": 2}, {"capacity": 150, "spare": 5}])
def test_promote_and_build_cache_are_refresh(spelling: str, settings: dict[str, Any]) -> None:
    memory, (_, q_function) = random_memory(**settings), tabular()
    at_once = build(memory, q_function, spelling, tail=2, reserve=3, chunk_size=7)
    blocks = lr.promote(
        memory, discount=0.9, size=400, block_length=20, rng=np.random.default_rng(1), tail=2, reserve=3
    )
    by_parts = lr.build_cache(blocks, lr.QCritic(q_function), lr.parse_estimator(spelling))
    assert_same_cache(by_parts, at_once)


def test_the_newest_blocks_take_the_place_of_as_many_random_ones() -> None:
    """The others are those that a smaller cache would draw with the same generator."""
    memory = random_memory(num_streams=3, capacity=150)
    plain, combined = (
        lr.promote(memory, discount=0.9, size=size, block_length=20, rng=np.random.default_rng(1), newest=newest)
        for size, newest in ((100, False), (160, True))
    )
    assert_array_equal(combined.slots[:5], plain.slots)
    assert_array_equal(combined.slots[5:], memory.newest_blocks(20))


@pytest.mark.parametrize("spelling", ["peng:0.7", "watkins:0.9", "nstep:3", "median", "bounded:0.5", "retrace:0.9@0.1"])
def test_a_critic_that_does_as_a_q_function_gives_the_same_cache(spelling: str) -> None:
    memory, (_, q_function) = random_memory(), tabular()
    assert_same_cache(build(memory, Critics((q_function,)), spelling), build(memory, q_function, spelling))


def test_a_plain_q_function_becomes_a_critic_and_a_critic_stays_what_it_is() -> None:
    _, q_function = tabular()
    assert as_critic(q_function, chunk_size=7) == lr.QCritic(q_function, 7)
    critic = Critics((q_function,))
    assert as_critic(critic) is critic


@pytest.mark.parametrize(
    "spelling", ["peng:0.7", "watkins:0.9", "nstep:3", "median", "tree:0.8@0.2", "retrace:0.9@0.1"]
)
def test_several_critics_give_their_smallest_return(spelling: str) -> None:
    memory, tables = random_memory(), [tabular(seed) for seed in range(3)]
    cache = build(memory, Critics(tuple(q_function for _, q_function in tables)), spelling)
    each = [build(memory, q_function, spelling) for _, q_function in tables]
    assert_array_equal(cache.returns, np.min([one.returns for one in each], axis=0))
    real = cache.is_transition
    observed = memory.observations[cache.slots[real]]
    means = np.mean([table[observed, cache.actions[real]] for table, _ in tables], axis=0)
    assert_allclose(cache.td_errors[real], cache.returns[real] - means, rtol=1e-5, atol=1e-6)
    assert_array_equal(cache.td_errors[~real], 0)
    assert cache.metrics.keys() == each[0].metrics.keys()


def test_identical_critics_change_nothing() -> None:
    memory, (_, q_function) = random_memory(), tabular()
    for spelling in ("peng:0.7", "watkins:0.9", "median", "bounded:0.5"):
        found = build(memory, Critics((q_function, q_function)), spelling)
        wanted = build(memory, q_function, spelling)
        for name in ROWS:
            assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-6)


# --- property ---------------------------------------------------------------------------------------------------------


def test_promoted_blocks_stay_as_they_are_while_the_memory_grows() -> None:
    """Also where a block ends with the newest slot, in which an action is taken later."""
    memory = random_memory(steps=300, end_probability=0.1, capacity=100)
    _, q_function = tabular()
    wanted = build(memory, q_function, size=4_000, block_length=5, reserve=10)
    blocks = lr.promote(memory, discount=0.9, size=4_000, block_length=5, rng=np.random.default_rng(1), reserve=10)
    assert (blocks.slots[:, -1] == memory.newest_slots()[0]).any()
    ages = blocks.ages.copy()
    store, written = storing(memory, np.random.default_rng(6), 0.3), memory.written[0]
    while memory.written[0] < written + 8:
        store()
    assert_array_equal(blocks.ages, ages)
    assert_same_cache(lr.build_cache(blocks, lr.QCritic(q_function), lr.parse_estimator("peng:0.7")), wanted)


def test_blocks_of_given_slots_keep_a_tail_out_of_the_rows() -> None:
    memory, (table, q_function) = random_memory(end_probability=0), tabular()
    blocks = promote_slots(memory, np.array([[0, 1, 2, 3, 4]]), discount=0.5, length=2)
    assert blocks.rewards.shape == (1, 4)
    cache = lr.build_cache(blocks, lr.QCritic(q_function), lr.parse_estimator("nstep:3"))
    assert_array_equal(cache.slots, [0, 1])
    rewards, bootstrap = memory.rewards, table[memory.observations[3]].max()
    expected = rewards[0] + 0.5 * rewards[1] + 0.25 * rewards[2] + 0.125 * bootstrap
    assert cache.returns[0] == pytest.approx(expected, rel=1e-5)


def test_what_a_critic_says_of_closing_slots_does_not_count() -> None:
    memory = lr.ReplayMemory(50, (), np.uint8, action_shape=(2,))
    for number in range(12):
        if not memory.get_state()["is_open"][0]:
            memory.begin(frame(0))
        memory.append([0, 0], 1.0, frame(1), truncated=number % 3 == 2, behaviour_prob=0.0)
    cache = build(memory, ActorCritic(np.full(2, 7, dtype=np.float32)), size=60, block_length=5)
    assert np.count_nonzero(~cache.is_transition) > 5
    assert_array_equal(cache.td_errors[~cache.is_transition], 0)
    assert_array_equal(cache.returns[~cache.is_transition], 0)


# --- errors -----------------------------------------------------------------------------------------------------------


class Forgetful:
    """Leaves the last step of every block out."""

    def evaluate(self, blocks: lr.Promoted) -> lr.Block:
        _, q_function = tabular()
        shorter = promote_slots(blocks.memory, blocks.slots[:, :-1], discount=0.9, length=blocks.length)
        return lr.QCritic(q_function).evaluate(shorter)


@pytest.mark.parametrize(
    ("mistake", "names"),
    [
        (lambda: worked_cache("watkins:0.8"), "greedy.*peng"),
        (lambda: worked_cache("tree:0.8"), "probabilities.*peng"),
        (lambda: worked_cache("sarsa:0.8@0.1"), "@ε"),
        (lambda: worked_cache("retrace:0.8@0.1"), "@ε"),
        (lambda: build(random_memory(), Forgetful()), r"critic.*\(20, 19\).*\(20, 20\)"),
        (lambda: build(random_memory(), Forgetful(), tail=3), r"critic.*\(20, 22\).*\(20, 23\)"),
        # A Q-function with a column per action for a memory of vectors.
        (lambda: build(worked_memory(), tabular()[1], size=3, block_length=3), "actions.*float32"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(mistake: Callable[[], object], names: str) -> None:
    with pytest.raises(lr.ConfigError, match=names) as caught:
        mistake()
    text = str(caught.value)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
