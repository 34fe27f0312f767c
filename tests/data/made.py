"""Made rows in DeepMath's schema, a made benchmark, and data sets in a made cache of the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"

#: The real benchmark files, where they are beside the checkout or named by an environment variable.
FOLDER = Path(os.environ.get("NEMO_UECR_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
needs_real_files = pytest.mark.skipif(
    not (FOLDER / "aime24.jsonl").is_file(), reason="the benchmark files are not here; name their folder NEMO_UECR_DATA"
)

BENCHMARK = [
    "A baker in Lyon fills $17$ crates with $23$ loaves each and then gives away every ninth loaf. "
    "Find the number of loaves that remain.",
    "Let $f(x)=x^3-7x+6$. Compute the sum of the squares of the real roots of $f$.",
    "Twelve knights sit around a circular table, and exactly four of them are chosen so that no two chosen knights "
    "are neighbours. In how many ways can this be done?",
]


def deepmath_row(
    question: str, answer: str = "4", difficulty: object = 6.0, topic: str = "Algebra"
) -> dict[str, object]:
    """A row as DeepMath-103K has it."""
    row = {"question": question, "final_answer": answer, "difficulty": difficulty, "topic": topic}
    return row | {f"r1_solution_{number}": "long text" for number in (1, 2, 3)}


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def cache_data_set(cache: Path, name: str, files: Mapping[str, list[dict[str, object]]]) -> None:
    """A data set of Parquet files, laid out as the hub's client keeps it."""
    import pyarrow
    import pyarrow.parquet

    folder = cache / f"datasets--{name.replace('/', '--')}"
    for file, rows in files.items():
        path = folder / "snapshots" / COMMIT / file
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(COMMIT)


def write_benchmark(folder: Path) -> Path:
    """The made benchmark as a file."""
    return write_jsonl(folder / "bench.jsonl", [{"id": i, "problem": q, "answer": i} for i, q in enumerate(BENCHMARK)])


def clean_rows(count: int) -> list[dict[str, object]]:
    """Rows that resemble no benchmark problem, all different."""
    return [
        deepmath_row(f"Evaluate the integral of $t^{{{n}}} e^{{-{n + 3}t}}$ over the half line, case {n}.", str(n))
        for n in range(count)
    ]


def prepare_folder(source: Path, folder: Path, *screens: Path) -> Path:
    """A source prepared with every default of the command line but one process."""
    from nemo_uecr.data.prepare import ANSWER_TYPES, PrepareSettings, prepare

    names = tuple(map(str, screens))
    prepare(PrepareSettings(str(source), None, names, None, frozenset(ANSWER_TYPES), None, 42), folder)
    return folder
