"""Checks of the machine: packages, GPUs, ports, shared memory, and the network between the nodes of a job."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_uecr.errors import UecrError, require_extra
from nemo_uecr.files import existing
from nemo_uecr.generation.engines import check_engine
from nemo_uecr.plan import network
from nemo_uecr.plan.contents import GIB
from nemo_uecr.start.seen import Caution, Refusal, advised, required
from nemo_uecr.telemetry.sinks import own_tracker

IMAGE = "nvcr.io/nvidia/nemo-rl:v0.7.0"
RAY_VENVS = Path("/opt/ray_venvs")  # of that image: an environment for each kind of worker
IMPORT_S = 180  # longest wait for an import
SHARED_MEMORY = 8 * GIB

#: Packages of every run, with the remedy where they cannot be imported.
PLAIN = dict.fromkeys(("torch", "pydantic", "omegaconf", "pyarrow", "safetensors"), "pip install 'nemo-uecr[cli]'") | {
    "transformers": "pip install 'nemo-uecr[local]'",
    "math_verify": "pip install 'nemo-uecr[verify]'",
}
#: NeMo-RL's packages, with the kind of worker that imports each.
STACK = {
    "ray": "driver",
    **dict.fromkeys(("megatron.core", "megatron.bridge", "transformer_engine.pytorch"), "megatron"),
    "vllm": "vllm",
}
#: What to do without the GPUs that a run needs.
ELSEWHERE = "run doctor where the GPU is, or set device=auto or cpu"
USE_IMAGE = f"use the container {IMAGE}"
ON_A_NODE = "run doctor on a compute node (srun nemo-uecr doctor ...), or lower cluster.gpus_per_node"

_IMPORT = """
import importlib, sys
module, top = importlib.import_module(sys.argv[1]), sys.modules[sys.argv[1].partition(".")[0]]
sys.stdout.write("\\n" + getattr(module, "__version__", getattr(top, "__version__", "can be imported")))
"""
_LOCATE_APEX = """
import importlib.util, sys
spec = importlib.util.find_spec("apex")
sys.stdout.write(spec.submodule_search_locations[0] if spec else "")
"""


def python() -> str:
    """The interpreter."""
    return f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"


def worker_python(kind: str) -> str:
    """Interpreter of a kind of NeMo-RL's workers: the container's prebuilt one if it exists, else this one."""
    from nemo_uecr.nemo import upstream

    workers = {"megatron": upstream.NATIVE_WORKER_FQN, "vllm": upstream.VLLM_WORKER_FQN}
    prebuilt = RAY_VENVS / workers[kind] / "bin" / "python" if kind in workers else None
    return str(prebuilt) if prebuilt is not None and prebuilt.is_file() else sys.executable


def nemo_rl() -> str:
    """NeMo-RL can be imported, and is one that this package knows."""
    from nemo_uecr.nemo import upstream

    return f"{upstream.check()}, signatures as expected"


def extras(engine: str, names: Sequence[str]) -> str:
    """The engine and the packages that single keys need beyond those of every run."""
    check_engine(engine)
    require_extra(*names)
    return ", ".join([engine, *names])


def tracker(named: str) -> str:
    """The file of a tracker of the user's can be run, and has it."""
    own_tracker(named)
    return named


def package(module: str, python: str, remedy: str) -> str:
    """An interpreter can import a package."""
    done = _run(python, _IMPORT, module)
    if done.returncode == 0:
        return done.stdout.splitlines()[-1]
    reason = (done.stderr.strip().splitlines() or [f"the interpreter ended with {done.returncode}"])[-1]
    raise Refusal(f"cannot be imported by {python}: {reason}", remedy)


def apex(python: str) -> str:
    """An installed `apex` is NVIDIA's; PyPI's package of that name is a toolkit for the Pyramid framework."""
    done = _run(python, _LOCATE_APEX)
    done.check_returncode()
    good = not done.stdout or (Path(done.stdout) / "multi_tensor_apply").is_dir()
    message = f"{done.stdout or 'not installed'}{'' if good else ' is an unrelated toolkit that Megatron would import'}"
    remedy = "pip uninstall apex; NVIDIA's is built from github.com/NVIDIA/apex and not needed here"
    return required(good, message, remedy)


def _run(python: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, encoding="utf-8", timeout=IMPORT_S, check=False
    )


def gpus(needed: int, remedy: str) -> str:
    """Torch sees the GPUs that the run needs on this node."""
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    built = f"torch {torch.__version__} for CUDA {torch.version.cuda}" if torch.version.cuda else "torch without CUDA"
    names = sorted({torch.cuda.get_device_name(index) for index in range(seen)})
    asked = f", the run needs {needed} here" if needed else ""
    return required(seen >= needed, f"{built} sees {' '.join([str(seen), 'GPUs', *names])}{asked}", remedy)


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU here; None without one."""
    import torch

    sizes = (torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))
    return min(sizes, default=None)


def ray_port(port: int) -> str:
    """The Ray head's port is free."""
    if address := os.environ.get("RAY_ADDRESS"):
        return f"RAY_ADDRESS={address} is set: that cluster is used"
    try:
        socket.create_server(("", port)).close()
    except OSError:
        remedy = "choose another with --ray-port (also of slurm/train_*.sbatch), or end the old Ray: ray stop"
        raise Refusal(f"{port} is taken on this machine", remedy) from None
    return f"{port} is free"


def node_name(host: str | None = None, *, nodes: int) -> str:
    """Other nodes can reach this one at the address that the launcher announces."""
    host = host or socket.gethostname()
    try:
        address = socket.gethostbyname(host) if nodes == 1 else network.own_address(host, alone=False)
    except (OSError, UecrError) as error:
        address = f"no address ({error})"
    good = not address.startswith("no " if nodes == 1 else ("no ", "127."))
    remedy = "give it the network's address, which other nodes can reach, in /etc/hosts or the name service"
    return required(good, f"{host} is {address}", remedy)


def shared_memory() -> str | Caution:
    """Free shared memory, which Ray's object store and NCCL use."""
    free, remedy = shutil.disk_usage("/dev/shm").free, "in a container: --ipc=host or --shm-size; else end what uses it"
    message = f"{free / GIB:.1f} GiB free in /dev/shm, Ray and NCCL want {SHARED_MEMORY // GIB}"
    return advised(free >= SHARED_MEMORY, message, remedy)


def all_reduce(run_folder: Path) -> str | Caution | None:
    """All-reduce bandwidth of a Slurm step of several nodes; on CPUs, only whether the nodes connect."""
    if int(os.environ.get("SLURM_STEP_NUM_NODES", "1")) == 1:
        return None
    rate, backend = network.exchange_rate(existing(run_folder))
    expected = any(network.INFINIBAND.glob("*")) and backend == "nccl"
    message = f"{rate:.2f} GB/s between the nodes by {backend}{f', {network.FAST:g} of InfiniBand' * expected}"
    remedy = (
        f"export {network.INTERFACE}=NAME NCCL_IB_HCA=ADAPTERS before sbatch and srun, and for a container "
        "MELLANOX_VISIBLE_DEVICES=all; NCCL_DEBUG=INFO shows what NCCL takes"
    )
    return advised(rate >= network.FAST or not expected, message, remedy)
