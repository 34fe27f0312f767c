"""What each node of a job runs: its part of the Ray cluster and, on the first node, the driver and its supervision.

Ray and the driver each lead their own process group, so that everything they started can be ended with them. Batch
script and nodes communicate through files in the job's folder on the shared file system: these cross the container's
boundary, need no port, and can be read after a failure.

    cause         why the job failed, in one line; the first one is kept
    stop          the batch script asks the run to save and end
    head-address  where the Ray head listens
    status        the head's state in one line; its age shows whether the head is alive
    ended         the driver's exit code; every node leaves
    final         the batch script's last line
    left-NODE     this node has stopped its Ray
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
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nemo_uecr.config.load import load_config
from nemo_uecr.config.recipes import is_recipe, load_recipe
from nemo_uecr.errors import UecrError, require_extra
from nemo_uecr.files import replace_file
from nemo_uecr.plan.network import own_address, take_interface
from nemo_uecr.slurm.topology import topology_resources
from nemo_uecr.start import job as job_checks
from nemo_uecr.start.checks import JOB, NODE, require
from nemo_uecr.start.facts import of_local, size_of
from nemo_uecr.start.job import Resources
from nemo_uecr.start.recipe_form import accepted, of_recipe
from nemo_uecr.stopping import STOPPED

log = logging.getLogger(__name__)

TERMINATED = 143  # 128 + SIGTERM, as shells report it
POLL_S = 0.5  # between two checks of whatever a node waits for
LEAVING_S, FAILING_S = 30.0, 5.0  # for the others to stop Ray: normally, and when one of them may be gone
CLOSING_S = 10.0  # a worker's Ray may end before the file system shows that the driver has ended
ASKING_S = 60.0  # for the process that asks Ray for its members
RAY_STOP_S, DRIVER_STOP_S = 15.0, 10.0  # for Ray and for the driver to end when asked
SIGNAL_AGAIN_S = 5.0  # the driver is signalled repeatedly: while it is loading, a signal is lost
# Below the ephemeral range; NeMo-RL's port plan gives Ray's workers 10002-11000.
FIRST_WORKER_PORT, WORKER_PORTS = 10002, 998
# Nodes on one host (in tests) must not share worker ports; more nodes than this are on separate hosts.
MOST_ON_A_HOST = 8

ASK = "import sys; from nemo_uecr.slurm.node import print_members; print_members(sys.argv[1])"


class Failed(Exception):
    """A failure of the job; arguments: node, reason."""


@dataclass(frozen=True)
class Job:
    """One attempt of a job, on one of its nodes."""

    folder: Path  # of the attempt, made by the batch script
    node: str  # this node
    nodes: tuple[str, ...]  # all nodes, the head first
    gpus: int  # per node; may be 0
    cpus: int  # per node
    port: int  # of the head's control store; the next port is its client server's
    register_s: float  # longest wait for all nodes and GPUs to join the Ray cluster
    heartbeat_s: float  # between two checks of the cluster's members
    silence_s: float  # longest wait for the driver's next line of output

    @property
    def driver_log(self) -> Path:
        return self.folder / "driver.log"

    @property
    def ray_folder(self) -> Path:
        """Ray's folder on each node; short, because paths of sockets may have only 107 characters."""
        return Path(f"/tmp/uecr-ray-{self.folder.name}")

    def log_of(self, node: str) -> Path:
        """The log of a node."""
        return self.folder / f"node-{node}.log"

    def has(self, name: str) -> bool:
        """Whether a file listed above exists."""
        return (self.folder / name).exists()

    def read(self, name: str) -> str | None:
        """Its content; None if it does not exist yet."""
        return (self.folder / name).read_text(encoding="utf-8").strip() if self.has(name) else None

    def write(self, name: str, text: str) -> None:
        """Write it whole."""
        replace_file(self.folder / name, text.encode())

    def blame(self, node: str, reason: str) -> None:
        """State the cause of the failure; only the first one is kept, because others follow from it."""
        aside = self.folder / f".cause-{self.node}-{os.getpid()}"
        aside.write_text(f"node {node}: {' '.join(reason.split())}\n", encoding="utf-8")
        with contextlib.suppress(FileExistsError):
            os.link(aside, self.folder / "cause")  # a reader sees the whole line or no file
        aside.unlink()


def run_node(job: Job, config: str, overrides: Sequence[str], *, smoke: bool) -> int:
    """Do this node's part of the job; return the driver's exit code on the head, else 0, or 1 after a failure."""
    handler = logging.FileHandler(job.log_of(job.node), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger("nemo_uecr").addHandler(handler)
    # SIGTERM must run the `finally` blocks that end what this process started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    head = job.node == job.nodes[0]
    take_interface()
    words: list[str] = []
    try:
        if head:
            words = command_words(config, overrides, smoke=smoke, nodes=len(job.nodes), gpus=job.gpus)
            check_inputs(words)
        require_extra("ray")
    except UecrError as error:
        job.blame(job.node, str(error))
        job.write("ended", "2")
        raise
    return _run_head(job, [sys.executable, "-m", "nemo_uecr", *words]) if head else _run_worker(job)


def command_words(config: str, overrides: Sequence[str], *, smoke: bool, nodes: int, gpus: int) -> list[str]:
    """Arguments of the driver's `nemo-uecr`: the user's configuration with the job's resources.

    All attempts of a job use the same arguments, which continue the run in the run folder.
    """
    given = Resources(config, nodes, gpus)
    if is_recipe(config):
        job_checks.can_smoke(config, smoke=smoke)
        # No GPUs: refused below.
        words = [f"cluster.num_nodes={nodes}", f"cluster.gpus_per_node={gpus or 1}", *overrides]
        require(of_recipe(accepted(load_recipe(config, words)), ray_port=0, resources=given), JOB)
        return ["train", config, *words]
    run = load_config(config, overrides).config  # report a misspelt key before Ray starts
    if smoke:
        job_checks.mounted(Path(run.run.folder), "run.folder")
        job_checks.unfinished_smoke(Path(run.run.folder), run.train.steps)
        return ["slurm", "smoke", config, *overrides]
    require(of_local(run, size_of, ray_port=0, resources=given), JOB)
    return ["train", config, *overrides, "--resume"]


def check_inputs(words: Sequence[str]) -> None:
    """Refuse missing problems and models, which a driver inside NeMo-RL would meet minutes later."""
    command, config, *overrides = words
    if command == "train" and is_recipe(config):
        require(of_recipe(accepted(load_recipe(config, overrides)), ray_port=0, resources=None), NODE)


# The first node


def _run_head(job: Job, driver_words: Sequence[str]) -> int:
    """Start the cluster, run the driver in it, stop the cluster; return the node's exit code."""
    try:
        address = f"{own_address(alone=len(job.nodes) == 1)}:{job.port}"
        if _listens(address):
            raise UecrError(f"port {job.port} is taken by another program; choose another one: --ray-port NUMBER")
    except UecrError as error:
        job.blame(job.node, str(error))
        job.write("ended", "1")
        return 1
    code, ray = 1, _start_ray(job, None)
    try:
        _wait_for_cluster(job, ray, address)
        code = run_driver(job, ray, address, driver_words)
    except Failed as failure:
        job.blame(*failure.args)  # before the others leave and the batch script looks for it
    finally:
        job.write("ended", str(code))
        peaceful = code in (0, STOPPED)
        deadline = time.monotonic() + (LEAVING_S if peaceful else FAILING_S)
        try:
            while not all(job.has(f"left-{name}") for name in job.nodes[1:]) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:  # Slurm may end the job during the wait
            _stop_ray(job, ray, keep_logs=not peaceful)
    return code


def _wait_for_cluster(job: Job, ray: subprocess.Popen[bytes], address: str) -> None:
    """Publish the head's address, and wait until all nodes and GPUs have registered."""
    deadline, status = time.monotonic() + job.register_s, ""
    while True:
        gpus_by_node: dict[str, int] = {}
        if _listens(address):
            if not job.has("head-address"):  # once: a file replaced while NFS reads it would fail the reader
                job.write("head-address", address)
            gpus_by_node = _members(address) or {}
        before, status = status, _write_status(job, gpus_by_node)
        if status != before:
            log.info(status)
        missing = [name for name in job.nodes if gpus_by_node.get(name, -1) < job.gpus]
        if not missing:
            return
        _check(job, ray)
        if time.monotonic() > deadline:
            last = last_line(job.log_of(missing[0]))
            raise Failed(missing[0], f"not registered after {job.register_s:.0f} s, {status}; its last line: {last}")
        time.sleep(POLL_S)


def run_driver(job: Job, ray: subprocess.Popen[bytes], address: str, words: Sequence[str]) -> int:
    """Run the driver to its end and return its exit code; stop it if the cluster fails.

    Its output goes to its log, and from there to the job's.
    """
    # Ignored signals stay ignored in a child until it sets a handler; unhandled, SIGUSR1 would kill it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    plain = {"RAY_COLOR_PREFIX": "0", "PYTHONUNBUFFERED": "1"}
    heard = looked = time.monotonic()
    signalled = 0.0
    with job.driver_log.open("ab") as output, job.driver_log.open("rb") as printed:
        driver = _start(words, output, plain | {"RAY_ADDRESS": address})
        try:
            while driver.poll() is None:
                time.sleep(POLL_S)
                now = time.monotonic()
                if _pass_on(printed):
                    heard = now
                _check(job, ray)
                if job.has("stop") and now - signalled > SIGNAL_AGAIN_S:
                    signalled = now
                    driver.send_signal(signal.SIGUSR1)
                if now - heard > job.silence_s:
                    raise Failed(job.node, f"the driver has printed nothing for {job.silence_s:.0f} s: it hangs")
                if now - looked > job.heartbeat_s:
                    looked = now
                    _check_members(job, address)
        finally:
            code = _end_group(driver, DRIVER_STOP_S)
            _pass_on(printed)
    if code not in (0, STOPPED):  # because a node was lost, or by itself
        _check(job, ray)
        _check_members(job, address)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        job.blame(job.node, f"the driver ended with {how}: {last_line(job.driver_log)}")
    return code


def _pass_on(printed: IO[bytes]) -> bool:
    """Copy new output of a log to standard output; return whether there was any."""
    text = printed.read()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    return bool(text)


def _check(job: Job, ray: subprocess.Popen[bytes]) -> None:
    if (cause := job.read("cause")) is not None:
        raise Failed(job.node, cause)  # another node wrote it, and the first cause is kept
    if ray.poll() is not None:
        last = last_line(job.log_of(job.node))
        raise Failed(job.node, f"the Ray head has died (code {ray.poll()}); last line: {last}")


def _check_members(job: Job, address: str) -> None:
    gpus_by_node = _members(address)
    if gpus_by_node is None:
        raise Failed(job.node, "the Ray head no longer answers")
    status = _write_status(job, gpus_by_node)
    lost = [name for name in job.nodes if name not in gpus_by_node]
    if lost:
        raise Failed(lost[0], f"lost: the Ray cluster no longer counts it as alive; {status}")


def _write_status(job: Job, gpus_by_node: Mapping[str, int]) -> str:
    there = [name for name in job.nodes if name in gpus_by_node]
    gpus = sum(min(gpus_by_node[name], job.gpus) for name in there)
    status = f"{len(there)} of {len(job.nodes)} nodes"
    status += f", {gpus} of {job.gpus * len(job.nodes)} GPUs" if job.gpus else ""
    job.write("status", status)
    return status


# The other nodes


def _run_worker(job: Job) -> int:
    """Join the head's cluster until the driver has ended; return the node's exit code."""
    deadline = time.monotonic() + job.register_s
    while (address := job.read("head-address")) is None:
        # To a node that Slurm failed to end, only `final` shows that the job has ended.
        if any(job.has(name) for name in ("ended", "cause", "final")):
            return 1
        if time.monotonic() > deadline:
            job.blame(job.nodes[0], f"no Ray head within {job.register_s:.0f} s on node {job.node}; see its log")
            return 1
        time.sleep(POLL_S)
    log.info("node %s: joining %s", job.node, address)
    ray, code = _start_ray(job, address), 1
    try:
        while not job.has("ended") and ray.poll() is None:
            time.sleep(POLL_S)
        code = _outcome(job, ray, address)
    finally:
        _stop_ray(job, ray, keep_logs=code != 0)
        job.write(f"left-{job.node}", "")
        log.info("node %s: Ray has ended", job.node)
    return code


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
    """Arguments of `ray start`; None for the address on the head itself."""
    parts = len(job.nodes) if len(job.nodes) <= MOST_ON_A_HOST else 1
    share = WORKER_PORTS // parts
    first = FIRST_WORKER_PORT + job.nodes.index(job.node) % parts * share
    joining: dict[str, object] = {"address": head_address}
    if head_address is None:  # the head's folder is used on all nodes
        joining = {"port": job.port, "ray-client-server-port": job.port + 1, "temp-dir": job.ray_folder}
    resources = json.dumps({node_resource(job.node): 1, **topology_resources(job.node, job.nodes, os.environ)})
    values = joining | {"num-cpus": job.cpus, "num-gpus": job.gpus, "resources": resources}
    values |= {"min-worker-port": first, "max-worker-port": first + share - 1}
    if (taken := take_interface()) is not None:
        values["node-ip-address"] = taken
    head = ["--head", "--include-dashboard=false"] if head_address is None else []
    return [*head, *(f"--{name}={value}" for name, value in values.items()), "--disable-usage-stats", "--block"]


def _start_ray(job: Job, head_address: str | None) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", *ray_arguments(job, head_address)]
    # NeMo-RL builds its environments once per node; Ray would do so for each task.
    with job.log_of(job.node).open("ab") as output:
        return _start(words, output, {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"})


def _start(words: Sequence[str], output: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        env={**os.environ, **environment},
    )  # fmt: skip


def _stop_ray(job: Job, ray: subprocess.Popen[bytes], *, keep_logs: bool) -> None:
    """Stop Ray on this node and remove its folder; ``keep_logs`` copies its logs into the job's folder first."""
    _end_group(ray, RAY_STOP_S)
    for logs in job.ray_folder.glob("session_[0-9]*/logs") if keep_logs else ():
        with contextlib.suppress(shutil.Error, OSError):  # a log may vanish while it is copied
            shutil.copytree(logs, job.folder / f"ray-{job.node}", dirs_exist_ok=True)
    shutil.rmtree(job.ray_folder, ignore_errors=True)


def _end_group(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Terminate a process, kill it after ``patience_s`` and kill the rest of its group; return its exit code."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    finally:  # a signal may interrupt the wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def node_resource(node: str) -> str:
    """The custom Ray resource that identifies a node and pins work to it."""
    return f"slurm_node:{node}"


def nodes_of(ray_nodes: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, float]]:
    """Resources of each live node by name, from the result of `ray.nodes()`."""
    prefix = node_resource("")
    live = [node["Resources"] for node in ray_nodes if node["Alive"]]
    return {key.removeprefix(prefix): held for held in live for key in held if key.startswith(prefix)}


def _members(address: str) -> dict[str, int] | None:
    """GPUs of each live node by name; None if the head does not answer.

    A separate process asks, because a Ray client can die with its cluster.
    """
    try:
        done = subprocess.run([sys.executable, "-c", ASK, address], capture_output=True, timeout=ASKING_S, check=True)
    except subprocess.SubprocessError:
        return None
    return {str(name): int(gpus) for name, gpus in json.loads(done.stdout).items()}


def print_members(address: str) -> None:
    """Print the GPUs of each live node as JSON."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    json.dump({name: int(held.get("GPU", 0)) for name, held in nodes_of(ray.nodes()).items()}, sys.stdout)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False


def last_line(path: Path) -> str:
    """The last line of a log that is not blank."""
    if not path.exists():
        return "no output"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
