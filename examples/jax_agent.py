"""DQN(λ) on CartPole with JAX and Optax: python examples/jax_agent.py [STEPS [SEED]]"""

import sys
from itertools import pairwise

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

import lambda_replay as lr

REFRESH_EVERY, UPDATES, START = 100, 50, 1_000  # the paper's F; minibatches per refresh; steps before the first refresh
SIZES = (4, 128, 128, 2)
OPTIMIZER = optax.adam(1e-3)


def make_params(key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases of each layer, with He initialization."""
    layers = []
    for inputs, outputs in pairwise(SIZES):
        key, part = jax.random.split(key)
        layers.append((jax.random.normal(part, (inputs, outputs)) * np.sqrt(2 / inputs), jnp.zeros(outputs)))
    return layers


@jax.jit
def q_values(params, states):  # [n, 4] -> [n, actions]
    *hidden, (weights, biases) = params
    for w, b in hidden:
        states = jax.nn.relu(states @ w + b)
    return states @ weights + biases


@jax.jit
def update(params, state, states, actions, returns):
    """One Adam step on the Huber loss of the chosen actions' values."""

    def loss(params):
        chosen = q_values(params, states)[jnp.arange(len(actions)), actions]
        return optax.huber_loss(chosen, returns).mean()

    changes, state = OPTIMIZER.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, changes), state


def train(steps: int, seed: int) -> float:
    """Train for ``steps`` steps and return the mean score of the last 100 games."""
    rng = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    params = make_params(jax.random.key(seed))
    state = OPTIMIZER.init(params)
    memory = lr.ReplayMemory(capacity=50_000, observation_shape=(4,), observation_dtype=np.float32, history=1)
    estimator = lr.parse_estimator("peng:0.9")

    scores = [0.0]
    observation, _ = env.reset(seed=seed)
    memory.begin(observation)
    for step in range(1, steps + 1):
        epsilon = max(0.05, 1 - 0.95 * step / 10_000)
        greedy = int(q_values(params, observation[None])[0].argmax())
        action = int(rng.integers(2)) if rng.random() < epsilon else greedy
        prob = epsilon / 2 + (1 - epsilon) * (action == greedy)  # for Retrace; Peng's does not need it

        observation, reward, terminated, truncated, _ = env.step(action)
        memory.append(action, float(reward), observation, terminated, truncated, behaviour_prob=prob)
        scores[-1] += float(reward)
        if terminated or truncated:
            observation, _ = env.reset()
            memory.begin(observation)
            scores.append(0.0)

        if step >= START and step % REFRESH_EVERY == 0:
            # 80 blocks of 51 states are 4,080 states, four chunks of 1,020: a single shape, so JAX compiles only once.
            cache = lr.refresh(
                memory,
                lambda states: np.asarray(q_values(params, states[:, 0])),  # noqa: B023 - called before params change
                estimator,
                discount=0.99,
                size=4_000,
                block_length=50,
                chunk_size=1_020,
                rng=rng,
            )
            for batch in cache.minibatches(64, updates=UPDATES, priority=0.1, rng=rng):
                params, state = update(params, state, batch.states[:, 0], batch.actions, batch.returns)
    return float(np.mean(scores[-101:-1]))  # the last game is unfinished


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"mean score of the last 100 games: {train(steps, seed):.1f}")
