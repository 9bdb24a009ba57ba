"""Training commands on several nodes: watched from the first node of a SLURM job that has them all."""
