"""Trains a contestant for a time, and returns how it plays greedily."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.race.log import GameLog, Over
from benchmarks.race.tasks import DQN, OURS, PPO, SAC, Task
from benchmarks.speed.adapter import GymnasiumAdapter
from benchmarks.speed.plain_networks import MinAtarFeatures
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs.actions import action_form
from lambda_replay.training.assembly import assemble, make_environments
from lambda_replay.training.loop import GameEnd
from lambda_replay.training.presets import make_config

Act = Callable[[NDArray[Any]], Any]  # a state as the peers' environment gives it -> a greedy action that it takes


def peers_environment(task: Task, seed: int) -> gymnasium.Env[Any, Any]:
    """What the peers train on, and what everybody plays in the end: with continuous actions, Gymnasium's own."""
    if not task.is_continuous:
        return GymnasiumAdapter(make_config(task.env), seed)
    environment = gymnasium.make(task.env)
    environment.reset(seed=seed)
    return environment


def train(contestant: str, task: Task, seed: int, steps: int, log: GameLog) -> Act:
    """Train until the log's time is over; ``steps`` is what the schedules are made for."""
    if contestant in OURS:
        return _train_ours(contestant, task, seed, steps, log)
    peers = {"sb3-ppo": _train_ppo, "sb3-dqn": _train_dqn, "sb3-sac": _train_sac}
    return peers[contestant](task, seed, steps, log)


def _train_ours(agent: str, task: Task, seed: int, steps: int, log: GameLog) -> Act:
    config = make_config(task.env, agent=agent)
    if agent == "pqn":
        config = replace(config, algorithm=for_steps(config, steps))
    whole = config.algorithm.boundary_every
    config = replace(
        config,
        seed=seed,
        steps=config.memory.start + max(1, (steps - config.memory.start) // whole) * whole,
        device="cpu",
        threads=1,
        checkpoint_every=0,
        memory=replace(config.memory, storage="ram"),
    )
    environments = make_environments(config)
    assembly = assemble(config, environments)
    with suppress(Over):
        for event in assembly.loop.run():
            if isinstance(event, GameEnd):
                log.ended(event.score)
            log.stepped(assembly.loop.step)
    policy = agent_kind(agent).load(config, environments[0].spec, assembly.agent.get_tensors()["weights"])
    is_planes, rng = task.env.startswith("minatar/"), np.random.default_rng(seed)
    form = action_form(task.env, peers_environment(task, seed).action_space, None)

    def act(state: NDArray[Any]) -> Any:
        own = np.moveaxis(state, 0, -1).astype(np.bool_) if is_planes else state
        return form.convert(policy.act(own[None, None], 0.0, rng).actions[0])

    return act


def for_steps(config: RunConfig, steps: int) -> Any:
    """PQN's settings for a run of other length: its authors let ε fall over a share of the run."""
    algorithm: Any = config.algorithm
    share = algorithm.exploration.steps / config.steps
    return replace(algorithm, exploration=replace(algorithm.exploration, steps=max(1, round(share * steps))))


def _linear(value: Any) -> Any:
    if isinstance(value, tuple):
        _, start = value
        return lambda remaining: remaining * start
    return value


def _vector(task: Task, seed: int, num_envs: int) -> Any:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    def make(number: int) -> Callable[[], Any]:
        return lambda: Monitor(peers_environment(task, 1_000 * seed + number))

    return DummyVecEnv([make(number) for number in range(num_envs)])


def _policy(env: str, hidden: list[int] | None) -> tuple[str, dict[str, Any]]:
    if env.startswith("minatar/"):
        return "CnnPolicy", {
            "features_extractor_class": MinAtarFeatures,
            "normalize_images": False,
            "net_arch": [],
        }
    return "MlpPolicy", {} if hidden is None else {"net_arch": hidden}


def _learn(model: Any, steps: int, log: GameLog) -> None:
    def callback(local_names: dict[str, Any], global_names: dict[str, Any]) -> bool:
        for info in local_names["infos"]:
            if "episode" in info:
                log.ended(float(info["episode"]["r"]))
        log.stepped(model.num_timesteps)
        return True

    with suppress(Over):
        model.learn(steps, callback=callback)


def _train_ppo(task: Task, seed: int, steps: int, log: GameLog) -> Act:
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.vec_env import VecNormalize

    settings = {name: _linear(value) for name, value in PPO[task.env].items()}
    is_normalised = settings.pop("normalize", False)
    vector = _vector(task, seed, settings.pop("n_envs"))
    if is_normalised:
        vector = VecNormalize(vector)
    name, policy_kwargs = _policy(task.env, None)
    model = SB3PPO(name, vector, seed=seed, device="cpu", policy_kwargs=policy_kwargs, **settings)
    _learn(model, steps, log)
    return _greedy(model, vector if is_normalised else None)


def _train_dqn(task: Task, seed: int, steps: int, log: GameLog) -> Act:
    from stable_baselines3 import DQN as SB3DQN

    settings = dict(DQN[task.env])
    name, policy_kwargs = _policy(task.env, settings.pop("hidden", None))
    fraction = min(1.0, settings.pop("exploration_steps") / steps)
    model = SB3DQN(
        name,
        _vector(task, seed, 1),
        seed=seed,
        device="cpu",
        policy_kwargs=policy_kwargs,
        exploration_fraction=fraction,
        **settings,
    )
    _learn(model, steps, log)
    return _greedy(model, None)


def _train_sac(task: Task, seed: int, steps: int, log: GameLog) -> Act:
    from stable_baselines3 import SAC as SB3SAC

    model = SB3SAC("MlpPolicy", _vector(task, seed, 1), seed=seed, device="cpu", **SAC[task.env])
    _learn(model, steps, log)
    return _greedy(model, None)


def _greedy(model: Any, normalised: Any) -> Act:
    def act(state: NDArray[Any]) -> Any:
        seen = state if normalised is None else normalised.normalize_obs(state)
        action, _ = model.predict(seen, deterministic=True)
        return action

    return act
