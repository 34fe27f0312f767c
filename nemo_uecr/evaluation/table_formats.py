"""A table as Markdown, LaTeX and HTML: the best bold, the second underlined, with intervals."""

from __future__ import annotations

import html
from collections.abc import Callable

from nemo_uecr.evaluation.table import NO, NOTHING, YES, Cell, Table

#: Characters that LaTeX would read as commands.
_TEX = {sign: "\\" + sign for sign in "%&_#${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
}


def markdown(table: Table) -> str:
    """GitHub's table; second best is underlined with HTML, which Markdown has no sign for."""
    rule = ("---", *("---:" for _ in table.head[1:]))
    marked = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
    lines = [[_with(cell, marked, _plain, " [{}]") for cell in line] for line in table.lines]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in [[_plain(title) for title in table.head], rule, *lines])
        + "\n"
        + (f"\n{_plain(table.note)}\n" if table.note else "")
    )


def latex(table: Table) -> str:
    """A booktabs table."""
    marked = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}
    body = [" & ".join(_with(cell, marked, _tex, r" {{\scriptsize [{}]}}") for cell in line) for line in table.lines]
    head = " & ".join(_tex(title) for title in table.head)
    columns = "l" + "c" * (len(table.head) - 1)
    parts = [rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule", head + r"\\", r"\midrule"]
    return (
        "\n".join([*parts, *(line + r"\\" for line in body), r"\bottomrule", r"\end{tabular}", *_tex_note(table)])
        + "\n"
    )


def html_table(table: Table) -> str:
    """One HTML table, without style."""
    marked = {0: "{}", 1: "<strong>{}</strong>", 2: "<u>{}</u>"}
    head = "".join(f"<th>{html.escape(title)}</th>" for title in table.head)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_with(cell, marked, html.escape, ' <small>[{}]</small>')}</td>" for cell in line)
        + "</tr>\n"
        for line in table.lines
    )
    note = f"<p>{html.escape(table.note)}</p>\n" if table.note else ""
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n{note}"


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "html": html_table}


def _with(cell: Cell, marked: dict[int, str], escape: Callable[[str], str], interval: str) -> str:
    text = marked[cell.rank].format(escape(cell.text))
    return text + interval.format(cell.interval) if cell.interval else text


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, in one cell."""
    for sign in "\\|*_`<>[]":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")


def _tex(text: str) -> str:
    text = "".join(_TEX.get(sign, sign) for sign in text)
    if text.lstrip().startswith(("[", "*")):
        text = f"{{{text}}}"  # after the line break before it, it would be that one's argument
    return text.replace(YES, r"\(\checkmark\)").replace(NO, r"\(\times\)").replace(NOTHING, "--")


def _tex_note(table: Table) -> list[str]:
    return [rf"\par {_tex(table.note)}"] if table.note else []
