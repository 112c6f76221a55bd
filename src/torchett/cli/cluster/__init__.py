"""Commands for a cluster: `ett slurm …`, `ett schedule …`, `ett drill`."""
