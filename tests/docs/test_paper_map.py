"""docs/paper-map.md: every function and command that it names exists."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.commands import find, options

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "paper-map.md"
CELLS = 4


@dataclass(frozen=True)
class Row:
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
    """What a row names that does not exist."""
    module, _, name = f"nemo_uecr.{row.function}".rpartition(".")
    try:
        found = hasattr(import_module(module), name)
    except ModuleNotFoundError:
        found = False
    if not found:
        return f"no function {row.function}"
    return command_fault(row.command)


def command_fault(text: str) -> str | None:
    """A command's words, then options that it must have."""
    words, dashes, named = text.partition(" --")
    found = find(tuple(words.split()))
    if found is None:
        return f"no command {words}"
    missing = [option for option in f"{dashes}{named}".split() if option not in options(found)]
    return f"no option {missing[0]} of {words}" if missing else None


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_its_tables() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ☑")]
    assert len(lines) == len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.item[:40])
def test_what_a_row_names_exists(row: Row) -> None:
    assert fault_of(row) is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("| ☑ | x | `core.puu.gab` | `train` |", "no function core.puu.gab"),
        ("| ☑ | x | `core.pu.gap` | `train` |", "no function core.pu.gap"),
        ("| ☑ | x | `core.puu.gap` | `trains` |", "no command trains"),
        ("| ☑ | x | `core.puu.gap` | `report --very` |", "no option --very of report"),
    ],
)
def test_a_wrong_name_is_found(line: str, fault: str) -> None:
    (row,) = rows_of(line)
    assert (fault_of(row) or "").startswith(fault)


@pytest.mark.parametrize(
    "label",
    [
        "eq:grpo-adv", "eq:teacher-token-reward", "eq:path-ratio-main", "eq:path-objective", "eq:gibbs",
        "eq:unified-reward", "eq:unified-advantage", "eq:unified-components", "eq:local-signal",
        "eq:projection-weights", "eq:final-advantage", "eq:final-objective", "eq:policy-loss", "lem:path-ratio",
        "prop:gibbs", "cor:special-cases",
        "eq:appendix-control-objective", "prop:adv-decomposition", "prop:projection", "prop:invariants",
        "eq:appendix-projection", "eq:app-puu-audit-reward", "eq:app-alpha-audit-teacher-score",
        "eq:app-alpha-audit-utility", "eq:app-alpha-audit-conflict", "eq:app-alpha-audit-threshold",
        "eq:ecr-localization-gap", "fig:overview", "fig:signal-complementarity", "fig:token-credit-diagnosis",
        "fig:puu-group-signal",
        "fig:ecr-token-localization", "fig:alpha-sweep", "fig:qwen17b-training", "fig:qwen4b-training", "tab:main",
        "tab:ecr-four-cases", "tab:component-ablation", "tab:method-comparison",
    ],
)  # fmt: skip
def test_every_labelled_item_has_a_place(label: str) -> None:
    assert label in PAGE.read_text(encoding="utf-8")
