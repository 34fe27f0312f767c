"""The commands that slurm/*.sh call: `slurm smoke`, `slurm command` and `slurm node`."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path

from nemo_uecr.cli.common import ConfigFile, Override, family, say
from nemo_uecr.cli.train import train_local
from nemo_uecr.errors import require_extra
from nemo_uecr.stopping import StopRequest, listening

app = family("slurm", "The commands that slurm/*.sh call.")
app.show = False


@app.command
def smoke(config: ConfigFile, /, *overrides: Override) -> None:
    """Run the same short local training on every node of the Ray cluster at RAY_ADDRESS, without GPUs.

    Each node trains in run.folder/NODE; all must arrive at the same numbers. An unfinished test is continued, and stops
    early on the same signals as `train`.
    """
    from nemo_uecr.config.load import load_config
    from nemo_uecr.slurm.replicas import compare_nodes

    folder = Path(load_config(config, overrides).config.run.folder).resolve()
    os.environ["RAY_DEDUP_LOGS"] = "0"  # read at import; avoids coloured "[repeated 4x across cluster]"
    require_extra("ray")
    import ray

    ray.init(address=os.environ["RAY_ADDRESS"])
    try:
        with listening() as stop:  # after connecting, because Ray sets its own handler
            work = partial(train_replica, os.path.abspath(config), tuple(overrides))
            names, difference = compare_nodes(work, folder, stop)
    finally:
        ray.shutdown()  # prints the last lines of its actors; the job's last line must be ours
    say(f"smoke: {len(names)} nodes ({', '.join(names)}) agree, largest difference {difference:.3g}; {folder}")


def train_replica(config: str, overrides: tuple[str, ...], folder: Path, stop: StopRequest) -> Path:
    """Train one replica; called on its node."""
    return train_local(config, [*overrides, f"run.folder={folder}"], resume=True, stop=stop)


@app.command
def command(config: ConfigFile, /, *overrides: Override, nodes: int, gpus: int, smoke: bool = False) -> None:
    """Print the command that a Slurm job with these resources runs, for `--dry-run`."""
    from nemo_uecr.slurm.node import command_words

    say(shlex.join(["nemo-uecr", *command_words(config, overrides, smoke=smoke, nodes=nodes, gpus=gpus)]))


@app.command
def node(
    config: ConfigFile,
    /,
    *overrides: Override,
    job: Path,  # its folder on the shared file system
    nodes: str,  # all names, the head first: N1,N2
    gpus: int,  # per node
    cpus: int,
    port: int,  # of the Ray head
    register_s: float,  # longest wait for all nodes
    heartbeat_s: float,  # between two checks of the members
    silence_s: float,  # longest silence of the driver
    smoke: bool = False,
) -> int:
    """Run a node's part of a Slurm job: of the Ray cluster and, on the first node, the driver."""
    from nemo_uecr.slurm.node import Job, run_node

    name = os.environ["SLURMD_NODENAME"]
    this = Job(job, name, tuple(nodes.split(",")), gpus, cpus, port, register_s, heartbeat_s, silence_s)
    return run_node(this, config, overrides, smoke=smoke)
