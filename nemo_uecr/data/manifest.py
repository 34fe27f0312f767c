"""The manifest of a prepared folder: what went in, what came out, and the hashes to prove it later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemo_uecr.data.problems import data_files
from nemo_uecr.data.review import held_lines, review_fault
from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, read_object, recover_folder

FORMAT = "nemo_uecr.data/1"
MANIFEST = "manifest.json"
KEPT = "train.jsonl"
#: Everything beside the kept rows lies one folder down, so that `*.jsonl` in the folder is the training data.
HELD = "screening/held.jsonl"
REMOVED = "screening/removed.jsonl"
REVIEW = "screening/review.csv"
TARGETS = "screening/targets.jsonl"
#: Row sets by name, and the files they are in.
ROW_SETS = {"kept": KEPT, "held": HELD, "removed": REMOVED}

Manifest = dict[str, Any]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Add the hash of every file and row set and the counts, and write the manifest last."""
    manifest["format"] = FORMAT
    manifest["files"] = {name: describe_file(folder / name) for name in sorted(_names(folder))}
    for name, file in ROW_SETS.items():
        digests = [row["digest"] for row in jsonl(folder / file)]
        manifest["row_sets"][name] = {"rows": len(digests), "sha256": row_set_digest(digests)}
        manifest["counts"][name] = len(digests)
    text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises:
        DataError: If there is none, or it is of another format.
    """
    recover_folder(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no {MANIFEST}; expected a folder made by `nemo-uecr data prepare`")
    manifest = read_object(path)
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r}; expected {FORMAT!r}")
    return manifest


def training_file(path: Path, key: str) -> Path:
    """The problem file that a configuration names: the file itself, or the kept rows of a prepared folder.

    Args:
        path: JSONL file, or folder made by `nemo-uecr data prepare`.
        key: the configuration's key, for the message.

    Raises:
        DataError: If there is neither, no row was kept, or the kept or held rows are not those of the manifest.
    """
    if path.is_file():
        return path
    recover_folder(path)
    if not (path / MANIFEST).is_file():
        what = f" has no {MANIFEST}" if path.is_dir() else ": no such file"
        raise DataError(f"{key}: {path}{what}; give a JSONL file or a folder of `nemo-uecr data prepare`")
    manifest = read_manifest(path)
    for name in (KEPT, HELD):
        file = path / name
        if not file.is_file() or describe_file(file) != manifest["files"].get(name):
            raise DataError(f"{key}: {file} is not the one of the manifest; run `nemo-uecr data verify {path}`")
    if manifest["counts"]["kept"] == 0:
        raise DataError(f"{key}: {path} has no kept row; prepare it with a wider --difficulty or other answer types")
    return path / KEPT


def faults(folder: Path) -> list[str]:
    """Everything in a prepared folder that is not as `prepare` left it; empty when all is well.

    Raises:
        DataError: If its manifest cannot be read.
    """
    files: dict[str, Any] = read_manifest(folder)["files"]
    found = [f"{name}: not in the manifest" for name in sorted(_names(folder) - files.keys())]
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: missing")
        elif describe_file(path) != expected:
            found.append(f"{name}: changed (sha256 {file_sha256(path)[:12]}, expected {expected['sha256'][:12]})")
    fault = None if found else review_fault(folder / REVIEW, held_lines(jsonl(folder / HELD)))
    return found if fault is None else [f"{REVIEW}: {fault}"]


def source_faults(manifest: Manifest, source: Path) -> list[str]:
    """Where a source on disk is not the one the folder was made from."""
    found = [{"name": file.name} | describe_file(file) for file in data_files(source)]
    return [] if found == manifest["source"]["files"] else [f"{source}: not the files the folder was made from"]


def describe_file(path: Path) -> dict[str, object]:
    """Size and digest of a file."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def row_set_digest(digests: Iterable[str]) -> str:
    """One digest of a set of rows, whatever their order."""
    whole = hashlib.sha256()
    for digest in sorted(digests):
        whole.update(bytes.fromhex(digest))
    return whole.hexdigest()


def jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file of our own."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _names(folder: Path) -> set[str]:
    """Files that are hashed: not the manifest, not the review file (people write into it; `held.jsonl` has its
    content), and nothing hidden, where a stage that has not ended keeps its progress.
    """
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        str(path)
        for path in paths
        if str(path) not in (MANIFEST, REVIEW) and not any(part.startswith(".") for part in path.parts)
    }
