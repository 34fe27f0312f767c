"""GPUs, CUDA, NCCL, host memory, and the container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.doctor.findings import Finding, fail, ok, warn
from nemo_uecr.errors import ConfigError, UecrError
from nemo_uecr.plan.records import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_uecr.doctor.subject import Subject
    from nemo_uecr.plan.shapes import ModelShape

__all__ = ["container_finding", "cuda_finding", "gpu_memory", "host_memory_finding", "nccl_finding", "plan_findings"]

IMAGE = "nvcr.io/nvidia/nemo-rl:v0.7.0"
MARKS = ("opt/nemo-rl", "opt/ray_venvs")
"""What NeMo-RL's image has in its root."""

CONTAINERS = ("run/.containerenv", ".dockerenv", ".singularity.d", "etc/enroot")


def cuda_finding(subject: Subject | None) -> Finding:
    """GPUs that torch sees against those that the configuration asks for."""
    import torch

    wanted = 0 if subject is None else subject.gpus_per_node
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    built = f"torch {torch.__version__} for CUDA {torch.version.cuda}" if torch.version.cuda else "torch without CUDA"
    if seen < wanted:
        remedy = "run it inside the allocation on a compute node (srun nemo-uecr doctor ...), or lower the number"
        return fail("gpus", f"{built} sees {seen} GPUs, the configuration asks for {wanted} on each node", remedy)
    if seen == 0:
        return ok("gpus", f"{built}; no GPU is asked for")
    names = sorted({torch.cuda.get_device_name(index) for index in range(seen)})
    memory = min(torch.cuda.get_device_properties(index).total_memory for index in range(seen)) / GIB
    return ok("gpus", f"{seen} x {', '.join(names)}, {memory:.0f} GiB, {built}")


def nccl_finding() -> Finding:
    """NCCL, which every collective of the workers runs on."""
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        return fail("nccl", "this torch has no NCCL", f"install torch for CUDA, or use the container {IMAGE}")
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ok("nccl", ".".join(map(str, version)))


def container_finding(*, root: Path) -> Finding:
    """Whether this is NeMo-RL's container.

    Args:
        root: the root of the file system.
    """
    if all((root / mark).is_dir() for mark in MARKS):
        return ok("container", f"NeMo-RL's image ({', '.join('/' + mark for mark in MARKS)})")
    inside = any((root / mark).exists() for mark in CONTAINERS)
    found = "another container" if inside else "no container"
    return warn(
        "container",
        f"{found}: /{MARKS[0]} and /{MARKS[1]} are not there",
        f"start it with {IMAGE}, or make sure that every node has the packages above",
    )


def host_memory_finding(subject: Subject, *, meminfo: Path, sizes: Callable[[str, str], ModelShape]) -> Finding:
    """Host memory against what the plan of the run puts there.

    Args:
        subject: the run.
        meminfo: the kernel's `/proc/meminfo`.
        sizes: from a model's name and its role to its sizes.
    """
    total = _total_bytes(meminfo)
    try:
        needed = _needed_bytes(subject, sizes)
    except UecrError:
        return warn("host memory", f"{total / GIB:.0f} GiB; the run cannot be planned", "nemo-uecr plan says why")
    message = f"{total / GIB:.1f} GiB, the run needs {needed / GIB:.1f}"
    if needed > total:
        return fail("host memory", message, "see nemo-uecr plan; take smaller models, or nodes with more memory")
    return ok("host memory", message)


def plan_findings(subject: Subject, *, memory: int | None) -> list[Finding]:
    """Whether the run fits the GPUs: the plan with their memory.

    Args:
        subject: the run.
        memory: bytes of the smallest GPU here; None: no GPU here, an H200 is assumed.
    """
    from nemo_uecr.plan.hardware import EFFICIENCY, GPUS
    from nemo_uecr.plan.nemo import nemo_plan
    from nemo_uecr.plan.setting import Lengths

    if subject.nemo is None:
        return []
    device = GPUS["h200"] if memory is None else replace(GPUS["h200"], name="GPU of this node", memory=memory)
    remedy = "nemo-uecr plan says what would fit"
    try:
        plan = nemo_plan(subject.nemo, device, EFFICIENCY, Lengths(prompt=1, response=1, sigma=0.0))
    except ConfigError as error:
        return [fail("plan", str(error), remedy)]
    except UecrError:
        return []  # sizes that are not known: said with the vocabulary
    if plan.faults:
        return [fail("plan", "; ".join(plan.faults), remedy)]
    fullest = plan.fullest
    return [ok("plan", f"fits one {device.name}: {fullest.name} takes the most, {fullest.size / GIB:.1f} GiB")]


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU here; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))


def _total_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _needed_bytes(subject: Subject, sizes: Callable[[str, str], ModelShape]) -> int:
    from nemo_uecr.plan.hardware import CPU, EFFICIENCY, GPUS
    from nemo_uecr.plan.local import local_plan
    from nemo_uecr.plan.nemo import nemo_plan
    from nemo_uecr.plan.setting import Lengths

    lengths = Lengths(prompt=1, response=1, sigma=0.0)  # of no influence on memory
    if subject.nemo is not None:
        plan = nemo_plan(subject.nemo, GPUS["h200"], EFFICIENCY, lengths)
        return sum(item.size for item in plan.host)
    if subject.local is None or subject.gpus_per_node:
        return 0
    return local_plan(subject.local, CPU, EFFICIENCY, lengths, sizes=sizes).fullest.size
