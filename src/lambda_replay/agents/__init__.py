"""One file per algorithm, each a composition of the rooms below; this page builds them from a config."""

from lambda_replay.agents.make import Agent, check_agent, choose_threads, make_agent, num_cores, parse_agent_estimator

__all__ = ["Agent", "check_agent", "choose_threads", "make_agent", "num_cores", "parse_agent_estimator"]
