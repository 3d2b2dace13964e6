"""DRQN(λ): unrolled along blocks it is what it is step by step; without a cell it is DQN(λ); it resumes and learns."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from processes import Server, command_line
from small_runs import differences, resume_to_end, small_config, train_to_end, train_until

from benchmarks.memory_chain import share_right
from lambda_replay.agents.protocol import Remembers, following
from lambda_replay.agents.recurrent_acting import RecurrentActing, RecurrentPolicy
from lambda_replay.agents.run_settings import override, to_dict
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import NetworkConfig, RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.errors import ConfigError, DivergenceError
from lambda_replay.learning.device import QNetwork
from lambda_replay.learning.learner import Learner
from lambda_replay.learning.networks import make_network
from lambda_replay.learning.recurrent_critic import RecurrentCritic, recurrent, sequence_samples
from lambda_replay.learning.recurrent_network import Cell, Inputs, RecurrentNetwork, cut
from lambda_replay.replay.cache import Cache, build_cache, fill_cache
from lambda_replay.replay.critic import HIDDEN, Promoted, QCritic, promote, promote_slots
from lambda_replay.replay.data import Floats
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.sequences import SequenceBatch, Sequences
from lambda_replay.rundir.checkpoints import tensor_file
from lambda_replay.rundir.files import load_tensors
from lambda_replay.rundir.resources import estimate
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.loop import Boundary, GameEnd, Learned
from lambda_replay.training.presets import make_config

CPU = torch.device("cpu")
CELLS: list[Cell] = ["gru", "lstm"]
NUM_ACTIONS, UNITS = 3, 8
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "vector": ((2,), np.float32),
    "planes": ((5, 6, 3), np.bool_),
    "pixels": ((36, 36), np.uint8),
}


def make_module(
    cell: Cell = "gru",
    shape: tuple[int, ...] = (2,),
    *,
    history: int = 1,
    has_reward: bool = True,
    shortcut: bool = True,
    seed: int = 0,
) -> RecurrentNetwork:
    config = NetworkConfig(hidden=(8,), width=0.25)
    plain = make_network(config, (history, *shape), NUM_ACTIONS, seed)
    return RecurrentNetwork(
        plain,
        NUM_ACTIONS,
        cell=cell,
        units=UNITS,
        hidden=6,
        shortcut=shortcut,
        has_reward=has_reward,
        seed=seed + 1,
    )


def make_qnetwork(cell: Cell = "gru", shape: tuple[int, ...] = (2,), **options: Any) -> QNetwork:
    return QNetwork(make_module(cell, shape, **options), CPU)


def observations(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Any:
    return (255 * rng.random(shape)).astype(dtype) if dtype == np.uint8 else (rng.normal(size=shape) > 0).astype(dtype)


def play_letters(
    letters: str, shape: tuple[int, ...] = (2,), dtype: Any = np.float32, acting: Any = None, *, seed: int = 0
) -> tuple[ReplayMemory, list[Floats]]:
    """A memory filled by a script: "." a step, "T" the last of a terminated episode, "U" of a truncated one.

    And the Q-values [A] of ``acting``, a function of the memory, in every slot, also in those that close an episode: a
    truncated one bootstraps from them.
    """
    rng = np.random.default_rng(seed)
    memory = ReplayMemory(len(letters) * 2 + 5, shape, dtype)
    ask = acting(memory) if acting is not None else lambda states: np.zeros((1, NUM_ACTIONS))
    memory.begin(observations(shape, dtype, rng))
    seen = []
    for letter in letters:
        seen.append(ask(memory.newest_states())[0])
        memory.append(
            int(rng.integers(NUM_ACTIONS)), float(rng.normal()), observations(shape, dtype, rng), letter == "T",
            letter == "U", 0.5,
        )  # fmt: skip
        if letter in "TU":
            seen.append(ask(memory.newest_states())[0])
            memory.begin(observations(shape, dtype, rng))
    seen.append(ask(memory.newest_states())[0])
    return memory, seen


def block_at(memory: ReplayMemory, first: int, length: int, burn_in: int) -> Promoted:
    """One block whose burn-in begins with slot ``first``."""
    slots = first + np.arange(burn_in + length + 1)[None]
    return promote_slots(memory, slots, discount=0.9, length=length, burn_in=burn_in)


# --- unrolled and step by step ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("cell", CELLS)
def test_a_block_unrolled_is_its_episodes_played_step_by_step(cell: Cell, kind: str) -> None:
    """The burn-in reaches the start of the first episode, so every state of the block has its whole past."""
    shape, dtype = SHAPES[kind]
    network = make_qnetwork(cell, shape)
    letters = "....T..U.........T......"
    memory, seen = play_letters(letters, shape, dtype, lambda memory: RecurrentActing(network, memory).q_values)
    blocks = block_at(memory, 0, length=22, burn_in=3)
    unrolled = RecurrentCritic(network).evaluate(blocks).q_values[0]  # [L+1, A]
    assert unrolled.shape == (23, NUM_ACTIONS)
    assert_allclose(unrolled, seen[3:26], atol=1e-6)


def hidden_column(cell: Cell) -> dict[str, Any]:
    return {HIDDEN: ((make_module(cell).state_size,), np.float32)}


def play_at_random(
    network: QNetwork, memory: ReplayMemory, rng: np.random.Generator
) -> tuple[dict[int, Floats], dict[int, int]]:
    """60 steps in every stream; by slot, the Q-values [A] when acting, and the steps since the episode's start."""
    acting, depth = RecurrentActing(network, memory), [0] * memory.num_streams
    seen: dict[int, Floats] = {}
    depths: dict[int, int] = {}
    for stream in range(memory.num_streams):
        memory.begin(rng.normal(size=2).astype(np.float32), stream)
    for _ in range(60):
        q_values = acting.q_values(memory.newest_states())
        for stream, slot in enumerate(memory.newest_slots().tolist()):
            seen[slot], depths[slot] = q_values[stream], depth[stream]
            letter, after = rng.choice(list("......TUA")), rng.normal(size=2).astype(np.float32)
            if letter == "A":
                memory.abandon(stream)
            else:
                action, reward = int(rng.integers(NUM_ACTIONS)), float(rng.normal())
                kept = dict.fromkeys(memory.columns, acting.hidden[stream])
                memory.append(action, reward, after, letter == "T", letter == "U", 0.5, stream, **kept)
            depth[stream] += 1
            if letter != ".":
                memory.begin(after, stream)
                depth[stream] = 0
    return seen, depths


@given(
    streams=st.integers(1, 3),
    history=st.integers(1, 3),
    burn_in=st.integers(0, 5),
    newest=st.booleans(),
    keeps_states=st.booleans(),
    cell=st.sampled_from(CELLS),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_blocks_of_a_memory_that_wrapped_around_unrolled_are_what_was_seen_when_acting(
    *, streams: int, history: int, burn_in: int, newest: bool, keeps_states: bool, cell: Cell, seed: int
) -> None:
    """Several streams, stacked frames, ends and abandoned episodes anywhere.

    Without stored hidden states only what has its whole episode in the block can be compared; with them, everything.
    """
    rng, length = np.random.default_rng(seed), 6
    network = QNetwork(make_module(cell, history=history), CPU)
    memory = ReplayMemory(
        24 * streams,
        (2,),
        np.float32,
        history,
        num_streams=streams,
        columns=hidden_column(cell) if keeps_states else {},
    )
    seen, depths = play_at_random(network, memory, rng)
    size = length * (streams + 4)
    blocks = promote(memory, discount=0.9, size=size, block_length=length, rng=rng, newest=newest, burn_in=burn_in)
    unrolled = RecurrentCritic(network).evaluate(blocks).q_values  # [K, L+1, A]
    known = [
        (block, place)
        for block, place in np.argwhere(blocks.transitions.is_step).tolist()
        if (keeps_states and burn_in > 0) or depths[int(blocks.slots[block, place])] <= burn_in + place
    ]
    assert known
    for block, place in known:
        assert_allclose(unrolled[block, place], seen[int(blocks.slots[block, place])], atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_before_the_start_that_the_burn_in_misses_it_is_another_state(cell: Cell) -> None:
    """So the test above can fail: here the block's first states lack the beginning of their episode."""
    network = make_qnetwork(cell)
    memory, seen = play_letters("......T.....", acting=lambda memory: RecurrentActing(network, memory).q_values)
    unrolled = RecurrentCritic(network).evaluate(block_at(memory, 2, length=9, burn_in=2)).q_values[0]
    assert np.abs(unrolled[:3] - seen[4:7]).min() > 1e-5
    assert_allclose(unrolled[4:], seen[8:14], atol=1e-6)  # the next episode, from its first state on


@given(
    letters=st.text("....TU", min_size=12, max_size=12),
    first=st.integers(0, 3),
    burn_in=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    cell=st.sampled_from(CELLS),
)
@settings(max_examples=60, deadline=None)
def test_a_state_after_an_end_depends_on_nothing_before_it(
    letters: str, first: int, burn_in: int, seed: int, cell: Cell
) -> None:
    """Everything before the last start in the block is replaced; the Q-values from there on stay the same bytes."""
    network, length = make_qnetwork(cell), 6
    one, _ = play_letters(letters, seed=0)
    blocks = block_at(one, first, length, burn_in)
    starts = np.flatnonzero(blocks.before.is_start[0, 1:]) + 1  # in the unrolled slots, where an episode begins
    if len(starts) == 0:
        return
    last, rng = int(starts[-1]), np.random.default_rng(seed)
    before = RecurrentCritic(network).evaluate(blocks).q_values[0]
    earlier = blocks.unrolled_slots[0, :last]
    one.observations[earlier] = rng.normal(size=(last, 2))
    is_step = one.is_step[earlier]
    one.actions[earlier[is_step]] = rng.integers(NUM_ACTIONS, size=int(is_step.sum()))
    one.rewards[earlier[is_step]] = rng.normal(size=int(is_step.sum()))
    after = RecurrentCritic(network).evaluate(block_at(one, first, length, burn_in)).q_values[0]
    kept = max(0, last - burn_in)
    assert_array_equal(after[kept:], before[kept:])
    if last > burn_in:
        assert not np.array_equal(after[:kept], before[:kept])


def test_what_came_before_is_the_action_and_the_reward_one_step_earlier() -> None:
    """Slots of "..T.": 0 1 2 are steps, 3 closes the episode, 4 begins the next one."""
    memory, _ = play_letters("..T...")
    blocks = block_at(memory, 0, length=4, burn_in=2)
    is_start, actions, rewards = (part[0] for part in blocks.before)
    assert is_start.tolist() == [True, False, False, False, True, False, False]
    known = [1, 2, 3, 5, 6]
    assert_array_equal(actions[known], memory.actions[[0, 1, 2, 4, 5]])
    assert_array_equal(rewards[known], memory.rewards[[0, 1, 2, 4, 5]])
    assert actions[[0, 4]].tolist() == rewards[[0, 4]].tolist() == [0, 0]
    newest = memory.before_newest()
    assert (newest.is_start.tolist(), newest.actions[0], newest.rewards[0]) == (
        [False], memory.actions[6], memory.rewards[6],
    )  # fmt: skip


def test_the_newest_state_knows_when_it_begins_an_episode() -> None:
    memory = ReplayMemory(4, (2,), np.float32, num_streams=2)
    for stream in range(2):
        memory.begin(np.zeros(2), stream)
    assert memory.before_newest().is_start.tolist() == [True, True]
    memory.append(1, 2.0, np.zeros(2), stream=0)
    memory.append(1, 3.0, np.zeros(2), terminated=True, stream=1)
    memory.begin(np.zeros(2), 1)
    assert memory.before_newest().is_start.tolist() == [False, True]
    assert memory.before_newest().rewards.tolist() == [2, 0]
    memory.abandon(0)
    memory.begin(np.zeros(2), 0)
    assert memory.before_newest().is_start.tolist() == [True, True]


@given(is_start=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6))
def test_pieces_are_in_the_order_that_torch_packs(is_start: list[list[bool]]) -> None:
    """The reference cuts the sequences by hand and lets torch pack them."""
    starts = np.array(is_start)
    pieces, firsts, lasts = cut(starts), [], []
    own: list[torch.Tensor] = []
    for number, row in enumerate(starts):
        firsts.append(len(own))
        cuts = [0, *(time for time in range(1, 5) if row[time]), 5]
        own += [torch.arange(5 * number + a, 5 * number + b) for a, b in pairwise(cuts)]
        lasts.append(len(own) - 1)
    packed = torch.nn.utils.rnn.pack_sequence(own, enforce_sorted=False)
    assert pieces.number == len(own)
    assert_array_equal(pieces.batch_sizes, packed.batch_sizes)
    steps = np.split(pieces.order, np.cumsum(pieces.batch_sizes)[:-1])
    for piece, first, last in zip(range(len(starts)), pieces.first, pieces.last, strict=True):
        column = [int(row[first]) for row in steps if first < len(row)]
        assert column == own[firsts[piece]].tolist()
        assert [int(row[last]) for row in steps if last < len(row)] == own[lasts[piece]].tolist()
    assert_array_equal(pieces.order[pieces.places], np.arange(starts.size))


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", ["peng:0.8", "watkins:0.9", "retrace:0.9@0.1", "median", "bounded:0.1", "nstep:3"]
)
def test_without_a_cell_the_returns_are_those_of_dqn_lambda(estimator: str) -> None:
    """The same weights, the same blocks: the same returns and TD errors."""
    plain = QNetwork(make_network(NetworkConfig(hidden=(8,)), (1, 2), NUM_ACTIONS, seed=3), CPU)
    source = make_network(NetworkConfig(hidden=(8,)), (1, 2), NUM_ACTIONS, seed=3)
    own = QNetwork(
        RecurrentNetwork(
            source, NUM_ACTIONS, cell="none", units=UNITS, hidden=6, shortcut=True, has_reward=True, seed=9
        ),
        CPU,
    )
    memory, _ = play_letters("....T......U......T.........")
    slots = np.stack([first + np.arange(13) for first in (0, 4, 9)])
    blocks = promote_slots(memory, slots, discount=0.9, length=12)
    burnt = promote_slots(memory, slots, discount=0.9, length=8, burn_in=4)
    narrow = promote_slots(memory, slots[:, 4:], discount=0.9, length=8)
    for ours, theirs in ((blocks, blocks), (burnt, narrow)):
        one = build_cache(ours, RecurrentCritic(own), parse_estimator(estimator))
        other = build_cache(theirs, QCritic(plain, own.chunk_size), parse_estimator(estimator))
        assert_allclose(one.returns, other.returns, atol=1e-6)
        assert_allclose(one.td_errors, other.td_errors, atol=1e-6)
        assert_array_equal(one.slots, other.slots)


def test_without_a_cell_a_gradient_step_is_that_of_dqn_lambda() -> None:
    config = make_config("CartPole-v1").algorithm.optimizer  # type: ignore[attr-defined]
    plain = QNetwork(make_network(NetworkConfig(hidden=(8,)), (1, 2), NUM_ACTIONS, seed=3), CPU)
    own = QNetwork(
        RecurrentNetwork(
            make_network(NetworkConfig(hidden=(8,)), (1, 2), NUM_ACTIONS, seed=3),
            NUM_ACTIONS, cell="none", units=UNITS, hidden=6, shortcut=True, has_reward=True, seed=9,
        ),
        CPU,
    )  # fmt: skip
    memory, _ = play_letters("....T......U......T.........")
    blocks = promote_slots(memory, np.stack([np.arange(13), 9 + np.arange(13)]), discount=0.9, length=12)
    cache = build_cache(blocks, QCritic(plain), parse_estimator("peng:0.8"))
    sequences = Sequences(cache, blocks, 4, np.zeros((2, 3, 0), dtype=np.float32))
    batch, rows = sequences.minibatch(np.array([0, 2, 5])), sequences.rows(np.array([0, 2, 5])).reshape(-1)
    Learner(plain, config).train([cache.minibatch(rows[cache.is_transition[rows]])])
    summary = Learner(own, config, samples_of=sequence_samples).train([batch])
    assert np.isfinite(summary.loss)
    for one, other in zip(plain.weights().values(), own.weights().values(), strict=True):
        assert_allclose(one.numpy(), other.numpy(), atol=1e-6)


def test_without_a_cell_a_whole_run_is_one_of_dqn_lambda() -> None:
    """The same games and, but for the order of sums, the same metrics: sequences of one step are plain samples."""
    values: dict[str, Any] = {"memory": {"storage": "ram"}, "checkpoint_every": 0, "steps": 600}
    plain = small_config("CartPole-v1", **values)
    shared = {name: to_dict(plain)[name] for name in ("estimator", "cache", "exploration", "optimizer", "network")}
    recurrence = {"cell": "none", "burn_in": 0, "sequence_length": 1}
    own = small_config("CartPole-v1", "drqn-lambda", **values, **shared, recurrence=recurrence)
    one, other = (list(assemble(config, make_environments(config)).loop.run()) for config in (own, plain))
    assert [event for event in one if isinstance(event, GameEnd)] == [
        event for event in other if isinstance(event, GameEnd)
    ]
    pairs = [
        (mine.metrics, theirs.metrics)
        for mine, theirs in zip(one, other, strict=True)
        if isinstance(mine, Learned) and isinstance(theirs, Learned) and "loss" in mine.metrics
    ]
    assert len(pairs) == 8
    for mine, theirs in pairs:
        names = {name for name in mine if mine[name] is not None} & set(theirs)
        assert {"loss", "return_mean", "q_mean", "td_error_abs_mean", "gradient_norm"} <= names
        for name in names - {"dead_share_1", "dead_share_2"}:  # measured in other states
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name


# --- sequences --------------------------------------------------------------------------------------------------------


def sequences_of(
    network: QNetwork, memory: ReplayMemory, *, burn_in: int, length: int, sequence: int
) -> tuple[Cache, Promoted, Sequences]:
    """Three blocks of ``length`` steps, cut into sequences of ``sequence``."""
    slots = np.stack([first + np.arange(burn_in + length + 1) for first in (0, 3, 7)])
    blocks = promote_slots(memory, slots, discount=0.9, length=length, burn_in=burn_in)
    block, hidden = RecurrentCritic(network).unroll(blocks, sequence)
    cache = fill_cache(blocks, block, parse_estimator("peng:0.8"))
    return cache, blocks, Sequences(cache, blocks, sequence, hidden)


@pytest.mark.parametrize("keeps_states", [False, True])
@pytest.mark.parametrize("burn_in", [1, 2, 4])
@pytest.mark.parametrize("sequence", [1, 4, 12])
@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_has_the_q_values_of_its_block(cell: Cell, sequence: int, burn_in: int, keeps_states: bool) -> None:
    """The training pass and the refresh are two ways to the same Q-values, so the first errors are the TD errors.

    A sequence continues from the refresh's own hidden state, and the first of a block from the one that another network
    left when it acted. So this holds wherever a sequence begins in its episode.
    """
    network = make_qnetwork(cell)
    memory, _ = play_letters("....T...U....T...T....U...T.....")
    if keeps_states:
        plain, memory = memory, ReplayMemory(100, (2,), np.float32, columns=hidden_column(cell))
        play_at_random(make_qnetwork(cell, seed=5), memory, np.random.default_rng(0))
        assert memory.is_step.sum() > plain.is_step.sum()
    cache, _, sequences = sequences_of(network, memory, burn_in=burn_in, length=12, sequence=sequence)
    for number in range(3 * 12 // sequence):
        batch = sequences.minibatch(np.array([number]))
        assert batch.burn_in == burn_in
        rows = sequences.rows(np.array(number))
        wanted = cache.td_errors[rows[cache.is_transition[rows]]]
        if len(wanted) == 0:
            continue
        inputs, actions, returns = sequence_samples(network, batch)
        values = network.module(inputs).gather(1, actions)[:, 0].detach().numpy()
        assert_allclose(returns.numpy() - values, wanted, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_without_a_burn_in_a_sequence_starts_from_zero(cell: Cell) -> None:
    network = make_qnetwork(cell)
    memory, _ = play_letters("........................")
    cache, _, sequences = sequences_of(network, memory, burn_in=0, length=8, sequence=4)
    batch = sequences.minibatch(np.arange(6))
    assert not batch.hidden.any()
    assert batch.before.is_start[:, 0].all()
    inputs, actions, returns = sequence_samples(network, batch)
    errors = (returns - network.module(inputs).gather(1, actions)[:, 0]).detach().numpy().reshape(3, 2, 4)
    td_errors = cache.td_errors.reshape(3, 2, 4)
    assert_allclose(errors[:, 0], td_errors[:, 0], atol=1e-6)  # each block's first sequence
    assert np.abs(errors[:, 1] - td_errors[:, 1]).max() > 1e-5  # the second lacks what the block knows


@pytest.mark.parametrize("cell", CELLS)
def test_a_burn_in_continues_from_the_state_that_acting_left(cell: Cell) -> None:
    """An earlier network acted: its hidden state at the burn-in's first slot is taken, and nothing else of it."""
    acting_network, network = make_qnetwork(cell, seed=0), make_qnetwork(cell, seed=5)
    rng = np.random.default_rng(0)
    memory = ReplayMemory(40, (2,), np.float32, columns=hidden_column(cell))
    acting = RecurrentActing(acting_network, memory)
    memory.begin(rng.normal(size=2))
    for _ in range(20):
        acting.q_values(memory.newest_states())
        memory.append(int(rng.integers(NUM_ACTIONS)), 1.0, rng.normal(size=2), hidden=acting.hidden[0])
    unrolled = RecurrentCritic(network).evaluate(block_at(memory, 5, length=8, burn_in=3)).q_values[0]  # [L+1, A]
    module = network.module
    assert isinstance(module, RecurrentNetwork)
    hidden, seen = torch.from_numpy(memory.arrays[HIDDEN][[5]]), []
    for slot in range(6, 17):
        before = memory.transitions(np.array([[slot - 1]]))
        inputs = Inputs(np.array([[False]]), torch.from_numpy(before.actions.astype(np.int64)), torch.ones(1, 1))
        q_values, hidden = module.step(torch.from_numpy(memory.states(np.array([slot]))), inputs, hidden)
        seen.append(q_values[0].detach().numpy())
    assert_allclose(unrolled, seen[2:], atol=1e-6)


def test_sequences_are_rows_in_order_with_the_slots_before_them() -> None:
    memory, _ = play_letters("....T...U....T...T....U...T.....")
    cache, blocks, sequences = sequences_of(make_qnetwork(), memory, burn_in=2, length=6, sequence=3)
    batch = sequences.minibatch(np.array([3]))  # the second of the second block, whose burn-in begins with slot 3
    assert_array_equal(batch.states[0, :, 0], memory.observations[6:11])
    assert_array_equal(batch.actions[0], memory.actions[8:11])
    assert_array_equal(batch.returns[0], cache.returns[9:12])
    assert_array_equal(batch.is_transition[0], memory.is_step[8:11])
    assert batch.before.is_start[0].tolist() == [True, *(~memory.is_step[6:10]).tolist()]
    with pytest.raises(ConfigError, match="blocks of 6 steps cannot be cut into sequences of 4"):
        Sequences(cache, blocks, 4, np.zeros((3, 2, UNITS), dtype=np.float32))


def test_sequences_are_drawn_by_the_mean_error_of_their_transitions() -> None:
    """Two of six sequences lie above the quantile of 0.7, so all priority goes to them."""
    memory, _ = play_letters("....T...U....T...T....U...T.....")
    cache, _, sequences = sequences_of(make_qnetwork(), memory, burn_in=2, length=6, sequence=3)
    cache.td_errors[:] = 0
    transitions = np.flatnonzero(cache.is_transition)
    cache.td_errors[[row for row in transitions if row // 3 == 1]] = -5
    cache.td_errors[[row for row in transitions if row // 3 == 4]] = 2
    drawn = sequences.sample(8, 50, 1.0, 0.7, rng=np.random.default_rng(0))
    assert drawn.shape == (50, 8)
    assert set(drawn.reshape(-1).tolist()) == {1, 4}
    assert len(set(sequences.sample(8, 50, 0.0, rng=np.random.default_rng(0)).reshape(-1).tolist())) == 6


def literal_loss(module: RecurrentNetwork, batch: SequenceBatch) -> torch.Tensor:
    """The mean of [R − Q(s, a)]² over the transitions of a minibatch, one sequence and one step after the other."""
    assert module.cell is not None
    errors = []
    for number in range(len(batch.states)):
        given = torch.from_numpy(batch.hidden[[number]])  # from the refresh, behind the burn-in's first slot
        hidden: Any = given if isinstance(module.cell, torch.nn.GRU) else tuple(given.chunk(2, dim=-1))
        for time, state in enumerate(torch.from_numpy(batch.states[number])):
            if time == 0:
                continue
            is_start, action, reward = (part[number, time] for part in batch.before)
            hidden = None if is_start else hidden
            before = torch.zeros(NUM_ACTIONS)
            before[int(action)] = float(not is_start)
            features = module.encode(state[None])[0]
            outputs, hidden = module.cell(torch.cat([features, before, torch.tensor([float(reward)])])[None], hidden)
            step = time - batch.burn_in
            if step == -1:  # what the burn-in leaves behind is given
                hidden = tuple(part.detach() for part in hidden) if isinstance(hidden, tuple) else hidden.detach()
            if step >= 0 and batch.is_transition[number, step]:
                behind = torch.cat([outputs[0], features]) if module.has_shortcut else outputs[0]
                value = module.head(behind)[int(batch.actions[number, step])]
                errors.append(float(batch.returns[number, step]) - value)
    return torch.stack(errors).square().mean()


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_through_the_cell_is_that_of_a_plain_loop(cell: Cell, shortcut: bool) -> None:
    """Ends in the burn-in and in the sequences, whose closing slots have no return to learn from."""
    network = make_qnetwork(cell, shortcut=shortcut)
    memory, _ = play_letters("...T...U....T.........")
    _, _, sequences = sequences_of(network, memory, burn_in=3, length=8, sequence=4)
    batch = sequences.minibatch(np.arange(4))
    assert batch.before.is_start[:, 1:3].any()
    assert batch.before.is_start[:, 4:].any()
    assert not batch.is_transition.all()
    inputs, actions, returns = sequence_samples(network, batch)
    ours = (returns - network.module(inputs).gather(1, actions)[:, 0]).square().mean()
    module = network.module
    assert isinstance(module, RecurrentNetwork)
    parameters = list(module.parameters())
    theirs = literal_loss(module, batch)
    for one, other in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True):
        assert_allclose(one, other, atol=1e-6)
        assert one.abs().max() > 1e-4


def test_the_burn_in_is_not_trained_on() -> None:
    """States of the burn-in have no gradient; those of the sequence have one."""
    network = make_qnetwork()
    memory, _ = play_letters("......T......")
    _, _, sequences = sequences_of(network, memory, burn_in=3, length=4, sequence=4)
    inputs, _, _ = sequence_samples(network, sequences.minibatch(np.array([1])))
    states = inputs.states.clone().requires_grad_()
    network.module(inputs._replace(states=states)).sum().backward()
    assert states.grad is not None
    sizes = states.grad[0].flatten(1).abs().sum(dim=1)
    assert sizes[:3].tolist() == [0, 0, 0]
    assert sizes[3] > 0


# --- acting and policies ----------------------------------------------------------------------------------------------


def test_a_policy_follows_a_memory_and_starts_afresh_with_another() -> None:
    network = make_qnetwork()
    policy = RecurrentPolicy(network)
    assert isinstance(policy, Remembers)
    memory, _ = play_letters("...")
    states, rng = memory.newest_states(), np.random.default_rng(0)
    one, other = following(policy, memory), following(policy, memory)
    one.act(states, 0.0, rng)
    assert isinstance(one.critic, RecurrentCritic)
    first, second = (RecurrentActing(network, memory) for _ in range(2))
    first.q_values(states)
    assert not np.array_equal(first.q_values(states), second.q_values(states))  # it remembers the state before
    assert_array_equal(other.act(states, 0.0, rng).actions, following(policy, memory).act(states, 0.0, rng).actions)
    alone = policy.act(np.repeat(states, 4, axis=0), 0.0, rng)
    assert len(set(alone.actions.tolist())) == 1


def test_streams_have_hidden_states_of_their_own() -> None:
    network = make_qnetwork()
    memory = ReplayMemory(40, (2,), np.float32, num_streams=2)
    twin = ReplayMemory(20, (2,), np.float32)
    acting, alone, rng = RecurrentActing(network, memory), RecurrentActing(network, twin), np.random.default_rng(0)
    for stream in range(2):
        memory.begin(np.full(2, stream), stream)
    twin.begin(np.full(2, 1.0))
    for time in range(8):
        both, one = acting.q_values(memory.newest_states()), alone.q_values(twin.newest_states())
        assert_allclose(both[1], one[0], atol=1e-6)
        observation, ended = rng.normal(size=2), time == 4
        memory.append(0, 0.0, np.zeros(2), terminated=time == 2, stream=0)
        if time == 2:
            memory.begin(np.zeros(2), 0)
        memory.append(time % 3, 1.0, observation, terminated=ended, stream=1)
        twin.append(time % 3, 1.0, observation, terminated=ended)
        if ended:
            memory.begin(observation, 1)
            twin.begin(observation)


# --- runs -------------------------------------------------------------------------------------------------------------


def tiny(env: str = "CartPole-v1", envs: int = 1, **values: Any) -> RunConfig:
    own: dict[str, Any] = {
        "recurrence": {"units": 8, "burn_in": 4, "sequence_length": 10},
        "network": {"hidden": (8,), "width": 0.25},
        "optimizer": {"batch_size": 4},
    }
    return small_config(env, "drqn-lambda", envs, **{**own, **values})


@pytest.mark.parametrize(
    "config",
    [
        tiny(observe=[0, 2]),
        tiny(envs=3, recurrence={"cell": "lstm", "reward": True, "units": 8, "sequence_length": 5, "burn_in": 0}),
        tiny(cache={"schedule": "concurrent"}, memory={"capacity": 400}),
        tiny("minatar/breakout", 2, estimator="median", cache={"priority": 0.5}),
        tiny(recurrence={"cell": "none", "sequence_length": 10, "burn_in": 4, "units": 8}),
    ],
    ids=["gru", "lstm-3", "concurrent", "minatar-2", "none"],
)
def test_stopped_and_resumed_to_the_same_bytes(tmp_path: Path, config: RunConfig) -> None:
    whole = train_to_end(tmp_path / "whole", config)
    train_until(tmp_path / "run", config, 350)
    hidden = load_tensors(tensor_file(tmp_path / "run" / "checkpoints" / "300", "hidden"))["state"]
    assert hidden.shape[0] == config.envs
    assert resume_to_end(tmp_path / "run") == []
    assert not differences(whole, tmp_path / "run")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line() as server:
        yield server


TINY = [
    "--agent", "drqn-lambda", "--steps", "420", "--envs", "1", "--memory.start", "120", "--memory.capacity", "240",
    "--checkpoint-every", "60", "--threads", "1", "--cache.size", "60", "--cache.block-length", "20",
    "--cache.refresh-every", "60", "--cache.updates", "4", "--recurrence.sequence-length", "10",
    "--recurrence.units", "8", "--recurrence.burn-in", "5", "--optimizer.batch-size", "4", "--network.hidden", "8",
]  # fmt: skip


def test_killed_and_resumed_and_known_to_every_command(server: Server, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train = ["train", "CartPole-v1", "--observe", "0", "2", *TINY, "--out"]
    reference = server.run(*train, whole, die_at=0)
    assert reference.code == 0, reference.err
    assert server.run(*train, killed, die_at=reference.calls * 2 // 3).code == -signal.SIGKILL
    assert server.run("resume", killed).code == 0
    assert not differences(whole, killed)
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    for name in (
        "loss", "gradient_norm", "priority", "td_error_abs_mean", "return_mean", "q_std_states", "q_std_actions",
        "trace_mean", "sample_age_mean", "sample_repeated_share", "dead_share_1", "weight_norm", "epsilon",
    ):  # fmt: skip
        assert np.isfinite(rows[0][name]), name
    evaluated = server.run("evaluate", whole, "--games", "3", "--json")
    assert json.loads(evaluated.out)["games"] == 3, evaluated.err
    film, picture = tmp_path / "film.gif", tmp_path / "block.png"
    assert server.run("watch", whole, "--max-steps", "5", "--out", film).code == 0
    inspected = server.run("inspect", whole, "--length", "20", "--out", picture)
    assert "20 steps under peng:0.95, nstep:3, peng:0.75, watkins:0.75, median" in inspected.out, inspected.err
    described = server.run("describe", "CartPole-v1", *TINY)
    assert "recurrence.cell" in described.out, described.err
    assert server.run("verify", whole).code == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"recurrence": {"sequence_length": 7}},
            r"sequence_length \(7\) must divide cache.block_length \(20\), so that",
        ),
        ({"recurrence": {"burn_in": -1}}, r"recurrence.burn_in is -1; give 0 or more agent steps\."),
        ({"recurrence": {"units": 0}}, r"recurrence.units is 0; give a number above 0\."),
        ({"recurrence": {"units": 20_000}}, r"recurrence.units is 20000; give a number up to 16384\."),
        ({"recurrence": {"burn_in": 100}}, r"memory.start .* smaller than a block, which needs 121 slots"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        override(tiny(), changes)


def test_a_network_of_one_s_own_is_refused() -> None:
    config = tiny()
    with pytest.raises(ConfigError, match="drqn-lambda takes no network of your own"):
        agent_kind("drqn-lambda").check(config, make_environment(config).spec, torch.nn.Linear(4, 2))


def test_needs_follow_the_settings() -> None:
    config = tiny()
    spec = make_environment(config).spec
    large = estimate(override(config, {"recurrence": {"units": 2_048}}), spec)
    weights = 3 * 2_048 * (2_048 + 8 + 2)
    assert large.ram_bytes > estimate(config, spec).ram_bytes + weights * 4 * 9
    assert large.to_lower == "recurrence.units (2048)"


@pytest.mark.parametrize("cell", CELLS)
def test_the_memory_keeps_the_hidden_state_that_every_step_left(cell: Cell) -> None:
    """Compared with each stream's own episodes, one step after the other, before anything is learnt."""
    config = tiny(
        envs=3,
        recurrence={"cell": cell, "units": 8, "burn_in": 4, "sequence_length": 10},
        memory={"storage": "ram"},
        checkpoint_every=0,
    )
    assembly = assemble(config, make_environments(config))
    next(event for event in assembly.loop.run() if isinstance(event, Boundary) and event.step >= config.memory.start)
    memory, weights = assembly.memory, assembly.agent.get_tensors()["weights"]
    policy = agent_kind("drqn-lambda").load(config, make_environment(config).spec, weights)
    assert isinstance(policy, RecurrentPolicy)
    module, num_steps = recurrent(policy.network), 0
    for stream, written in enumerate(memory.written):
        hidden, before = torch.zeros(1, module.state_size), None
        for slot in (int(memory.ring.slot(stream, number)) for number in range(written)):
            is_start = before is None or not memory.is_step[before]
            action = 0 if is_start else int(memory.actions[before])
            inputs = Inputs(np.array([[is_start]]), torch.tensor([[action]]), torch.zeros(1, 1))
            with torch.inference_mode():
                _, hidden = module.step(torch.from_numpy(memory.states(np.array([slot]))), inputs, hidden)
            before = slot
            if memory.is_step[slot]:
                assert_allclose(memory.arrays[HIDDEN][slot], hidden[0], atol=1e-6)
                num_steps += 1
            else:
                assert not memory.arrays[HIDDEN][slot].any()
    assert num_steps == config.memory.start


@pytest.mark.parametrize(("cell", "size"), [("gru", 8), ("lstm", 16), ("none", 0)])
def test_stored_hidden_states_are_counted_in_what_a_run_needs(cell: Cell, size: int) -> None:
    config = tiny(recurrence={"cell": cell, "units": 8, "burn_in": 4, "sequence_length": 10})
    spec, without = make_environment(config).spec, override(config, {"recurrence": {"burn_in": 0}})
    assert agent_kind("drqn-lambda").columns(config, spec) == ({HIDDEN: ((size,), np.float32)} if size else {})
    difference = estimate(config, spec).replay_bytes - estimate(without, spec).replay_bytes
    assert difference >= config.memory.capacity * size * 4  # spare slots for checkpoints are counted too
    assert (difference > 0) == (size > 0)


def test_a_hidden_state_that_is_not_finite_is_divergence() -> None:
    """The loss is measured before an update, so the last one of a refresh can break the weights unseen."""
    config = tiny(
        memory={"storage": "ram"}, checkpoint_every=0, cache={"updates": 1}, optimizer={"learning_rate": 1e30}
    )
    with pytest.raises(DivergenceError, match="the hidden states are"):
        list(assemble(config, make_environments(config)).loop.run())


# --- learning ---------------------------------------------------------------------------------------------------------


def cue_config(agent: str) -> RunConfig:
    own: dict[str, Any] = {
        "env": "MemoryChain-v0",
        "envs": 1,
        "steps": 2_400,
        "checkpoint_every": 0,
        "estimator": "peng:0.8",
        "memory": {"capacity": 3_000, "start": 200, "storage": "ram"},
        "cache": {"size": 400, "block_length": 10, "refresh_every": 100, "updates": 25},
        "network": {"hidden": (16,)},
        "optimizer": {"batch_size": 16, "learning_rate": 3e-3},
        "exploration": {"steps": 1_500, "end": 0.05},
    }
    if agent == "drqn-lambda":
        own["recurrence"] = {"units": 16, "burn_in": 5, "sequence_length": 10}
    return override(make_config("CartPole-v1", agent=agent), own)


def trained_share_right(agent: str) -> float:
    """The share of 40 greedy games in which the trained agent chooses what the cue said."""
    config = cue_config(agent)
    environment, assembly = make_environment(config), assemble(config, make_environments(config))
    for _ in assembly.loop.run():
        pass
    policy = agent_kind(agent).load(config, environment.spec, assembly.agent.get_tensors()["weights"])
    return share_right(environment, policy, games=40)


def test_it_remembers_a_cue_that_others_forget() -> None:
    """Without a memory the choice is a coin's: right in half of the games."""
    assert trained_share_right("drqn-lambda") == 1.0
    assert trained_share_right("dqn-lambda") < 0.8
