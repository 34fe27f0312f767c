"""Checks of folders: the run's own, file systems that nodes share, checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psutil

from nemo_uecr.conversion.reading import find_source, read_weights
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import check_writable, existing
from nemo_uecr.start.seen import Caution, required

LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs"}
STEP = re.compile(r"step[-_](\d+)")


def named_folder(config: str, folder: str, origin: str, *, resume: bool) -> str:
    """A run that was renamed or copied is not resumed by its own config.yaml, which names the old folder."""
    beside = Path(config).parent
    of_run = Path(config).name == "config.yaml" and (beside / "origins.json").is_file()
    if resume and of_run and origin != "override" and beside.resolve() != Path(folder).resolve():
        raise RunFolderError(
            f"{config} names run.folder={folder}; to continue the run beside it, add run.folder={beside}"
        )
    return folder


def free_folder(folder: Path, check_same: Callable[[Path], None], *, resume: bool) -> str:
    """The folder holds no run, or the one that is resumed; ``check_same`` compares with the file that it wrote.

    Checkpoints alone count as a run, because NeMo-RL always continues from the newest one.
    """
    written = folder / "config.yaml"
    if not resume and (written.exists() or any((folder / "checkpoints").glob("step?*"))):
        raise RunFolderError(f"{folder} already holds a run; add --resume to continue it or choose another run.folder")
    if not written.exists():
        return f"{folder} holds no run"
    check_same(written)
    return f"{folder} holds this run"


def writable(folder: Path) -> str:
    """The run folder can be written or made, and lies in a container's mounts."""
    check_writable(folder)
    return f"{existing(folder)} can be written"


def shared(path: str) -> str:
    """A path is on a file system that every node mounts."""
    place = existing(Path(path)).resolve()
    above = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
    kind = max(reversed(above), key=lambda one: len(one.mountpoint)).fstype  # the last one mounted there
    remedy = "use a file system that every node mounts at the same path; this one belongs to this node alone"
    return required(kind not in LOCAL_FILE_SYSTEMS, f"{place} is on {kind}", remedy)


def whole_checkpoint(folder: Path) -> str:
    """A Megatron distributed checkpoint has every part and shard."""
    iteration = find_source(folder.expanduser()).weights
    files = read_weights(iteration).files
    return f"{iteration}, {sum(file.suffix == '.distcp' for file in files)} shards"


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint in a run folder from which a resumed run continues."""
    checkpoints = (folder.expanduser() / "checkpoints").glob("step*")
    steps = {int(match[1]): path for path in checkpoints if (match := STEP.fullmatch(path.name))}
    return steps[max(steps)] if steps else None


def to_resume(folder: Path) -> Caution | None:
    """A local run would continue from a checkpoint, or refuse the folder."""
    if (newest := newest_checkpoint(folder)) is None:
        return None
    return Caution(f"{newest} is there", "train --resume continues from it; without it choose another run.folder")


def to_resume_in_nemo_rl(folder: Path) -> str | None:
    """NeMo-RL continues from the newest checkpoint, which is whole."""
    newest = newest_checkpoint(folder)
    return None if newest is None else whole_checkpoint(newest)
