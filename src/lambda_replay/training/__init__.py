"""A run: its presets, its loop, and its life from the first step to the final weights."""
