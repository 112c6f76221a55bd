"""Random numbers that depend on their arguments only: the same under every policy."""

import math


def exponential(seed: int, job: int, number: int) -> float:
    """A number with mean 1 that depends on its arguments only (splitmix64)."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + job * 0xBF58476D1CE4E5B9 + number * 0x94D049BB133111EB) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    return -math.log((x + 1) / (mask + 2))
