"""What a machine must have: packages that import, GPUs, the container, ports, and limits of the system."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from nemo_uecr.plan.records import GIB

__all__ = [
    "IMAGE", "PLAIN", "RANGES", "Finding", "apex_finding", "container_finding", "cuda_finding", "fail",
    "files_finding", "gpu_memory", "import_finding", "megatron_python", "name_finding", "nccl_finding",
    "nemo_rl_finding", "ok", "package_findings", "port_finding", "python_finding", "range_findings",
    "shared_memory_finding", "warn", "worker_python",
]  # fmt: skip

IMAGE = "nvcr.io/nvidia/nemo-rl:v0.7.0"
MARKS = ("opt/nemo-rl", "opt/ray_venvs")
"""What NeMo-RL's image has in its root."""

SECONDS = 180
"""Longest wait for an import."""

RAY_VENVS = Path("/opt/ray_venvs")
NVIDIA_APEX = ("optimizers", "multi_tensor_apply", "normalization")
"""Folders that only NVIDIA's apex has."""

OPEN_FILES = 65_536
SHARED_MEMORY = 8 * GIB
RANGES: tuple[tuple[str, int, int], ...] = (("vLLM", 11_001, 15_000), ("torch.distributed", 25_000, 28_000))
"""Ports that the NeMo-RL back end hands out; a test holds them equal to the translated configuration's."""

_IMPORT = """
import importlib, importlib.metadata, sys
module = importlib.import_module(sys.argv[1])
if getattr(module, "__file__", None) is None:
    raise ImportError(f"{list(module.__path__)[0]} is a folder of that name and no package")
try:
    version = importlib.metadata.version(sys.argv[2])
except importlib.metadata.PackageNotFoundError:
    version = getattr(module, "__version__", "no version")
sys.stdout.write("\\n" + (str(version) or "no version"))
"""
_LOCATE = """
import importlib.util, sys
spec = importlib.util.find_spec("apex")
places = list(spec.submodule_search_locations or [spec.origin]) if spec else []
sys.stdout.write("\\n" + (places[0] if places else ""))
"""


@dataclass(frozen=True)
class Finding:
    """What one check of the doctor found."""

    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    """What was found."""

    remedy: str
    """What to do; empty when it is ok, or when the message says it."""


def ok(check: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(check, "ok", message, "")


def warn(check: str, message: str, remedy: str) -> Finding:
    """It may work."""
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """The run would stop here, or be wrong."""
    return Finding(check, "fail", message, remedy)


# -- packages --------------------------------------------------------------------------------------------------------


class Package(NamedTuple):
    """A package that a back end needs."""

    module: str
    distribution: str
    required: bool
    remedy: str


PLAIN = (
    *(
        Package(name, name, True, "pip install 'nemo-uecr'")
        for name in ("torch", "pydantic", "omegaconf", "safetensors")
    ),
    Package("transformers", "transformers", True, "pip install 'nemo-uecr[local]'"),
    Package("math_verify", "math-verify", True, "pip install 'nemo-uecr[verify]'"),
    Package("tensorboard", "tensorboard", False, "pip install 'nemo-uecr[tensorboard]'"),
)


def python_finding() -> Finding:
    """The interpreter's version; an older one cannot import this package."""
    return ok("python", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")


def package_findings(*, nemo: bool) -> list[Finding]:
    """Every package of the back end; those of NeMo-RL's workers are looked for in their own environments as well."""
    findings = [import_finding(package, sys.executable) for package in PLAIN]
    if nemo:
        from nemo_uecr.nemo.upstream import VLLM_WORKER_FQN

        megatron, vllm = megatron_python(), worker_python(VLLM_WORKER_FQN)
        for module, name, python in (
            ("ray", "ray", sys.executable),
            ("megatron.core", "megatron-core", megatron),
            ("megatron.bridge", "megatron-bridge", megatron),
            ("transformer_engine.pytorch", "transformer-engine", megatron),
            ("vllm", "vllm", vllm),
        ):
            package = Package(module, name, True, f"use the container {IMAGE}, which has it")
            findings.append(import_finding(package, python))
    return findings


def worker_python(worker: str, *, root: Path = RAY_VENVS) -> str:
    """The interpreter of a kind of NeMo-RL worker: the container's prebuilt one where it is, else this one."""
    prebuilt = root / worker / "bin" / "python"
    return str(prebuilt) if prebuilt.is_file() else sys.executable


def megatron_python() -> str:
    """The interpreter of the Megatron workers."""
    from nemo_uecr.nemo.upstream import NATIVE_WORKER_FQN

    return worker_python(NATIVE_WORKER_FQN)


def import_finding(package: Package, python: str) -> Finding:
    """Import a package with an interpreter."""
    try:
        done = _run(python, _IMPORT, package.module, package.distribution)
    except subprocess.TimeoutExpired:
        return fail(package.module, f"its import did not end within {SECONDS} s", package.remedy)
    if done.returncode == 0:
        return ok(package.module, (done.stdout.strip().splitlines() or ["no version"])[-1])
    reason = (done.stderr.strip().splitlines() or [f"the interpreter ended with {done.returncode}"])[-1]
    make = fail if package.required else warn
    return make(package.module, f"cannot be imported by {python}: {reason}", package.remedy)


def apex_finding(python: str) -> Finding:
    """Whether an installed `apex` is NVIDIA's; PyPI's package of that name is a toolkit for the Pyramid framework."""
    done = _run(python, _LOCATE)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["looking for apex ended without a message"])[-1])
    place = done.stdout.strip()
    if not place:
        return ok("apex", "not installed; Megatron takes Transformer Engine's or torch's kernels")
    if all((Path(place) / name).is_dir() for name in NVIDIA_APEX):
        return ok("apex", f"NVIDIA's, {place}")
    message = f"{place} is not NVIDIA's apex but an unrelated toolkit of that name, and Megatron would import it"
    return fail(
        "apex", message, "pip uninstall apex; NVIDIA's is built from github.com/NVIDIA/apex and not needed here"
    )


def nemo_rl_finding() -> Finding:
    """NeMo-RL itself: its version and every signature that this project calls or replaces."""
    from nemo_uecr.nemo import upstream
    from nemo_uecr.nemo.upstream import UpstreamError

    try:
        return ok("nemo_rl", f"{upstream.check()}, signatures as expected")
    except (UpstreamError, ImportError) as error:
        return fail("nemo_rl", str(error), "use NeMo-RL v0.7.0's container, or its source on PYTHONPATH")


def _run(python: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [python, "-c", code, *arguments]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False
    )


# -- GPUs and the container ------------------------------------------------------------------------------------------


def cuda_finding(wanted: int) -> Finding:
    """GPUs that torch sees against those that the configuration asks for on each node."""
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    built = f"torch {torch.__version__} for CUDA {torch.version.cuda}" if torch.version.cuda else "torch without CUDA"
    if seen < wanted:
        remedy = "run it inside the allocation on a compute node (srun nemo-uecr doctor ...), or lower the number"
        return fail("gpus", f"{built} sees {seen} GPUs, the configuration asks for {wanted} on each node", remedy)
    if seen == 0:
        return ok("gpus", f"{built}; no GPU is asked for")
    names = sorted({torch.cuda.get_device_name(index) for index in range(seen)})
    return ok("gpus", f"{seen} x {', '.join(names)}, {(gpu_memory() or 0) / GIB:.0f} GiB, {built}")


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU here; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))


def nccl_finding() -> Finding:
    """NCCL, which every collective of the workers runs on."""
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        return fail("nccl", "this torch has no NCCL", f"install torch for CUDA, or use the container {IMAGE}")
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ok("nccl", ".".join(map(str, version)))


def container_finding(*, root: Path) -> Finding:
    """Whether the file system under `root` is that of NeMo-RL's container."""
    if all((root / mark).is_dir() for mark in MARKS):
        return ok("container", f"NeMo-RL's image ({', '.join('/' + mark for mark in MARKS)})")
    remedy = f"start it with {IMAGE}, or make sure that every node has the packages above"
    return warn("container", f"not NeMo-RL's: /{MARKS[0]} and /{MARKS[1]} are not there", remedy)


# -- the system ------------------------------------------------------------------------------------------------------


def port_finding(port: int) -> Finding:
    """The port of the Ray head."""
    if address := os.environ.get("RAY_ADDRESS"):
        return ok("ray port", f"RAY_ADDRESS={address} is set: that cluster is used")
    if port not in _taken_ports():
        return ok("ray port", f"{port} is free")
    remedy = "choose another with --ray-port (also of slurm/train_*.sbatch), or end the old Ray: ray stop"
    return fail("ray port", f"{port} is taken on this machine", remedy)


def range_findings(ranges: Sequence[tuple[str, int, int]]) -> list[Finding]:
    """The port ranges of the workers; a few taken ports are passed over, a full range stops the run."""
    findings, ports = [], _taken_ports()
    for name, low, high in ranges:
        count, taken = high - low + 1, sum(low <= port <= high for port in ports)
        message = f"{low}-{high}: {taken} of {count} are taken"
        if taken <= count // 2:
            findings.append(ok(f"{name} ports", message))
        else:
            make = fail if taken == count else warn
            findings.append(make(f"{name} ports", message, "end what holds them (ss -ltnp), or take another node"))
    return findings


def _taken_ports() -> set[int]:
    """TCP ports of this machine that nobody else can listen on; one in TIME_WAIT is free."""
    found = psutil.net_connections(kind="tcp")
    return {one.laddr.port for one in found if one.laddr and one.status != psutil.CONN_TIME_WAIT}


def name_finding(host: str, *, nodes: int) -> Finding:
    """Whether the node's name leads to an address that other nodes can reach."""
    remedy = "give it the network's address in /etc/hosts or the name service"
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        return fail("node name", f"{host} has no address ({error})", remedy)
    if nodes > 1 and address.startswith("127."):
        return fail("node name", f"{host} is {address}, which other nodes cannot reach", remedy)
    return ok("node name", f"{host} is {address}")


def files_finding() -> Finding:
    """Open files a process may have: Ray opens several for every worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, -1) or soft >= OPEN_FILES:
        return ok("open files", f"{soft}")
    remedy = f"ulimit -n {OPEN_FILES} (the hard limit is {hard})"
    return warn("open files", f"{soft}, Ray asks for {OPEN_FILES}", remedy)


def shared_memory_finding() -> Finding:
    """Free shared memory: Ray's object store and NCCL live there."""
    free, remedy = shutil.disk_usage("/dev/shm").free, "containers: --ipc=host or --shm-size; else end what holds it"
    if free < SHARED_MEMORY:
        message = f"{free / GIB:.1f} GiB free in /dev/shm, expected {SHARED_MEMORY // GIB} or more"
        return warn("shared memory", message, remedy)
    return ok("shared memory", f"{free / GIB:.0f} GiB free in /dev/shm")
