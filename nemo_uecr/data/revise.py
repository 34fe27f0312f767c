"""Changes a prepared folder after the fact: rows are held by the embedding stage, or judged by a person."""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.data.manifest import (
    HELD,
    KEPT,
    REMOVED,
    REVIEW,
    Manifest,
    check_intact,
    jsonl,
    jsonl_line,
    read_manifest,
    reasons_of,
    write_manifest,
)
from nemo_uecr.data.prepare import target_texts
from nemo_uecr.data.review import held_lines, read_verdicts, write_review
from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, new_folder

Rows = list[dict[str, Any]]


def apply_verdicts(folder: Path, review: Path) -> Manifest:
    """Return the held rows judged `keep` to the kept ones and remove those judged `drop`.

    Raises:
        DataError: If the folder was altered, or a held row has no verdict.
    """
    check_intact(folder)
    held = list(jsonl(folder / HELD))
    if not held:
        raise DataError(f"{folder}: no row is held; there is nothing to apply")
    verdicts = read_verdicts(review, held_lines(held))
    returned = [_without(row, "findings") for row in held if verdicts[row["row"]] == "keep"]
    dropped = [
        {name: row[name] for name in ("row", "digest", "findings", "question", "answer")} | {"reason": "screen_review"}
        for row in held
        if verdicts[row["row"]] == "drop"
    ]
    record = {"sha256": file_sha256(review), "kept": len(returned), "dropped": len(dropped)}

    def change(aside: Path) -> None:
        number = 1 + len(list((aside / "screening").glob("reviewed-*.csv")))
        (aside / "screening" / f"reviewed-{number}.csv").write_bytes(review.read_bytes())
        _write(aside / KEPT, heapq.merge(jsonl(folder / KEPT), returned, key=lambda row: int(row["row"])))
        _write(aside / HELD, [])
        _write(aside / REMOVED, [*jsonl(folder / REMOVED), *dropped])
        write_review(aside / REVIEW, [], {})

    return _rewrite(folder, change, {"apply": record})


def hold(folder: Path, findings: Mapping[int, Rows], stage: Manifest) -> Manifest:
    """Take kept rows aside for a person.

    Args:
        folder: a prepared folder.
        findings: what was found, by row.
        stage: what the manifest says about the stage.
    """
    check_intact(folder)

    def change(aside: Path) -> None:
        kept, held = [], list(jsonl(folder / HELD))
        for row in jsonl(folder / KEPT):
            if row["row"] in findings:
                held.append(row | {"findings": findings[row["row"]]})
            else:
                kept.append(row)
        held.sort(key=lambda row: int(row["row"]))
        _write(aside / KEPT, kept)
        _write(aside / HELD, held)
        write_review(aside / REVIEW, held, target_texts(folder))

    return _rewrite(folder, change, stage)


def _rewrite(folder: Path, change: Callable[[Path], None], stage: Manifest) -> Manifest:
    manifest = read_manifest(folder)
    with new_folder(folder) as aside:
        _copy(folder, aside)
        change(aside)
        manifest["stages"] = [*manifest["stages"], stage]
        manifest["counts"]["reasons"] = reasons_of(jsonl(aside / REMOVED))
        write_manifest(aside, manifest)
    return manifest


def _copy(folder: Path, aside: Path) -> None:
    """What is not hidden. Of a full disk `shutil.copytree` says no more than that some files failed."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        if path.is_dir():
            (aside / name).mkdir()
        elif path.is_file():
            with path.open("rb") as source, (aside / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            shutil.copystat(path, aside / name)


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(map(jsonl_line, rows))
