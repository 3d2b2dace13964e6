"""The one table of agents: command line, presets, studies, checkpoints and playing take all they need from it.

A new agent is a file with its config and its class, a line here, and a preset.
"""

from __future__ import annotations

from lambda_replay.agents import dqn, dqn_lambda
from lambda_replay.agents.protocol import AgentKind
from lambda_replay.errors import ConfigError

AGENTS: dict[str, AgentKind] = {
    "dqn-lambda": dqn_lambda.KIND,
    "dqn": dqn.KIND,
}


def agent_kind(name: str) -> AgentKind:
    """The agent of a name, or a sentence with those there are."""
    if name not in AGENTS:
        raise ConfigError(f"there is no agent {name!r}; choose one of {', '.join(AGENTS)}.")
    return AGENTS[name]
