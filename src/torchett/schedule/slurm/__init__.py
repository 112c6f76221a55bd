"""A daemon beside Slurm that preempts by the same policies as the simulator."""
