"""Benchmarks of this project; run them from the repository root, for example python -m benchmarks.speed."""
