"""Reads the rows of a table from evaluation folders and training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.written import read_written
from nemo_uecr.data.rows import parse_row, raw_lines, read_object
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.plan import PLAN
from nemo_uecr.evaluation.result import RESULT
from nemo_uecr.evaluation.table import Row, Score

EVALUATIONS = "evaluation.jsonl"
CONFIG = "config.yaml"


def read_rows(given: Sequence[str]) -> tuple[list[Row], int]:
    """Rows in the order given, and k.

    Args:
        given: ``[LABEL=]FOLDER``; an evaluation folder, or a run folder, whose last evaluation counts.

    Raises:
        DataError: If a folder has no result, or two have another k.
    """
    rows, samples = [], {}
    for text in given:
        label, _, place = text.rpartition("=")
        folder = Path(place)
        record, own_label = _read(folder)
        try:
            samples[place] = int(record["samples"])
            scores = {name: _score(entry) for name, entry in (record["sets"] | {"average": record["average"]}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: not the result of an evaluation ({error!r}); evaluate again") from error
        rows.append(Row(label or own_label, scores, _basis(folder, record)))
    if len(set(samples.values())) > 1:
        raise DataError(f"samples a problem differ ({samples}); a table needs the same k in every row")
    return rows, next(iter(samples.values()))


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    if (folder / RESULT).is_file():
        result = read_object(folder / RESULT)
        return result, str(result.get("label", folder.name))
    if (folder / EVALUATIONS).is_file():
        file = folder / EVALUATIONS
        records = [parse_row(line, f"{file}:{number}") for number, line in raw_lines(file)]
        if records:
            return records[-1], _method(folder)
    raise DataError(f"{folder}: no {RESULT} and no {EVALUATIONS}; expected an evaluation folder or a run folder")


def _basis(folder: Path, record: dict[str, Any]) -> dict[str, str]:
    """What is known of how the numbers of a row were taken: problems of each benchmark, and the plan's decoding."""
    known = {
        f"numbers of {name}'s problems": str(entry["problems"])
        for name, entry in record["sets"].items()
        if "problems" in entry
    }
    if not (folder / PLAN).is_file():
        return known
    plan = read_object(folder / PLAN)
    for name, entry in plan.get("benchmarks", {}).items():
        known[f"problem sets of {name}"] = str(entry.get("row_set"))[:12]
    decoding = plan.get("decoding")
    return known if decoding is None else known | {"decoding settings": json.dumps(decoding, sort_keys=True)}


def _method(folder: Path) -> str:
    if not (folder / CONFIG).is_file():
        return folder.name
    method = read_written(folder / CONFIG).get("method")
    return str(method.get("name", folder.name)) if isinstance(method, dict) else folder.name


def _score(entry: dict[str, float]) -> Score:
    return Score(100 * entry["avg"], 100 * entry["low"], 100 * entry["high"])
