"""Cells and rows of tables, as a terminal, Markdown and LaTeX take them."""

from __future__ import annotations

import math

import pytest
from markdown_it import MarkdownIt

from nemo_uecr.tables import latex_text, markdown_table, markdown_text, percent, rounded, shown, text_table


def test_cells() -> None:
    assert [shown(value, ".2f") for value in (1.005, None, math.nan)] == ["1.00", "-", "-"]
    assert percent({"value": 0.5, "low": 0.25, "high": 0.75}) == "50.0 [25.0, 75.0]"
    assert percent({"value": math.nan, "low": 0.0, "high": 0.0}) == "-"
    assert [rounded(value, 1, sign="+") for value in (-0.04, 0.25, -0.0)] == ["-0.0", "+0.2", "+0.0"]


def test_a_terminals_columns_are_as_wide_as_their_widest_cell() -> None:
    assert text_table(["name", "n"], [["a", "100"], ["long one", "2"]]).splitlines() == [
        "    name    n", "       a  100", "long one    2",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["A^task|U", "a*b*", "<b>", "[x](y)", "`code`", "a\\|b", "_w_"])
def test_markdown_shows_a_plain_text_as_it_is(text: str) -> None:
    lines = markdown_table(["value"], [[markdown_text(text)]])
    tokens = MarkdownIt("commonmark").enable("table").parse("\n".join(lines))
    cells = [token for token in tokens if token.type == "inline"]
    assert len(cells) == 2, "a sign of the text ends no cell"
    assert "".join(part.content for part in cells[1].children or []) == text


def test_latex_shows_a_plain_text_as_it_is() -> None:
    assert latex_text("50% of a_b & {c}") == r"50\% of a\_b \& \{c\}"
    assert latex_text("[1]") == "{[1]}"
