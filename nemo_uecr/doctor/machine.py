"""Limits of the machine: open files, shared memory, ports of Ray, and the node's name."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from nemo_uecr.doctor.findings import Finding, fail, ok, warn
from nemo_uecr.plan.records import GIB

__all__ = ["files_finding", "name_finding", "port_finding", "range_finding", "shared_memory_finding"]

OPEN_FILES = 65_536
SHARED_MEMORY = 8 * GIB
RANGES: tuple[tuple[str, int, int], ...] = (("vLLM", 11_001, 15_000), ("torch.distributed", 25_000, 28_000))
"""Ports that the NeMo-RL back end hands out; the numbers stand in nemo_adapter/translate*.py."""


def port_finding(port: int) -> Finding:
    """The port of the Ray head."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return ok("ray port", f"RAY_ADDRESS={address} is set: that cluster is used")
    if _free(port):
        return ok("ray port", f"{port} is free")
    return fail(
        "ray port",
        f"{port} is taken on this machine",
        "choose another with --ray-port (also of slurm/train_*.sbatch), or end the old Ray: ray stop",
    )


def range_finding(ranges: Sequence[tuple[str, int, int]]) -> list[Finding]:
    """The port ranges of the workers; a few taken ports are passed over, a full range stops the run."""
    findings = []
    for name, low, high in ranges:
        count = high - low + 1
        taken = sum(not _free(port) for port in range(low, high + 1))
        message = f"{low}-{high}: {taken} of {count} are taken"
        remedy = "end what holds them (ss -ltnp), or take another node"
        if taken == count:
            findings.append(fail(f"{name} ports", message, remedy))
        elif taken > count // 2:
            findings.append(warn(f"{name} ports", message, remedy))
        else:
            findings.append(ok(f"{name} ports", message))
    return findings


def _free(port: int) -> bool:
    """Whether nobody listens there, on IPv4 and where the machine has it on IPv6."""
    families = [socket.AF_INET, *([socket.AF_INET6] if socket.has_ipv6 else [])]
    return all(_binds(family, port) for family in families)


def _binds(family: int, port: int) -> bool:
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return True  # the kernel does not know the family
    with contextlib.closing(probe):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL  # IPv6 is switched off
    return True


def name_finding(host: str, *, nodes: int) -> Finding:
    """Whether the node's name leads to an address that other nodes can reach."""
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        return fail("node name", f"{host} has no address ({error})", "add it to /etc/hosts or the name service")
    if nodes > 1 and address.startswith("127."):
        return fail(
            "node name",
            f"{host} is {address}, which other nodes cannot reach",
            "let /etc/hosts give it the network's address",
        )
    return ok("node name", f"{host} is {address}")


def files_finding() -> Finding:
    """Open files a process may have: Ray opens several for every worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, -1) or soft >= OPEN_FILES:
        return ok("open files", f"{soft}")
    return warn(
        "open files", f"{soft}, Ray asks for {OPEN_FILES}", f"ulimit -n {OPEN_FILES} (the hard limit is {hard})"
    )


def shared_memory_finding(folder: Path) -> Finding:
    """Free shared memory: Ray's object store and NCCL live there."""
    if not folder.is_dir():
        return fail("shared memory", f"no {folder}", "mount it; containers need --ipc=host or --shm-size")
    free = shutil.disk_usage(folder).free
    if free < SHARED_MEMORY:
        message = f"{free / GIB:.1f} GiB free in {folder}, expected {SHARED_MEMORY // GIB} or more"
        return warn("shared memory", message, "containers: --ipc=host or --shm-size; else end what holds it")
    return ok("shared memory", f"{free / GIB:.0f} GiB free in {folder}")
