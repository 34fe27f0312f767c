"""One Ray cluster on the nodes of a Slurm job: start, registration, the driver, heartbeat, the cause of a failure.

The job's scripts, its end and its requeue lie in the repository's `slurm/`.
"""
