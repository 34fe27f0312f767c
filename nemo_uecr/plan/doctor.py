"""The doctor: what would stop or spoil a run, found before it starts; each finding with its remedy.

Without a configuration it looks at the machine and the packages alone.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING

import psutil

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import teacher_of
from nemo_uecr.errors import ConfigError, DataError, RunFolderError, UecrError
from nemo_uecr.files import check_writable
from nemo_uecr.nemo.preflight import check_problems
from nemo_uecr.plan import machine, models
from nemo_uecr.plan.local import local_plan
from nemo_uecr.plan.memory import FP32, checkpoint_bytes
from nemo_uecr.plan.nemo import nemo_plan
from nemo_uecr.plan.records import GIB, Finding, fail, ok, warn
from nemo_uecr.plan.setting import CPU, EFFICIENCY, GPUS, Lengths
from nemo_uecr.plan.shapes import parameters

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.models import Sizes

__all__ = ["examine", "host_memory_finding", "plan_findings", "problems_finding", "shared_findings", "space_finding"]

CANNOT = (ImportError, OSError, RuntimeError, SubprocessError, UecrError)
"""What a check meets in files and packages of others."""

LENGTHS = Lengths(prompt=1, response=1, sigma=0.0)
"""Of no influence on memory."""

LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs"}

Check = tuple[str, Callable[[], Finding | list[Finding]]]


def examine(run: Config | NemoConfig | None, *, ray_port: int, sizes: Sizes) -> Iterator[Finding]:
    """Make every check that applies, one finding after the other as they are known.

    Args:
        run: the configuration; None: the machine alone.
        ray_port: port of the Ray head.
        sizes: from a model's name and its role to its sizes.
    """
    checks = [*_of_the_machine(run, ray_port), *(() if run is None else _of_the_run(run, sizes))]
    for check, make in checks:
        try:
            found = make()
            yield from [found] if isinstance(found, Finding) else found
        except ModuleNotFoundError as error:
            yield fail(check, f"not checked: {error.name} cannot be imported", "install it first, see the lines above")
        except CANNOT as error:
            message = str(error) if isinstance(error, UecrError) else f"{type(error).__name__}: {error}"
            yield fail(check, f"cannot be checked: {message:.400}", "repair what it names, then run doctor again")


def _of_the_machine(run: Config | NemoConfig | None, ray_port: int) -> Iterator[Check]:
    nemo = isinstance(run, NemoConfig)
    gpus, nodes = 0, 1
    if isinstance(run, NemoConfig):
        gpus, nodes = run.cluster.gpus_per_node, run.cluster.nodes
    elif run is not None:
        gpus = 1 if run.device == "cuda" else 0
    yield "python", lambda: machine.python_finding(sys.version_info[:3])
    yield "packages", lambda: machine.package_findings(nemo=nemo)
    yield "apex", lambda: machine.apex_finding(machine.megatron_python() if nemo else sys.executable)
    yield "gpus", lambda: machine.cuda_finding(gpus)
    if nemo:
        yield "nemo_rl", machine.nemo_rl_finding
        yield "nccl", machine.nccl_finding
        yield "container", lambda: machine.container_finding(root=Path("/"))
    if nemo or run is None:
        yield "ray port", lambda: machine.port_finding(ray_port)
        yield "ports", lambda: machine.range_findings(machine.RANGES)
        yield "node name", lambda: machine.name_finding(socket.gethostname(), nodes=nodes)
        yield "open files", machine.files_finding
        yield "shared memory", lambda: machine.shared_memory_finding(Path("/dev/shm"))


def _of_the_run(run: Config | NemoConfig, sizes: Sizes) -> Iterator[Check]:
    names = {"student": run.student.model_name, "teacher": teacher_of(run)}
    named = {role: name for role, name in names.items() if name is not None}
    yield "plan", lambda: plan_findings(run, memory=machine.gpu_memory())
    yield "host memory", lambda: host_memory_finding(run, total=psutil.virtual_memory().total, sizes=sizes)
    yield "run folder", lambda: writable_finding(run.run.folder)
    yield "disk", lambda: space_finding(run, sizes=sizes)
    yield "shared folders", lambda: shared_findings(run)
    yield "problems", lambda: problems_finding(run)
    for key, folder in _megatron_checkpoints(run).items():
        yield key, partial(models.megatron_finding, key, folder)
    yield "resume", lambda: models.resume_findings(run.run.folder, nemo=isinstance(run, NemoConfig))
    for role, name in named.items():
        yield f"{role} model", partial(models.model_finding, role, name)
    yield "model code", lambda: models.code_findings(run, named)
    if not any(name.startswith("demo:") for name in named.values()):
        yield "tokenizers", lambda: models.tokenizer_findings(run)
    yield "vocabulary", lambda: models.vocabulary_findings(run, sizes)
    yield "generation", lambda: models.limits_findings(run, sizes)


def _megatron_checkpoints(run: Config | NemoConfig) -> dict[str, str]:
    if not isinstance(run, NemoConfig):
        return {}
    named = {"student.megatron_checkpoint": run.student.megatron_checkpoint}
    if teacher_of(run) is not None:
        named["teacher.megatron_checkpoint"] = run.teacher.megatron_checkpoint
    return {key: folder for key, folder in named.items() if folder is not None}


def plan_findings(run: Config | NemoConfig, *, memory: int | None) -> list[Finding]:
    """Whether the run fits the GPUs: the plan with their memory.

    Args:
        run: the configuration.
        memory: bytes of the smallest GPU here; None: no GPU here, an H200 is assumed.
    """
    if not isinstance(run, NemoConfig):
        return []
    device = GPUS["h200"] if memory is None else replace(GPUS["h200"], name="GPU of this node", memory=memory)
    try:
        plan = nemo_plan(run, device, EFFICIENCY, LENGTHS)
    except DataError:
        return []  # sizes that are not known: said with the vocabulary
    except ConfigError as error:
        return [fail("plan", str(error), "nemo-uecr plan says what would fit")]
    if plan.faults:
        return [fail("plan", "; ".join(plan.faults), "nemo-uecr plan says what would fit")]
    fullest = plan.fullest
    return [ok("plan", f"fits one {device.name}: {fullest.name} takes the most, {fullest.size / GIB:.1f} GiB")]


def host_memory_finding(run: Config | NemoConfig, *, total: int, sizes: Sizes) -> Finding:
    """Host memory against what the plan of the run puts there.

    Args:
        run: the configuration.
        total: bytes of this machine.
        sizes: from a model's name and its role to its sizes.
    """
    try:
        if isinstance(run, NemoConfig):
            needed = sum(item.size for item in nemo_plan(run, GPUS["h200"], EFFICIENCY, LENGTHS).host)
        else:
            on_cpu = local_plan(run, CPU, EFFICIENCY, LENGTHS, sizes=sizes).fullest.size
            needed = 0 if run.device == "cuda" else on_cpu
    except UecrError:
        return warn("host memory", f"{total / GIB:.0f} GiB; the run cannot be planned", "nemo-uecr plan says why")
    message = f"{total / GIB:.1f} GiB, the run needs {needed / GIB:.1f}"
    if needed > total:
        return fail("host memory", message, "see nemo-uecr plan; take smaller models, or nodes with more memory")
    return ok("host memory", message)


def existing(path: Path) -> Path:
    """The path, or its nearest parent that is there."""
    path = path.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path


def writable_finding(folder: str) -> Finding:
    """Whether the run folder's place can be written."""
    try:
        check_writable(Path(folder))
    except RunFolderError as error:
        return fail("run folder", str(error), "choose another run.folder")
    return ok("run folder", f"{existing(Path(folder))} can be written")


def space_finding(run: Config | NemoConfig, *, sizes: Sizes) -> Finding:
    """Free disk space against the checkpoints that are there at once, the one being written included."""
    free = shutil.disk_usage(existing(Path(run.run.folder))).free
    try:
        count = parameters(sizes(run.student.model_name, "student"))
    except UecrError:
        message = f"{free / GIB:.1f} GiB free; what a checkpoint needs is not known without the student's sizes"
        return warn("disk", message, "give student.model_name a folder with config.json")
    if isinstance(run, NemoConfig):
        kept, each = run.checkpoint.keep_last + 1, checkpoint_bytes(count)
    else:
        kept, each = run.checkpoint.keep_last + (2 if run.checkpoint.keep_best else 1), 3 * FP32 * count
    needed = kept * each
    message = f"{free / GIB:.1f} GiB free, {kept} checkpoints of {each / GIB:.2f} GiB need {needed / GIB:.1f}"
    if free < needed:
        return fail("disk", message, "free space, lower checkpoint.keep_last, or choose another run.folder")
    return ok("disk", message)


def shared_findings(run: Config | NemoConfig) -> list[Finding]:
    """Whether what the run reads and writes lies on a file system of this node alone."""
    if not isinstance(run, NemoConfig) or run.cluster.nodes == 1:
        return []
    named = {"run.folder": run.run.folder, "data.train": run.data.train} | _megatron_checkpoints(run)
    for key, name in (("student.model_name", run.student.model_name), ("teacher.model_name", teacher_of(run))):
        if name is not None and Path(name).expanduser().is_dir():
            named[key] = name
    findings = []
    for key, path in named.items():
        place = existing(Path(path)).resolve()
        kind = _file_system(place)
        if kind in LOCAL_FILE_SYSTEMS:
            remedy = f"put {key} on a file system that every node mounts at the same path"
            findings.append(fail(f"shared {key}", f"{place} is on {kind}, which only this node sees", remedy))
        else:
            findings.append(ok(f"shared {key}", f"{place} is on {kind}"))
    return findings


def _file_system(place: Path) -> str:
    """Type of the file system of a path: of the longest mount point above it, the last one mounted there."""
    above = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
    return str(max(reversed(above), key=lambda one: len(one.mountpoint)).fstype)


def problems_finding(run: Config | NemoConfig) -> Finding:
    """The training problems, read as the run reads them."""
    data = run.data
    if data.train.startswith("demo:"):
        return ok("problems", f"{data.train} is made on first use")
    try:
        if isinstance(run, NemoConfig):
            check_problems(run)
        else:
            models.local_problems(run)
    except DataError as error:
        remedy = "give data.train a JSONL file or a folder of `nemo-uecr data prepare`, and name its fields in data.*"
        return fail("problems", str(error), remedy)
    return ok("problems", f"{data.train}, fields {data.question_key!r} and {data.answer_key!r}")
