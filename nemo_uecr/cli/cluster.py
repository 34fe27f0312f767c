"""What slurm/*.sh call: `cluster smoke`, `cluster command` and `cluster node`."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.cli.common import ConfigFile, Override, family, load_and_report, require_extra
from nemo_uecr.cli.train import train_until
from nemo_uecr.errors import ConfigError, DependencyError

if TYPE_CHECKING:
    from nemo_uecr.stopping import StopRequest

__all__ = ["app", "train_replica"]

app = family("cluster", "What slurm/*.sh call.")
app.show = False

#: Machines of one kind agree to the last bit; others round differently.
TOLERANCE = 1e-6
TERMINATED = 143  # 128 + SIGTERM, as shells report it


@app.command
def smoke(config: ConfigFile, /, *overrides: Override) -> None:
    """The same short run of the local back end on every node of the Ray cluster at RAY_ADDRESS; no GPU is needed.

    Each node trains in run.folder/NODE; at the end all must have come to the same numbers. It continues what the run
    folders hold, and ends early as `train` does.
    """
    from nemo_uecr.slurm.replicas import ReplicaError, largest_difference, train_everywhere
    from nemo_uecr.stopping import listening

    folder = Path(load_and_report(config, overrides).config.run.folder).resolve()
    ray = _connect()
    try:
        with listening() as stop:  # after connecting: Ray sets a handler of its own
            folders = train_everywhere(partial(train_replica, os.path.abspath(config), tuple(overrides)), folder, stop)
    finally:
        ray.shutdown()  # it prints the last lines of its actors, and the job's last line is ours
    difference = largest_difference(list(folders.values()))
    names = ", ".join(folders)
    if not difference <= TOLERANCE:
        raise ReplicaError(
            f"nodes {names} disagree: a metric differs by {difference:.3g}, expected {TOLERANCE:g} at most"
        )
    sys.stdout.write(f"smoke: {len(folders)} nodes ({names}) agree, largest difference {difference:.3g}; {folder}\n")


def train_replica(config: str, overrides: tuple[str, ...], folder: Path, stop: StopRequest) -> Path:
    """One replica's run; called on its node."""
    return train_until(load_and_report(config, [*overrides, f"run.folder={folder}"]), resume=True, stop=stop)


def _connect() -> Any:
    os.environ["RAY_DEDUP_LOGS"] = "0"  # read at the import; else lines end in "[repeated 4x across cluster]", coloured
    require_extra("ray")
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise DependencyError("RAY_ADDRESS is not set; start this command through sbatch, see docs/cluster.md")
    ray.init(address=address)
    return ray


@app.command
def command(config: ConfigFile, /, *overrides: Override, nodes: int, gpus: int, smoke: bool = False) -> None:
    """Print the command that a Slurm job with these resources runs; the first step of every `--dry-run`.

    Args:
        nodes: Nodes of the job.
        gpus: GPUs of each node.
        smoke: The same short local run on every node.
    """
    from nemo_uecr.slurm.words import command_words

    words = command_words(config, overrides, smoke=smoke, nodes=nodes, gpus=gpus)
    sys.stdout.write(shlex.join(["nemo-uecr", *words]) + "\n")


@app.command
def node(
    config: ConfigFile,
    /,
    *overrides: Override,
    job: Path,
    nodes: str,
    gpus: int,
    cpus: int,
    port: int,
    register_s: float,
    heartbeat_s: float,
    silence_s: float,
    smoke: bool = False,
) -> int:
    """What each node of a Slurm job runs: its part of the Ray cluster, and on the first node the driver.

    Args:
        job: The job's folder on the shared file system.
        nodes: Names of all nodes, the head first: N1,N2.
        gpus: GPUs of each node.
        cpus: CPUs of each node.
        port: Port of the Ray head.
        register_s: Longest wait for all nodes, seconds.
        heartbeat_s: Seconds between two looks at the members.
        silence_s: Longest silence of the driver, seconds.
        smoke: The same short local run on every node.
    """
    from nemo_uecr.slurm.head import run_head
    from nemo_uecr.slurm.job import Job, Limits
    from nemo_uecr.slurm.job_folder import JobFolder
    from nemo_uecr.slurm.ports import head_port
    from nemo_uecr.slurm.words import command_words
    from nemo_uecr.slurm.worker import run_worker

    name, names = os.environ.get("SLURMD_NODENAME", ""), tuple(nodes.split(","))
    if name not in names:
        raise ConfigError(f"SLURMD_NODENAME={name!r} is none of the job's nodes {nodes}; srun starts this command")
    this = Job(name, names, gpus, cpus, port, JobFolder(job), Limits(register_s, heartbeat_s, silence_s))
    handler = logging.FileHandler(this.folder.log_of(name), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger("nemo_uecr").addHandler(handler)
    # Whatever ends this process, what it started must be ended first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    words = None
    try:
        if this.is_head:
            head_port(port)
            words = command_words(config, overrides, smoke=smoke, nodes=len(names), gpus=gpus)
        require_extra("ray")
    except (ConfigError, DependencyError) as error:
        this.folder.blame(name, str(error))
        this.folder.end(2)
        raise
    if words is None:
        return run_worker(this)
    return run_head(this, [sys.executable, "-m", "nemo_uecr", *words])
