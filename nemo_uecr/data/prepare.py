"""Prepared folders of training problems: filled from a source, and changed by a screening or a person's review.

`prepare` loads, filters, screens and samples; every row of the source is accounted for.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.benchmarks import LoadedBenchmark, Located, load_benchmarks, locate
from nemo_uecr.data.filters import FILTER_VERSION, Judged, Work, judged_rows, row_digest
from nemo_uecr.data.manifest import (
    MANIFEST,
    REVIEW,
    ROW_SETS,
    TARGETS,
    Manifest,
    describe_file,
    jsonl,
    read_manifest,
    row_set_digest,
    write_manifest,
)
from nemo_uecr.data.problems import data_files, fields_of
from nemo_uecr.data.review import has_verdicts, held_lines, read_verdicts, write_review
from nemo_uecr.data.screening import NORMALISATION, RULES, targets_of
from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, new_folder, recover_folder

Row = dict[str, Any]
RowSets = dict[str, list[Row]]
#: Review files whose verdicts were applied.
REVIEWED = "screening/reviewed-*.csv"


@dataclass(frozen=True)
class Settings:
    """What to prepare.

    Attributes:
        source: file, folder or hub name of the training problems.
        revision: the hub's branch, tag or commit.
        screens: benchmarks to screen against, by name, file or NAME=FILE.
        difficulty: lowest and highest difficulty, both included; None takes every row.
        types: answer types that are kept.
        sample: rows to draw among those kept or held; None keeps all.
        seed: of the draw.
        workers: processes.
    """

    source: str
    revision: str | None
    screens: tuple[str, ...]
    difficulty: tuple[float, float] | None
    types: frozenset[str]
    sample: int | None
    seed: int
    workers: int


def prepare(settings: Settings, folder: Path) -> Manifest:
    """Fill a folder with kept rows, held rows, removed rows, the review file and the manifest, or leave nothing.

    Raises:
        DataError: If the source cannot be read or has fewer rows than the sample, or the folder holds other files.
    """
    recover_folder(folder)
    _check_target(folder)
    source = locate(settings.source, revision=settings.revision)
    files = data_files(source.path)
    fields = fields_of(files[0])
    benchmarks = load_benchmarks(list(settings.screens))
    if settings.difficulty is not None and fields.difficulty is None:
        raise DataError(f"{files[0]}: no field 'difficulty', but a difficulty range was asked for; leave it out")
    targets = tuple(targets_of(benchmarks.values()))
    work = Work(fields, settings.difficulty, settings.types, targets, RULES)
    rows, digests = _sorted_rows(judged_rows(files, work, workers=settings.workers))
    if settings.sample is not None:
        _draw(rows, settings.sample, settings.seed)
    manifest: Manifest = {
        "source": _source_record(source, files, asdict(fields)),
        "settings": _settings_record(settings),
        "screens": {name: _screen_record(benchmark) for name, benchmark in benchmarks.items()},
        "stages": ["prepare"],
        "counts": {"read": len(digests)},
        "row_sets": {"source": {"rows": len(digests), "sha256": row_set_digest(digests)}},
    }
    with new_folder(folder) as aside:
        (aside / TARGETS).parent.mkdir()
        _write(aside / TARGETS, _target_rows(benchmarks.values()))
        _fill(aside, rows, manifest)
    return manifest


def _sorted_rows(judged: Iterable[Judged]) -> tuple[RowSets, list[str]]:
    """The rows as they are written: kept, held and removed; and the digest of every row of the source."""
    rows: RowSets = {name: [] for name in ROW_SETS}
    first_of: dict[bytes, int] = {}
    digests = []
    for each in judged:
        digests.append(each.digest)
        detail: Row = {} if each.finding is None else {"findings": [each.finding.record()]}
        reason = each.reason
        if reason is None and (first := first_of.setdefault(each.key, each.row)) != each.row:
            reason, detail = "duplicate_question", {"first_row": first}
        if reason is None:
            name = "kept" if each.finding is None else "held"
            rows[name].append(each.record | detail | {"digest": each.digest})
            continue
        if each.finding is not None:
            detail |= {"question": each.record["question"], "answer": each.record["answer"]}
        rows["removed"].append({"row": each.row, "digest": each.digest, "reason": reason} | detail)
    return rows, digests


def _draw(rows: RowSets, sample: int, seed: int) -> None:
    """Keep the rows whose seeded rank is lowest: the same rows whatever the order of the source."""

    def rank(row: Row) -> tuple[str, int]:
        return hashlib.sha256(f"{seed}:{row['digest']}".encode()).hexdigest(), row["row"]

    ranks = sorted(rank(row) for name in ("kept", "held") for row in rows[name])
    if len(ranks) < sample:
        raise DataError(f"{len(ranks)} rows pass the filters; expected at least the {sample} to sample")
    for name in ("kept", "held"):
        rows["removed"] += [
            {"row": row["row"], "digest": row["digest"], "reason": "not_sampled"}
            for row in rows[name]
            if rank(row) > ranks[sample - 1]
        ]
        rows[name] = [row for row in rows[name] if rank(row) <= ranks[sample - 1]]


def _fill(folder: Path, rows: RowSets, manifest: Manifest) -> None:
    """Write the rows, the review file for those that are held, and last the manifest."""
    for name, file in ROW_SETS.items():
        _write(folder / file, rows[name])
    texts = {(row["benchmark"], row["problem"]): row["question"] for row in jsonl(folder / TARGETS)}
    write_review(folder / REVIEW, rows["held"], texts)
    reasons = Counter(row["reason"] for row in rows["removed"])
    manifest["counts"]["reasons"] = dict(sorted(reasons.items()))
    write_manifest(folder, manifest)


def _write(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _target_rows(benchmarks: Iterable[LoadedBenchmark]) -> Iterator[Row]:
    for benchmark in benchmarks:
        for problem in benchmark.problems:
            yield {"benchmark": benchmark.name, "problem": problem.id, "question": problem.question}


def _check_target(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} holds other files; expected a new folder or one that was prepared before")
    if folder.is_file():
        raise DataError(f"{folder} is a file; expected the name of a folder")
    if has_verdicts(folder / REVIEW) or any(folder.glob(REVIEWED)):
        raise DataError(f"{folder} holds reviewed verdicts; choose another --out, or delete the folder yourself")


def _source_record(source: Located, files: list[Path], fields: dict[str, object]) -> dict[str, object]:
    return {
        "name": source.name,
        "revision": source.revision,
        "fields": fields,
        "files": [{"name": file.name} | describe_file(file) for file in files],
    }


def _settings_record(settings: Settings) -> dict[str, object]:
    return {
        "difficulty": settings.difficulty,
        "answer_types": sorted(settings.types),
        "sample": settings.sample,
        "seed": settings.seed,
        "screening": asdict(RULES),
        "filter_version": FILTER_VERSION,
        "normalisation_version": NORMALISATION,
    }


def _screen_record(benchmark: LoadedBenchmark) -> dict[str, object]:
    digests = [row_digest(problem.question, problem.answer) for problem in benchmark.problems]
    return {
        "problems": len(digests),
        "row_set": row_set_digest(digests),
        "revision": benchmark.revision,
        "files": [{"name": file.name} | describe_file(file) for file in benchmark.files],
    }


# Changes of a prepared folder.


def apply_verdicts(folder: Path, review: Path) -> Manifest:
    """Return the held rows judged `keep` to the kept ones and remove those judged `drop`.

    Raises:
        DataError: If the folder was not prepared, or a held row has no verdict.
    """
    rows = _read(folder)
    held = rows["held"]
    if not held:
        raise DataError(f"{folder}: no row is held; there is nothing to apply")
    verdicts = read_verdicts(review, held_lines(held))
    dropped = [
        {name: row[name] for name in ("row", "digest", "findings", "question", "answer")} | {"reason": "screen_review"}
        for row in held
        if verdicts[row["row"]] == "drop"
    ]
    returned = [row for row in held if verdicts[row["row"]] == "keep"]
    for row in returned:
        del row["findings"]
    rows = {
        "kept": sorted([*rows["kept"], *returned], key=_number),
        "held": [],
        "removed": [*rows["removed"], *dropped],
    }
    stage = {"apply": {"sha256": file_sha256(review), "kept": len(returned), "dropped": len(dropped)}}
    number = 1 + len(list(folder.glob(REVIEWED)))
    return _rewrite(folder, rows, stage, {f"screening/reviewed-{number}.csv": review.read_bytes()})


def hold(folder: Path, findings: Mapping[int, list[Row]], stage: Manifest) -> Manifest:
    """Take kept rows aside for a person.

    Args:
        folder: a prepared folder.
        findings: what was found, by row.
        stage: what the manifest says about the stage.
    """
    rows = _read(folder)
    near = [row | {"findings": findings[row["row"]]} for row in rows["kept"] if row["row"] in findings]
    rows["kept"] = [row for row in rows["kept"] if row["row"] not in findings]
    rows["held"] = sorted([*rows["held"], *near], key=_number)
    return _rewrite(folder, rows, stage, {})


def _read(folder: Path) -> RowSets:
    files = read_manifest(folder)["files"]
    for name in ROW_SETS.values():
        if describe_file(folder / name) != files[name]:
            raise DataError(f"{folder / name} is not the one of the manifest; prepare the folder again")
    return {name: list(jsonl(folder / file)) for name, file in ROW_SETS.items()}


def _number(row: Row) -> int:
    return int(row["row"])


def _rewrite(folder: Path, rows: RowSets, stage: Manifest, more: Mapping[str, bytes]) -> Manifest:
    """Exchange the folder for one with these rows; ``more`` holds new files by name."""
    manifest = read_manifest(folder)
    manifest["stages"] = [*manifest["stages"], stage]
    carried = {str(path.relative_to(folder)): path.read_bytes() for path in (folder / TARGETS, *folder.glob(REVIEWED))}
    with new_folder(folder) as aside:
        (aside / TARGETS).parent.mkdir()
        for name, content in {**carried, **more}.items():
            (aside / name).write_bytes(content)
        _fill(aside, rows, manifest)
    return manifest
