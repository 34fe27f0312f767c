"""The network between the nodes of a job: a node's address, and the bandwidth of an all-reduce."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import psutil

from nemo_uecr.errors import UecrError

INTERFACE = "NCCL_SOCKET_IFNAME"  # NCCL reads it; gloo and Ray follow
INFINIBAND = Path("/sys/class/infiniband")
FAST = 10.0  # GB/s with one GPU per node: InfiniBand of 200 Gbit/s gives about 20, Ethernet 1 to 5
BYTES, REPEATS, WAIT = {"nccl": 2**30, "gloo": 2**26}, 3, timedelta(seconds=60)


def take_interface() -> str | None:
    """Make gloo use the interface in NCCL_SOCKET_IFNAME and return its IPv4 address; None if there is none."""
    named = os.environ.get(INTERFACE, "").split(",")[0].removeprefix("=")
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        for each in addresses:
            if named and name.startswith(named) and each.family == socket.AF_INET:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                return str(each.address)
    return None


def own_address(host: str | None = None, *, alone: bool) -> str:
    """The address at which the other nodes reach this one."""
    if (taken := take_interface()) is not None:
        return taken
    host, slurm = host or socket.gethostname(), os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    try:
        named = socket.gethostbyname(host)
    except OSError as error:
        named = "127.0.0.1"
        if slurm is None and not alone:
            raise UecrError(
                f"the name {host} of this node does not resolve ({error}); expected one in /etc/hosts or the name "
                f"service, or {INTERFACE}=NAME of the interface that the nodes share"
            ) from error
    # Some systems map a host's own name to the loopback device; Slurm knows the address that it used.
    return named if alone or not named.startswith("127.") else slurm or named


def exchange_rate(folder: Path) -> tuple[float, str]:
    """Bus bandwidth of an all-reduce over this Slurm step's tasks in GB/s, and the backend: NCCL, or gloo without GPUs.

    The tasks find each other by a file in ``folder``, on a file system that all nodes share.
    """
    import torch
    import torch.distributed as dist

    rank, world = (int(os.environ[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    meet = folder / f".uecr-doctor-{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
    backend, device = ("nccl", "cuda") if torch.cuda.is_available() else ("gloo", "cpu")
    take_interface()
    dist.init_process_group(backend, f"file://{meet.absolute()}", WAIT, rank=rank, world_size=world)
    try:
        data = torch.zeros(BYTES[backend], dtype=torch.uint8, device=device)
        dist.all_reduce(data)  # the first one connects
        data[0].item()  # waits for a GPU
        started = time.perf_counter()
        for _ in range(REPEATS):
            dist.all_reduce(data)
        data[0].item()
        seconds = time.perf_counter() - started
    finally:
        dist.destroy_process_group()
        meet.unlink(missing_ok=True)  # torch leaves it where a process ends before its store does
    return 2 * (world - 1) / world * REPEATS * data.nbytes / seconds / 1e9, backend
