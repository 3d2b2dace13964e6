"""A trained agent for somebody else's loop: observations in, actions out, as the environment knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from lambda_replay.agents.protocol import Policy, following
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError, EnvironmentFault
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.replay.storable import shown, storable_array


class Forms(NamedTuple):
    """Between an environment and the policy."""

    stored: Callable[[Any], NDArray[Any]]  # an observation as the memory stores it
    native: Callable[[Any], Any]  # an action as the environment takes it


def plain_forms(spec: EnvironmentSpec) -> Forms:
    """For an environment of ours, whose observations and actions are the agent's."""
    shape, dtype = spec.observation_shape, spec.observation_dtype
    return Forms(lambda given: storable_array("an observation", given, shape, dtype), lambda action: action)


@final
class Player:
    """A trained agent that plays one episode at a time and keeps the frames it needs.

    ``step`` is that of the checkpoint its weights come from, None if they are a finished run's.
    """

    def __init__(
        self,
        config: RunConfig,
        policy: Policy,
        spec: EnvironmentSpec,
        *,
        forms: Forms,
        rng: np.random.Generator,
        step: int | None,
    ) -> None:
        self.config, self.step = config, step
        self._forms, self._rng = forms, rng
        # It stacks the frames as in training.
        history, shape, dtype = config.memory.history, spec.observation_shape, spec.observation_dtype
        self._memory = ReplayMemory(history + 1, shape, dtype, history, action_shape=spec.action_shape)
        self._policy = following(policy, self._memory)
        self._last: tuple[Any, float] | None = None  # the action of this episode's last state, and its probability

    def reset(self) -> None:
        """Forget the episode: the next observation is the first of another one."""
        if self._last is not None:
            self._memory.abandon()
        self._last = None

    def act(self, observation: Any, epsilon: float = 0.0, reward: float | None = None) -> Any:
        """The action for an observation, greedy unless it is random with probability ``epsilon``.

        An integer, or an array, that the environment's ``step`` takes. ``reward`` is what the action before earned.
        Only an agent with ``recurrence.reward`` needs it, in every step but an episode's first.
        """
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon is {epsilon}; give a number from 0 to 1.")
        if reward is None and self._last is not None and agent_kind(self.config.agent).sees_reward(self.config):
            raise ConfigError(
                "this agent also sees rewards (recurrence.reward); pass the last one: act(observation, reward=…)."
            )
        self._see(observation, 0.0 if reward is None else self._learned_from(reward))
        acted = self._policy.act(self._memory.newest_states(), epsilon, self._rng)
        self._last = acted.actions[0].tolist(), float(acted.behaviour_probs[0])
        return self._forms.native(self._last[0])

    def _learned_from(self, reward: float) -> float:
        """The reward as in training: where Atari's are clipped, its sign."""
        is_clipped = self.config.atari is not None and self.config.atari.clip_rewards
        return float(np.sign(reward)) if is_clipped else float(reward)

    def _see(self, observation: Any, reward: float) -> None:
        try:
            stored = self._forms.stored(observation)
        except EnvironmentFault:
            raise ConfigError(
                f"act got the observation {shown(observation)}, which does not fit {self.config.env}; give one that "
                "its reset or step returned."
            ) from None
        if self._last is None:
            self._memory.begin(stored)
        else:
            action, prob = self._last
            self._memory.append(action, reward, stored, behaviour_prob=prob)
