"""All checks in order. Without a configuration: those of the machine and the packages."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING

from nemo_uecr.doctor import devices, machine, models, packages, storage, weights
from nemo_uecr.doctor.findings import Finding, fail, ok
from nemo_uecr.doctor.model_code import code_findings
from nemo_uecr.errors import UecrError

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
    yield from _guarded("packages", lambda: packages.package_findings(nemo=nemo))
    yield from _guarded("apex", lambda: [packages.apex_finding(packages.megatron_python() if nemo else sys.executable)])
    yield from _guarded("gpus", lambda: [devices.cuda_finding(subject)])
    if nemo:
        yield from _guarded("nemo_rl", lambda: [packages.nemo_rl_finding()])
        yield from _guarded("nccl", lambda: [devices.nccl_finding()])
        yield from _guarded("container", lambda: [devices.container_finding(root=Path("/"))])
    if nemo or subject is None:
        yield from _cluster(subject, ray_port)
    if subject is not None:
        yield from _folders(subject, sizes)
        yield from _models(subject, sizes)


CANNOT = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, MemoryError, OSError,
    RuntimeError, SubprocessError, TypeError, UecrError, ValueError,
)  # fmt: skip
"""What a check meets in files and packages of others."""


def _guarded(check: str, make: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check; one that cannot be made is a line too, and the others go on."""
    try:
        yield from make()
    except ModuleNotFoundError as error:
        yield fail(check, f"not checked: {error.name} cannot be imported", "install it first, see the lines above")
    except CANNOT as error:
        message = str(error) if isinstance(error, UecrError) else f"{type(error).__name__}: {error}"
        yield fail(check, f"cannot be checked: {message:.400}", "repair what it names, then run doctor again")


def _cluster(subject: Subject | None, ray_port: int) -> Iterator[Finding]:
    nodes = 1 if subject is None else subject.nodes
    yield from _guarded("ray port", lambda: [machine.port_finding(ray_port)])
    yield from _guarded("ports", lambda: machine.range_finding(machine.RANGES))
    yield from _guarded("node name", lambda: [machine.name_finding(socket.gethostname(), nodes=nodes)])
    yield from _guarded("open files", lambda: [machine.files_finding()])
    yield from _guarded("shared memory", lambda: [machine.shared_memory_finding(Path("/dev/shm"))])


def _folders(subject: Subject, sizes: Sizes) -> Iterator[Finding]:
    meminfo, mounts = Path("/proc/meminfo"), Path("/proc/mounts")
    nemo = subject.backend == "nemo_rl"
    yield from _guarded("plan", lambda: devices.plan_findings(subject, memory=devices.gpu_memory()))
    yield from _guarded("host memory", lambda: [devices.host_memory_finding(subject, meminfo=meminfo, sizes=sizes)])
    yield from _guarded("run folder", lambda: [storage.writable_finding(subject.run_folder)])
    yield from _guarded("disk", lambda: storage.space_findings(subject, sizes=sizes))
    yield from _guarded("shared folders", lambda: storage.shared_findings(subject, mounts=mounts))
    yield from _guarded("problems", lambda: [storage.problems_finding(subject)])
    for key, folder in subject.megatron_checkpoints:
        yield from _guarded(key, partial(_megatron, key, folder))
    yield from _guarded("resume", lambda: weights.resume_finding(subject.run_folder, nemo=nemo))


def _megatron(key: str, folder: str) -> list[Finding]:
    return [weights.megatron_finding(key, folder)]


def _models(subject: Subject, sizes: Sizes) -> Iterator[Finding]:
    named = {"student": subject.student, "teacher": subject.teacher}
    made = [role for role, name in named.items() if name is not None and name.startswith("demo:")]
    yield from (ok(f"{role} model", f"{named[role]} is made on first use") for role in made)
    for role, name in named.items():
        if name is not None and role not in made:
            yield from _guarded(f"{role} model", partial(_model, role, name))
    yield from _guarded("model code", lambda: code_findings(subject))
    if not made:
        yield from _guarded("tokenizers", lambda: models.tokenizer_findings(subject))
    yield from _guarded("vocabulary", lambda: models.vocabulary_finding(subject, sizes))
    yield from _guarded("generation", lambda: models.limits_finding(subject, sizes))


def _model(role: str, name: str) -> list[Finding]:
    return [models.model_finding(role, name)]
