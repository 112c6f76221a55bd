"""Saving before the hardware is taken away."""
