"""The loop: the agent acts in the environments, its steps enter the memory, it learns; yields what happened."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from lambda_replay.agents.protocol import Agent
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, Step
from lambda_replay.errors import EnvironmentFault
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.training.playing import LARGEST_SEED, faults_told, store
from lambda_replay.training.worker import Worker

MAX_RANDOM_SCORES = 1_000  # of random play that are kept
SCORE_WINDOW = 100  # completed games whose mean is an agent's score; paper §5


class GameEnd(NamedTuple):
    """A whole game ended at ``step`` agent steps of the run; the fields are the columns of episodes.csv."""

    episode: int
    step: int
    stream: int
    score: float
    length: int
    seed: int
    ended: str  # "terminated" or "truncated"


class Boundary(NamedTuple):
    """A refresh (or a copy of the target network) is due next: the moment for a checkpoint."""

    step: int


class Learned(NamedTuple):
    """The agent trained; its metrics, with the scores up to now."""

    step: int
    metrics: dict[str, float | None]


Event = GameEnd | Boundary | Learned


@dataclass
class Game:
    """A game being played: (seed, actions) is all that is needed to replay it."""

    seed: int
    first_slot: int  # number of the stream's slot with the game's first observation
    actions: list[Any] = field(default_factory=list)
    score: float = 0.0
    reward_sum: float = 0.0  # of the rewards up to now, each discounted by its age
    reward_sum_max: float = 0.0  # the largest size it ever had


class Loop:
    """Steps the environments in lock-step and lets the agent learn; ``step`` counts agent steps of all of them."""

    def __init__(
        self,
        config: RunConfig,
        environments: Sequence[Environment],
        *,
        agent: Agent,
        memory: ReplayMemory,
        worker: Worker,
        streams: RandomStreams,
    ) -> None:
        assert len(environments) == config.envs
        self.step = 0
        self.num_games = 0
        self.recent_scores: deque[float] = deque(maxlen=SCORE_WINDOW)
        self.recent_lengths: deque[int] = deque(maxlen=SCORE_WINDOW)
        self.recent_reward_sums: deque[float] = deque(maxlen=SCORE_WINDOW)  # the largest of each game
        self.random_scores: list[float] = []  # of games that began while the actions were random
        self._config, self._environments, self._streams = config, environments, streams
        self._agent, self._memory, self._worker = agent, memory, worker
        self._games: list[Game] = []

    @property
    def score(self) -> float | None:
        """Mean score of the last 100 games; None before the first has ended."""
        return sum(self.recent_scores) / len(self.recent_scores) if self.recent_scores else None

    def run(self) -> Iterator[Event]:
        """Play and learn until the config's steps are done, or its score is reached, from the current step."""
        if not self._games:
            self._games = [self._new_game(stream) for stream in range(self._config.envs)]
        try:
            while self.step < self._config.steps:
                if self._config.is_boundary(self.step):
                    if self._has_reached_score():
                        break
                    yield from self._learned(self._worker.finish())
                    yield Boundary(self.step)
                work = self._agent.learn(self.step)
                yield from self._learned(None if work is None else self._worker.start(work))
                yield from self._act()
            yield Learned(self.step, {**self.progress(), **(self._worker.finish() or {})})
        finally:
            self._worker.stop()

    def _has_reached_score(self) -> bool:
        """Whether the last 100 games, all of them played, are good enough to stop."""
        wanted, score = self._config.stop_at_score, self.score
        is_full = len(self.recent_scores) == SCORE_WINDOW
        return wanted is not None and score is not None and is_full and score >= wanted

    def _learned(self, metrics: Metrics | None) -> Iterator[Learned]:
        if metrics is not None:
            yield Learned(self.step, {**self.progress(), **metrics})

    def progress(self) -> dict[str, float | None]:
        """Current scores, and how the agent acts: the first columns of every metrics row."""
        lengths = self.recent_lengths
        return {
            "episodes": self.num_games,
            "score_mean_100": self.score,
            "length_mean_100": sum(lengths) / len(lengths) if lengths else None,
            "reward_sum_max_100": max(self.recent_reward_sums, default=None),
            **self._describe_random_play(),
            **self.describe_acting(),
        }

    def _describe_random_play(self) -> dict[str, float | None]:
        """Mean score of random play, and its standard error; None while fewer than two such games have ended."""
        scores = self.random_scores
        if len(scores) < 2:
            return {"score_random": None, "score_random_error": None}
        mean = sum(scores) / len(scores)
        variance = sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
        return {"score_random": mean, "score_random_error": math.sqrt(variance / len(scores))}

    def describe_acting(self) -> Metrics:
        """How the agent currently acts: ε, noise and so on."""
        return self._agent.describe(self.step)

    def _act(self) -> Iterator[GameEnd]:
        acted = self._agent.act(self._memory.newest_states(), self.step)
        acted.check_finite()
        actions, probs, columns = acted  # [streams(, D)], [streams], [streams, ...] each
        for stream, (action, prob) in enumerate(zip(actions.tolist(), probs.tolist(), strict=True)):
            step = self._step(stream, action)
            store(
                self._memory, stream, action, prob, step, **{name: values[stream] for name, values in columns.items()}
            )
            game = self._games[stream]
            game.actions.append(action)
            game.score += step.score
            game.reward_sum = self._config.discount * game.reward_sum + step.reward
            game.reward_sum_max = max(game.reward_sum_max, abs(game.reward_sum))
            if step.game_over:
                yield self._end(stream, "terminated" if step.terminated else "truncated")
        self.step += len(actions)

    def _step(self, stream: int, action: Any) -> Step:
        """The environment's step; the last one allowed in a game truncates it."""
        try:  # a context manager would cost as much as storing the step
            step = self._environments[stream].step(action)
        except EnvironmentFault as fault:
            fault.when = f"at step {self.step + stream:,}"
            raise
        if len(self._games[stream].actions) + 1 >= self._config.max_game_steps and not step.game_over:
            return step._replace(truncated=True, game_over=True)
        return step

    def _end(self, stream: int, ended: str) -> GameEnd:
        game = self._games[stream]
        event = GameEnd(self.num_games, self.step + stream + 1, stream, game.score, len(game.actions), game.seed, ended)
        self.num_games += 1
        self.recent_scores.append(game.score)
        self.recent_lengths.append(len(game.actions))
        self.recent_reward_sums.append(game.reward_sum_max)
        # Of those that also ended in this time, too many would be short.
        began = self.step - self._config.envs * (len(game.actions) - 1)
        if began < self._config.memory.start and len(self.random_scores) < MAX_RANDOM_SCORES:
            self.random_scores.append(game.score)
        self._games[stream] = self._new_game(stream)
        return event

    def _new_game(self, stream: int) -> Game:
        game = Game(int(self._streams.envs[stream].integers(LARGEST_SEED)), self._memory.written[stream])
        with faults_told(lambda: f"at step {self.step + stream:,}"):
            observation = self._environments[stream].reset(game.seed)
        self._memory.begin(observation, stream)
        return game

    def get_state(self) -> dict[str, Any]:
        """The loop's own state, as plain values for JSON."""
        return {
            "step": self.step,
            "num_games": self.num_games,
            "recent_scores": list(self.recent_scores),
            "recent_lengths": list(self.recent_lengths),
            "recent_reward_sums": list(self.recent_reward_sums),
            "random_scores": list(self.random_scores),
            "games": [asdict(game) for game in self._games],
        }

    def set_state(self, state: dict[str, Any]) -> list[int]:
        """Restore a saved state, whose memory is already restored, by replaying the open games.

        Returns the streams whose environment did not repeat its game; they start a new one.
        """
        self.step, self.num_games = state["step"], state["num_games"]
        self.recent_scores = deque(state["recent_scores"], maxlen=SCORE_WINDOW)
        self.recent_lengths = deque(state["recent_lengths"], maxlen=SCORE_WINDOW)
        self.recent_reward_sums = deque(state["recent_reward_sums"], maxlen=SCORE_WINDOW)
        self.random_scores = list(state["random_scores"])
        self._games = [Game(**game) for game in state["games"]]
        with faults_told(lambda: f"while replaying the games that were open at step {self.step:,}"):
            restarted = [stream for stream in range(self._config.envs) if not self._replays(stream)]
        for stream in restarted:
            self._memory.abandon(stream)
            self._games[stream] = self._new_game(stream)
        return restarted

    def _replays(self, stream: int) -> bool:
        """Replay the stream's game; whether it matches what the memory's window still holds of it."""
        game, environment, written = self._games[stream], self._environments[stream], self._memory.written[stream]
        number, score = game.first_slot, 0.0
        is_same = self._memory.shows(environment.reset(game.seed), stream, number)
        for action in game.actions:
            step = environment.step(action)
            score += step.score
            is_same = is_same and self._memory.shows(step.observation, stream, number + 1)
            number += 1
            if step.game_over or not is_same:
                return False
            if step.terminated or step.truncated:  # a life was lost
                number += 1
        return is_same and number == written - 1 and score == game.score
