"""Reads the rows of a table from evaluation folders and training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.written import read_written
from nemo_uecr.data.json_text import read_own_object
from nemo_uecr.data.rows import parse_row, raw_lines
from nemo_uecr.data.texts import usable_text
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.plan import PLAN
from nemo_uecr.evaluation.result import RESULT
from nemo_uecr.evaluation.table import Row, Score

EVALUATIONS = "evaluation.jsonl"
CONFIG = "config.yaml"
#: Keys of a plan that decide the numbers, and what the note under a table calls them.
BASIS = {"decoding": "decoding settings", "chat": "chat settings", "engine": "engines", "dtype": "number types"}


def read_rows(given: Sequence[str]) -> tuple[list[Row], int]:
    """Rows in the order given, and k.

    Args:
        given: ``[LABEL=]FOLDER``; an evaluation folder, or a run folder, whose last evaluation counts.

    Raises:
        DataError: If a folder has no result, or two have another k.
    """
    rows, samples = [], {}
    for text in given:
        label, folder = _label_and_folder(text)
        record, own_label = _read(folder)
        try:
            samples[str(folder)] = _whole(record, "samples")
            sets = _object(record, "sets")
            scores = {name: _score(name, entry) for name, entry in sets.items()}
            scores["average"] = _score("average", record.get("average"))
            if not sets.keys().isdisjoint({"average"}) or not all(map(usable_text, [*sets, label or own_label])):
                raise ValueError("a benchmark or the label has a name that no table can show")
            problems = _problems(sets)
        except ValueError as error:
            raise DataError(f"{folder}: not the result of an evaluation ({error}); evaluate again") from error
        basis, planned = _planned(folder)
        known = {name: problems.get(name, {}) | planned.get(name, {}) for name in sets}
        rows.append(Row(label or own_label, scores, basis, known))
    if len(set(samples.values())) > 1:
        raise DataError(f"samples a problem differ ({samples}); a table needs the same k in every row")
    return rows, next(iter(samples.values()))


def _label_and_folder(given: str) -> tuple[str, Path]:
    """``[LABEL=]FOLDER``; a folder may have the sign in its name, so the first place that is one counts."""
    places = [at for at, sign in enumerate(given) if sign == "="]
    if not places or Path(given).is_dir():
        return "", Path(given)
    at = next((at for at in places if at + 1 < len(given) and Path(given[at + 1 :]).is_dir()), places[0])
    return given[:at], Path(given[at + 1 :])


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    if (folder / RESULT).is_file():
        result = read_own_object(folder / RESULT)
        return result, str(result.get("label", folder.name))
    if (folder / EVALUATIONS).is_file():
        file = folder / EVALUATIONS
        records = [parse_row(line, f"{file}:{number}") for number, line in raw_lines(file)]
        if records:
            return records[-1], _method(folder)
    raise DataError(f"{folder}: no {RESULT} and no {EVALUATIONS}; expected an evaluation folder or a run folder")


def _planned(folder: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What the plan says of how the numbers were taken, and by benchmark of the problems; nothing without one."""
    if not (folder / PLAN).is_file():
        return {}, {}
    plan = read_own_object(folder / PLAN)
    try:
        sets = {
            name: {f"problem sets of {name}": _row_set(name, entry)[:12]}
            for name, entry in _object(plan, "benchmarks").items()
        }
    except ValueError as error:
        raise DataError(f"{folder / PLAN}: not the plan of an evaluation ({error}); evaluate again") from error
    basis = {what: json.dumps(plan[key], sort_keys=True) for key, what in BASIS.items() if key in plan}
    return basis, sets


def _problems(sets: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        name: {f"numbers of {name}'s problems": str(_whole(entry, "problems"))}
        for name, entry in sets.items()
        if "problems" in entry
    }


def _method(folder: Path) -> str:
    if not (folder / CONFIG).is_file():
        return folder.name
    method = read_written(folder / CONFIG).get("method")
    return str(method.get("name", folder.name)) if isinstance(method, dict) else folder.name


def _score(name: str, entry: object) -> Score:
    if not isinstance(entry, dict):
        raise ValueError(f"{name} is {entry!r:.60}, expected an object with avg, low and high")
    return Score(*(100 * _fraction(f"{name}.{key}", entry.get(key)) for key in ("avg", "low", "high")))


def _fraction(place: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{place} is {value!r:.60}, expected a number from 0 to 1")
    return float(value)


def _whole(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} is {value!r:.60}, expected a whole number from 1")
    return value


def _object(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {value!r:.60}, expected an object")
    return value


def _row_set(name: str, entry: object) -> str:
    value = entry.get("row_set") if isinstance(entry, dict) else None
    if not isinstance(value, str) or not usable_text(value):
        raise ValueError(f"benchmarks.{name}.row_set is {value!r:.60}, expected a text")
    return value
