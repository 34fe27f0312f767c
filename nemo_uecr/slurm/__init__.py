"""One Ray cluster on the nodes of a Slurm job: start, registration, the driver, heartbeat, the cause of a failure."""
