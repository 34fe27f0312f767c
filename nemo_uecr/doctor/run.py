"""All checks in order. Without a configuration: those of the machine and the packages."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.doctor import devices, machine, models, packages, storage, weights
from nemo_uecr.doctor.findings import Finding, ok

if TYPE_CHECKING:
    from nemo_uecr.doctor.subject import Subject
    from nemo_uecr.plan.shapes import ModelShape

__all__ = ["examine"]

Sizes = Callable[[str, str], "ModelShape"]


def examine(subject: Subject | None, *, ray_port: int, sizes: Sizes) -> Iterator[Finding]:
    """Run every check that applies, one finding after the other as they are known.

    Args:
        subject: what the configuration names; None: the machine alone.
        ray_port: port of the Ray head.
        sizes: from a model's name and its role to its sizes.
    """
    nemo = subject is not None and subject.backend == "nemo_rl"
    yield packages.python_finding(sys.version_info[:3])
    yield from packages.package_findings(nemo=nemo)
    yield packages.apex_finding(packages.worker_python(packages.MEGATRON_WORKER) if nemo else sys.executable)
    yield devices.cuda_finding(subject)
    if nemo:
        yield packages.nemo_rl_finding()
        yield devices.nccl_finding()
        yield devices.container_finding(root=Path("/"))
    if nemo or subject is None:
        yield from _cluster(subject, ray_port)
    if subject is not None:
        yield from _named(subject, sizes)


def _cluster(subject: Subject | None, ray_port: int) -> Iterator[Finding]:
    yield machine.port_finding(ray_port)
    yield from machine.range_finding(machine.RANGES)
    yield machine.name_finding(socket.gethostname(), nodes=1 if subject is None else subject.nodes)
    yield machine.files_finding()
    yield machine.shared_memory_finding(Path("/dev/shm"))


def _named(subject: Subject, sizes: Sizes) -> Iterator[Finding]:
    """What the configuration names: folders, problems, models, checkpoints."""
    yield devices.host_memory_finding(subject, meminfo=Path("/proc/meminfo"), sizes=sizes)
    yield storage.writable_finding(subject.run_folder)
    yield from storage.space_findings(subject, sizes=sizes)
    yield from storage.shared_findings(subject, mounts=Path("/proc/mounts"))
    yield storage.problems_finding(subject)
    yield from _models(subject, sizes)
    for key, folder in subject.megatron_checkpoints:
        yield weights.megatron_finding(key, folder)
    yield from weights.resume_finding(subject.run_folder, nemo=subject.backend == "nemo_rl")


def _models(subject: Subject, sizes: Sizes) -> Iterator[Finding]:
    named = {"student": subject.student, "teacher": subject.teacher}
    made = [role for role, name in named.items() if name is not None and name.startswith("demo:")]
    yield from (ok(f"{role} model", f"{named[role]} is made on first use") for role in made)
    for role, name in named.items():
        if name is not None and role not in made:
            yield models.model_finding(role, name)
    if not made:
        yield from models.tokenizer_findings(subject)
    yield from models.vocabulary_finding(subject, sizes)
    yield from models.limits_finding(subject, sizes)
