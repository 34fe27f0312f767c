"""Who is in the Ray cluster: asked by a process of its own, because a Ray client can die with the cluster it asks."""

from __future__ import annotations

import json
import subprocess
import sys

from nemo_uecr.slurm.job import nodes_of

__all__ = ["members"]

ASKING_S = 60.0


def members(address: str) -> dict[str, int] | None:
    """GPUs of each live node by name; None where the head does not answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nemo_uecr.slurm.members", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASKING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return {str(name): int(gpus) for name, gpus in json.loads(done.stdout).items()} if done.returncode == 0 else None


def _ask(address: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    found = {name: int(resources.get("GPU", 0)) for name, resources in nodes_of(ray.nodes()).items()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _ask(sys.argv[1])
