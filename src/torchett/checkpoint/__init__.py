"""Checkpoints: when to save, and what happens when the hardware is about to be taken away."""
