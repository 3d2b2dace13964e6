"""The run directory: files that survive a crash, checkpoints, verification, and required memory and disk."""
