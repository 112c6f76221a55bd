"""A cluster played event by event: what a preemption policy costs on a trace."""
