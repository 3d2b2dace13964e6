"""The table of agents, which the command line, presets, studies, checkpoints and playing read.

A new agent needs a file with its config and its class, a line here, and a preset.
"""

from __future__ import annotations

from lambda_replay.agents import (
    ddpg_lambda,
    dqn,
    dqn_lambda,
    naf_lambda,
    pqn,
    sac,
    sac_lambda,
    sdqn_lambda,
    td3,
    td3_lambda,
)
from lambda_replay.agents.protocol import AgentKind
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError

AGENTS: dict[str, AgentKind] = {
    "dqn-lambda": dqn_lambda.KIND,
    "dqn": dqn.KIND,
    "pqn": pqn.KIND,
    "sac-lambda": sac_lambda.KIND,
    "td3-lambda": td3_lambda.KIND,
    "ddpg-lambda": ddpg_lambda.KIND,
    "naf-lambda": naf_lambda.KIND,
    "sdqn-lambda": sdqn_lambda.KIND,
    "sac": sac.KIND,
    "td3": td3.KIND,
}


def agent_kind(name: str) -> AgentKind:
    """The agent with this name; an error lists the known ones."""
    if name not in AGENTS:
        raise ConfigError(f"there is no agent {name!r}; choose one of {', '.join(AGENTS)}.", "agent")
    return AGENTS[name]


def agents_for(spec: EnvironmentSpec) -> list[str]:
    """The agents that fit an environment's actions."""
    actions = "Box" if spec.is_continuous else "Discrete"
    return [name for name, kind in AGENTS.items() if kind.actions == actions]


def check_actions(run: RunConfig, spec: EnvironmentSpec) -> None:
    """Reject an agent that does not fit the environment's actions."""
    fitting = agents_for(spec)
    if run.agent not in fitting:
        raise ConfigError(
            f"agent {run.agent} needs {agent_kind(run.agent).actions} actions, but {run.env} has "
            f"{'Box' if spec.is_continuous else 'Discrete'} ones; choose one of {', '.join(fitting)}.",
            "agent",
        )
