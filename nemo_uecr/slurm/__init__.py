"""What the nodes of a Slurm job run; its scripts, its end and its requeue lie in the repository's `slurm/`."""
