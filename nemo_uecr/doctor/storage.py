"""Folders: whether they can be written, hold what the run writes, and are seen by every node; and the problem file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.data.manifest import training_file
from nemo_uecr.doctor.findings import Finding, fail, ok, warn
from nemo_uecr.errors import RunFolderError, UecrError
from nemo_uecr.files import check_writable
from nemo_uecr.plan.arithmetic import FP32, checkpoint_bytes
from nemo_uecr.plan.records import GIB
from nemo_uecr.plan.shapes import parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_uecr.doctor.subject import Subject
    from nemo_uecr.plan.shapes import ModelShape

__all__ = ["problems_finding", "shared_findings", "space_findings", "writable_finding"]

LOCAL_TYPES = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs", "aufs"}
SHARED_TYPES = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "cifs", "9p", "virtiofs", "afs"}


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


def space_findings(subject: Subject, *, sizes: Callable[[str, str], ModelShape]) -> list[Finding]:
    """Free disk space against the checkpoints that are there at once.

    Args:
        subject: the run.
        sizes: from a model's name and its role to its sizes.
    """
    free = shutil.disk_usage(existing(Path(subject.run_folder))).free
    try:
        count = parameters(sizes(subject.student, "student"))
    except UecrError:
        message = f"{free / GIB:.1f} GiB free; what a checkpoint needs is not known without the student's sizes"
        return [warn("disk", message, "give student.model_name a folder with config.json")]
    each = checkpoint_bytes(count) if subject.backend == "nemo_rl" else 3 * FP32 * count
    needed = subject.kept_checkpoints * each
    message = (
        f"{free / GIB:.1f} GiB free, {subject.kept_checkpoints} checkpoints of {each / GIB:.2f} GiB need "
        f"{needed / GIB:.1f}"
    )
    if free < needed:
        return [fail("disk", message, "free space, lower checkpoint.keep_last, or choose another run.folder")]
    return [ok("disk", message)]


def shared_findings(subject: Subject, *, mounts: Path) -> list[Finding]:
    """Whether every node sees what the run reads and writes.

    Args:
        subject: the run.
        mounts: the kernel's `/proc/mounts`.
    """
    if subject.nodes == 1:
        return []
    named = {"run.folder": subject.run_folder, "data.train": subject.train_file}
    models = {"student.model_name": subject.student, "teacher.model_name": subject.teacher}
    named |= {key: name for key, name in models.items() if name is not None and Path(name).expanduser().is_dir()}
    named |= dict(subject.megatron_checkpoints)
    return [_shared(key, Path(path), mounts) for key, path in named.items()]


def _shared(key: str, path: Path, mounts: Path) -> Finding:
    place = existing(path).resolve()
    kind = _file_system(place, mounts)
    message = f"{place} is on {kind}"
    if kind in LOCAL_TYPES:
        remedy = f"put {key} on a file system that every node mounts at the same path"
        return fail(f"shared {key}", f"{message}, which only this node sees", remedy)
    if kind in SHARED_TYPES or kind.startswith("fuse."):
        return ok(f"shared {key}", message)
    return warn(f"shared {key}", f"{message}, of which it is not known whether it is shared", "look on another node")


def _file_system(place: Path, mounts: Path) -> str:
    """Type of the file system that a path is on: that of the longest mount point above it, the last one mounted."""
    best, kind = "", "unknown"
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split()
        point = point.replace("\\040", " ")
        if place.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def problems_finding(subject: Subject) -> Finding:
    """The first line of the training problems: of the file, or of a prepared folder's kept rows."""
    if subject.train_file.startswith("demo:"):
        return ok("problems", f"{subject.train_file} is made on first use")
    path = Path(subject.train_file).expanduser()
    wanted = "give data.train a JSONL file or a folder of `nemo-uecr data prepare`"
    if not path.exists():
        return fail("problems", f"{path}: no such file", wanted)
    try:
        path = training_file(path, "data.train")
        with path.open("rb") as file:
            first = json.loads(file.readline())
    except UecrError as error:
        return fail("problems", str(error), wanted)
    except (OSError, ValueError) as error:
        return fail("problems", f"{path} cannot be read: {error}", wanted)
    keys = [
        key for key in (subject.question_key, subject.answer_key) if not isinstance(first, dict) or key not in first
    ]
    if keys:
        remedy = "set data.question_key and data.answer_key"
        return fail("problems", f"{path} line 1 has no field {keys[0]!r}", remedy)
    return ok("problems", f"{path}, fields {subject.question_key!r} and {subject.answer_key!r}")
