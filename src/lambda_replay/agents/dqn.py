"""DQN with a target network and n-step returns, the paper's baseline; no cache, no λ."""

from __future__ import annotations

import numpy as np

from lambda_replay.agents.epsilon_greedy import Actor
from lambda_replay.config import RunConfig
from lambda_replay.learning.learner import Learner
from lambda_replay.randomness import RandomStreams
from lambda_replay.replay.data import NO_ACTION, Block, Integers, Minibatch
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.replay.estimators import NStep
from lambda_replay.replay.memory import ReplayMemory


class DQN:
    """Every few steps trains on one minibatch, whose returns bootstrap from a stale copy of the network."""

    def __init__(
        self,
        config: RunConfig,
        *,
        memory: ReplayMemory,
        learner: Learner,
        actor: Actor,
        estimator: NStep,
        streams: RandomStreams,
    ) -> None:
        assert config.target is not None
        self.memory, self.learner, self.actor = memory, learner, actor
        self._config, self._target_config = config, config.target
        self._estimator, self._streams = estimator, streams
        self._target = learner.frozen_copy()
        self._totals = np.zeros(3)  # loss, |TD error|, Q-value, summed since the last copy
        self._num_updates = 0  # since the last copy

    def steps_to_boundary(self, step: int) -> int:
        """Steps until the next copy of the network, 0 meaning now."""
        start = self._config.memory.start
        return start - step if step < start else (start - step) % self._target_config.copy_every

    def settle(self) -> Metrics | None:
        """Nothing: between two calls of ``learn`` no work is under way."""
        return None

    def stop(self) -> None:
        """Nothing is under way that would have to stop."""

    def learn(self, step: int) -> Metrics | None:
        """Copy the network where that is due, then train; the metrics are those of the time since the last copy."""
        if step < self._config.memory.start:
            return None
        metrics = None
        if self.steps_to_boundary(step) == 0:
            self.learner.copy_weights_to(self._target)
            metrics = self._take_metrics() if self._num_updates > 0 else None
        for _ in range(self._updates_due(step)):
            self._totals += self.learner.train([self._sample_minibatch()])
            self._num_updates += 1
        return metrics

    def _updates_due(self, step: int) -> int:
        """Multiples of ``update_every`` that the environments' last lock-step reached."""
        every = self._target_config.update_every
        elapsed = step - self._config.memory.start
        return elapsed // every - (elapsed - self._config.envs) // every

    def _take_metrics(self) -> Metrics:
        loss, td_error_abs, q_value = (self._totals / self._num_updates).tolist()
        self._totals, self._num_updates = np.zeros(3), 0
        return {"loss": loss, "td_error_abs_mean": td_error_abs, "q_mean": q_value}

    @np.errstate(over="ignore", invalid="ignore")  # what overflows reaches the loss, which is checked
    def _sample_minibatch(self) -> Minibatch:
        """B transitions of the whole memory with their n-step returns."""
        slots = self._sample_slots()  # [B, n+1]
        actions, rewards, behaviour_probs, terminated = self.memory.transitions(slots)  # [B, n+1] each
        has_ended = terminated[:, :-1] | (actions[:, 1:] == NO_ACTION)  # [B, n]
        # Only the state that ends the return needs Q-values: the one after the first end, or the n-th.
        lengths = np.where(has_ended.any(axis=1), has_ended.argmax(axis=1) + 1, has_ended.shape[1])  # [B]
        batch = np.arange(len(slots))
        bootstraps = self._target.q_values(self.memory.states(slots[batch, lengths]))  # [B, A]
        q_values = np.zeros((*slots.shape, bootstraps.shape[1]), dtype=np.float32)  # [B, n+1, A]
        q_values[batch, lengths] = bootstraps
        discounts = np.where(terminated[:, :-1], np.float32(0), np.float32(self._config.discount))
        block = Block(rewards[:, :-1], discounts, q_values, actions, behaviour_probs, ~has_ended)
        first = slots[:, 0]
        return Minibatch(self.memory.states(first), actions[:, 0], self._estimator(block)[:, 0], first)

    def _sample_slots(self) -> Integers:
        """Slots [B, n+1] that start uniformly at random at a transition; closing slots are drawn again."""
        batch_size, length = self._config.optimizer.batch_size, self._estimator.n
        slots = self.memory.sample_blocks(batch_size, length, self._streams.batches)
        while (is_closing := self.memory.actions[slots[:, 0]] == NO_ACTION).any():
            slots[is_closing] = self.memory.sample_blocks(int(is_closing.sum()), length, self._streams.batches)
        return slots

    def get_state(self) -> dict[str, float]:
        """The sums of the present window; at a boundary the target network is due to be copied, so it is not needed."""
        loss, td_error_abs, q_value = self._totals.tolist()
        return {"loss": loss, "td_error_abs": td_error_abs, "q_value": q_value, "num_updates": self._num_updates}

    def set_state(self, state: dict[str, float]) -> None:
        self._totals = np.array([state["loss"], state["td_error_abs"], state["q_value"]])
        self._num_updates = int(state["num_updates"])
