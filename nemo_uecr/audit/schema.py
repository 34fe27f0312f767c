"""What a folder of scores holds: one name for every column, tensor and file.

Shape legend: b = responses of one part, N = their tokens in a flat list.

A part is two files. ``part-000000.safetensors`` has the packed tokens; ``part-000000.parquet`` has one row a response
and is written last, so a part without it was never finished. ``scores.json`` says how all parts were scored, and has
the sha256 of each of these files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError

FORMAT = "nemo_uecr.scores/1"
PLAN = "scores.json"
#: Key of the plan with the sha256 of every file of every part, by file name.
PARTS = "parts"
#: Key of the plan with how many responses the folder has once the latest `score` is finished.
RESPONSES = "responses"

#: Columns of a part's parquet file and their types ("?" may be null).
COLUMNS = {
    "id": "string",
    "checkpoint": "int64",
    "benchmark": "string",
    "problem": "string",
    "sample": "int64",
    "group": "string",
    "question": "string?",
    "answer": "string?",
    "response": "string",
    "reward": "double?",
    "prompt_ids": "list<int32>",
    "sampled_tokens": "int64",
    "scored_tokens": "int64",
    "truncated": "bool",
    "cut": "bool",
    "ids_from": "string",
    "nonfinite_tokens": "int64",
}
#: Token tensors that every part has; each anchor adds ``anchor.NAME``.
TENSORS = ("offsets", "token_ids", "teacher_logp", "teacher_entropy", "teacher_top1")
ANCHOR = "anchor."
#: The anchor that generated the responses.
STUDENT = "student"


def arrow_schema() -> Any:
    """The columns as a schema of pyarrow."""
    import pyarrow

    types = {
        "string": pyarrow.string(),
        "int64": pyarrow.int64(),
        "double": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "list<int32>": pyarrow.list_(pyarrow.int32()),
    }
    return pyarrow.schema(
        pyarrow.field(name, types[kind.removesuffix("?")], nullable=kind.endswith("?"))
        for name, kind in COLUMNS.items()
    )


def row_path(folder: Path, number: int) -> Path:
    """The responses of a part."""
    return folder / f"part-{number:06d}.parquet"


def token_path(folder: Path, number: int) -> Path:
    """The tokens of a part."""
    return folder / f"part-{number:06d}.safetensors"


def rank_path(folder: Path, number: int) -> Path:
    """The teacher's exact rank of each token of a part, where the second pass was asked for."""
    return folder / f"part-{number:06d}.rank.safetensors"


def part_numbers(folder: Path) -> list[int]:
    """Complete parts, in order.

    Raises:
        DataError: If a part has rows and no tokens.
    """
    numbers = sorted(int(path.stem.removeprefix("part-")) for path in folder.glob("part-??????.parquet"))
    for number in numbers:
        if not token_path(folder, number).is_file():
            raise DataError(
                f"{row_path(folder, number)} has no {token_path(folder, number).name} beside it; expected both files "
                "of a part. Remove it and score again"
            )
    return numbers
