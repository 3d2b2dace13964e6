"""The table of agents, which the command line, presets, studies, checkpoints and playing read.

A new agent needs a file with its config and its class, a line here, and a preset.
"""

from __future__ import annotations

from lambda_replay.agents import dqn, dqn_lambda, pqn
from lambda_replay.agents.protocol import AgentKind
from lambda_replay.errors import ConfigError

AGENTS: dict[str, AgentKind] = {
    "dqn-lambda": dqn_lambda.KIND,
    "dqn": dqn.KIND,
    "pqn": pqn.KIND,
}


def agent_kind(name: str) -> AgentKind:
    """The agent with this name; an error lists the known ones."""
    if name not in AGENTS:
        raise ConfigError(f"there is no agent {name!r}; choose one of {', '.join(AGENTS)}.", "agent")
    return AGENTS[name]
