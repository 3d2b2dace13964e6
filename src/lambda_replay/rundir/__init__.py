"""The run directory: files that survive a crash, checkpoints, verification, and what a run needs."""
