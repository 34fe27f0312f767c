"""A study's summary.md, results.json, figures, and tables in Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path

from benchmarks.study import claims, figures, results
from benchmarks.study.claims import TableVerdict
from benchmarks.study.grid import GridCell, table_cells
from benchmarks.study.map import MapCell, RowMean, map_cells, opponents, row_means
from benchmarks.study.pairs import PAIRS_FOR_A_TEST, TEST_NAME, Mean
from benchmarks.study.results import Choice, Comparison, Line, RunResult
from benchmarks.study.schema import StudyConfig
from nemo_uecr.evaluation.tables import FORMATS, Entry, Row, Table, build_table
from nemo_uecr.files import replace_file
from nemo_uecr.stats import Interval
from nemo_uecr.tables import NOTHING, rounded

#: The table that shows the parts of each arm's method.
ABLATION = "ablation"
LEAD = (
    "Averages in percent over the five held-out sets. Pairs are independent: each has its own student and seed. "
    "Intervals are Student's t over pairs. Tables of differences have a "
    f"p-value from {PAIRS_FOR_A_TEST} pairs on: {TEST_NAME}, Holm-corrected within the table and variant."
)
DIFFERENCE_NOTE = (
    "Before and after are over each arm's own pairs. Arms with other pairs have other students, so only the paired "
    "difference compares them."
)
CURVES_NOTE = "On the pairs that all arms of the first table have."
MAP_NOTE = (
    "The table's reference after the last step, and minus each other method. p is of paired t tests, Holm-corrected "
    "over the cells of their column; the best other method was chosen on the same runs."
)
ROWS_NOTE = (
    "Over the panels of the map, on the pairs that all cells of the row have: after the last step, and the table's "
    "reference minus the arm. Tables on other panels do not compare."
)
CLAIMS_NOTE = (
    "As the study's file states them. Reference minus the best of the other methods named there, the mean over the "
    "table's cells, on the pairs that all of them have, at least two; below: cells below the best of them, paired t "
    "tests, Holm-corrected over the cells of the claim."
)
RATES_NOTE = "Chosen: the highest mean validation average after the last step, the lower rate on ties."
ENDINGS = {"markdown": "md", "latex": "tex"}


def write_summary(study: StudyConfig, *, notes: Sequence[str]) -> Path:
    """Write results.json, tables/, figures/ and summary.md from the finished runs; returns the path of summary.md.

    `notes` precede the tables.
    """
    root, choices = Path(study.folder), results.choose_rates(study)
    cells = table_cells(study, results.rates_of(choices))
    runs = results.read_results(study, cells)
    done = {run.cell.folder for run in runs}
    missing = [cell for cell in cells if cell.folder not in done]
    compared = results.tables(study, runs)
    mapped, means = map_cells(study, runs), row_means(study, runs)
    judged = claims.verdicts(study, runs)
    content = {
        "study": study.model_dump(mode="json"),
        "selection": [asdict(choice) for choice in choices],
        "runs": [asdict(run) | {"folder": str(run.cell.folder)} for run in runs],
        "missing": [f"{cell.variant} {cell.arm} pair {cell.pair}" for cell in missing],
        "tables": [asdict(table) for table in compared],
        "map": [asdict(cell) for cell in mapped],
        "rows": [asdict(mean) for mean in means],
        "claims": [asdict(line) for line in judged],
    }
    replace_file(root / "results.json", json.dumps(content, indent=1, default=str).encode())
    lead = [LEAD, *notes, *([_missing_line(missing, len(cells))] if missing else [])]
    paragraphs = [*lead, *_paragraphs(study, judged, mapped, means, compared, choices, runs)]
    replace_file(root / "summary.md", ("\n\n".join(paragraphs) + "\n").encode())
    return root / "summary.md"


def _paragraphs(
    study: StudyConfig,
    judged: Sequence[TableVerdict],
    mapped: Sequence[MapCell],
    means: Sequence[RowMean],
    compared: Sequence[Comparison],
    choices: Sequence[Choice],
    runs: Sequence[RunResult],
) -> Iterator[str]:
    """Write the claims, the map, every table with its differences, the first table's curves, and the learning rates."""
    root = Path(study.folder)
    if judged:
        yield from _section(root, "claims", "Claims", CLAIMS_NOTE, claims_table(judged, confidence=study.confidence))
    if mapped:
        yield from _section(root, "map", "Map", MAP_NOTE, map_table(study, mapped))
        figures.draw_map(root / "figures", study, mapped)
        yield "![Map](figures/map.png)"
    if means:
        yield from _section(root, "rows", "Rows of the map", ROWS_NOTE, rows_table(means, confidence=study.confidence))
    for name in study.tables:
        variants = [table for table in compared if table.name == name]
        for table in variants:
            title, key = f"{table.title} ({table.variant})", f"{name}-{table.variant}"
            scores = sets_table(table, layout="ablation" if name == ABLATION else "main", samples=runs[0].samples)
            note = f"On the {len(table.pairs)} pairs that all arms of the table have."
            yield from _section(root, f"{key}-sets", title, note, scores)
            title = f"{title}: {table.reference} minus each arm"
            gaps = difference_table(table, confidence=study.confidence)
            yield from _section(root, f"{key}-differences", title, DIFFERENCE_NOTE, gaps)
        if variants:
            figures.draw_differences(root / "figures", name, variants)
            yield f"![{name}](figures/differences-{name}.png)"
    first = [table for table in compared if table.name == next(iter(study.tables)) and table.pairs]
    if first:
        figures.draw_curves(root / "figures", study, first, runs)
        yield from ("### Learning curves", CURVES_NOTE, "![Learning curves](figures/curves.png)")
    yield from _section(root, "learning-rates", "Learning rates", RATES_NOTE, selection_table(choices))


def _section(root: Path, name: str, title: str, note: str, table: Table | None) -> Iterator[str]:
    """Write a table in every format; its heading, note and Markdown."""
    yield from (f"### {title}", note)
    if table is not None:
        for kind, write in FORMATS.items():
            replace_file(root / "tables" / f"{name}.{ENDINGS[kind]}", write(table).encode())
        yield FORMATS["markdown"](table).rstrip()


def _missing_line(missing: Sequence[GridCell], wanted: int) -> str:
    pairs: dict[str, list[str]] = {}
    for cell in missing:
        pairs.setdefault(f"{cell.variant} {cell.arm}", []).append(str(cell.pair))
    shown = "; ".join(f"{name}: {', '.join(numbers)}" for name, numbers in pairs.items())
    return f"Not finished: {len(missing)} of {wanted} runs, by variant, arm and pair: {shown}."


# Tables


def sets_table(summary: Comparison, *, layout: str, samples: int) -> Table | None:
    """Arms by held-out sets over their common pairs, the best two marked; None without common pairs.

    Only the average has an interval. The layout "ablation" shows the parts of each arm's method.
    """
    means = {"initial": (summary.initial_sets, summary.initial)}
    means |= {line.arm: (line.sets, line.common) for line in summary.lines}
    rows = [
        Row(arm, {name: Interval(m.mean, m.low, m.high) for name, m in (sets | {"average": average}).items()})
        for arm, (sets, average) in means.items()
        if average is not None
    ]
    if not rows:
        return None
    table = build_table(rows, layout=layout, k=samples)
    lines = [
        (Entry(row.method), *(entry._replace(interval="") for entry in line[1:-1]), line[-1])
        for row, line in zip(rows, table.lines, strict=True)
    ]
    return Table((f"Arm, avg@{samples} (%)", *table.head[1:]), tuple(lines))


def difference_table(summary: Comparison, *, confidence: float) -> Table:
    """Final averages, and the paired difference of the reference and each arm."""
    level = f"{100 * confidence:g}%"
    head = (
        "arm", "pairs", "lr", "before", f"after [{level}]", f"{summary.reference} minus arm [{level}]", "won",
        "p (Holm)", "equal groups at start", "in all steps",
    )  # fmt: skip

    def row(line: Line) -> tuple[Entry, ...]:
        against = line.against
        return _entries(
            line.arm,
            str(line.final.pairs),
            f"{line.learning_rate:g}",
            _number(line.initial.mean, 1),
            _mean(line.final),
            NOTHING if against is None else _mean(against.difference, sign="+"),
            NOTHING if against is None else f"{against.wins} of {against.difference.pairs}",
            _number(line.p_holm, 3),
            f"{_number(100 * line.degenerate_start, 0)}%",
            f"{_number(100 * line.degenerate, 0)}%",
        )

    return Table(head, tuple(map(row, summary.lines)))


def map_table(study: StudyConfig, cells: Sequence[MapCell]) -> Table:
    """The reference's score in every cell, and its differences to the other methods."""
    others, level = opponents(cells), f"{100 * study.confidence:g}%"
    columns = (title for name in others for title in (f"minus {name} [{level}]", "p (Holm)"))

    def row(cell: MapCell) -> tuple[Entry, ...]:
        gaps = [cell.against.get(name) for name in others]
        reference = next(name for name in cell.scores if name not in cell.against)
        return _entries(
            f"{cell.row}, {cell.panel}, {cell.column}",
            next(iter(cell.scores)),
            f"{cell.scores[reference].mean:.1f}",
            *(
                entry
                for gap in gaps
                for entry in ((NOTHING, NOTHING) if gap is None else (_mean(gap.difference, sign="+"), f"{gap.p:.3f}"))
            ),
        )

    return Table(("cell", "best", "reference", *columns), tuple(map(row, cells)))


def rows_table(means: Sequence[RowMean], *, confidence: float) -> Table:
    """Every arm of every table over the panels of each row of the map."""
    level = f"{100 * confidence:g}%"
    head = ("table", "row", "panels", "arm", f"after [{level}]", f"reference minus arm [{level}]")

    def row(mean: RowMean) -> tuple[Entry, ...]:
        difference = NOTHING if mean.difference is None else _mean(mean.difference, sign="+")
        return _entries(mean.table, mean.row, str(mean.panels), mean.arm, _mean(mean.final), difference)

    return Table(head, tuple(map(row, means)))


def claims_table(judged: Sequence[TableVerdict], *, confidence: float) -> Table:
    """Each claim on each table, and whether it holds there."""
    head = ("claim", "table", "cells", "best other", f"reference minus it [{100 * confidence:g}%]", "below", "holds")

    def row(line: TableVerdict) -> tuple[Entry, ...]:
        below = "; ".join(line.below) or "none"
        difference = _mean(line.difference, sign="+")
        holds = "yes" if line.holds else "no"
        return _entries(line.claim, line.column, str(line.cells), line.best, difference, below, holds)

    return Table(head, tuple(map(row, judged)))


def selection_table(choices: Sequence[Choice]) -> Table:
    """Validation averages of the candidate rates, the chosen one marked."""
    rates = sorted({rate for choice in choices for rate in choice.averages})
    head = ("variant", "arm", *(f"lr {rate:g}" for rate in rates), "at the edge of the grid")

    def row(choice: Choice) -> tuple[Entry, ...]:
        averages = (
            Entry(_number(choice.averages.get(rate), 1), rank=int(rate == choice.learning_rate)) for rate in rates
        )
        return _entries(choice.variant, choice.arm, *averages, "yes" if choice.at_edge else "no")

    return Table(head, tuple(map(row, choices)))


def _entries(*given: Entry | str) -> tuple[Entry, ...]:
    return tuple(Entry(each) if isinstance(each, str) else each for each in given)


def _mean(mean: Mean, *, sign: str = "") -> Entry:
    centre, low, high = (rounded(value, 1, sign=sign) for value in (mean.mean, mean.low, mean.high))
    return Entry(centre, NOTHING if mean.high - mean.low < 1e-9 else f"{low}, {high}")  # equal values have no spread


def _number(value: float | None, decimals: int) -> str:
    return NOTHING if value is None or isnan(value) else rounded(value, decimals)
