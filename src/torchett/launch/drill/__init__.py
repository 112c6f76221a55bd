"""A rehearsal of a preemption: the real signal at a chosen moment, and what was saved."""
