"""The replay buffer that hands out λ-returns to an unchanged agent of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from lambda_replay.errors import ConfigError
from lambda_replay.replay.cache import Cache, build_cache
from lambda_replay.replay.critic import Promoted, promote
from lambda_replay.replay.data import Integers
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.sb3.critics import Tensors, check_estimator, ignores_next_states, make_critic
from lambda_replay.sb3.observations import Arrays, make_layout
from lambda_replay.sb3.settings import HER_REASON, read_settings

SPARE_SHARE = 20  # a cache stays readable while this fraction of the buffer is overwritten: 1/20

Samples = ReplayBufferSamples | DictReplayBufferSamples


class LambdaReplayBuffer(ReplayBuffer):
    """A ReplayBuffer for DQN, DDPG, TD3 and SAC whose samples hold returns in place of rewards, and end their episode.

    The agent's target, reward + (1 − done)·γ·Q(s', a'), is then the return itself. Returns come from a cache, which is
    built anew from the agent's present networks as soon as its minibatches are used up. ``settings`` are those of
    ``Settings``. Call ``attach`` before the agent learns.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        *,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **settings: Any,
    ) -> None:
        # Not ReplayBuffer's own: it would allocate two arrays of observations.
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        if optimize_memory_usage:
            raise ConfigError(
                "optimize_memory_usage is not needed: LambdaReplayBuffer stores each observation once; leave it out.",
                "optimize_memory_usage",
            )
        if not isinstance(handle_timeout_termination, bool):
            raise ConfigError(
                f"handle_timeout_termination is {handle_timeout_termination!r}; give True or False.",
                "handle_timeout_termination",
            )
        self.settings = read_settings(settings)
        self.estimator = self.settings.parsed_estimator()
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.buffer_size = buffer_size // n_envs  # slots per environment
        shortest = self.settings.block_length + self.settings.tail + self.settings.frame_stack
        if self.buffer_size < shortest:
            raise ConfigError(
                f"buffer_size ({buffer_size}) is too small for {n_envs} environments with blocks of {shortest} steps; "
                f"give at least {n_envs * shortest}, or a shorter block_length.",
                "buffer_size",
                "block_length",
            )
        self.layout = make_layout(observation_space, self.settings.frame_stack)
        self.model: OffPolicyAlgorithm | None = None
        self._hands_out_next = True
        self.rng: np.random.Generator | None = None  # made from the model's seed when the first one is attached
        self.reset()

    def reset(self) -> None:
        """Forget everything that was stored."""
        self.memory = ReplayMemory(
            self.n_envs * self.buffer_size,
            self.layout.shape,
            self.layout.dtype,
            history=self.settings.frame_stack,
            num_streams=self.n_envs,
            action_shape=(self.action_dim,) if isinstance(self.action_space, spaces.Box) else (),
            spare=max(1, self.buffer_size // SPARE_SHARE),
        )
        self.pos, self.full = 0, False
        self._expected: list[NDArray[Any] | None] = [None] * self.n_envs  # what would continue each stream's episode
        self._drop_cache()

    def _drop_cache(self) -> None:
        self.cache: Cache | None = None  # its ``metrics`` describe the refresh
        self._minibatches: list[Integers] = []  # rows of the cache that are still to be handed out
        self._cached_at: tuple[int, ...] = ()  # slots that each stream had written

    def size(self) -> int:
        """How many transitions are stored per environment."""
        return len(self.memory) // self.n_envs

    def attach(self, model: OffPolicyAlgorithm) -> None:
        """Compute returns with this model's networks, discount and seed; needed again after loading either of them."""
        if model.replay_buffer is not self:
            raise ConfigError(
                "attach was called on the buffer of another model; call model.replay_buffer.attach(model)."
            )
        if model.n_envs != self.n_envs:
            raise ConfigError(
                f"the buffer holds {self.n_envs} environments, but the model has {model.n_envs}; give it as many."
            )
        if model.n_steps != 1:
            raise ConfigError(
                f"n_steps is {model.n_steps}, which LambdaReplayBuffer does not use; leave it out, and give "
                f"replay_buffer_kwargs the estimator 'nstep:{model.n_steps}'.",
                "n_steps",
            )
        check_estimator(self.estimator, model)
        self.model, self._hands_out_next = model, not ignores_next_states(model)
        self.rng = np.random.default_rng(model.seed) if self.rng is None else self.rng
        self._drop_cache()

    def add(  # noqa: PLR0917 - Stable-Baselines3's signature
        self,
        obs: Arrays,
        next_obs: Arrays,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Store one step of every environment; ``next_obs`` holds final observations where episodes end."""
        befores, afters = self.layout.split(obs, self.n_envs), self.layout.split(next_obs, self.n_envs)  # [E, ...]
        actions = np.asarray(action).reshape(self.n_envs, *self.memory.action_shape)
        for stream, info in enumerate(infos):
            self._begin_if_new(befores[stream], stream)
            if not done[stream]:  # a final observation comes back from VecNormalize rounded, or clipped
                self._check_stack(afters[stream], befores[stream])
            is_truncated = self.handle_timeout_termination and bool(info.get("TimeLimit.truncated", False))
            self.memory.append(
                actions[stream],
                float(reward[stream]),
                self.layout.frame(afters[stream]),
                terminated=bool(done[stream]) and not is_truncated,
                truncated=bool(done[stream]) and is_truncated,
                stream=stream,
            )
            self._expected[stream] = None if done[stream] else afters[stream]
        written = self.memory.written[0]
        self.pos, self.full = written % self.buffer_size, written >= self.buffer_size

    def _begin_if_new(self, observation: NDArray[Any], stream: int) -> None:
        """Begin an episode unless the last one goes on: ``learn`` may have reset the environment in between."""
        expected = self._expected[stream]
        if expected is not None and np.array_equal(expected, observation):
            return
        self._check_stack(observation, None)
        self.memory.abandon(stream)
        self.memory.begin(self.layout.frame(observation), stream)

    def _check_stack(self, observation: NDArray[Any], before: NDArray[Any] | None) -> None:
        if not self.layout.is_stacked(observation, before):
            raise ConfigError(
                "the older frames of an observation are not those of the steps before it, or zeros before the first; "
                "stack frames with VecFrameStack, or leave frame_stack out.",
                "frame_stack",
            )

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Samples:  # type: ignore[override]
        """A minibatch with returns as rewards; refreshes the cache first if nothing is left of it."""
        if not self._has_minibatch(batch_size):
            self.refresh(batch_size, env)
        return self._get_samples(self._minibatches.pop(), env)

    def _has_minibatch(self, batch_size: int) -> bool:
        """Whether the next minibatch is drawn, has this size, and all states of the cache are still stored."""
        if not self._minibatches or len(self._minibatches[-1]) != batch_size:
            return False
        spare = self.memory.ring.size - self.memory.window
        return all(now - then <= spare for now, then in zip(self.memory.written, self._cached_at, strict=True))

    def refresh(self, batch_size: int, env: VecNormalize | None = None) -> None:
        """Build a cache with the model's present networks, and draw its minibatches; ``sample`` calls this itself."""
        if self.model is None or self.rng is None:
            raise ConfigError(
                "LambdaReplayBuffer does not know the model's networks; call model.replay_buffer.attach(model) after "
                "creating or loading the model, or learn with callback=AttachCallback()."
            )
        blocks = self._promote(self.model.gamma, self.rng)
        if env is not None:
            rewards = self._normalize_reward(blocks.transitions.rewards, env)  # each step's own, before the recursion
            blocks = blocks._replace(transitions=blocks.transitions._replace(rewards=rewards))
        critic = make_critic(self.model, lambda states: self._observations(states, env), self.settings.critic_minimum)
        self.cache = build_cache(blocks, critic, self.estimator)
        updates, priority = self.settings.updates_per_refresh, self.settings.priority
        self._minibatches = list(self.cache.sample_rows(batch_size, updates, priority, rng=self.rng))
        self._cached_at = self.memory.written

    def _promote(self, discount: float, rng: np.random.Generator) -> Promoted:
        """Blocks of the settings' length and number, or of what the memory can give while it holds less."""
        longest = min(max(self.memory.written), self.memory.window - self.memory.history + 1) - 1  # steps
        length = max(1, min(self.settings.block_length, longest - self.settings.tail))
        num_blocks = max(1, min(self.settings.cache_size, len(self.memory)) // length)
        return promote(
            self.memory,
            discount=discount,
            size=num_blocks * length,
            block_length=length,
            rng=rng,
            tail=max(0, min(self.settings.tail, longest - length)),
        )

    def _get_samples(self, batch_inds: Integers, env: VecNormalize | None = None) -> Samples:  # type: ignore[override]
        """Rows of the cache as Stable-Baselines3's agents take them."""
        assert self.cache is not None
        batch = self.cache.minibatch(batch_inds)
        observations = self._observations(batch.states, env)
        actions = batch.actions.reshape(len(batch_inds), self.action_dim)
        returns = self.to_torch(batch.returns[:, None])  # [B, 1]
        if self._hands_out_next:
            next_slots = self.memory.ring.before(self.cache.slots[batch_inds], np.array([-1]))[:, 0]
            next_observations = self._observations(self.memory.states(next_slots), env)
        else:
            next_observations = _first(observations)  # saves the agent the pass through its target network
        samples = DictReplayBufferSamples if isinstance(observations, dict) else ReplayBufferSamples
        return samples(
            observations=observations,
            actions=self.to_torch(actions if self.memory.action_shape else actions.astype(np.int64)),
            next_observations=next_observations,
            dones=torch.ones_like(returns),  # a return is complete: the agent must not bootstrap from it
            rewards=returns,
        )

    def _observations(self, states: NDArray[Any], env: VecNormalize | None) -> Tensors:
        """States [n, F, ...] of the memory as the networks take them."""
        observations = self._normalize_obs(self.layout.restore(states), env)
        if isinstance(observations, dict):
            return {key: self.to_torch(array, copy=False) for key, array in observations.items()}
        return self.to_torch(observations, copy=False)

    def __getstate__(self) -> dict[str, Any]:
        """What is saved: everything but the model, and the cache that was computed with it."""
        rest: dict[str, Any] = {"model": None, "cache": None, "_minibatches": [], "_cached_at": ()}
        return {**self.__dict__, **rest}


def _first(observations: Tensors) -> Tensors:
    if isinstance(observations, dict):
        return {key: tensor[:1] for key, tensor in observations.items()}
    return observations[:1]


class AttachCallback(BaseCallback):
    """Attaches the buffer whenever ``learn`` begins: ``model.learn(..., callback=AttachCallback())``."""

    def _on_training_start(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, LambdaReplayBuffer):
            reason = f": {HER_REASON}" if isinstance(buffer, HerReplayBuffer) else ""
            raise ConfigError(
                f"AttachCallback needs a LambdaReplayBuffer, but the model has {type(buffer).__name__}{reason}; create "
                "the model with replay_buffer_class=LambdaReplayBuffer."
            )
        assert isinstance(self.model, OffPolicyAlgorithm)
        buffer.attach(self.model)

    def _on_step(self) -> bool:
        return True
