"""The manifest of a prepared folder: what went in, what came out, and the hashes to prove it later."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemo_uecr.data.filters import row_digest
from nemo_uecr.data.json_text import read_own_object
from nemo_uecr.data.manifest_shape import OWN_DIGEST, content_digest, shape_fault
from nemo_uecr.data.review import held_lines, review_fault
from nemo_uecr.data.rows import data_files
from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, recover_folder

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
    """Add the hash of every file and row set, check that the counts add up, and write the manifest last.

    Raises:
        DataError: If a number in it is not finite.
    """
    manifest["format"] = FORMAT
    manifest["files"] = {name: describe_file(folder / name) for name in sorted(_names(folder))}
    manifest["row_sets"] |= {
        name: {"rows": len(digests), "sha256": row_set_digest(digests)}
        for name, file in (("kept", KEPT), ("held", HELD), ("removed", REMOVED))
        for digests in [[row["digest"] for row in jsonl(folder / file)]]
    }
    manifest["counts"] |= {name: manifest["row_sets"][name]["rows"] for name in ("kept", "held", "removed")}
    manifest[OWN_DIGEST] = content_digest(manifest)
    try:
        text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    except ValueError as error:  # NaN and infinity: no reader would take the file
        raise DataError(
            f"{folder}: a setting of the manifest is not finite ({error}); expected finite numbers"
        ) from error
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises:
        DataError: If there is none, it is of another format, a key has another kind of content, or it was altered.
    """
    manifest = manifest_as_found(folder)
    if content_digest(manifest) != manifest[OWN_DIGEST]:
        raise DataError(
            f"{folder / MANIFEST}: its content does not have the digest that stands in it; the manifest was altered. "
            "Prepare the folder again"
        )
    return manifest


def manifest_as_found(folder: Path) -> Manifest:
    """The same, whether or not it has the digest that stands in it: for those who report every fault.

    Raises:
        DataError: If there is none, it is of another format, or a key has another kind of content.
    """
    recover_folder(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no {MANIFEST}; expected a folder made by `nemo-uecr data prepare`")
    manifest: Manifest = read_own_object(path)
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r}; expected {FORMAT!r}")
    fault = shape_fault(manifest)
    if fault is not None:
        raise DataError(f"{path}: {fault}; the manifest was altered. Prepare the folder again")
    return manifest


def faults(folder: Path) -> list[str]:
    """Everything in a prepared folder that is not as `prepare` left it; empty when all is well."""
    found = content_faults(folder)
    if found:
        return found
    fault = review_fault(folder / REVIEW, held_lines(jsonl(folder / HELD)))
    return [] if fault is None else [f"{REVIEW}: {fault}"]


def content_faults(folder: Path) -> list[str]:
    """The same without the review file, which a person may have taken elsewhere to fill it in."""
    manifest = manifest_as_found(folder)
    files: dict[str, Any] = manifest["files"]
    found = []
    if content_digest(manifest) != manifest[OWN_DIGEST]:
        found.append(f"{MANIFEST}: changed; its content does not have the digest that stands in it")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: missing")
        elif describe_file(path) != expected:
            found.append(f"{name}: changed (sha256 {file_sha256(path)[:12]}, expected {expected['sha256'][:12]})")
    found += [f"{name}: not in the manifest" for name in sorted(_names(folder) - files.keys())]
    found += [f"{name}: not in the manifest" for name in (KEPT, HELD, REMOVED, TARGETS) if name not in files]
    if any(not fault.startswith(MANIFEST) for fault in found):
        return found  # what is inside files that have changed says nothing more
    try:
        return [*found, *_row_faults(folder, manifest), *_count_faults(folder, manifest)]
    except (ValueError, LookupError, TypeError) as error:
        return [*found, f"the rows are not such as `prepare` writes ({type(error).__name__}: {error})"]


def check_intact(folder: Path) -> None:
    """Refuse a prepared folder that is not as its manifest says, but for the review file.

    Raises:
        DataError: with the first fault.
    """
    found = content_faults(folder)
    if found:
        raise DataError(f"{folder}: {found[0]}; the folder was altered after it was made. Prepare it again")


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


def jsonl_line(record: dict[str, Any]) -> str:
    """An object as a line of such a file."""
    return json.dumps(record, ensure_ascii=False) + "\n"


def reasons_of(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How often each reason stands in removed rows."""
    return dict(sorted(Counter(row["reason"] for row in rows).items()))


def _row_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    every: list[str] = []
    for name, file in (("kept", KEPT), ("held", HELD), ("removed", REMOVED)):
        digests = []
        for row in jsonl(folder / file):
            digests.append(row["digest"])
            if "question" in row and row_digest(row["question"], row["answer"]) != row["digest"]:
                yield f"{file}: row {row['row']} does not match its digest"
            if name != "removed":
                yield from (f"{file}: row {row['row']} has {fault}" for fault in _unwanted(row, manifest["settings"]))
        every += digests
        yield from _set_faults(manifest, name, digests)
    yield from _set_faults(manifest, "source", every)


def _set_faults(manifest: Manifest, name: str, digests: list[str]) -> Iterator[str]:
    what = "kept, held and removed rows together are not the source's rows" if name == "source" else f"{name} rows"
    expected = manifest["row_sets"][name]
    if row_set_digest(digests) != expected["sha256"]:
        yield f"{what}: another row set than the manifest's"
    if len(digests) != expected["rows"]:
        yield f"{what}: {len(digests)} rows, row_sets.{name}.rows says {expected['rows']}"
    count = "read" if name == "source" else name
    if len(digests) != manifest["counts"][count]:
        yield f"{what}: {len(digests)} rows, counts.{count} says {manifest['counts'][count]}"


def _unwanted(row: dict[str, Any], settings: dict[str, Any]) -> Iterator[str]:
    """What the settings of the manifest would not have let pass."""
    if settings["difficulty"] is not None:
        low, high = settings["difficulty"]
        if not low <= row["difficulty"] <= high:
            yield f"difficulty {row['difficulty']}, outside {low} to {high}"
    if row["answer_type"] not in settings["answer_types"]:
        yield f"an answer of type {row['answer_type']}, which was to be dropped"


def _count_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    counts = manifest["counts"]
    if counts["read"] != counts["kept"] + counts["held"] + counts["removed"]:
        yield f"counts: {counts['read']} read, but {counts['kept']} + {counts['held']} + {counts['removed']} accounted"
    reasons = reasons_of(jsonl(folder / REMOVED))
    if counts["reasons"] != reasons:
        yield f"counts: reasons are {counts['reasons']}, the removed rows have {reasons}"
    problems = dict(Counter(row["benchmark"] for row in jsonl(folder / TARGETS)))
    named = {name: record["problems"] for name, record in manifest["screens"].items()}
    if problems != named:
        yield f"screens: the manifest has problems {named}, {TARGETS} has {problems}"


def _names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not _unlisted(path.relative_to(folder))
    }


def _unlisted(path: Path) -> bool:
    """Not hashed: the manifest itself, the review file (people write into it; `held.jsonl` has its content), and
    hidden folders, where a stage that has not ended keeps its progress. A hidden data file would be read with the rest.
    """
    hidden = any(part.startswith(".") for part in path.parts[:-1])
    return str(path) in (MANIFEST, REVIEW) or hidden or (path.name.startswith(".") and path.suffix != ".jsonl")
