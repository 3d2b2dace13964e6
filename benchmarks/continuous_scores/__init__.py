"""Scores of agents with continuous actions after equal steps; see docs/results.md."""
