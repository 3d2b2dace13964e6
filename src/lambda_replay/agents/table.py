"""The table of agents, which the command line, presets, studies, checkpoints and playing read.

A new agent needs a file with its config and its class, a line here, and a preset.
"""

from __future__ import annotations

from lambda_replay.agents import (
    ddpg_lambda,
    dqn,
    dqn_lambda,
    drqn_lambda,
    naf_lambda,
    pqn,
    sac,
    sac_lambda,
    sdqn_lambda,
    td3,
    td3_lambda,
    uvfa_lambda,
)
from lambda_replay.agents.protocol import AgentKind
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError

AGENTS: dict[str, AgentKind] = {
    "dqn-lambda": dqn_lambda.KIND,
    "dqn": dqn.KIND,
    "pqn": pqn.KIND,
    "drqn-lambda": drqn_lambda.KIND,
    "sac-lambda": sac_lambda.KIND,
    "td3-lambda": td3_lambda.KIND,
    "ddpg-lambda": ddpg_lambda.KIND,
    "naf-lambda": naf_lambda.KIND,
    "sdqn-lambda": sdqn_lambda.KIND,
    "sac": sac.KIND,
    "td3": td3.KIND,
    "uvfa-lambda": uvfa_lambda.KIND,
}


def agent_kind(name: str) -> AgentKind:
    """The agent with this name; an error lists the known ones."""
    if name not in AGENTS:
        raise ConfigError(f"there is no agent {name!r}; choose one of {', '.join(AGENTS)}.", "agent")
    return AGENTS[name]


def agents_for(spec: EnvironmentSpec) -> list[str]:
    """The agents that fit an environment's actions; those for its goals, if it has some, come first."""
    actions, has_goals = "Box" if spec.is_continuous else "Discrete", spec.goals is not None
    fitting = [name for name, kind in AGENTS.items() if kind.actions in (actions, "any")]
    for_goals = [name for name in fitting if AGENTS[name].needs_goals and has_goals]
    return [*for_goals, *(name for name in fitting if not AGENTS[name].needs_goals)]


def check_actions(run: RunConfig, spec: EnvironmentSpec) -> None:
    """Reject an agent that does not fit the environment's actions, or that needs goals where there are none."""
    fitting = agents_for(spec)
    if agent_kind(run.agent).needs_goals and (run.observe or run.scale):
        name = "observe" if run.observe else "scale"
        raise ConfigError(
            f"agent {run.agent} needs goals whole and in the environment's units; leave {name} out, or choose one of "
            f"{', '.join(fitting)}.",
            "agent",
            name,
        )
    if agent_kind(run.agent).needs_goals and spec.goals is None:
        raise ConfigError(
            f"agent {run.agent} needs goals, but {run.env} has none (Dict observations with observation, achieved_goal "
            f"and desired_goal, arrays of one shape, and compute_reward); choose one of {', '.join(fitting)}.",
            "agent",
        )
    if run.agent not in fitting:
        raise ConfigError(
            f"agent {run.agent} needs {agent_kind(run.agent).actions} actions, but {run.env} has "
            f"{'Box' if spec.is_continuous else 'Discrete'} ones; choose one of {', '.join(fitting)}.",
            "agent",
        )
