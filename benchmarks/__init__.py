"""Measurements of this repository; run them from its root: python -m benchmarks.speed, and the like."""
