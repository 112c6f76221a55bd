"""Kernels are tuned once, and the winners are stored."""
