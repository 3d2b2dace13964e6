"""DQN(λ) that acts while it trains: θ_k plays a window while θ_{k+1} is trained from the cache of θ_k.

The result does not depend on timing. All that training reads is fixed when a window opens (which blocks, their actions
and rewards, the random stream of its minibatches), the slots it reads states from are not overwritten in that window,
and acting uses a copy of the network that changes only between windows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from lambda_replay.agents.dqn_lambda import DQNLambda
from lambda_replay.config import RunConfig
from lambda_replay.learning.learner import Learner
from lambda_replay.replay.diagnostics import Metrics


class ConcurrentDQNLambda:
    """Trains in a thread of its own between two boundaries."""

    def __init__(self, config: RunConfig, agent: DQNLambda, acting: Learner, threads: int) -> None:
        """``acting`` is the copy of the agent's learner that its actor acts with; ``threads`` are the training's."""
        self.memory, self.learner, self.actor = agent.memory, agent.learner, agent.actor
        self._agent, self._acting = agent, acting
        self._reserve, self._threads = config.reserve_slots, threads
        self._training: _Training | None = None

    def steps_to_boundary(self, step: int) -> int:
        return self._agent.steps_to_boundary(step)

    def settle(self) -> Metrics | None:
        """Wait for the training under way, act with its network from now on, and give its metrics."""
        metrics = None if self._training is None else self._training.result()
        self._training = None
        self.learner.copy_weights_to(self._acting)
        return metrics

    def learn(self, step: int) -> Metrics | None:
        """If a refresh is due: open its window and let the training go on while the caller acts."""
        if self.steps_to_boundary(step) == 0:
            assert self._training is None
            window = self._agent.open_window(step, self._reserve)
            self._training = _Training(lambda: self._agent.train(window), self._threads)
        return None

    def stop(self) -> None:
        """Let the training under way end after its present minibatch; its result is lost."""
        if self._training is not None:
            self.learner.stop()
            self._training.wait()

    def get_state(self) -> dict[str, float]:
        return self._agent.get_state()

    def set_state(self, state: dict[str, float]) -> None:
        self._agent.set_state(state)
        self.learner.copy_weights_to(self._acting)


class _Training:
    """A function in a thread with a number of arithmetic threads, and what it returned or raised."""

    def __init__(self, function: Callable[[], Metrics], threads: int) -> None:
        self._metrics: Metrics | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, threads), name="training", daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Metrics], threads: int) -> None:
        try:
            torch.set_num_threads(threads)  # of this thread alone
            self._metrics = function()
        except BaseException as error:  # noqa: BLE001 — raised again, in the thread that waits for the result
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> Metrics:
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._metrics is not None
        return self._metrics
