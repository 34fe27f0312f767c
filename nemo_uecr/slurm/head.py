"""The first node of a job: the head of the Ray cluster, the wait for the others, the driver, and the watch over all."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Sequence

from nemo_uecr.slurm.driver import Driver
from nemo_uecr.slurm.job import LOOKING_S, Job
from nemo_uecr.slurm.members import members
from nemo_uecr.slurm.ray_process import RayProcess, answers, clear_temp_folder, last_line
from nemo_uecr.stopping import STOPPED

__all__ = ["run_head"]

log = logging.getLogger(__name__)

LISTENING_S = 120.0
#: For the other nodes to stop their Ray: in peace, and when one of them may be gone.
LEAVING_S, FAILING_S = 30.0, 5.0


class Failed(Exception):
    """Something of this job is broken: which node, and how."""

    def __init__(self, node: str, reason: str) -> None:
        """Keep both for the job's one line."""
        super().__init__(reason)
        self.node = node


def run_head(job: Job, driver_words: Sequence[str]) -> int:
    """Bring the cluster up, run the driver in it, take the cluster down.

    Returns:
        The driver's exit code; 1 for a failure around it, whose cause is then in the job's folder.
    """
    address = f"{head_host(alone=len(job.nodes) == 1)}:{job.port}"
    code = 1
    try:
        if answers(address):
            raise Failed(job.node, f"port {job.port} is taken by another program; choose one: --ray-port NUMBER")
        ray = RayProcess(job, None)
        try:
            _wait_for_port(job, ray, address)
            job.folder.publish_head(address)
            _wait_for_members(job, ray, address)
            code = _run_driver(job, ray, address, driver_words)
        except Failed as failure:
            job.folder.blame(failure.node, str(failure))  # before the others leave and the batch script looks for it
        finally:
            job.folder.end(code)
            try:
                _wait_for_leaving(job, LEAVING_S if code in (0, STOPPED) else FAILING_S)
            finally:  # the end of the job may cut the wait short
                ray.stop()
                clear_temp_folder(job, keep_logs=code not in (0, STOPPED))
    except Failed as failure:
        job.folder.blame(failure.node, str(failure))
        job.folder.end(code)
    return code


def head_host(*, alone: bool) -> str:
    """The address under which the other nodes reach this one."""
    named = socket.gethostbyname(socket.gethostname())
    if alone or not named.startswith("127."):
        return named
    # Some systems give a host's own name to the loopback device; Slurm knows by which address it called us.
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or named


def _wait_for_port(job: Job, ray: RayProcess, address: str) -> None:
    deadline = time.monotonic() + LISTENING_S
    while not answers(address):
        _check_ray(job, ray)
        if time.monotonic() > deadline:
            raise Failed(job.node, f"the Ray head does not listen at {address} after {LISTENING_S:.0f} s")
        time.sleep(LOOKING_S)


def _wait_for_members(job: Job, ray: RayProcess, address: str) -> None:
    deadline = time.monotonic() + job.limits.register_s
    while True:
        found = members(address) or {}
        missing = [name for name in job.nodes if found.get(name, -1) < job.gpus]
        log.info(status_line(job, found))
        job.folder.report(status_line(job, found))
        if not missing:
            return
        _check_ray(job, ray)
        _check_others(job)
        if time.monotonic() > deadline:
            raise Failed(
                missing[0],
                f"not registered after {job.limits.register_s:.0f} s, {status_line(job, found)}; its last line: "
                + last_line(job.folder.log_of(missing[0])),
            )
        time.sleep(LOOKING_S)


def status_line(job: Job, found: dict[str, int]) -> str:
    """How much of the cluster is there."""
    there = [name for name in job.nodes if name in found]
    gpus = sum(min(found[name], job.gpus) for name in there)
    return f"{len(there)} of {len(job.nodes)} nodes, {gpus} of {job.gpus * len(job.nodes)} GPUs"


def _run_driver(job: Job, ray: RayProcess, address: str, words: Sequence[str]) -> int:
    driver = Driver(words, job.folder.driver_log, {"RAY_ADDRESS": address, "RAY_COLOR_PREFIX": "0"})  # into a file
    try:
        looked = time.monotonic()
        while driver.code() is None:
            time.sleep(LOOKING_S)
            _check_others(job)
            _check_ray(job, ray)
            if job.folder.stop_asked():
                driver.ask_to_save()
            if driver.silent_s() > job.limits.silence_s:
                raise Failed(job.node, f"the driver has printed nothing for {job.limits.silence_s:.0f} s: it hangs")
            if time.monotonic() - looked > job.limits.heartbeat_s:
                looked = time.monotonic()
                _check_members(job, address)
    finally:
        code = driver.stop()
    if code not in (0, STOPPED):
        _explain(job, address, code)
    return code


def _explain(job: Job, address: str, code: int) -> None:
    """The driver failed: because a node was lost, or by itself."""
    _check_others(job)
    _check_members(job, address)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
    job.folder.blame(job.node, f"the driver ended with {how}: {last_line(job.folder.driver_log)}")


def _check_members(job: Job, address: str) -> None:
    found = members(address)
    if found is None:
        raise Failed(job.node, "the Ray head does not answer any more")
    job.folder.report(status_line(job, found))
    lost = [name for name in job.nodes if name not in found]
    if lost:
        raise Failed(lost[0], f"lost: the Ray cluster has no longer heard of it; {status_line(job, found)}")


def _check_ray(job: Job, ray: RayProcess) -> None:
    if ray.code() is not None:
        last = last_line(job.folder.log_of(job.node))
        raise Failed(job.node, f"the Ray head has died (code {ray.code()}); last line: {last}")


def _check_others(job: Job) -> None:
    cause = job.folder.cause()
    if cause is not None:
        # It is written down already; the node that it names stays the one.
        raise Failed(job.node, cause)


def _wait_for_leaving(job: Job, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while set(job.nodes[1:]) - job.folder.left() and time.monotonic() < deadline:
        time.sleep(LOOKING_S)
