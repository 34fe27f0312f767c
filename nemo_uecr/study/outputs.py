"""Tables and figures of a study as files: Markdown, HTML and LaTeX from the same numbers."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_uecr.evaluation.tables import FORMATS, Table
from nemo_uecr.files import replace_file
from nemo_uecr.stats import PAIRS_FOR_A_TEST, TEST_NAME
from nemo_uecr.study.cells import Cell
from nemo_uecr.study.figures import draw_costs, draw_curves, draw_differences, draw_sensitivity
from nemo_uecr.study.results import RunResult
from nemo_uecr.study.schema import StudyConfig
from nemo_uecr.study.selection import RULE, Choice
from nemo_uecr.study.sensitivity import Panel, panels
from nemo_uecr.study.summary import LEAST_PAIRS, Cost, TableSummary, costs, curves, reward_curves, table_summaries
from nemo_uecr.study.tables import cost_table, difference_table, selection_table, sensitivity_table, sets_table

#: The arm whose step the others' cost is a ratio to.
COST_BASELINE = "grpo"
#: The table whose arms stand with the parts of the method that they have.
ABLATION = "ablation"
DIFFERENCE_NOTE = (
    "Before and after are over each arm's own pairs; arms with other pairs have other students, and only the "
    "difference, pair by pair, compares them."
)
CURVES_NOTE = "On the pairs that all arms of the first table have."
SETTINGS_NOTE = "Each setting is compared on the pairs that all its values have; the shipped value is bold."
COST_NOTE = (
    "Means over the runs of an arm, whose phases were timed while other runs shared the machine; evaluation and saving "
    "are left out. Arms took turns, so that the load fell on all alike."
)
ENDINGS = {"markdown": "md", "latex": "tex", "html": "html"}
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border-bottom:1px solid #ccc;padding:.2em .7em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}small{color:#666}img{max-width:100%}"
)


@dataclass(frozen=True)
class Part:
    """A headed piece of the summary: a table, a figure, or both absent for plain text.

    Attributes:
        name: of the table's files.
        title: heading.
        note: a sentence below it.
        table: or None.
        figure: path of a figure relative to the study's folder, or None.
    """

    name: str
    title: str
    note: str
    table: Table | None
    figure: str | None


@dataclass(frozen=True)
class _Numbers:
    """All that tables and figures show."""

    study: StudyConfig
    choices: Sequence[Choice]
    results: Sequence[RunResult]
    missing: Sequence[Cell]
    summaries: Sequence[TableSummary]
    costs: Sequence[Cost]
    panels: Sequence[Panel]


def write_outputs(
    study: StudyConfig, choices: Sequence[Choice], cells: Sequence[Cell], results: Sequence[RunResult]
) -> Path:
    """Write results.json, tables/, figures/, summary.md and summary.html from the finished runs.

    Args:
        study: the study.
        choices: the learning rates.
        cells: every run that the tables want.
        results: those that are finished.

    Returns:
        The path of summary.md.
    """
    root, done = Path(study.folder), {result.cell.folder for result in results}
    numbers = _Numbers(
        study=study,
        choices=choices,
        results=results,
        missing=[cell for cell in cells if cell.folder not in done],
        summaries=table_summaries(study, results),
        costs=costs(study, results, COST_BASELINE),
        panels=panels(study, results),
    )
    replace_file(root / "results.json", json.dumps(_content(numbers), indent=1, default=str).encode())
    parts = [*_main_parts(numbers, root), *_other_parts(numbers, root)]
    _write_tables(root / "tables", parts)
    lead = [_notes(), _missing_line(numbers.missing, len(cells))]
    replace_file(root / "summary.html", _html(lead, parts).encode())
    replace_file(root / "summary.md", _markdown(lead, parts).encode())
    return root / "summary.md"


def _content(numbers: _Numbers) -> dict[str, object]:
    return {
        "study": numbers.study.model_dump(mode="json"),
        "selection": [asdict(choice) for choice in numbers.choices],
        "runs": [asdict(result) | {"folder": str(result.cell.folder)} for result in numbers.results],
        "missing": [f"{cell.variant} {cell.arm} pair {cell.pair}" for cell in numbers.missing],
        "tables": [asdict(summary) for summary in numbers.summaries],
        "sensitivity": [asdict(panel) for panel in numbers.panels],
        "costs": [asdict(one) for one in numbers.costs],
    }


def _main_parts(numbers: _Numbers, root: Path) -> list[Part]:
    """Every table of the study with its differences and its figure, then the curves."""
    parts, study = [], numbers.study
    samples = numbers.results[0].samples if numbers.results else 0
    for name in study.tables:
        found = [summary for summary in numbers.summaries if summary.name == name]
        layout = "ablation" if name == ABLATION else "main"
        for summary in found:
            title = f"{summary.title} ({summary.variant})"
            key = f"{name}-{summary.variant}"
            scores = sets_table(summary, layout=layout, samples=samples)
            gaps = difference_table(summary, confidence=study.confidence)
            note = f"On the {len(summary.pairs)} pairs that all arms of the table have."
            parts.append(Part(f"{key}-sets", title, note, scores, None))
            heading = f"{title}: {summary.reference} minus each arm"
            parts.append(Part(f"{key}-differences", heading, DIFFERENCE_NOTE, gaps, None))
        if found:
            draw_differences(root / "figures", name, found)
            parts.append(Part(name, "", "", None, f"figures/differences-{name}.png"))
    return parts + _curve_parts(numbers, root)


def _curve_parts(numbers: _Numbers, root: Path) -> list[Part]:
    """Curves of the first table's arms over the pairs that all of them have."""
    study = numbers.study
    name, table = next(iter(study.tables.items()))
    evaluated, rewarded = {}, {}
    for summary in numbers.summaries:
        kept = [result for result in numbers.results if result.cell.pair in summary.pairs]
        if summary.name == name and len(summary.pairs) >= LEAST_PAIRS:
            arms = [line.arm for line in summary.lines]
            evaluated[summary.variant] = {arm: curves(study, kept, summary.variant, arm) for arm in arms}
            rewarded[summary.variant] = {arm: reward_curves(study, kept, summary.variant, arm) for arm in arms}
    if not evaluated:
        return []
    draw_curves(root / "figures", evaluated, rewarded, reference=table.reference)
    return [Part("curves", "Learning curves", CURVES_NOTE, None, "figures/curves.png")]


def _other_parts(numbers: _Numbers, root: Path) -> list[Part]:
    """Sensitivity, learning rates and costs."""
    parts = []
    if numbers.panels:
        draw_sensitivity(root / "figures", numbers.panels)
        table = sensitivity_table(numbers.panels, confidence=numbers.study.confidence)
        parts.append(
            Part("sensitivity", "Settings and degenerate groups", SETTINGS_NOTE, table, "figures/sensitivity.png")
        )
    rates = selection_table(numbers.choices)
    parts.append(Part("learning-rates", "Learning rates", f"Chosen by: {RULE}.", rates, None))
    if numbers.costs:
        draw_costs(root / "figures", numbers.costs)
        table = cost_table(numbers.costs, COST_BASELINE)
        parts.append(Part("costs", "Seconds of a step", COST_NOTE, table, "figures/costs.png"))
    return parts


def _write_tables(folder: Path, parts: Sequence[Part]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        if part.table is not None:
            for kind, write in FORMATS.items():
                replace_file(folder / f"{part.name}.{ENDINGS[kind]}", write(part.table).encode())


def _markdown(lead: Sequence[str], parts: Sequence[Part]) -> str:
    blocks = list(lead)
    for part in parts:
        blocks += [f"### {part.title}"] if part.title else []
        blocks += [part.note] if part.note else []
        blocks += [FORMATS["markdown"](part.table).rstrip()] if part.table else []
        blocks += [f"![{part.title or part.name}]({part.figure})"] if part.figure else []
    return "\n\n".join(block for block in blocks if block) + "\n"


def _html(lead: Sequence[str], parts: Sequence[Part]) -> str:
    """One page; its figures are beside it."""
    blocks = [f"<p>{html.escape(text)}</p>" for text in lead if text]
    for part in parts:
        blocks += [f"<h2>{html.escape(part.title)}</h2>"] if part.title else []
        blocks += [f"<p>{html.escape(part.note)}</p>"] if part.note else []
        blocks += [FORMATS["html"](part.table)] if part.table else []
        blocks += [f'<img src="{html.escape(part.figure)}" alt="{html.escape(part.name)}">'] if part.figure else []
    head = f'<meta charset="utf-8"><title>Study</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(blocks) + "\n</body></html>\n"


def _notes() -> str:
    return (
        "Averages in percent over the five held-out sets; every pair is a student and a seed of its own, so pairs are "
        "independent. Intervals are Student's t over pairs. A p-value is printed from "
        f"{PAIRS_FOR_A_TEST} pairs on: {TEST_NAME}, Holm-corrected within the table and variant."
    )


def _missing_line(missing: Sequence[Cell], wanted: int) -> str:
    """Which runs are not finished; empty when all are."""
    if not missing:
        return ""
    pairs: dict[str, list[str]] = {}
    for cell in missing:
        pairs.setdefault(f"{cell.variant} {cell.arm}", []).append(str(cell.pair))
    shown = "; ".join(f"{name}: {', '.join(found)}" for name, found in pairs.items())
    return f"Not finished: {len(missing)} of {wanted} runs, by variant, arm and pair: {shown}."
