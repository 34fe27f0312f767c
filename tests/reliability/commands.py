"""The command line in this process: what it refuses, and in which words."""

from __future__ import annotations

import pytest

from nemo_uecr.cli.main import entry_point


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of a command that must end with code 2; an exception would fail the test that asks."""
    capsys.readouterr()
    assert entry_point([str(word) for word in words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "nemo-uecr: error: " in line]
    assert len(lines) == 1
    return lines[0].removeprefix("nemo-uecr: error: ")
