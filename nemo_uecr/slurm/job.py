"""What every node of a job knows: its own name, the others, the resources, the limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_uecr.slurm.job_folder import JobFolder

__all__ = ["LOOKING_S", "Job", "Limits", "node_resource", "nodes_of"]

#: Seconds between two looks at what a node waits for.
LOOKING_S = 0.5


@dataclass(frozen=True)
class Limits:
    """How long a node waits before it names what is missing, in seconds."""

    register_s: float
    """For every node and GPU to be in the Ray cluster."""

    heartbeat_s: float
    """Between two looks at the cluster's members, and two lines about them."""

    silence_s: float
    """For the driver's next line of output."""


@dataclass(frozen=True)
class Job:
    """One attempt of a job, as one of its nodes sees it."""

    node: str
    """This node's name."""

    nodes: tuple[str, ...]
    """All names; the first one is the head."""

    gpus: int
    """GPUs of each node; 0 on machines without."""

    cpus: int
    """CPUs of each node."""

    port: int
    """Port of the head's control store; the next one is its client server's."""

    folder: JobFolder
    limits: Limits

    @property
    def is_head(self) -> bool:
        """Whether this node carries the head and the driver."""
        return self.node == self.nodes[0]


def node_resource(node: str) -> str:
    """The custom resource that pins work to a node, and by which a node is recognised in the Ray cluster."""
    return f"slurm_node:{node}"


def nodes_of(found: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, float]]:
    """Resources of each live node of a job by its name, from what `ray.nodes()` gives."""
    prefix = node_resource("")
    return {
        key.removeprefix(prefix): node["Resources"]
        for node in found
        if node["Alive"]
        for key in node["Resources"]
        if key.startswith(prefix)
    }
