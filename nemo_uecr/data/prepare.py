"""Prepared folders of training problems: filled from a source, and changed by a screening or a person's review.

`prepare` loads, filters, screens and samples; every row of the source is accounted for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_uecr.data import manifest as folders
from nemo_uecr.data.benchmarks import LoadedBenchmark, load_benchmarks
from nemo_uecr.data.manifest import MANIFEST, REVIEW, ROW_SETS, TARGETS, Manifest, jsonl, read_manifest, row_digest
from nemo_uecr.data.problems import (
    CARRIED,
    USUAL,
    Fields,
    Keys,
    Problem,
    UnreadableRow,
    Where,
    check_left_out,
    chosen,
    fields_of,
    kind_of,
    level_of,
    problem_of,
    rows_of,
    usable,
    value_at,
)
from nemo_uecr.data.screening import NORMALISATION, RULES, Screen, Text
from nemo_uecr.data.sources import Source, find_source
from nemo_uecr.errors import DataError
from nemo_uecr.files import describe_file, file_sha256, new_folder, recover_folder

log = logging.getLogger(__name__)

Row = dict[str, Any]
RowSets = dict[str, list[Row]]
#: Review files whose verdicts were applied.
REVIEWED = "screening/reviewed-*.csv"


@dataclass(frozen=True)
class PrepareSettings:
    """What `prepare` reads, keeps and samples."""

    source: str  # the training problems, as `find_source` takes them, and the hub's branch, tag or commit
    revision: str | None
    screens: tuple[str, ...]  # benchmarks to screen against, by name, file or NAME=FILE
    difficulty: tuple[float, float] | None  # lowest and highest difficulty, both included; None takes every row
    types: frozenset[str]  # answer types that are kept
    sample: int | None  # rows to draw among those kept or held, with the seed; None keeps all
    seed: int
    keys: Keys = USUAL  # where the rows' parts are looked for
    where: Where = field(default_factory=dict)  # values that fields of a row must have


def prepare(settings: PrepareSettings, folder: Path) -> Manifest:
    """Fill a folder with kept rows, held rows, removed rows, the review file and the manifest, or leave nothing."""
    _check_target(folder)
    source = find_source(settings.source, "train", revision=settings.revision)
    fields = fields_of(source, settings.keys)
    benchmarks = load_benchmarks(list(settings.screens))
    targets = [
        {"benchmark": benchmark.name, "problem": problem.id, "question": problem.question}
        for benchmark in benchmarks.values()
        for problem in benchmark.problems
    ]
    if settings.difficulty is not None and fields.difficulty is None:
        asked = " or ".join(map(repr, settings.keys.difficulty))
        raise DataError(f"{source.files[0]}: no field {asked}, but a difficulty range was asked for; leave it out")
    rows = _sorted_rows(source, fields, settings, Screen(benchmarks.values()))
    if settings.sample is not None:
        _draw(rows, settings.sample, settings.seed)
    manifest: Manifest = {
        "source": {
            "name": settings.source if source.revision else Path(settings.source).name,
            "revision": source.revision,
            "fields": asdict(fields),
            "files": folders.describe_files(source.files),
        },
        "settings": {
            "difficulty": settings.difficulty,
            "answer_types": sorted(settings.types),
            "sample": settings.sample,
            "where": settings.where,
            "seed": settings.seed,
            "screening": RULES,
            "filter_version": FILTER_VERSION,
            "normalisation_version": NORMALISATION,
        },
        "screens": {name: _screen_record(benchmark) for name, benchmark in benchmarks.items()},
        "stages": ["prepare"],
    }
    with new_folder(folder) as aside:
        (aside / TARGETS).parent.mkdir()
        _write(aside / TARGETS, targets)
        _fill(aside, rows, manifest)
    return manifest


def _check_target(folder: Path) -> None:
    """Refuse to replace what nobody prepared here, or what somebody has written verdicts into."""
    recover_folder(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file()):
        raise DataError(f"{folder} holds other files; expected a new folder or one that was prepared before")
    if folders.has_verdicts(folder / REVIEW) or any(folder.glob(REVIEWED)):
        raise DataError(f"{folder} holds reviewed verdicts; choose another --out, or delete the folder yourself")


def _screen_record(benchmark: LoadedBenchmark) -> dict[str, object]:
    digests = [row_digest(problem.question, problem.answer) for problem in benchmark.problems]
    return {
        "problems": len(digests),
        "row_set": folders.row_set_digest(digests),
        "revision": benchmark.revision,
        "files": folders.describe_files(benchmark.files),
    }


def _sorted_rows(source: Source, fields: Fields, settings: PrepareSettings, screen: Screen) -> RowSets:
    """The rows as they are written: kept, held and removed; refused where few could be read, or none is left."""
    rows: RowSets = {name: [] for name in ROW_SETS}
    first_of: dict[bytes, tuple[int, str]] = {}
    other_answers = 0
    unread = 0
    for number, (_, row) in enumerate(rows_of(source, fields, more=tuple(settings.where)), start=1):
        texts = (str(value_at(row, name)) for name in filter(None, (fields.question, fields.answer)))
        if not chosen(row, settings.where):
            rows["removed"].append({"row": number, "digest": row_digest(*texts), "reason": "where"})
            continue
        try:
            problem = problem_of(row, fields, number)
            record = _written(row, problem, fields, number)
            reason = _refusal(record, row, fields, settings)
        except UnreadableRow as error:
            unread += 1
            rows["removed"].append({"row": number, "digest": row_digest(*texts), "reason": str(error)})
            continue
        digest, detail = row_digest(problem.question, problem.answer), {}
        if reason is None:
            text = Text.of(problem.question)
            if (finding := screen.find(text)) is not None:
                shown = {name: value for name, value in asdict(finding).items() if name != "certain"}
                detail = {"findings": [shown], "question": record["question"], "answer": record["answer"]}
            key = hashlib.blake2b(problem.asked.encode(), digest_size=16).digest()
            if finding is not None and finding.certain:
                reason = f"screen_{finding.method}"
            elif (first := first_of.setdefault(key, (number, problem.answer)))[0] != number:
                reason, detail = "duplicate_question", {"first_row": first[0]}
                other_answers += first[1] != problem.answer
            else:
                rows["kept" if finding is None else "held"].append(record | detail | {"digest": digest})
                continue
        rows["removed"].append({"row": number, "digest": digest, "reason": reason} | detail)
    if other_answers:
        log.warning(
            "%s: %d rows that repeat a question have another answer than its first row, which is kept as it is; "
            "screening/removed.jsonl has them as duplicate_question", source.name, other_answers,
        )  # fmt: skip
    reasons = Counter(row["reason"] for row in rows["removed"])
    check_left_out(source.name, reasons, unread=unread, kept=len(rows["kept"]) + len(rows["held"]))
    return rows


def _draw(rows: RowSets, sample: int, seed: int) -> None:
    """Keep the rows whose seeded rank is lowest: the same rows whatever the order of the source."""
    ranked = sorted(
        [*rows["kept"], *rows["held"]],
        key=lambda row: (hashlib.sha256(f"{seed}:{row['digest']}".encode()).hexdigest(), row["row"]),
    )
    if len(ranked) < sample:
        raise DataError(f"{len(ranked)} rows pass the filters; expected at least the {sample} to sample")
    drawn = {row["row"] for row in ranked[:sample]}
    for name in ("kept", "held"):
        others = [row for row in rows[name] if row["row"] not in drawn]
        rows["removed"] += [{"row": row["row"], "digest": row["digest"], "reason": "not_sampled"} for row in others]
        rows[name] = [row for row in rows[name] if row["row"] in drawn]


def _fill(folder: Path, rows: RowSets, manifest: Manifest) -> None:
    """Write the rows, the review file for those that are held, and last the manifest."""
    for name, file in ROW_SETS.items():
        _write(folder / file, rows[name])
    texts = {(row["benchmark"], row["problem"]): row["question"] for row in jsonl(folder / TARGETS)}
    folders.write_review(folder / REVIEW, rows["held"], texts)
    counts: Row = {name: len(listed) for name, listed in rows.items()}
    reasons = Counter(row["reason"] for row in rows["removed"])
    manifest["counts"] = counts | {"read": sum(counts.values()), "reasons": dict(sorted(reasons.items()))}
    folders.write_manifest(folder, manifest)


def _write(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# The rules by which a row is kept or removed, and what is written of it.

#: Part of every manifest; raised when the same source and settings would give other rows.
FILTER_VERSION = "5"
#: Answer types: name and pattern, tried in this order on the answer without dollar signs and outer blanks.
ANSWER_TYPES = {
    "integer": r"[+-]?(?:\d+|\d{1,3}(?:(?:,|\{,\})\d{3})+)",
    "decimal": r"[+-]?\d*\.\d+",
    "fraction": r"[+-]?\\[dt]?frac\s*(?:\{\s*[+-]?\d+\s*\}|\d)\s*(?:\{\s*\d+\s*\}|\d)|[+-]?\d+\s*/\s*\d+",
    "yes_no": r"(?:\\text\s*\{\s*)?(?:yes|no|true|false)(?:\s*\})?\.?",
    "choice": r"(?:\\text\s*\{\s*)?\(?[A-E]\)?(?:\s*\})?",
    "infinite": r"[+-]?\\infty|(?:\\text\s*\{\s*)?(?:does not exist|diverges|undefined|infinity)(?:\s*\})?",
    "matrix": r".*\\begin\s*\{[a-z]*matrix\}.*",
    "interval": r"[\[(\]].*,.*[\])\[]\s*(?:\\cup.*)?",
    "set": r"\\\{.*\\\}|\\emptyset|\\varnothing",
    "equation": r"[^=]*[^<>!=]=[^=]*",
    "text": r"(?:\\(?:text|mathrm|mbox)\s*\{[^}]*\}|[A-Za-z][A-Za-z' -]{3,})\.?",
    "expression": r".*",
}


def answer_type(answer: str) -> str:
    """The first type that the whole answer fits."""
    bare = answer.replace("$", "").strip()
    return next(name for name, form in ANSWER_TYPES.items() if re.fullmatch(form, bare, re.IGNORECASE | re.DOTALL))


def checked_types(names: Sequence[str], option: str) -> frozenset[str]:
    """The names as a set; a `DataError` where one is no answer type."""
    if unknown := set(names) - set(ANSWER_TYPES):
        raise DataError(f"{option}: got {min(unknown)!r}; expected some of {', '.join(ANSWER_TYPES)}")
    return frozenset(names)


def _refusal(record: Row, row: Row, fields: Fields, settings: PrepareSettings) -> str | None:
    """The first rule by which a row is removed; UnreadableRow where a difficulty is asked for and it has none."""
    if settings.difficulty is not None:
        if "difficulty" not in record:
            given = value_at(row, str(fields.difficulty))
            wrong = f"{fields.difficulty} is {kind_of(given)}, expected a number"
            raise UnreadableRow("difficulty_missing" if given in (None, "") else wrong)
        if not settings.difficulty[0] <= record["difficulty"] <= settings.difficulty[1]:
            return "difficulty_outside"
    kind = record["answer_type"]
    return None if kind in settings.types else f"answer_{kind}"


def _written(row: Row, problem: Problem, fields: Fields, number: int) -> Row:
    turns = [*problem.context, {"role": "user", "content": problem.question}]
    question = turns if problem.context else problem.question
    record: Row = {"id": f"row-{number:06d}", "question": question, "answer": problem.answer}
    level = None if fields.difficulty is None else level_of(value_at(row, fields.difficulty))
    if level is not None:
        record["difficulty"] = level
    for name in CARRIED:
        value = problem.columns.get(name)
        if value and isinstance(value, str | list | dict) and usable(json.dumps(value, ensure_ascii=False)):
            record[name] = value
    return record | {"answer_type": answer_type(problem.answer), "row": number}


# Changes of a prepared folder.


def apply_verdicts(folder: Path, review: Path) -> Manifest:
    """Return the held rows judged `keep` to the kept ones and remove those judged `drop`."""
    rows = _read(folder)
    if not rows["held"]:
        raise DataError(f"{folder}: no row is held; there is nothing to apply")
    verdicts = folders.read_verdicts(review, rows["held"])
    returned, dropped = ([row for row in rows["held"] if verdicts[row["row"]] == word] for word in ("keep", "drop"))
    rows["held"] = []
    rows["kept"] += [{name: value for name, value in row.items() if name != "findings"} for row in returned]
    names = ("row", "digest", "findings", "question", "answer")
    rows["removed"] += [{name: row[name] for name in names} | {"reason": "screen_review"} for row in dropped]
    stage = {"apply": {"sha256": file_sha256(review), "kept": len(returned), "dropped": len(dropped)}}
    number = 1 + len(list(folder.glob(REVIEWED)))
    return _rewrite(folder, rows, stage, {f"screening/reviewed-{number}.csv": review.read_bytes()})


def hold(folder: Path, findings: Mapping[int, list[Row]], stage: Manifest) -> Manifest:
    """Take kept rows aside for a person, with what was found by row; the manifest gets the stage."""
    rows = _read(folder)
    rows["held"] += [row | {"findings": findings[row["row"]]} for row in rows["kept"] if row["row"] in findings]
    rows["kept"] = [row for row in rows["kept"] if row["row"] not in findings]
    return _rewrite(folder, rows, stage, {})


def _read(folder: Path) -> RowSets:
    files = read_manifest(folder)["files"]
    for name in ROW_SETS.values():
        if describe_file(folder / name) != files[name]:
            raise DataError(f"{folder / name} is not the one of the manifest; prepare the folder again")
    return {name: list(jsonl(folder / file)) for name, file in ROW_SETS.items()}


def _rewrite(folder: Path, rows: RowSets, stage: Manifest, more: Mapping[str, bytes]) -> Manifest:
    """Exchange the folder for one with these rows; ``more`` holds new files by name."""
    manifest = read_manifest(folder)
    manifest["stages"] = [*manifest["stages"], stage]
    for name in ("kept", "held"):
        rows[name].sort(key=lambda row: int(row["row"]))
    carried = {str(path.relative_to(folder)): path.read_bytes() for path in (folder / TARGETS, *folder.glob(REVIEWED))}
    with new_folder(folder) as aside:
        (aside / TARGETS).parent.mkdir()
        for name, content in {**carried, **more}.items():
            (aside / name).write_bytes(content)
        _fill(aside, rows, manifest)
    return manifest
