"""Both agents reach the known Q* of a small chain through the real loop, in seconds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from environments import NUM_STATES, RIGHT, make_loop, optimal_chain_values, tiny_config
from numpy.testing import assert_allclose

from lambda_replay.agents.protocol import Policy
from lambda_replay.agents.q_learning import QPolicy
from lambda_replay.agents.table import agent_kind
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment
from lambda_replay.envs.gymnasium import GymnasiumEnvironment
from lambda_replay.training.loop import Loop
from lambda_replay.training.playing import play

DISCOUNT = 0.9


def chain_config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "discount": DISCOUNT,
        "steps": 2_000,
        "memory": {"capacity": 4_000, "start": 200},
        "exploration": {"start": 1.0, "end": 0.3, "steps": 1_000},
        "optimizer": {"batch_size": 32, "learning_rate": 0.02, "epsilon": 1e-4},
        "network": {"hidden": []},  # one weight per state and action: a table
        **changes,
    }
    return tiny_config(**values)


class Learnt(NamedTuple):
    """What a run on the chain came to: its loop, and the policy of its final weights."""

    loop: Loop
    policy: Policy

    @property
    def q_values(self) -> Any:  # [states, 2]
        assert isinstance(self.policy, QPolicy)
        return self.policy.critic(np.eye(NUM_STATES, dtype=np.float32)[:, None])


def learn_chain(config: RunConfig) -> Learnt:
    environments: list[Environment] = [GymnasiumEnvironment("LinearChain-v0") for _ in range(config.envs)]
    loop, agent, _, _ = make_loop(config, environments)
    for _ in loop.run():
        pass
    return Learnt(loop, agent_kind(config.agent).load(config, environments[0].spec, agent.get_tensors()["weights"]))


CACHED: dict[str, Any] = {"cache": {"size": 800, "block_length": 20, "refresh_every": 100, "updates": 60}}


def test_the_optimal_values_by_hand() -> None:
    """Right from the last state pays 1; each state further left pays −0.1 first: 1, 0.8, 0.62, 0.458, 0.3122."""
    right = optimal_chain_values(DISCOUNT)[:, RIGHT]
    assert_allclose(right, [0.3122, 0.458, 0.62, 0.8, 1.0], atol=1e-12)
    assert (optimal_chain_values(DISCOUNT).argmax(axis=1) == RIGHT).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "watkins:0.8", **CACHED},
        {"estimator": "peng:0", **CACHED},
        {"estimator": "retrace:0.9", **CACHED, "envs": 4},
        {"estimator": "watkins-median", "cache": {**CACHED["cache"], "priority": 0.5, "schedule": "concurrent"}},
        {"agent": "dqn", "estimator": "nstep:1", "target": {"copy_every": 100, "update_every": 2}},
    ],
    ids=lambda changes: changes["estimator"],
)
def test_off_policy_returns_reach_the_optimal_values(changes: dict[str, Any]) -> None:
    """These returns are those of the greedy policy, so exploration, which goes on, does not pull the values down."""
    learnt = learn_chain(chain_config(**changes))
    assert_allclose(learnt.q_values, optimal_chain_values(DISCOUNT), atol=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "peng:0.75", **CACHED},
        {"agent": "dqn", "estimator": "nstep:3", "target": {"copy_every": 100, "update_every": 2}},
    ],
    ids=["dqn-lambda", "dqn"],
)
@pytest.mark.parametrize("hidden", [[], [32]])
def test_the_papers_agents_learn_the_optimal_policy(changes: dict[str, Any], hidden: list[int]) -> None:
    """Their returns follow the exploring policy, so only the order of the values is asked for, with a network too."""
    learning_rate = 0.005 if hidden else 0.02
    learnt = learn_chain(
        chain_config(
            **changes, network={"hidden": hidden}, optimizer={"batch_size": 32, "learning_rate": learning_rate}
        )
    )
    q_values = learnt.q_values
    assert (q_values.argmax(axis=1) == RIGHT).all()
    assert abs(q_values - optimal_chain_values(DISCOUNT)).max() < 0.5
    game = play(GymnasiumEnvironment("LinearChain-v0"), learnt.policy, history=1, epsilon=0.0, seed=1)
    assert game.ended == "terminated"
    assert game.score == pytest.approx(1 - 0.1 * (game.length - 1))
    assert game.length <= NUM_STATES


def test_without_exploration_at_the_end_the_papers_agent_reaches_the_optimal_values() -> None:
    """ε = 0 once the policy is optimal: a small memory then holds optimal play alone, from every state."""
    changes = {**CACHED, "memory": {"capacity": 600, "start": 200}}
    exploration = {"start": 1.0, "end": 0.0, "steps": 1_500}
    learnt = learn_chain(chain_config(**changes, estimator="peng:0.75", exploration=exploration, steps=4_000))
    assert_allclose(learnt.q_values[:, RIGHT], optimal_chain_values(DISCOUNT)[:, RIGHT], atol=0.03)


def test_scores_rise_while_learning() -> None:
    loop = learn_chain(chain_config(**CACHED, exploration={"start": 1.0, "end": 0.0, "steps": 1_500})).loop
    assert loop.score is not None
    # Optimal play from a uniformly random state pays 1 − 0.1·2 = 0.8 on average; random play about −1.
    assert loop.score == pytest.approx(0.8, abs=0.1)
