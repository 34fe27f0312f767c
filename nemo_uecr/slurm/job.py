"""A job as each of its nodes sees it: its resources, its folder on the shared file system, the command that it runs.

The batch script and the nodes talk through files in that folder: they cross the container's boundary, need no port, and
can be read after a failure.

    cause         why the job failed, in one line; the first one stays
    stop          the batch script wants the run to save and end
    head-address  where the Ray head listens
    status        the head's state in one line; its age shows whether the head is alive
    ended         the driver's exit code: every node leaves
    final         the batch script's last line
    left-NODE     this node has stopped its Ray
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import backend_of, load_nemo_config
from nemo_uecr.errors import ConfigError
from nemo_uecr.files import replace_file
from nemo_uecr.plan.faults import layout_faults, refuse

__all__ = ["POLL_S", "Job", "command_words", "last_line", "node_resource", "nodes_of"]

#: Seconds between two looks at whatever a node waits for.
POLL_S = 0.5


@dataclass(frozen=True)
class Job:
    """One attempt of a job.

    Attributes:
        folder: the attempt's folder; the batch script has made it.
        node: this node's name.
        nodes: all names; the first one is the head.
        gpus: GPUs of each node; 0 on machines without.
        cpus: CPUs of each node.
        port: of the head's control store; the next one is its client server's.
        register_s: longest wait for every node and GPU to join the Ray cluster, seconds.
        heartbeat_s: between two looks at the cluster's members, seconds.
        silence_s: longest wait for the driver's next line of output, seconds.
    """

    folder: Path
    node: str
    nodes: tuple[str, ...]
    gpus: int
    cpus: int
    port: int
    register_s: float
    heartbeat_s: float
    silence_s: float

    @property
    def is_head(self) -> bool:
        """Whether this node runs the Ray head and the driver."""
        return self.node == self.nodes[0]

    @property
    def driver_log(self) -> Path:
        """What the driver printed."""
        return self.folder / "driver.log"

    def log_of(self, node: str) -> Path:
        """The log of a node."""
        return self.folder / f"node-{node}.log"

    def has(self, name: str) -> bool:
        """Whether a file of the table above is there."""
        return (self.folder / name).exists()

    def read(self, name: str) -> str | None:
        """Its content; None while it is not there."""
        try:
            return (self.folder / name).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Write it whole."""
        replace_file(self.folder / name, text.encode())

    def blame(self, node: str, reason: str) -> None:
        """State the cause of the failure; a later one follows from the first and is dropped."""
        aside = self.folder / f".cause-{self.node}-{os.getpid()}"
        aside.write_text(f"node {node}: {' '.join(reason.split())}\n", encoding="utf-8")
        with contextlib.suppress(FileExistsError):
            os.link(aside, self.folder / "cause")  # a reader sees the whole line or no file
        aside.unlink()


def node_resource(node: str) -> str:
    """The custom resource that pins work to a node, and that identifies the node in the Ray cluster."""
    return f"slurm_node:{node}"


def nodes_of(found: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, float]]:
    """Resources of each live node by its name, from what `ray.nodes()` returns."""
    prefix = node_resource("")
    return {
        key.removeprefix(prefix): node["Resources"]
        for node in found
        if node["Alive"]
        for key in node["Resources"]
        if key.startswith(prefix)
    }


def command_words(config: str, overrides: Sequence[str], *, smoke: bool, nodes: int, gpus: int) -> list[str]:
    """What follows `nemo-uecr` on the driver's command line: the user's configuration with the job's resources.

    Every attempt of a job runs the same words: they continue what the run folder holds.

    Raises:
        ConfigError: the configuration is not valid, or asks for other resources than the job has.
    """
    if smoke:
        return ["slurm", "smoke", config, *overrides]
    if backend_of(config, overrides) != "nemo_rl":
        if nodes != 1:
            raise ConfigError(f"{config}: backend local runs on one node, the job has {nodes}; sbatch --nodes=1")
        return ["train", config, *overrides, "--resume"]
    words = [f"cluster.nodes={nodes}", f"cluster.gpus_per_node={gpus}", *overrides]
    loaded = load_nemo_config(config, words)
    asked = loaded.cluster
    if asked.nodes != nodes:
        raise ConfigError(
            f"cluster.nodes={asked.nodes}: the job has {nodes} nodes; ask Slurm: sbatch --nodes={asked.nodes}"
        )
    if asked.gpus_per_node > gpus:
        raise ConfigError(
            f"cluster.gpus_per_node={asked.gpus_per_node}: each node of the job has {gpus} GPUs; "
            f"give a number from 1 to {gpus}"
        )
    refuse(layout_faults(loaded, None, None))
    return ["train", config, *words, "--resume"]


def last_line(path: Path) -> str:
    """The last line of a log that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return "no output"
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
