"""Run folders for the tests of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.stories import RunMaker, write_run


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    """Write a run folder; keyword arguments are those of `write_run`."""

    def make(name: str, **story: Any) -> Path:
        write_run(tmp_path / name, **story)
        return tmp_path / name

    return make
