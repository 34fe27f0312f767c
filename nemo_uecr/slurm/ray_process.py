"""Ray on one node: `ray start --block` in a process group of its own, so that it can be ended whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from nemo_uecr.slurm.job import Job, node_resource
from nemo_uecr.slurm.ports import FIRST_WORKER_PORT, WORKER_PORTS
from nemo_uecr.slurm.process_group import end_group

__all__ = ["RayProcess", "answers", "clear_temp_folder", "last_line", "start_arguments"]

MOST_PARTS = 8
STOPPING_S = 15.0


def start_arguments(job: Job, head_address: str | None) -> list[str]:
    """The words after `ray start`.

    Args:
        job: the node's job.
        head_address: where the head listens; None on the head itself.
    """
    # Nodes that share one host (tests) must not share ports; on hosts of their own the split does no harm.
    parts = len(job.nodes) if len(job.nodes) <= MOST_PARTS else 1
    share = WORKER_PORTS // parts
    first = FIRST_WORKER_PORT + job.nodes.index(job.node) % parts * share
    words = [
        "--head",
        f"--port={job.port}",
        f"--ray-client-server-port={job.port + 1}",
        "--include-dashboard=false",
        f"--temp-dir={temp_folder(job)}",  # the head's choice is that of all nodes
    ]
    return [
        *(words if head_address is None else [f"--address={head_address}"]),
        f"--num-cpus={job.cpus}",
        f"--num-gpus={job.gpus}",
        f"--resources={json.dumps({node_resource(job.node): 1})}",
        f"--min-worker-port={first}",
        f"--max-worker-port={first + share - 1}",
        "--disable-usage-stats",
        "--block",
    ]


def temp_folder(job: Job) -> Path:
    """Ray's folder on each node: its sockets, whose paths may have 107 characters, its logs, spilled objects."""
    return Path(f"/tmp/uecr-ray-{job.folder.path.name}")


def clear_temp_folder(job: Job, *, keep_logs: bool) -> None:
    """Remove what Ray left on this node; after a failure its logs go to the job's folder first."""
    folder = temp_folder(job)
    if keep_logs:
        for logs in folder.glob("session_[0-9]*/logs"):
            with contextlib.suppress(shutil.Error, OSError):  # a log may vanish while it is copied
                shutil.copytree(logs, job.folder.path / f"ray-{job.node}", dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


class RayProcess:
    """The running `ray start --block` of this node."""

    def __init__(self, job: Job, head_address: str | None) -> None:
        """Start it; its output goes to the node's log."""
        words = start_arguments(job, head_address)
        with job.folder.log_of(job.node).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # NeMo-RL builds its environments itself, once a node; Ray would do it for each task.
                env=os.environ | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
            )

    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End it and everything it started; returns when nothing of it is left."""
        end_group(self._process, STOPPING_S)


def last_line(path: Path) -> str:
    """The last line of a log that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return "no output"
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def answers(address: str) -> bool:
    """Whether something listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False
