"""The paper's tables: methods by benchmarks with their ranks and intervals; `table_formats` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nemo_uecr.data.benchmarks import BENCHMARKS
from nemo_uecr.evaluation.rounding import rounded

#: Method -> title, and which parts it has: task, teacher, joint norm, gap, entropy, projection (None: not an ablation).
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
#: Signs of a cell: a check mark, a multiplication sign, an en dash.
YES, NO, NOTHING = "\u2713", "\u00d7", "\u2013"
REFERENCE_ROWS = ("initial", "teacher")


@dataclass(frozen=True)
class Score:
    """A value with its interval, in percent."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        method: the method's key or a free label.
        scores: by column.
        basis: what is known of how all of them were taken: decoding, chat, engine.
        problems: by column, what is known of the problems behind it.
    """

    method: str
    scores: dict[str, Score]
    basis: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What the table calls it."""
        return METHODS[self.method][0] if self.method in METHODS else self.method

    @property
    def parts(self) -> tuple[bool, ...] | None:
        """Which parts of the method are active; None when it is no variant of it."""
        flags = METHODS.get(self.method, ("", None))[1]
        return None if flags is None else tuple(flag == "1" for flag in flags)


@dataclass(frozen=True)
class Cell:
    """A text of the table with its rank in the column: 1 best, 2 second, 0 any other."""

    text: str
    interval: str
    rank: int


@dataclass(frozen=True)
class Table:
    """Head and lines, ready for any format, and a line to stand below them."""

    head: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    note: str = ""


def build_table(rows: Sequence[Row], *, layout: str, k: int) -> Table:
    """Arrange rows into the main table or the ablation table.

    The best and the second are marked among the rows as printed (two decimals), equal values alike; the initial student
    and the teacher are shown and not ranked. Averages of other benchmarks, problems, decoding, chat or engine are no
    numbers to compare: then there is no such column. No more are those of a benchmark, of other problems or taken in
    another way: then they are not ranked. The note says why.

    Args:
        rows: in the order of the table.
        layout: "main" or "ablation".
        k: samples a problem.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row.scores))
    columns.sort(key=lambda name: name == "average")
    unlike = unlike_averages(rows)
    if unlike is not None and "average" in columns:
        columns.remove("average")
    reasons = {name: unlike_scores(rows, name) for name in columns}
    ranks = {name: _ranks(rows, name) if reasons[name] is None else [0] * len(rows) for name in columns}
    titles = tuple(_column_title(name) for name in columns)
    parts = PARTS if layout == "ablation" else ()
    lines = []
    for index, row in enumerate(rows):
        marks = [] if not parts else [_mark(row.parts, place) for place in range(len(PARTS))]
        scores = [_cell(row.scores.get(name), ranks[name][index]) for name in columns]
        lines.append((Cell(row.title, "", 0), *marks, *scores))
    return Table((f"Method, Avg@{k} (%)", *parts, *titles), tuple(lines), _note(unlike, reasons))


def unlike_averages(rows: Sequence[Row]) -> str | None:
    """Why the rows' averages are not to be compared; None when they are."""
    for row in rows[1:]:
        sets = [[name for name in each.scores if name != "average"] for each in (rows[0], row)]
        if set(sets[0]) != set(sets[1]):
            ours, theirs = (", ".join(sorted(names)) or "none" for names in sets)
            return f"No Avg.: {_unlike(rows[0], row, 'benchmarks', ours, theirs)}; averages need the same."
    of_sets = [{what: value for each in row.problems.values() for what, value in each.items()} for row in rows]
    reason = _unlike_basis(rows, [{**row.basis, **known} for row, known in zip(rows, of_sets, strict=True)])
    return None if reason is None else f"No Avg.: {reason}; averages need the same."


def unlike_scores(rows: Sequence[Row], column: str) -> str | None:
    """Why the ranked rows' scores of a column are not to be ranked; None when they are."""
    ranked = [row for row in rows if column in row.scores and row.method not in REFERENCE_ROWS]
    return _unlike_basis(ranked, [{**row.basis, **row.problems.get(column, {})} for row in ranked])


def _unlike_basis(rows: Sequence[Row], bases: Sequence[Mapping[str, str]]) -> str | None:
    """The first thing known of two rows that differs; what is not known of a row is no fault of it."""
    known: dict[str, tuple[Row, str]] = {}
    for row, basis in zip(rows, bases, strict=True):
        for what, value in basis.items():
            earlier, ours = known.setdefault(what, (row, value))
            if ours != value:
                return _unlike(earlier, row, what, ours, value)
    return None


def _unlike(first: Row, second: Row, what: str, ours: str, theirs: str) -> str:
    return f"{what} of {first.title} are {ours}, of {second.title} {theirs}"


def _note(unlike: str | None, reasons: Mapping[str, str | None]) -> str:
    """The reason for no average, and for columns without ranks, each reason once."""
    columns: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason is not None:
            columns.setdefault(reason, []).append(_column_title(name))
    parts = [] if unlike is None else [unlike]
    parts += [f"No ranks in {', '.join(names)}: {reason}." for reason, names in columns.items()]
    return " ".join(parts)


def _ranks(rows: Sequence[Row], column: str) -> list[int]:
    """1 and 2 for the highest and second highest value as printed, 0 for the rest."""
    values = [
        float(_percent(row.scores[column].value)) if column in row.scores and row.method not in REFERENCE_ROWS else None
        for row in rows
    ]
    levels = sorted({value for value in values if value is not None}, reverse=True)[:2]
    return [levels.index(value) + 1 if value in levels else 0 for value in values]


def _cell(score: Score | None, rank: int) -> Cell:
    if score is None:
        return Cell(NOTHING, "", 0)
    return Cell(_percent(score.value), f"{_percent(score.low)}, {_percent(score.high)}", rank)


def _percent(value: float) -> str:
    return rounded(value, 2, sign="")


def _mark(parts: tuple[bool, ...] | None, place: int) -> Cell:
    return Cell(NOTHING if parts is None else YES if parts[place] else NO, "", 0)


def _column_title(name: str) -> str:
    return "Avg." if name == "average" else BENCHMARKS[name].title if name in BENCHMARKS else name
