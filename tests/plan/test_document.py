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
assert EXAMPLES


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[str(index) for index in range(len(EXAMPLES))])
def test_a_command_prints_what_the_page_shows(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line in order; lines may be left out only where the page says so."""
    monkeypatch.chdir(ROOT)
    entry_point(shlex.split(command))
    printed = capsys.readouterr()
    left_out = re.escape(shown).replace(re.escape("...\n"), "(.*\n)*?")
    assert re.fullmatch(left_out, printed.out + printed.err)
