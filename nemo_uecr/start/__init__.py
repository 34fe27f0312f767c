"""Every check before a run, once: the doctor prints them, `train`, `config check` and Slurm jobs raise from them."""
