"""Tables of methods by benchmarks as in the paper: read from folders, ranked, and written in two formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nemo_uecr.config.load import own_sections, read_written
from nemo_uecr.data.sources import BENCHMARKS
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.runner import recorded_settings
from nemo_uecr.evaluation.samples import RESULT
from nemo_uecr.files import read_object
from nemo_uecr.stats import Interval
from nemo_uecr.tables import NO, NOTHING, YES, latex_text, markdown_text, rounded

EVALUATIONS = "evaluation.jsonl"
#: Method -> title and, for ablations, a 0 or 1 for each of `PARTS`.
METHODS: dict[str, tuple[str, str | None]] = {
    "initial": ("Initial student", None),
    "teacher": ("Teacher", None),
    "grpo": ("Vanilla-GRPO", "100000"),
    "pg_opd": ("Vanilla-PG-OPD", None),
    "grpo_plus_opd": ("Naive-GRPO+PG-OPD", None),
    "distilled_rl": ("Distilled RL", None),
    "atod": ("ATOD-aligned", None),
    "separate_norm": ("Separate norm.", "110000"),
    "puu": ("PUU", "111000"),
    "uecr": ("UECR-GRPO", "111111"),
    "ecr_no_entropy": ("w/o entropy", "111101"),
    "ecr_no_projection": ("w/o projection", "111110"),
    "ecr_no_gap": ("w/o gap", "111011"),
    "ecr_full_advantage": ("weights on the whole advantage", "111111"),
    "ecr_alpha_zero": ("alpha = 0", "100111"),
    "shuffled_entropy": ("shuffled entropy", "111111"),
}
PARTS = ("Task", "Teacher", "Joint norm.", "Gap", "Entropy", "Proj.")
#: Check mark, multiplication sign, en dash.
#: Rows that are not ranked.
REFERENCE_ROWS = ("initial", "teacher")
#: Settings that affect the numbers, and their names in the note under a table.
BASIS = {"decoding": "decoding settings", "chat": "chat settings", "engine": "engines", "dtype": "number types"}


@dataclass(frozen=True)
class Row:
    """One row of a table: scores, and the known settings behind them, by column."""

    method: str  # its name, or any label
    scores: Mapping[str, Interval]  # in percent
    basis: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return METHODS[self.method][0] if self.method in METHODS else self.method


class Entry(NamedTuple):
    """A cell of the table, with its rank in the column: 1 best, 2 second, 0 other."""

    text: str
    interval: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Table:
    """Head, rows and a note below them, in no particular format."""

    head: tuple[str, ...]
    lines: tuple[tuple[Entry, ...], ...]
    note: str = ""


def read_rows(given: Sequence[str]) -> tuple[list[Row], int]:
    """Rows from ``[LABEL=]FOLDER`` of evaluations or of runs (their last evaluation), and k."""
    rows, samples = [], {}
    for text in given:
        label, sign, place = text.partition("=")
        if not sign or Path(text).is_dir():
            label, place = "", text
        folder = Path(place)
        record, own_label = _read(folder)
        samples[place] = record["samples"]
        figures = {**record["sets"], "average": record["average"]}
        scores = {name: Interval(*(100 * row[key] for key in ("avg", "low", "high"))) for name, row in figures.items()}
        rows.append(Row(label or own_label, scores, _basis(folder, record["sets"])))
    if len(set(samples.values())) > 1:
        raise DataError(f"samples per problem differ ({samples}); a table needs the same k in every row")
    return rows, next(iter(samples.values()))


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    if (folder / RESULT).is_file():
        result = read_object(folder / RESULT)
        return result, result["label"]
    path = folder / EVALUATIONS
    if lines := path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        return json.loads(lines[-1]), own_sections(read_written(folder / "config.yaml"))["method"]["name"]
    raise DataError(f"{folder}: no {RESULT} and nothing in {EVALUATIONS}; expected a folder of an evaluation")


def _basis(folder: Path, sets: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The known settings behind the numbers, by column; of its problems a training run records only the number."""
    settings = recorded_settings(folder)
    common = {what: json.dumps(settings[key], sort_keys=True) for key, what in BASIS.items() if key in settings}
    problems: dict[str, dict[str, str]] = {}
    for name, row in sets.items():
        problems[name] = {f"numbers of {name}'s problems": str(row["problems"])}
        if name in settings.get("benchmarks", {}):
            problems[name][f"problem sets of {name}"] = settings["benchmarks"][name]["row_set"][:12]
    of_all = {what: value for each in problems.values() for what, value in each.items()}
    average = {"benchmarks": ", ".join(sorted(sets))} | common | of_all
    return {name: common | each for name, each in problems.items()} | {"average": average}


def build_table(rows: Sequence[Row], *, layout: str, k: int) -> Table:
    """Arrange rows into the main table or the ablation table.

    Values are ranked as printed, with two decimals; equal values share a rank. The initial student and the teacher are
    not ranked, nor are scores with different settings (problems, decoding, chat, engine). Averages over different
    settings or benchmarks are left out. The note gives the reasons.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row.scores))
    columns.sort(key=lambda name: name == "average")
    notes = []
    if "average" in columns and (unlike := _difference(rows, "average")):
        columns.remove("average")
        notes.append(f"No Avg.: {unlike}; averages need the same in every row.")
    lines = [[Entry(row.title), *(_marks(row.method) if layout == "ablation" else ())] for row in rows]
    unranked: dict[str, list[str]] = {}
    for name in columns:
        ranked = [row for row in rows if name in row.scores and row.method not in REFERENCE_ROWS]
        best = sorted({float(rounded(row.scores[name].avg, 2)) for row in ranked}, reverse=True)[:2]
        if unlike := _difference(ranked, name):
            unranked.setdefault(unlike, []).append(_column_title(name))
            best = []
        for row, line in zip(rows, lines, strict=True):
            if name not in row.scores:
                line.append(Entry(NOTHING))
                continue
            value, low, high = (rounded(each, 2) for each in row.scores[name])
            rank = best.index(float(value)) + 1 if row.method not in REFERENCE_ROWS and float(value) in best else 0
            line.append(Entry(value, f"{low}, {high}", rank))
    notes += [f"No ranks in {', '.join(titles)}: {unlike}." for unlike, titles in unranked.items()]
    parts = PARTS if layout == "ablation" else ()
    head = (f"Method, Avg@{k} (%)", *parts, *map(_column_title, columns))
    return Table(head, tuple(map(tuple, lines)), " ".join(notes))


def _marks(method: str) -> list[Entry]:
    flags = METHODS.get(method, ("", None))[1] or "-" * len(PARTS)
    return [Entry({"1": YES, "0": NO, "-": NOTHING}[flag]) for flag in flags]


def _difference(rows: Sequence[Row], column: str) -> str | None:
    """The first known setting that differs between two rows; an unknown one counts as equal."""
    known: dict[str, tuple[Row, str]] = {}
    for row in rows:
        for what, value in row.basis.get(column, {}).items():
            earlier, first = known.setdefault(what, (row, value))
            if first != value:
                return f"{what} of {earlier.title} are {first}, of {row.title} {value}"
    return None


def _column_title(name: str) -> str:
    return "Avg." if name == "average" else BENCHMARKS[name].title if name in BENCHMARKS else name


def _written(table: Table, *, form: str, plain: Callable[[str], str]) -> str:
    from jinja2 import Environment, PackageLoader

    environment = Environment(  # noqa: S701 - every text goes through the format's own escaping
        loader=PackageLoader("nemo_uecr.evaluation", "assets"),
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["plain"] = plain
    return environment.get_template(f"table.{form}.jinja").render(table=table)


#: The templates are in assets/; each format has its own escaping.
FORMATS: dict[str, Callable[[Table], str]] = {
    form: partial(_written, form=form, plain=plain)
    for form, plain in (("markdown", markdown_text), ("latex", latex_text))
}
