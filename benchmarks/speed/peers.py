"""Measures the peers, each with its own DQN, replay buffer and vector environment; imports each only to measure it.

``updates_per_collection`` updates follow every ``steps_per_collection`` agent steps. The peers are loaded by name
because they are optional and the type checker must not need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.speed.adapter import make_adapters
from benchmarks.speed.measurement import Measurement, measurement
from benchmarks.speed.plain_networks import MinAtarFeatures, count_parameters, plain_network
from benchmarks.speed.workloads import BATCH_SIZE, CONTENDERS, EPSILON, HIDDEN, Job, run_config
from lambda_replay.config import OptimizerConfig
from lambda_replay.training.speed import Stopwatch

WARM_UP_STEPS = 128  # agent steps of training before the clock starts: 32 updates
DISCOUNT = 0.99
ADAM = OptimizerConfig()


def measure(job: Job) -> Measurement:
    """Steps per second of a peer."""
    measures = {"stable_baselines3": _measure_sb3, "tianshou": _measure_tianshou, "torchrl": _measure_torchrl}
    package = CONTENDERS[job.contender].package
    assert package is not None
    return measures[package](job)


def _stopwatch(job: Job) -> Stopwatch:
    return Stopwatch(job.workload.start + WARM_UP_STEPS, job.seconds)


def _measure_sb3(job: Job) -> Measurement:
    sb3, vec_env = import_module("stable_baselines3"), import_module("stable_baselines3.common.vec_env")
    adapters = make_adapters(run_config(job))
    policy_kwargs: dict[str, Any] = {"optimizer_kwargs": {"eps": ADAM.epsilon}, "net_arch": []}
    if job.workload.network == "minatar":
        policy_kwargs |= {"features_extractor_class": MinAtarFeatures, "normalize_images": False}
    elif job.workload.network == "mlp":
        policy_kwargs["net_arch"] = list(HIDDEN)
    model = sb3.DQN(
        "MlpPolicy" if job.workload.network == "mlp" else "CnnPolicy",
        vec_env.DummyVecEnv([lambda adapter=adapter: adapter for adapter in adapters]),
        learning_rate=ADAM.learning_rate,
        buffer_size=job.workload.capacity,
        learning_starts=job.workload.start,
        batch_size=BATCH_SIZE,
        gamma=DISCOUNT,
        train_freq=job.steps_per_collection // job.envs,  # counted in steps of the vector environment
        gradient_steps=job.updates_per_collection,
        target_update_interval=job.workload.refresh_every,
        n_steps=CONTENDERS[job.contender].n_steps,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        policy_kwargs=policy_kwargs,
        device="cpu",
        seed=0,
    )
    torch.set_num_threads(job.threads)
    stopwatch = _stopwatch(job)

    def goes_on(local_names: dict[str, Any], global_names: dict[str, Any]) -> bool:
        is_cycle = model.num_timesteps % job.steps_per_collection == 0
        return not (is_cycle and stopwatch.is_over(model.num_timesteps))

    model.learn(10**9, callback=goes_on)
    buffer = model.replay_buffer
    arrays = [array for array in vars(buffer).values() if isinstance(array, np.ndarray)]
    return measurement(
        stopwatch,
        replay_bytes_per_step=sum(array.nbytes for array in arrays) / (buffer.buffer_size * job.envs),
        parameters=count_parameters(model.q_net),
    )


class _TianshouNetwork(nn.Module):
    """Tianshou passes arrays and expects a hidden state in return."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, states: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        return self.network(torch.as_tensor(states)), state


def _measure_tianshou(job: Job) -> Measurement:
    dqn, data = import_module("tianshou.algorithm.modelfree.dqn"), import_module("tianshou.data")
    optim, env = import_module("tianshou.algorithm.optim"), import_module("tianshou.env")
    within_training_step = import_module("tianshou.utils.torch_utils").policy_within_training_step
    adapters = make_adapters(run_config(job))
    space, num_actions = adapters[0].observation_space, int(adapters[0].action_space.n)  # type: ignore[attr-defined]
    assert space.shape is not None
    network = plain_network(job.workload.network, space.shape, num_actions)
    policy = dqn.DiscreteQLearningPolicy(
        model=_TianshouNetwork(network),
        action_space=adapters[0].action_space,
        observation_space=space,
        eps_training=EPSILON,
    )
    algorithm = dqn.DQN(
        policy=policy,
        optim=optim.AdamOptimizerFactory(lr=ADAM.learning_rate, eps=ADAM.epsilon),
        gamma=DISCOUNT,
        target_update_freq=job.workload.refresh_every // 4,
        is_double=False,
    )
    # Stores each frame only once, as in Tianshou's own Atari examples.
    once = {"stack_num": job.workload.history, "ignore_obs_next": True, "save_only_last_obs": True}
    buffer = data.VectorReplayBuffer(job.workload.capacity, job.envs, **(once if job.workload.history > 1 else {}))
    environments = env.DummyVectorEnv([lambda adapter=adapter: adapter for adapter in adapters])
    collector = data.Collector(algorithm, environments, buffer, exploration_noise=True)
    torch.set_num_threads(job.threads)
    collector.reset()
    collector.collect(n_step=job.workload.start, random=True)
    stopwatch, step = _stopwatch(job), job.workload.start
    with within_training_step(policy):
        while not stopwatch.is_over(step):
            collector.collect(n_step=job.steps_per_collection)
            for _ in range(job.updates_per_collection):
                algorithm.update(buffer, BATCH_SIZE)
            step += job.steps_per_collection
    return measurement(
        stopwatch,
        replay_bytes_per_step=_batch_bytes(buffer._meta) / buffer.maxsize,
        parameters=count_parameters(network),
    )


def _batch_bytes(batch: Any) -> int:
    """Bytes of all arrays in a Tianshou batch, which may contain other batches."""
    values = list(batch.values())
    arrays = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return arrays + sum(_batch_bytes(value) for value in values if hasattr(value, "values"))


def _measure_torchrl(job: Job) -> Measurement:
    collectors, data = import_module("torchrl.collectors"), import_module("torchrl.data")
    envs, modules = import_module("torchrl.envs"), import_module("torchrl.modules")
    objectives, tensordict = import_module("torchrl.objectives"), import_module("tensordict.nn")
    adapters = make_adapters(run_config(job))
    space, num_actions = adapters[0].observation_space, int(adapters[0].action_space.n)  # type: ignore[attr-defined]
    assert space.shape is not None
    network = plain_network(job.workload.network, space.shape, num_actions)
    makers = [
        lambda adapter=adapter: envs.GymWrapper(adapter, categorical_action_encoding=True) for adapter in adapters
    ]
    environment = makers[0]() if job.envs == 1 else envs.SerialEnv(job.envs, makers)
    value = modules.QValueActor(network, in_keys=["observation"], spec=environment.action_spec_unbatched)
    explore = modules.EGreedyModule(environment.action_spec_unbatched, eps_init=EPSILON, eps_end=EPSILON)
    loss_of = objectives.DQNLoss(value, loss_function="l2", delay_value=True)
    loss_of.make_value_estimator(gamma=DISCOUNT)
    target = objectives.HardUpdate(loss_of, value_network_update_interval=job.workload.refresh_every // 4)
    optimizer = torch.optim.Adam(network.parameters(), lr=ADAM.learning_rate, eps=ADAM.epsilon)
    storage = data.LazyTensorStorage(job.workload.capacity)
    buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=BATCH_SIZE)
    torch.set_num_threads(job.threads)
    collector = collectors.Collector(
        environment,
        tensordict.TensorDictSequential(value, explore),
        frames_per_batch=job.steps_per_collection,
        total_frames=-1,
        init_random_frames=job.workload.start,
    )
    stopwatch, step = _stopwatch(job), 0
    for batch in collector:
        buffer.extend(batch.reshape(-1))
        step += job.steps_per_collection
        if step <= job.workload.start:
            continue
        for _ in range(job.updates_per_collection):
            loss = loss_of(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.step()
        if stopwatch.is_over(step):
            break
    leaves = storage._storage.values(include_nested=True, leaves_only=True)
    stored = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    collector.shutdown()
    return measurement(
        stopwatch, replay_bytes_per_step=stored / job.workload.capacity, parameters=count_parameters(network)
    )
