"""Made rows in DeepMath's schema and a made benchmark."""

from __future__ import annotations

import json
from pathlib import Path

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
    return {
        "question": question,
        "final_answer": answer,
        "difficulty": difficulty,
        "topic": topic,
        "r1_solution_1": "long text",
        "r1_solution_2": "long text",
        "r1_solution_3": "long text",
    }


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


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
    from nemo_uecr.data.filters import NAMES
    from nemo_uecr.data.prepare import PrepareSettings, prepare

    names = tuple(map(str, screens))
    prepare(PrepareSettings(str(source), None, names, None, frozenset(NAMES), None, 42), folder)
    return folder
