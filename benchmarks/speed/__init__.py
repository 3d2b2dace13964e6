"""Our training speed against our peers' at equal settings: run python -m benchmarks.speed from the repository root."""
