"""What each node of a Slurm job runs: its part of the Ray cluster, and on the first node the driver.

`slurm/common.sh` calls it; nobody types it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.extras import require_extra
from nemo_uecr.errors import ConfigError, DependencyError

if TYPE_CHECKING:
    from nemo_uecr.cluster.job import Job

__all__ = ["add_arguments", "run"]

TERMINATED = 143  # 128 + SIGTERM, as shells report it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--job", required=True, metavar="FOLDER", help="the job's folder on the shared file system")
    parser.add_argument("--nodes", required=True, metavar="N1,N2", help="names of all nodes, the head first")
    parser.add_argument("--gpus", required=True, type=int, help="GPUs of each node")
    parser.add_argument("--cpus", required=True, type=int, help="CPUs of each node")
    parser.add_argument("--port", required=True, type=int, help="port of the Ray head")
    parser.add_argument("--register-s", required=True, type=float, help="longest wait for all nodes, seconds")
    parser.add_argument("--heartbeat-s", required=True, type=float, help="seconds between two looks at the members")
    parser.add_argument("--silence-s", required=True, type=float, help="longest silence of the driver, seconds")
    parser.add_argument("--smoke", action="store_true", help="the same short local run on every node")
    parser.add_argument("config", metavar="CONFIG", help="YAML configuration file")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="change one value")


def run(args: argparse.Namespace) -> int:
    """Be this node until the job's driver has ended."""
    from nemo_uecr.cluster.head import run_head
    from nemo_uecr.cluster.worker import run_worker

    job = _job(args)
    _log_to(job)
    # Whatever ends this process, what it started must be ended first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    try:
        words = _driver_words(args, job) if job.is_head else None
        require_extra("ray")
    except (ConfigError, DependencyError) as error:
        job.folder.blame(job.node, str(error))
        job.folder.end(2)
        raise
    if words is None:
        return run_worker(job)
    return run_head(job, [sys.executable, "-m", "nemo_uecr", *words])


def _driver_words(args: argparse.Namespace, job: Job) -> list[str]:
    from nemo_uecr.cluster.ports import head_port
    from nemo_uecr.cluster.words import command_words

    head_port(job.port)
    return command_words(args.config, args.overrides, smoke=args.smoke, nodes=len(job.nodes), gpus=job.gpus)


def _job(args: argparse.Namespace) -> Job:
    from nemo_uecr.cluster.job import Job, Limits
    from nemo_uecr.cluster.job_folder import JobFolder

    node = os.environ.get("SLURMD_NODENAME", "")
    nodes = tuple(args.nodes.split(","))
    if node not in nodes:
        raise ConfigError(f"SLURMD_NODENAME={node!r} is none of the job's nodes {args.nodes}; srun starts this command")
    limits = Limits(args.register_s, args.heartbeat_s, args.silence_s)
    return Job(node, nodes, args.gpus, args.cpus, args.port, JobFolder(Path(args.job)), limits)


def _log_to(job: Job) -> None:
    handler = logging.FileHandler(job.folder.log_of(job.node), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger("nemo_uecr").addHandler(handler)
