"""A node that carries Ray workers and no driver."""

from __future__ import annotations

import logging
import time

from nemo_uecr.slurm.job import LOOKING_S, Job
from nemo_uecr.slurm.ray_process import RayProcess, answers, clear_temp_folder, last_line

__all__ = ["run_worker"]

log = logging.getLogger(__name__)

#: Ray here may notice the end of the head before the shared file system shows that the driver had ended.
CLOSING_S = 10.0


def run_worker(job: Job) -> int:
    """Join the head's cluster and stay until the driver has ended; returns the node's exit code."""
    address = _wait_for_head(job)
    if address is None:
        return 1
    log.info("node %s: joining %s", job.node, address)
    ray = RayProcess(job, address)
    code = 1
    try:
        while not job.folder.ended() and ray.code() is None:
            time.sleep(LOOKING_S)
        code = _outcome(job, ray, address)
        return code
    finally:
        ray.stop()
        clear_temp_folder(job, keep_logs=code != 0)
        job.folder.leave(job.node)
        log.info("node %s: Ray has ended", job.node)


def _wait_for_head(job: Job) -> str | None:
    deadline = time.monotonic() + job.limits.register_s
    while time.monotonic() < deadline:
        address = job.folder.head_address()
        if address is not None:
            return address
        if job.folder.ended() or job.folder.cause() is not None or job.folder.script_ended():
            return None
        time.sleep(LOOKING_S)
    job.folder.blame(
        job.nodes[0], f"no Ray head within {job.limits.register_s:.0f} s, says node {job.node}; see its log"
    )
    return None


def _outcome(job: Job, ray: RayProcess, address: str) -> int:
    deadline = time.monotonic() + CLOSING_S
    while not job.folder.ended():
        if job.folder.cause() is not None:  # another node failed first, and this one's Ray followed
            return 1
        if answers(address) or time.monotonic() > deadline:
            last = last_line(job.folder.log_of(job.node))
            job.folder.blame(job.node, f"its Ray worker has died (code {ray.code()}); last line: {last}")
            return 1
        time.sleep(LOOKING_S)
    return 0
