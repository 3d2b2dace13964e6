"""The race: which agent has the best score after so many minutes of one core; see docs/results.md."""
