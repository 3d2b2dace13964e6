"""Training speed at equal settings, ours and our peers': python -m benchmarks.speed, from the repository's root."""
