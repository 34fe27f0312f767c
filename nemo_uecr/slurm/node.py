"""What each node of a job runs: its part of the Ray cluster and, on the first node, the driver and the watch over all.

Ray and the driver each lead a process group of their own, so that they can be ended with everything they started.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from nemo_uecr.errors import ConfigError, DependencyError, require_extra
from nemo_uecr.slurm.job import POLL_S, Job, command_words, last_line, node_resource, nodes_of
from nemo_uecr.stopping import STOPPED

__all__ = ["Driver", "head_host", "ray_arguments", "run_node"]

log = logging.getLogger(__name__)

TERMINATED = 143  # 128 + SIGTERM, as shells report it
#: For the other nodes to stop their Ray: in peace, and when one of them may be gone.
LEAVING_S, FAILING_S = 30.0, 5.0
#: A worker's Ray may notice the end of the head before the shared file system shows that the driver has ended.
CLOSING_S = 10.0
#: For the answer of the process that asks Ray for its members.
ASKING_S = 60.0
#: For Ray and for the driver to end when they are asked to.
RAY_STOP_S, DRIVER_STOP_S = 15.0, 10.0
#: The driver is signalled again and again: a signal is lost on a driver that is still loading.
SIGNAL_AGAIN_S = 5.0
#: Below the ephemeral range, and where NeMo-RL's own port plan has Ray's workers: 10002-11000.
FIRST_WORKER_PORT, WORKER_PORTS = 10002, 998
#: Nodes that share one host (in tests) must not share worker ports; more nodes than this are on hosts of their own.
MOST_ON_A_HOST = 8

ASK = "import sys; from nemo_uecr.slurm.node import print_members; print_members(sys.argv[1])"


class Failed(Exception):
    """Something in this job is broken: which node, and how."""

    def __init__(self, node: str, reason: str) -> None:
        """Keep both for the job's one line."""
        super().__init__(reason)
        self.node = node


def run_node(job: Job, config: str, overrides: Sequence[str], *, smoke: bool) -> int:
    """Do this node's part of the job.

    Returns:
        The driver's exit code on the head, 0 on another node; 1 for a failure around it, whose cause is in the folder.

    Raises:
        ConfigError: the configuration cannot be used.
        DependencyError: Ray is not installed.
    """
    handler = logging.FileHandler(job.log_of(job.node), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger("nemo_uecr").addHandler(handler)
    # Whatever ends this process, what it started must be ended first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    words: list[str] = []
    try:
        if job.is_head:
            words = command_words(config, overrides, smoke=smoke, nodes=len(job.nodes), gpus=job.gpus)
        require_extra("ray")
    except (ConfigError, DependencyError) as error:
        job.blame(job.node, str(error))
        job.write("ended", "2")
        raise
    return run_head(job, [sys.executable, "-m", "nemo_uecr", *words]) if job.is_head else run_worker(job)


# The first node


def run_head(job: Job, driver_words: Sequence[str]) -> int:
    """Bring the cluster up, run the driver in it, take the cluster down; returns the node's exit code."""
    address = f"{head_host(alone=len(job.nodes) == 1)}:{job.port}"
    if _listens(address):
        job.blame(job.node, f"port {job.port} is taken by another program; choose one: --ray-port NUMBER")
        job.write("ended", "1")
        return 1
    code, ray = 1, _start_ray(job, None)
    try:
        _wait_for_cluster(job, ray, address)
        code = _run_driver(job, ray, address, driver_words)
    except Failed as failure:
        job.blame(failure.node, str(failure))  # before the others leave and the batch script looks for it
    finally:
        job.write("ended", str(code))
        try:
            _wait_for_leaving(job, LEAVING_S if code in (0, STOPPED) else FAILING_S)
        finally:  # the end of the job may cut the wait short
            _stop_ray(job, ray, keep_logs=code not in (0, STOPPED))
    return code


def head_host(*, alone: bool) -> str:
    """The address under which the other nodes reach this one."""
    named = socket.gethostbyname(socket.gethostname())
    if alone or not named.startswith("127."):
        return named
    # Some systems give a host's own name to the loopback device; Slurm knows by which address it called us.
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or named


def _wait_for_cluster(job: Job, ray: subprocess.Popen[bytes], address: str) -> None:
    """Tell the others where the head listens, and wait until every node and GPU has registered."""
    deadline = time.monotonic() + job.register_s
    while True:
        found: dict[str, int] = {}
        if _listens(address):
            if not job.has("head-address"):  # once: a file replaced while NFS reads it would fail the reader
                job.write("head-address", address)
            found = _members(address) or {}
        status = _status_line(job, found)
        log.info(status)
        job.write("status", status)
        missing = [name for name in job.nodes if found.get(name, -1) < job.gpus]
        if not missing:
            return
        _check(job, ray)
        if time.monotonic() > deadline:
            last = last_line(job.log_of(missing[0]))
            raise Failed(missing[0], f"not registered after {job.register_s:.0f} s, {status}; its last line: {last}")
        time.sleep(POLL_S)


def _run_driver(job: Job, ray: subprocess.Popen[bytes], address: str, words: Sequence[str]) -> int:
    """Run the driver to its end while everything around it lives; returns its exit code."""
    driver = Driver(words, job.driver_log, {"RAY_ADDRESS": address, "RAY_COLOR_PREFIX": "0"})  # into a file
    looked = time.monotonic()
    try:
        while driver.code() is None:
            time.sleep(POLL_S)
            _check(job, ray)
            if job.has("stop"):
                driver.ask_to_save()
            if driver.silent_s() > job.silence_s:
                raise Failed(job.node, f"the driver has printed nothing for {job.silence_s:.0f} s: it hangs")
            if time.monotonic() - looked > job.heartbeat_s:
                looked = time.monotonic()
                _check_members(job, address)
    finally:
        code = driver.stop()
    if code not in (0, STOPPED):  # because a node was lost, or by itself
        _check(job, ray)
        _check_members(job, address)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        job.blame(job.node, f"the driver ended with {how}: {last_line(job.driver_log)}")
    return code


def _check(job: Job, ray: subprocess.Popen[bytes]) -> None:
    cause = job.read("cause")
    if cause is not None:
        raise Failed(job.node, cause)  # another node wrote it, and the first cause stays
    if ray.poll() is not None:
        last = last_line(job.log_of(job.node))
        raise Failed(job.node, f"the Ray head has died (code {ray.poll()}); last line: {last}")


def _check_members(job: Job, address: str) -> None:
    found = _members(address)
    if found is None:
        raise Failed(job.node, "the Ray head does not answer any more")
    status = _status_line(job, found)
    job.write("status", status)
    lost = [name for name in job.nodes if name not in found]
    if lost:
        raise Failed(lost[0], f"lost: the Ray cluster has no longer heard of it; {status}")


def _status_line(job: Job, found: Mapping[str, int]) -> str:
    there = [name for name in job.nodes if name in found]
    gpus = sum(min(found[name], job.gpus) for name in there)
    return f"{len(there)} of {len(job.nodes)} nodes, {gpus} of {job.gpus * len(job.nodes)} GPUs"


def _wait_for_leaving(job: Job, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(job.has(f"left-{name}") for name in job.nodes[1:]) and time.monotonic() < deadline:
        time.sleep(POLL_S)


# The other nodes


def run_worker(job: Job) -> int:
    """Join the head's cluster and stay until the driver has ended; returns the node's exit code."""
    address = _wait_for_head(job)
    if address is None:
        return 1
    log.info("node %s: joining %s", job.node, address)
    ray, code = _start_ray(job, address), 1
    try:
        while not job.has("ended") and ray.poll() is None:
            time.sleep(POLL_S)
        code = _outcome(job, ray, address)
        return code
    finally:
        _stop_ray(job, ray, keep_logs=code != 0)
        job.write(f"left-{job.node}", "")
        log.info("node %s: Ray has ended", job.node)


def _wait_for_head(job: Job) -> str | None:
    deadline = time.monotonic() + job.register_s
    while time.monotonic() < deadline:
        address = job.read("head-address")
        # A node that Slurm forgot to end hears of the job's end by the batch script's last line alone.
        if address is not None or any(job.has(name) for name in ("ended", "cause", "final")):
            return address
        time.sleep(POLL_S)
    job.blame(job.nodes[0], f"no Ray head within {job.register_s:.0f} s, says node {job.node}; see its log")
    return None


def _outcome(job: Job, ray: subprocess.Popen[bytes], address: str) -> int:
    deadline = time.monotonic() + CLOSING_S
    while not job.has("ended"):
        if job.has("cause"):  # another node failed first, and this one's Ray followed
            return 1
        if _listens(address) or time.monotonic() > deadline:
            last = last_line(job.log_of(job.node))
            job.blame(job.node, f"its Ray worker has died (code {ray.poll()}); last line: {last}")
            return 1
        time.sleep(POLL_S)
    return 0


# Ray


def ray_arguments(job: Job, head_address: str | None) -> list[str]:
    """What follows `ray start`.

    Args:
        job: the node's job.
        head_address: where the head listens; None on the head itself.
    """
    parts = len(job.nodes) if len(job.nodes) <= MOST_ON_A_HOST else 1
    share = WORKER_PORTS // parts
    first = FIRST_WORKER_PORT + job.nodes.index(job.node) % parts * share
    head = [
        "--head",
        f"--port={job.port}",
        f"--ray-client-server-port={job.port + 1}",
        "--include-dashboard=false",
        f"--temp-dir={_temp_folder(job)}",  # the head's choice is that of all nodes
    ]
    return [
        *(head if head_address is None else [f"--address={head_address}"]),
        f"--num-cpus={job.cpus}",
        f"--num-gpus={job.gpus}",
        f"--resources={json.dumps({node_resource(job.node): 1})}",
        f"--min-worker-port={first}",
        f"--max-worker-port={first + share - 1}",
        "--disable-usage-stats",
        "--block",
    ]


def _temp_folder(job: Job) -> Path:
    """Ray's folder on each node: its sockets, whose paths may have 107 characters, its logs, spilled objects."""
    return Path(f"/tmp/uecr-ray-{job.folder.name}")


def _start_ray(job: Job, head_address: str | None) -> subprocess.Popen[bytes]:
    """`ray start --block`, its output into the node's log."""
    with job.log_of(job.node).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *ray_arguments(job, head_address)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # NeMo-RL builds its environments itself, once a node; Ray would do it for each task.
            env=os.environ | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        )


def _stop_ray(job: Job, ray: subprocess.Popen[bytes], *, keep_logs: bool) -> None:
    """End Ray on this node and remove what it left; after a failure its logs go to the job's folder first."""
    _end_group(ray, RAY_STOP_S)
    folder = _temp_folder(job)
    if keep_logs:
        for logs in folder.glob("session_[0-9]*/logs"):
            with contextlib.suppress(shutil.Error, OSError):  # a log may vanish while it is copied
                shutil.copytree(logs, job.folder / f"ray-{job.node}", dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _members(address: str) -> dict[str, int] | None:
    """GPUs of each live node by name; None where the head does not answer.

    A process of its own asks, because a Ray client can die with the cluster it asks.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASKING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return {str(name): int(gpus) for name, gpus in json.loads(done.stdout).items()} if done.returncode == 0 else None


def print_members(address: str) -> None:
    """GPUs of each live node of a Ray cluster as JSON, on standard output."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    found = {name: int(resources.get("GPU", 0)) for name, resources in nodes_of(ray.nodes()).items()}
    sys.stdout.write(json.dumps(found))


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False


# The driver


class Driver:
    """The driver as a child process: its output goes to its log and to the job's, its silence is measured."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start it."""
        # Ignored signals stay ignored in a child until it sets a handler; unhandled, SIGUSR1 would kill it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        )
        self._heard = time.monotonic()
        self._signalled = 0.0
        self._copier = threading.Thread(target=self._copy, args=(log, self._process.stdout), daemon=True)
        self._copier.start()

    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def silent_s(self) -> float:
        """Seconds since its last output."""
        return time.monotonic() - self._heard

    def ask_to_save(self) -> None:
        """Let it finish its step, save and end."""
        if time.monotonic() - self._signalled > SIGNAL_AGAIN_S:
            self._signalled = time.monotonic()
            self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> int:
        """End it and its children, at once if it does not end by itself; returns its exit code."""
        code = _end_group(self._process, DRIVER_STOP_S)
        self._copier.join(DRIVER_STOP_S)
        return code

    def _copy(self, log: Path, output: IO[bytes]) -> None:
        with log.open("ab", buffering=0) as file:
            for line in output:
                self._heard = time.monotonic()
                file.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()


def _end_group(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Ask a process to end, kill it after that long, and kill what is left of its group; returns its exit code."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    finally:  # a signal to this process may cut the wait short
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
