"""The method itself, NumPy only: memory, blocks, estimators, cache."""
