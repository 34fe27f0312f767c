"""Tables and figures of a study as files: Markdown, HTML and LaTeX from the same numbers."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_uecr.evaluation.tables import FORMATS, NOTHING, Row, Score, Table, build_table, rounded
from nemo_uecr.evaluation.tables import Cell as Entry
from nemo_uecr.files import replace_file
from nemo_uecr.stats import PAIRS_FOR_A_TEST, TEST_NAME, Mean
from nemo_uecr.study.figures import draw_costs, draw_curves, draw_differences, draw_sensitivity, negated
from nemo_uecr.study.grid import Cell
from nemo_uecr.study.results import (
    Choice,
    Comparison,
    Cost,
    Line,
    RunResult,
    costs,
    curve,
    reward_curve,
    runs_by_arm,
    settings,
    tables,
)
from nemo_uecr.study.schema import StudyConfig

#: The arm whose step the others' cost is a ratio to.
COST_BASELINE = "grpo"
#: The table whose arms stand with the parts of the method that they have.
ABLATION = "ablation"
LEAD = (
    "Averages in percent over the five held-out sets; every pair is a student and a seed of its own, so pairs are "
    "independent. Intervals are Student's t over pairs. A p-value is printed from "
    f"{PAIRS_FOR_A_TEST} pairs on: {TEST_NAME}, Holm-corrected within the table and variant."
)
DIFFERENCE_NOTE = (
    "Before and after are over each arm's own pairs; arms with other pairs have other students, and only the "
    "difference, pair by pair, compares them."
)
CURVES_NOTE = "On the pairs that all arms of the first table have."
SETTINGS_NOTE = "Each setting is compared on the pairs that all its values have; the shipped value is bold."
RATES_NOTE = "Chosen by: highest mean validation average after the last step; of equal ones the lower rate."
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
    """A piece of the summary.

    Attributes:
        name: of the table's files.
        title: heading; may be empty.
        note: a sentence below it; may be empty.
        table: or None.
        figure: path of a figure relative to the study's folder, or None.
    """

    name: str
    title: str
    note: str
    table: Table | None
    figure: str | None


def write_summary(
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
    missing = [cell for cell in cells if cell.folder not in done]
    compared, panels = tables(study, results), settings(study, results)
    seconds = costs(study, results, COST_BASELINE)
    content = {
        "study": study.model_dump(mode="json"),
        "selection": [asdict(choice) for choice in choices],
        "runs": [asdict(result) | {"folder": str(result.cell.folder)} for result in results],
        "missing": [f"{cell.variant} {cell.arm} pair {cell.pair}" for cell in missing],
        "tables": [asdict(table) for table in compared],
        "sensitivity": [asdict(panel) for panel in panels],
        "costs": [asdict(cost) for cost in seconds],
    }
    replace_file(root / "results.json", json.dumps(content, indent=1, default=str).encode())
    parts = list(_parts(study, compared, panels, choices, seconds, results))
    for part in parts:
        if part.table is not None:
            for kind, write in FORMATS.items():
                replace_file(root / "tables" / f"{part.name}.{ENDINGS[kind]}", write(part.table).encode())
    lead = [LEAD, *([_missing_line(missing, len(cells))] if missing else [])]
    replace_file(root / "summary.html", _html(lead, parts).encode())
    replace_file(root / "summary.md", _markdown(lead, parts).encode())
    return root / "summary.md"


def _parts(
    study: StudyConfig,
    compared: Sequence[Comparison],
    panels: Sequence[Comparison],
    choices: Sequence[Choice],
    seconds: Sequence[Cost],
    results: Sequence[RunResult],
) -> Iterator[Part]:
    """Every table with its differences and its figure, the first one's curves, settings, learning rates, costs."""
    figures = Path(study.folder) / "figures"
    for name in study.tables:
        found = [table for table in compared if table.name == name]
        for table in found:
            title, key = f"{table.title} ({table.variant})", f"{name}-{table.variant}"
            scores = sets_table(table, layout="ablation" if name == ABLATION else "main", samples=results[0].samples)
            note = f"On the {len(table.pairs)} pairs that all arms of the table have."
            yield Part(f"{key}-sets", title, note, scores, None)
            title = f"{title}: {table.reference} minus each arm"
            gaps = difference_table(table, confidence=study.confidence)
            yield Part(f"{key}-differences", title, DIFFERENCE_NOTE, gaps, None)
        if found:
            draw_differences(figures, name, found)
            yield Part(name, "", "", None, f"figures/differences-{name}.png")
    first, evaluated, rewarded = next(iter(study.tables)), {}, {}
    for table in compared:
        if table.name == first and table.pairs:
            by_arm = runs_by_arm(results, table.variant)
            runs = {line.arm: [by_arm[line.arm][pair] for pair in table.pairs] for line in table.lines}
            evaluated[table.variant] = {arm: curve(study, group) for arm, group in runs.items()}
            rewarded[table.variant] = {arm: reward_curve(study, group) for arm, group in runs.items()}
    if evaluated:
        draw_curves(figures, evaluated, rewarded, reference=study.tables[first].reference)
        yield Part("curves", "Learning curves", CURVES_NOTE, None, "figures/curves.png")
    if panels:
        draw_sensitivity(figures, study, panels)
        values = sensitivity_table(study, panels)
        yield Part("sensitivity", "Settings and degenerate groups", SETTINGS_NOTE, values, "figures/sensitivity.png")
    yield Part("learning-rates", "Learning rates", RATES_NOTE, selection_table(choices), None)
    if seconds:
        draw_costs(figures, seconds)
        yield Part("costs", "Seconds of a step", COST_NOTE, cost_table(seconds), "figures/costs.png")


# Tables


def sets_table(summary: Comparison, *, layout: str, samples: int) -> Table | None:
    """Arms by held-out sets over their common pairs, the best and the second marked; None without common pairs.

    The interval over pairs stands with the average alone.

    Args:
        summary: one table in one variant.
        layout: "main", or "ablation" with the parts of the method that each arm has.
        samples: k of avg@k.
    """
    means = {"initial": (summary.initial_sets, summary.initial)}
    means |= {line.arm: (line.sets, line.common) for line in summary.lines}
    rows = [
        Row(arm, {name: Score(mean.mean, mean.low, mean.high) for name, mean in (sets | {"average": average}).items()})
        for arm, (sets, average) in means.items()
        if average is not None
    ]
    if not rows:
        return None
    table = build_table(rows, layout=layout, k=samples)
    lines = [
        (Entry(row.method, "", 0), *(entry._replace(interval="") for entry in line[1:-1]), line[-1])
        for row, line in zip(rows, table.lines, strict=True)
    ]
    return Table((f"Arm, avg@{samples} (%)", *table.head[1:]), tuple(lines))


def difference_table(summary: Comparison, *, confidence: float) -> Table:
    """Final average, and the reference minus each arm pair by pair."""
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
            _mean(line.final, sign=""),
            NOTHING if against is None else _mean(against.difference, sign="+"),
            NOTHING if against is None else f"{against.wins} of {against.difference.pairs}",
            _number(line.p_holm, 3),
            f"{_number(100 * line.degenerate_start, 0)}%",
            f"{_number(100 * line.degenerate, 0)}%",
        )

    return Table(head, tuple(map(row, summary.lines)))


def selection_table(choices: Sequence[Choice]) -> Table:
    """The validation averages of every candidate rate, the chosen one marked."""
    rates = sorted({rate for choice in choices for rate in choice.averages})
    head = ("variant", "arm", *(f"lr {rate:g}" for rate in rates), "at the edge of the grid")

    def candidate(choice: Choice, rate: float) -> Entry:
        return Entry(_number(choice.averages.get(rate), 1), "", 1 if rate == choice.learning_rate else 0)

    body = [
        _entries(
            choice.variant,
            choice.arm,
            *(candidate(choice, rate) for rate in rates),
            "yes" if choice.at_edge else "no",
        )
        for choice in choices
    ]
    return Table(head, tuple(body))


def cost_table(costs: Sequence[Cost]) -> Table:
    """Seconds of a step by phase, and the ratio to the baseline."""
    phases = list(dict.fromkeys(phase for cost in costs for phase in cost.seconds))
    body = [
        _entries(
            cost.variant,
            cost.arm,
            *(_number(cost.seconds.get(phase), 3) for phase in phases),
            _number(cost.step_seconds, 3),
            _number(cost.ratio, 2),
        )
        for cost in costs
    ]
    return Table(("variant", "arm", *phases, "step, s", f"step / {COST_BASELINE}"), tuple(body))


def sensitivity_table(study: StudyConfig, panels: Sequence[Comparison]) -> Table:
    """Every value of every setting, and what it changes against the default."""
    level = f"{100 * study.confidence:g}%"
    head = ("variant", "setting", "value", "arm", "pairs", f"after [{level}]", f"minus default [{level}]")
    body = [
        _entries(
            panel.variant,
            panel.title,
            Entry(f"{study.sensitivity[panel.name].points[line.arm]:g}", "", 1 if line.arm == panel.reference else 0),
            line.arm,
            str(len(panel.pairs)),
            _mean(line.final, sign=""),
            NOTHING if line.against is None else _mean(negated(line.against.difference), sign="+"),
        )
        for panel in panels
        for line in panel.lines
    ]
    return Table(head, tuple(body))


def _entries(*given: Entry | str) -> tuple[Entry, ...]:
    return tuple(entry if isinstance(entry, Entry) else Entry(entry, "", 0) for entry in given)


def _mean(mean: Mean, *, sign: str) -> Entry:
    centre, low, high = (rounded(value, 1, sign=sign) for value in (mean.mean, mean.low, mean.high))
    return Entry(centre, f"{low}, {high}", 0)


def _number(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else rounded(value, decimals, sign="")


# Pages


def _missing_line(missing: Sequence[Cell], wanted: int) -> str:
    pairs: dict[str, list[str]] = {}
    for cell in missing:
        pairs.setdefault(f"{cell.variant} {cell.arm}", []).append(str(cell.pair))
    shown = "; ".join(f"{name}: {', '.join(found)}" for name, found in pairs.items())
    return f"Not finished: {len(missing)} of {wanted} runs, by variant, arm and pair: {shown}."


def _markdown(lead: Sequence[str], parts: Sequence[Part]) -> str:
    blocks = list(lead)
    for part in parts:
        blocks += [f"### {part.title}"] if part.title else []
        blocks += [part.note] if part.note else []
        blocks += [FORMATS["markdown"](part.table).rstrip()] if part.table else []
        blocks += [f"![{part.title or part.name}]({part.figure})"] if part.figure else []
    return "\n\n".join(blocks) + "\n"


def _html(lead: Sequence[str], parts: Sequence[Part]) -> str:
    """One page; its figures are beside it."""
    blocks = [f"<p>{html.escape(text)}</p>" for text in lead]
    for part in parts:
        blocks += [f"<h2>{html.escape(part.title)}</h2>"] if part.title else []
        blocks += [f"<p>{html.escape(part.note)}</p>"] if part.note else []
        blocks += [FORMATS["html"](part.table)] if part.table else []
        blocks += [f'<img src="{html.escape(part.figure)}" alt="{html.escape(part.name)}">'] if part.figure else []
    head = f'<meta charset="utf-8"><title>Study</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(blocks) + "\n</body></html>\n"
