"""A run: its presets, its loop, and everything from the first step to the final weights."""
