"""The list of what a run has written, with hashes: one line a file, added when the file is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import file_sha256, read_object
from nemo_uecr.local.checkpoint import MANIFEST
from nemo_uecr.telemetry.sinks import append_record

FILE = "artifacts.jsonl"
#: Files that grow: of them the part that was there is hashed.
GROWING = ("metrics.jsonl", "evaluation.jsonl")
CHECKPOINTS = "checkpoints"
#: Folders in which nothing lies that a run did not list.
LISTED = ("batches", "evaluations")
CHUNK = 1 << 20


@dataclass(frozen=True)
class Findings:
    """What a comparison found: files that are as listed, and sentences about the others."""

    same: int
    changed: tuple[str, ...]
    unlisted: tuple[str, ...]


def list_files(folder: Path, step: int, names: Iterable[str]) -> None:
    """Add files to the list, those of them that exist; every entry has its number, so that a gap shows."""
    path = folder / FILE
    number = path.read_bytes().count(b"\n") if path.is_file() else 0
    for name in names:
        listed = folder / name
        if listed.is_file():
            size, number = listed.stat().st_size, number + 1
            digest = _prefix_sha256(listed, size)
            append_record(path, {"step": step, "entry": number, "path": name, "bytes": size, "sha256": digest})


def batch_faults(folder: Path) -> dict[str, str | None]:
    """What is wrong with each saved batch that the list of a run has, by path; empty where there is no list."""
    if not (folder / FILE).is_file():
        return {}
    listed, _ = _read(folder)
    batches = (name for name in sorted(listed) if name.startswith("batches/") and name.endswith(".safetensors"))
    return {name: _fault(folder, name, listed[name]) for name in batches}


def compare_files(folder: Path, *, last_step: int, keep_last: int) -> Findings:
    """Compare a run folder with its list.

    Args:
        folder: the run folder.
        last_step: of the run's configuration; once the list reaches it, growing files grow no more.
        keep_last: how many of the newest checkpoints the run has kept; older ones may be gone.

    Raises:
        RunFolderError: If there is no list or it cannot be read.
    """
    listed, list_faults = _read(folder)
    list_faults += _end_faults(folder, listed, last_step)
    for name in GROWING:
        if name in listed and listed[name]["step"] == last_step:
            listed[name]["final"] = True
    checkpoints = {name: entry for name, entry in listed.items() if name.startswith(f"{CHECKPOINTS}/")}
    changed = [
        text for name, entry in listed.items() if name not in checkpoints and (text := _fault(folder, name, entry))
    ]
    same = len(listed) - len(checkpoints) - len(changed)
    here = (folder / CHECKPOINTS).is_dir()  # an archive may come without them
    kept, faults = _checkpoint_faults(folder, checkpoints, keep_last) if here else (0, [])
    present = (path for part in LISTED for path in sorted((folder / part).glob("*")))
    unlisted = [name for path in present if (name := str(path.relative_to(folder))) not in listed]
    unlisted += [
        str(path.relative_to(folder))
        for path in sorted((folder / CHECKPOINTS).glob("*"))
        if f"{path.relative_to(folder)}/{MANIFEST}" not in checkpoints
    ]
    notes = [f"{name}: not in {FILE}" for name in unlisted]
    if checkpoints and not here:
        notes.append(f"{CHECKPOINTS}: not here")
    return Findings(same + kept, (*changed, *faults, *list_faults), tuple(notes))


def _checkpoint_faults(folder: Path, listed: dict[str, dict[str, Any]], keep_last: int) -> tuple[int, list[str]]:
    """Checkpoints that are here against their manifests; of those that are gone only the newest are missed."""
    newest = sorted(listed)[-keep_last:]
    good, faults = 0, []
    for name, entry in listed.items():
        place = (folder / name).parent
        if not place.is_dir() and name not in newest:
            continue  # pruned, as the configuration says
        fault = _fault(folder, name, entry)
        if fault is not None:
            faults.append(fault)
            continue
        wanted = read_object(folder / name)
        added = sorted({str(path.relative_to(place)) for path in place.rglob("*")} - {MANIFEST, *wanted})
        faults += [f"{(place / file).relative_to(folder)}: not in the checkpoint's {MANIFEST}" for file in added]
        for file, digest in wanted.items():
            path = place / file
            if path.is_file() and file_sha256(path) == digest:
                good += 1
            else:
                faults.append(f"{path.relative_to(folder)}: {'content changed' if path.is_file() else 'missing'}")
    return good, faults


def checkpoint_entry(step: int) -> str:
    """The file that stands for a checkpoint: it has the hashes of the others."""
    return f"{CHECKPOINTS}/step-{step:06d}/{MANIFEST}"


def _fault(folder: Path, name: str, entry: dict[str, Any]) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{name}: missing"
    size, expected = path.stat().st_size, int(entry["bytes"])
    if size < expected or (size > expected and (name not in GROWING or entry["final"])):
        return f"{name}: {size} bytes, {expected} when it was written"
    return None if _prefix_sha256(path, expected) == entry["sha256"] else f"{name}: content changed"


def _prefix_sha256(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(CHUNK, size))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _end_faults(folder: Path, listed: dict[str, dict[str, Any]], last_step: int) -> list[str]:
    """What the list of a finished run ends with: its last checkpoint, then the files that grew until then."""
    last = checkpoint_entry(last_step)
    if last not in listed and not (folder / last).is_file():
        return []
    wanted = [last, *(name for name in GROWING if (folder / name).is_file())]
    return [
        f"{FILE}: has no entry of {name} at step {last_step}, the run's last; its end was cut off"
        for name in wanted
        if name not in listed or listed[name]["step"] != last_step
    ]


def _read(folder: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The newest entry of each file, and the gaps in the numbers of the entries."""
    path = folder / FILE
    if not path.is_file():
        raise RunFolderError(f"{folder} has no {FILE}; expected a run folder of this version. Nothing can be verified")
    entries: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    expected = 1
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            entry = json.loads(line)
            content = {"step": int(entry["step"]), "bytes": int(entry["bytes"]), "sha256": str(entry["sha256"])}
            name = PurePosixPath(str(entry["path"]))
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{name} leads outside the run folder")
            entries[str(entry["path"])] = content | {"final": False}
            own = int(entry["entry"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise RunFolderError(f"{path}:{number}: not an entry of the list; altered or of another version") from error
        if own != expected:
            faults.append(f"{FILE}:{number}: entry {own}, expected {expected}; a line was removed or added")
        expected = own + 1
    return entries, faults
