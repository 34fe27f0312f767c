"""Cells and rows of tables: for a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

#: In tables of results: yes, no, and what a row has not.
YES, NO, NOTHING = "\u2713", "\u00d7", "\u2013"
#: What LaTeX reads as more than a sign.
LATEX = {sign: "\\" + sign for sign in "%&_#${}"} | {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", YES: r"\(\checkmark\)", NO: r"\(\times\)", NOTHING: "--",
}  # fmt: skip


def shown(value: float | None, form: str = ".1f") -> str:
    """A number for a terminal; a dash for a missing one."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def percent(share: Mapping[str, float]) -> str:
    """``41.3 [38.0, 44.9]``, in percent."""
    return with_interval({key: 100 * share[key] for key in ("value", "low", "high")}, ".1f")


def with_interval(share: Mapping[str, float], form: str) -> str:
    """A number with its interval, or with ``[-]`` where there is none; a dash for a missing number."""
    value, low, high = (shown(share[key], form) for key in ("value", "low", "high"))
    return "-" if value == "-" else f"{value} [{low}, {high}]" if low != "-" else f"{value} [-]"


def rounded(value: float, decimals: int, *, sign: str = "") -> str:
    """A rounded number, -0.04 as "-0.0"; ``sign`` "+" also marks positive numbers."""
    # Equal means may differ in their last bits but must print alike; + 0.0 drops the sign of -0.
    return f"{round(value, 9) + 0.0:{sign}.{decimals}f}"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def markdown_text(text: str) -> str:
    """A plain text in Markdown."""
    return "".join("\\" + sign if sign in "\\|*_`<>[]" else sign for sign in text)


def markdown_row(cells: Iterable[str]) -> str:
    """A row of cells that are Markdown."""
    return "| " + " | ".join(cell.replace("\\|", "|").replace("|", "\\|") for cell in cells) + " |"


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table of cells that are Markdown."""
    return [markdown_row(columns), "|---" * len(columns) + "|", *map(markdown_row, rows)]


def latex_text(text: str) -> str:
    """A plain text in LaTeX."""
    text = "".join(LATEX.get(sign, sign) for sign in text)
    return f"{{{text}}}" if text.startswith(("[", "*")) else text  # unbraced, the \\ before it takes an argument
