"""docs/paper-map.md: every function and command that it names exists."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import find, options

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "paper-map.md"
CELLS = 4


class Row(NamedTuple):
    """One line of a table."""

    item: str
    function: str
    command: str


def rows_of(text: str) -> list[Row]:
    """The rows of every table; heads and rules are no rows."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("|") and len(cells) == CELLS and cells[0] in ("☑", "☐"):
            found.append(Row(cells[1], *(cell.strip("`") for cell in cells[2:])))
    return found


def fault_of(row: Row) -> str | None:
    """What a row names that does not exist: a function, a command's words, or an option that it must have."""
    module, _, name = f"nemo_uecr.{row.function}".rpartition(".")
    try:
        getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError):
        return f"no function {row.function}"
    words, dashes, named = row.command.partition(" --")
    command = find(tuple(words.split()))
    if command is None:
        return f"no command {words}"
    missing = [option for option in f"{dashes}{named}".split() if option not in options(command)]
    return f"no option {missing[0]} of {words}" if missing else None


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_its_tables() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ☑")]
    assert len(lines) == len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.item[:40])
def test_what_a_row_names_exists(row: Row) -> None:
    assert fault_of(row) is None


def test_a_wrong_name_is_found() -> None:
    for function, command, fault in (
        ("core.puu.gab", "train", "no function core.puu.gab"),
        ("core.puu.gap", "trains", "no command trains"),
        ("core.puu.gap", "report --very", "no option --very of report"),
    ):
        assert fault_of(Row("x", function, command)) == fault
