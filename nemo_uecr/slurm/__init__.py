"""What the nodes of a Slurm job run; the batch scripts, which also requeue, are in the repository's `slurm/`."""
