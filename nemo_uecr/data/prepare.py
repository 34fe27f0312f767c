"""Prepares training problems: load, filter, screen, sample; every row of the source is accounted for."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from nemo_uecr.data.benchmarks import LoadedBenchmark, load_benchmarks
from nemo_uecr.data.chunks import Work, judged_rows
from nemo_uecr.data.filters import FILTER_VERSION, Judged, RowRules, row_digest
from nemo_uecr.data.hub import Located, locate
from nemo_uecr.data.manifest import (
    HELD,
    KEPT,
    MANIFEST,
    REMOVED,
    REVIEW,
    TARGETS,
    Manifest,
    describe_file,
    jsonl,
    jsonl_line,
    row_set_digest,
    write_manifest,
)
from nemo_uecr.data.normalise import NORMALISATION
from nemo_uecr.data.review import has_verdicts, write_review
from nemo_uecr.data.rows import data_files, fields_of
from nemo_uecr.data.screening import RULES, targets_of
from nemo_uecr.errors import DataError
from nemo_uecr.files import new_folder, recover_folder


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
    work = Work(fields, RowRules(settings.difficulty, settings.types), tuple(targets_of(benchmarks.values())), RULES)
    with new_folder(folder) as aside:
        (aside / REMOVED).parent.mkdir()
        writer = _Writer(aside)
        with writer.open():
            for judged in judged_rows(files, work, workers=settings.workers):
                writer.add(judged)
        writer.draw(settings.sample, settings.seed)
        _write_targets(aside / TARGETS, benchmarks.values())
        write_review(aside / REVIEW, jsonl(aside / HELD), target_texts(aside))
        manifest = {
            "source": _source_record(source, files, asdict(fields)),
            "settings": _settings_record(settings),
            "screens": {name: _screen_record(benchmark) for name, benchmark in benchmarks.items()},
            "stages": ["prepare"],
            **writer.summary(),
        }
        write_manifest(aside, manifest)
    return manifest


def target_texts(folder: Path) -> dict[tuple[str, str], str]:
    """Each screened problem's text by benchmark and id, as kept in a prepared folder."""
    return {(row["benchmark"], row["problem"]): row["question"] for row in jsonl(folder / TARGETS)}


class _Writer:
    """Spools judged rows into the three files and counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, TextIO] = {}
        self._reasons: Counter[str] = Counter()
        self._seen: dict[bytes, int] = {}
        self._digests: list[str] = []

    def open(self) -> ExitStack:
        """Open the files until the end of the block."""
        stack = ExitStack()
        for name in (KEPT, HELD, REMOVED):
            self._files[name] = stack.enter_context((self._folder / name).open("w", encoding="utf-8"))
        return stack

    def add(self, judged: Judged) -> None:
        """Write one row where it belongs."""
        self._digests.append(judged.digest)
        reason = judged.reason
        detail: dict[str, Any] = {}
        if judged.finding is not None:
            detail = {"findings": [judged.finding.record()]}
        if reason is None and (first := self._seen.setdefault(judged.key, judged.row)) != judged.row:
            reason, detail = "duplicate_question", {"first_row": first}
        if reason is not None:
            self._remove(judged, reason, detail)
        else:
            record = judged.record | detail | {"digest": judged.digest}
            self._files[KEPT if judged.finding is None else HELD].write(jsonl_line(record))

    def draw(self, sample: int | None, seed: int) -> None:
        """Keep the rows whose seeded rank is lowest: the same rows whatever the order of the source."""
        if sample is None:
            return
        ranks = [_rank(row["digest"], row["row"], seed) for name in (KEPT, HELD) for row in jsonl(self._folder / name)]
        if len(ranks) < sample:
            raise DataError(f"{len(ranks)} rows pass the filters; expected at least the {sample} to sample")
        limit = heapq.nsmallest(sample, ranks)[-1]
        with (self._folder / REMOVED).open("a", encoding="utf-8") as removed:
            for name in (KEPT, HELD):
                chosen = self._folder / f"{name}.chosen"
                with chosen.open("w", encoding="utf-8") as file:
                    for row in jsonl(self._folder / name):
                        if _rank(row["digest"], row["row"], seed) <= limit:
                            file.write(jsonl_line(row))
                        else:
                            self._reasons["not_sampled"] += 1
                            dropped = {"row": row["row"], "digest": row["digest"], "reason": "not_sampled"}
                            removed.write(jsonl_line(dropped))
                chosen.replace(self._folder / name)

    def summary(self) -> Manifest:
        """Counts and the source's row set, for the manifest."""
        return {
            "counts": {"read": len(self._digests), "reasons": dict(sorted(self._reasons.items()))},
            "row_sets": {"source": {"rows": len(self._digests), "sha256": row_set_digest(self._digests)}},
        }

    def _remove(self, judged: Judged, reason: str, detail: dict[str, Any]) -> None:
        self._reasons[reason] += 1
        record = {"row": judged.row, "digest": judged.digest, "reason": reason} | detail
        if judged.finding is not None:
            record |= {"question": judged.record["question"], "answer": judged.record["answer"]}
        self._files[REMOVED].write(jsonl_line(record))


def _rank(digest: str, row: int, seed: int) -> tuple[str, int]:
    return hashlib.sha256(f"{seed}:{digest}".encode()).hexdigest(), row


def _write_targets(path: Path, benchmarks: Iterable[LoadedBenchmark]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for benchmark in benchmarks:
            for problem in benchmark.problems:
                row = {"benchmark": benchmark.name, "problem": problem.id, "question": problem.question}
                file.write(jsonl_line(row))


def _check_target(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} holds other files; expected a new folder or one that was prepared before")
    if folder.is_file():
        raise DataError(f"{folder} is a file; expected the name of a folder")
    if has_verdicts(folder / REVIEW) or any(folder.glob("screening/reviewed-*.csv")):
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
