"""A prepared folder: its manifest with the hashes of every file, and the review file with a person's verdicts."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.problems import Problem, kind_of, level_of, problems_of, question_of, value_at
from nemo_uecr.errors import DataError
from nemo_uecr.files import describe_file, file_fault, read_object, recover_folder

if TYPE_CHECKING:
    from nemo_uecr.config.schema import DataConfig, RecipeDataConfig

FORMAT = "nemo_uecr.data/1"
MANIFEST = "manifest.json"
KEPT = "train.jsonl"
#: Everything but the kept rows is one folder down, so that `*.jsonl` in the folder is the training data.
HELD = "screening/held.jsonl"
REVIEW = "screening/review.csv"
TARGETS = "screening/targets.jsonl"
#: Row sets by name, and the files they are in.
ROW_SETS = {"kept": KEPT, "held": HELD, "removed": "screening/removed.jsonl"}

COLUMNS = ("row", "method", "score", "benchmark", "problem", "verdict", "text", "benchmark_text")
VERDICTS = ("keep", "drop")

Manifest = dict[str, Any]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Add the hash of every file, and write the manifest last."""
    manifest["format"] = FORMAT
    manifest["files"] = {name: describe_file(folder / name) for name in sorted(_names(folder))}
    text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder."""
    recover_folder(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no {MANIFEST}; expected a folder made by `nemo-uecr data prepare`")
    return read_object(path, form=FORMAT)


def training_file(path: Path, key: str) -> Path:
    """The source that a configuration's ``key`` names; for a prepared folder its kept rows, checked by their hash."""
    path = path.expanduser()
    recover_folder(path)
    if not (path / MANIFEST).is_file():
        return path
    manifest = read_manifest(path)
    if other := [name for name in (KEPT, HELD) if _fault(path, name, manifest)]:
        raise DataError(f"{key}: {path / other[0]} is not the one of the manifest; run `nemo-uecr data verify {path}`")
    if manifest["counts"]["kept"] == 0:
        raise DataError(f"{key}: {path} has no kept row; prepare it with a wider --difficulty or other answer types")
    return path / KEPT


def training_problems(data: DataConfig | RecipeDataConfig, place: str | Path | None = None) -> list[Problem]:
    """The training problems of a configuration, perhaps from another ``place`` than it names."""
    return problems_of(data, training_file(Path(place or data.train), "data.train"), "data.train")


def chosen_problems(data: RecipeDataConfig, seed: int) -> list[Problem]:
    """Problems in the file's order, those of the wanted difficulty, and a seeded draw of ``subset`` of them.

    Messages name the keys as a recipe has them, in which `data` is another section.
    """
    try:
        return _chosen_problems(data, seed)
    except DataError as error:
        keys = "|".join(type(data).model_fields)
        raise DataError(re.sub(rf"(?<![\w./])data\.({keys})\b", r"uecr.data.\1", str(error))) from error


def _chosen_problems(data: RecipeDataConfig, seed: int) -> list[Problem]:
    problems = training_problems(data)
    if talked := next((problem for problem in problems if problem.context), None):
        raise DataError(
            f"{data.train}: problem {talked.id!r} has turns before its question, and NeMo-RL's processor reads one; "
            "name a field with the question alone, as in data.question_key=extra_info.question"
        )
    low, high = data.difficulty_low, data.difficulty_high
    if low is not None and high is not None:
        problems = [problem for problem in problems if low <= _difficulty(problem, data) <= high]
    if data.subset is not None:
        if len(problems) < data.subset:
            wanted = "" if low is None else f" of difficulty {low} to {high}"
            raise DataError(
                f"{data.train}: {len(problems)} problems{wanted}; expected at least data.subset={data.subset}"
            )
        places = sorted(random.Random(seed).sample(range(len(problems)), data.subset))
        problems = [problems[place] for place in places]
    return problems


def _difficulty(problem: Problem, data: RecipeDataConfig) -> float:
    given = value_at(problem.columns, str(data.difficulty_key))
    level = level_of(given)
    if level is None:
        raise DataError(
            f"{data.train} (data.difficulty_key): problem {problem.id!r} has {kind_of(given)} under "
            f"{data.difficulty_key!r}, expected a number; its columns are {', '.join(problem.columns)}; for problems "
            "without difficulties: data.difficulty_key=null data.difficulty_low=null data.difficulty_high=null"
        )
    return level


def faults(folder: Path) -> list[str]:
    """What in a prepared folder differs from its manifest; empty where nothing does."""
    manifest = read_manifest(folder)
    found = [f"{name}: not in the manifest" for name in sorted(_names(folder) - manifest["files"].keys())]
    found += [f"{name}: {fault}" for name in manifest["files"] if (fault := _fault(folder, name, manifest))]
    if not found:
        try:
            read_review(folder / REVIEW, jsonl(folder / HELD))
        except DataError as error:
            found.append(str(error))
    return found


def _fault(folder: Path, name: str, manifest: Manifest) -> str | None:
    return file_fault(folder / name, manifest["files"][name]["sha256"])


def describe_files(paths: Iterable[Path]) -> list[dict[str, object]]:
    """Name, size and digest of each file."""
    return [{"name": path.name} | describe_file(path) for path in paths]


def row_digest(question: str, answer: str) -> str:
    """What identifies a row by its content."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()


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
    visible = {str(path) for path in paths if not any(part.startswith(".") for part in path.parts)}
    return visible - {MANIFEST, REVIEW}


# The review file: near cases for a person to judge, and the verdicts that come back.


def write_review(path: Path, held: Iterable[Mapping[str, Any]], questions: Mapping[tuple[str, str], str]) -> None:
    """One line for each finding of a held row, the nearest first, with an empty verdict.

    ``questions`` are the benchmarks' texts by benchmark and problem id.
    """
    lines = [
        {
            "row": row["row"],
            "verdict": "",
            "text": question_of(row["question"], "question")[1],
            "benchmark_text": questions[finding["benchmark"], finding["problem"]],
            **finding,
        }
        for row in held
        for finding in row["findings"]
    ]
    lines.sort(key=lambda line: (-line["score"], line["row"]))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def has_verdicts(path: Path) -> bool:
    """Whether somebody has begun to fill in the file."""
    return path.is_file() and any(verdict for _, verdict in _lines(path))


def read_review(path: Path, held: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Row and verdict, perhaps empty, of every line: one for each finding of every held row, and no other."""
    lines = _lines(path)
    expected = Counter({str(row["row"]): len(row["findings"]) for row in held})
    found = Counter(row for row, _ in lines)
    if found != expected:
        row = min((expected - found) | (found - expected))
        raise DataError(f"{path}: {found[row]} lines on row {row!r:.40}; expected {expected[row]}, one per finding")
    return lines


def read_verdicts(path: Path, held: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The verdict on every held row: dropped if the verdict on any of its lines is drop."""
    lines = read_review(path, held)
    for row, verdict in lines:
        if verdict not in VERDICTS:
            raise DataError(f"{path}: verdict on row {row} is {verdict!r:.40}; expected {' or '.join(VERDICTS)}")
    dropped = {row for row, verdict in lines if verdict == "drop"}
    return {int(row): "drop" if row in dropped else "keep" for row, _ in lines}


def _lines(path: Path) -> list[tuple[str, str]]:
    """Row and verdict of every line, of what spreadsheet programs make of the file."""
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), restval="")
        if not {"row", "verdict"} <= set(reader.fieldnames or ()):
            raise DataError(f"{path}: no columns row and verdict; save it as CSV separated by commas")
        return [(line["row"].strip(), line["verdict"].strip().lower()) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV file in UTF-8 ({error}); save it as CSV in UTF-8") from error
