"""A node's place in the cluster, as the Ray resources by which NeMo-RL orders its ranks.

`nvlink_domain_UUID` is the NVLink fabric that a node belongs to, `topo_rank` its place in the network. Recipes with
`cluster.segment_size` ask for both.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

#: A block of the network before a node of it; names have fewer digits than this.
BLOCK = 10**10


def topology_resources(node: str, nodes: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """The resources of a node of the job ``nodes``, from Slurm's ``environment`` and nvidia-smi."""
    found: dict[str, float] = {}
    if domain := nvlink_domain(_asked("nvidia-smi", "-q")):
        found[f"nvlink_domain_{domain}"] = 1
    if rank := network_rank(node, nodes, environment):
        found["topo_rank"] = rank
    return found


def nvlink_domain(said: str) -> str:
    """The fabric's UUID in what `nvidia-smi -q` says; empty for GPUs without one."""
    found = re.search(r"ClusterUUID\s*:\s*(\S+)", said)
    return "" if found is None or not found[1].strip("0-") or found[1] == "N/A" else found[1]


def network_rank(node: str, nodes: Sequence[str], environment: Mapping[str, str]) -> int:
    """A node's place: by the numbers of its block and of itself, else by its place in the job; 0 if unknown.

    Ray drops resources of value 0, so places in the job count from 1.
    """
    if environment.get("SLURM_TOPOLOGY_ADDR_PATTERN") != "block.node":
        return nodes.index(node) + 1
    block, _, name = environment.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")
    numbers = [re.sub(r"\D", "", part) for part in (block.partition(".")[0], name)]
    return int(numbers[0]) * BLOCK + int(numbers[1]) if all(numbers) else 0


def _asked(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):  # no GPU, or a driver that hangs: a later check's finding
        return ""
