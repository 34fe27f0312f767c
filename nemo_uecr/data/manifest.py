"""The manifest of a prepared folder: what went in, what came out, and the hashes to prove it later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemo_uecr.data.filters import row_digest
from nemo_uecr.data.rows import data_files, read_object
from nemo_uecr.errors import DataError

FORMAT = "nemo_uecr.data/1"
MANIFEST = "manifest.json"
KEPT = "train.jsonl"
#: Everything beside the kept rows lies one folder down, so that `*.jsonl` in the folder is the training data.
HELD = "screening/held.jsonl"
REMOVED = "screening/removed.jsonl"
REVIEW = "screening/review.csv"
TARGETS = "screening/targets.jsonl"

Manifest = dict[str, Any]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Add the hash of every file and row set, check that the counts add up, and write the manifest last."""
    manifest["format"] = FORMAT
    manifest["files"] = {name: describe_file(folder / name) for name in sorted(_names(folder))}
    manifest["row_sets"] |= {
        name: {"rows": len(digests), "sha256": row_set_digest(digests)}
        for name, file in (("kept", KEPT), ("held", HELD), ("removed", REMOVED))
        for digests in [[row["digest"] for row in jsonl(folder / file)]]
    }
    manifest["counts"] |= {name: manifest["row_sets"][name]["rows"] for name in ("kept", "held", "removed")}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises:
        DataError: If there is none or it is of another format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no {MANIFEST}; expected a folder made by `nemo-uecr data prepare`")
    manifest: Manifest = read_object(path)
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r}; expected {FORMAT!r}")
    for key in ("files", "counts", "row_sets", "source", "stages"):
        if key not in manifest:
            raise DataError(f"{path}: no {key!r}; the manifest was altered. Prepare the folder again")
    return manifest


def faults(folder: Path) -> list[str]:
    """Everything in a prepared folder that is not as its manifest says; empty when all is well."""
    manifest = read_manifest(folder)
    files: dict[str, Any] = manifest["files"]
    found = []
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: missing")
        elif describe_file(path) != expected:
            found.append(f"{name}: changed (sha256 {file_sha256(path)[:12]}, expected {expected['sha256'][:12]})")
    found += [f"{name}: not in the manifest" for name in sorted(_names(folder) - files.keys())]
    return found or [*_row_faults(folder, manifest), *_count_faults(manifest)]


def source_faults(manifest: Manifest, source: Path) -> list[str]:
    """Where a source on disk is not the one the folder was made from."""
    found = [{"name": file.name} | describe_file(file) for file in data_files(source)]
    return [] if found == manifest["source"]["files"] else [f"{source}: not the files the folder was made from"]


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _row_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    sets = {"kept": KEPT, "held": HELD, "removed": REMOVED}
    every: list[str] = []
    for name, file in sets.items():
        digests = []
        for row in jsonl(folder / file):
            digests.append(row["digest"])
            if "question" in row and row_digest(row["question"], row["answer"]) != row["digest"]:
                yield f"{file}: row {row['row']} does not match its digest"
        every += digests
        if row_set_digest(digests) != manifest["row_sets"][name]["sha256"]:
            yield f"{file}: the row set is another one than the manifest's"
    if row_set_digest(every) != manifest["row_sets"]["source"]["sha256"]:
        yield "kept, held and removed rows together are not the source's rows"


def _count_faults(manifest: Manifest) -> Iterator[str]:
    counts = manifest["counts"]
    if counts["read"] != counts["kept"] + counts["held"] + counts["removed"]:
        yield f"counts: {counts['read']} read, but {counts['kept']} + {counts['held']} + {counts['removed']} accounted"
    if sum(counts["reasons"].values()) != counts["removed"]:
        yield f"counts: the reasons add up to {sum(counts['reasons'].values())}, removed are {counts['removed']}"


def _names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not _unlisted(path.relative_to(folder))
    }


def _unlisted(path: Path) -> bool:
    """Not hashed: the manifest itself, the review file (people write into it; `held.jsonl` has its content), and
    hidden folders, where a stage that has not ended keeps its progress.
    """
    return str(path) in (MANIFEST, REVIEW) or any(part.startswith(".") for part in path.parts)
