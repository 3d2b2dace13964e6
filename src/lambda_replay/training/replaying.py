"""Replays games from their seeds and actions: finds them in a replay memory, and gives back their observations."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from lambda_replay.envs import Environment, EnvironmentSpec
from lambda_replay.replay.data import Booleans
from lambda_replay.rundir.memory_files import OBSERVATIONS, Arrays, Bytes, PackedGame, SlotMap, are_apart

ACTIONS, IS_STEP = "actions", "is_step"


class Storage(NamedTuple):
    """A replay memory's files, and the open games of the checkpoint that relies on them."""

    slots: SlotMap
    arrays: Arrays
    open_games: Sequence[Mapping[str, Any]]  # by stream: seed, first_slot, actions
    step: int  # agent steps of all streams together

    def steps(self, stream: int) -> Booleans:
        """Which of the stream's slots are steps."""
        numbers = self.slots.numbers(IS_STEP, stream)
        spans = self.slots.ring.spans(stream, numbers.start, numbers.stop)
        return np.concatenate([np.zeros((0, 1), bool), *(self.arrays[IS_STEP][a:b].view(bool) for a, b in spans)])[:, 0]

    def actions(self, game: PackedGame, spec: EnvironmentSpec) -> list[Any]:
        """A game's actions: those of an open game are in the checkpoint, even if its first slots were overwritten."""
        if self.is_open(game):
            return list(self.open_games[game.stream]["actions"])
        rows = self.slots.ring.slot(game.stream, np.arange(game.first, game.last - 1))
        taken = rows[self.arrays[IS_STEP][rows, 0] != 0]
        numbers = self.arrays[ACTIONS][taken].view(np.float32 if spec.is_continuous else np.int32)
        return numbers.reshape(len(taken), *spec.action_shape).tolist()

    def is_open(self, game: PackedGame) -> bool:
        return game.last == self.slots.written[game.stream]

    def fits(self, spec: EnvironmentSpec) -> bool:
        """Whether slots have the sizes of the environment's observations and actions."""
        action = np.zeros(spec.action_shape, np.float32 if spec.is_continuous else np.int32)
        observation = np.zeros(spec.observation_shape, spec.observation_dtype)
        sizes = self.slots.slot_bytes
        return (sizes.get(OBSERVATIONS), sizes.get(ACTIONS)) == (observation.nbytes, action.nbytes)


def find_games(storage: Storage, episodes: str) -> list[PackedGame]:
    """The games of which all actions are known, by the log of games that ended and the checkpoint's open ones.

    The log says how many steps all streams had taken when a game ended, so its place does not depend on other rows,
    which may be missing.
    """
    rows, games = _read_rows(episodes), []
    streams = len(storage.open_games)
    for stream, open_game in enumerate(storage.open_games):
        first_slot = storage.slots.numbers(IS_STEP, stream).start
        places = first_slot + np.flatnonzero(storage.steps(stream))  # slots of the steps that are still there
        overwritten = storage.step // streams - len(places)
        for row in (row for row in rows if row.stream == stream):
            end = (row.step - stream - 1) // streams + 1 - overwritten
            if 0 <= end - row.length < end <= len(places):
                first, last = int(places[end - row.length]), int(places[end - 1]) + 2  # a slot closes the game
                games.append(PackedGame(stream, row.seed, first, last))
        games.append(PackedGame(stream, open_game["seed"], open_game["first_slot"], storage.slots.written[stream]))
    games.sort(key=lambda game: (game.stream, game.first))
    is_sound = all(storage.slots.holds(game) for game in games) and are_apart(games)
    return games if is_sound else []  # a log that contradicts the memory tells nothing


class _Row(NamedTuple):
    """What a row of episodes.csv says about a game."""

    stream: int
    step: int
    length: int
    seed: int


def _read_rows(episodes: str) -> list[_Row]:
    try:
        return [_Row(*(int(row[name]) for name in _Row._fields)) for row in csv.DictReader(episodes.splitlines())]
    except (ValueError, KeyError, TypeError, csv.Error):
        return []


def replay(environment: Environment, seed: int, actions: Sequence[Any], *, is_open: bool) -> Iterator[Bytes]:
    """A game's observations as bytes, one for each of its slots; fewer if it ends too early.

    A lost life closes an episode with one slot and begins the next with another, which show the same.
    """
    dtype = environment.spec.observation_dtype

    def stored(observation: Any) -> Bytes:
        return np.ascontiguousarray(observation, dtype).reshape(-1).view(np.uint8)

    yield stored(environment.reset(seed))
    for number, action in enumerate(actions, start=1):
        if not environment.spec.accepts(action):
            return
        step = environment.step(action)
        yield stored(step.observation)
        if step.game_over:
            return
        if (step.terminated or step.truncated) and (is_open or number < len(actions)):
            yield stored(step.observation)


def replay_slots(environment: Environment, storage: Storage, game: PackedGame) -> Iterator[tuple[int, Bytes]]:
    """Where in the memory's files each observation of a replayed game belongs, and its bytes."""
    actions = storage.actions(game, environment.spec)
    known = storage.slots.numbers(OBSERVATIONS, game.stream)
    shown = replay(environment, game.seed, actions, is_open=storage.is_open(game))
    for number, observation in enumerate(islice(shown, game.last - game.first), start=game.first):
        if number in known:
            yield storage.slots.ring.slot(game.stream, number), observation


def repeats(environment: Environment, storage: Storage, game: PackedGame) -> bool:
    """Whether a replayed game shows exactly what the memory holds of it."""
    stored = storage.arrays[OBSERVATIONS]
    count = 0
    for slot, observation in replay_slots(environment, storage, game):
        if not np.array_equal(stored[slot], observation):
            return False
        count += 1
    return count == game.last - max(game.first, storage.slots.numbers(OBSERVATIONS, game.stream).start)


def is_deterministic(environment: Environment, storage: Storage, game: PackedGame) -> bool:
    """Whether a game shows the same when it is replayed twice."""
    digests = []
    for _ in range(2):
        digest = hashlib.blake2b()
        for _, observation in replay_slots(environment, storage, game):
            digest.update(observation.data)
        digests.append(digest.digest())
    return digests[0] == digests[1]
