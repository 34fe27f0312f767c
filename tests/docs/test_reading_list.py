"""The reading list of docs/architecture.md: its files exist, in a size that an afternoon has room for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nemo_uecr"
PAGE = ROOT / "docs" / "architecture.md"
TITLE = "## Reading the package in an afternoon"
#: What one person reads in an afternoon.
MOST_LINES = 5_000


def section() -> str:
    return PAGE.read_text(encoding="utf-8").split(TITLE)[1].split("\n## ")[0]


def parts() -> dict[str, tuple[int, list[str]]]:
    """Lines and files by part, as the first table states them."""
    table = section().partition("The rest is larger.")[0]
    rows = re.findall(r"^\| ([^|`]+) \| ([\d,]+) \| ([^|]+) \|", table, re.MULTILINE)
    return {name: (int(lines.replace(",", "")), re.findall(r"`([^`]+)`", files)) for name, lines, files in rows}


def lines_of(names: list[str]) -> int:
    return sum(len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in names)


def stated(words: str) -> int:
    found = re.search(words.replace("N", r"([\d,]+)"), section())
    assert found is not None, words
    return int(found[1].replace(",", ""))


def test_the_list_has_its_five_parts() -> None:
    assert len(parts()) == 5
    named = [name for _, files in parts().values() for name in files]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("part", parts())
def test_a_part_is_as_long_as_it_says(part: str) -> None:
    lines, names = parts()[part]
    assert lines_of(names) == pytest.approx(lines, rel=0.1)


def test_the_list_is_read_in_an_afternoon() -> None:
    total = lines_of([name for _, names in parts().values() for name in names])
    assert total <= MOST_LINES
    assert stated("about N of them") == pytest.approx(total, rel=0.05)


def test_the_whole_is_as_long_as_it_says() -> None:
    names = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")]
    assert stated("has about N lines") == pytest.approx(lines_of(names), rel=0.05)


def test_everything_named_exists() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py|\w+/\w+)`", section())
    assert len(named) > 50
    assert [name for name in named if not (PACKAGE / name).exists()] == []
