"""docs/plan.md: every command on the page prints what stands below it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.conftest import ROOT

PAGE = (Path(ROOT) / "docs" / "plan.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```\n\$ nemo-uecr (plan .*)\n((?:.*\n)*?)```", PAGE)
ABRIDGED = "..."
assert EXAMPLES


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[str(index) for index in range(len(EXAMPLES))])
def test_a_command_prints_what_the_page_shows(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line in order; lines may be left out only where the page says so."""
    monkeypatch.chdir(ROOT)
    entry_point(shlex.split(command))
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    place = 0
    skipping = False
    for line in shown.splitlines():
        if line == ABRIDGED:
            skipping = True
            continue
        if skipping:
            assert line in lines[place:], line
            place = lines.index(line, place)
        assert lines[place] == line
        place, skipping = place + 1, False
    assert skipping or place == len(lines)
