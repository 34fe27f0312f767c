"""What an audit leaves behind: four files or none, and a figure that knows only the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from nemo_uecr.audit import figures
from nemo_uecr.audit.output import Audit, write_audit
from nemo_uecr.errors import DataError

AUDIT = Audit(
    name="made",
    title="A <title>",
    note="Says & shows.",
    numbers={"x": np.asarray([1.0, 2.0]), "none": float("nan"), "far": [np.inf, -np.inf], 3: np.int64(4)},
    columns=("a", "b"),
    rows=[("1", "<2>")],
)


def test_numbers_figure_and_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal numbers give equal bytes, and the figure is drawn from those of the file."""
    drawn: list[dict[str, Any]] = []

    def draw(figure: Figure, numbers: dict[str, Any]) -> None:
        drawn.append(numbers)
        figure.subplots().plot(numbers["x"])

    monkeypatch.setitem(figures.FIGURES, "made", (draw, (3.0, 2.0)))
    out = tmp_path / "audits" / "made"
    write_audit(out, AUDIT)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_audit(out, AUDIT)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert before.keys() == {"figure.png", "figure.svg", "numbers.json", "section.json"}
    numbers = json.loads((out / "numbers.json").read_text())["numbers"]
    assert numbers == {"x": [1.0, 2.0], "none": None, "far": ["inf", "-inf"], "3": 4}
    assert drawn == [numbers] * 2
    assert json.loads((out / "section.json").read_text())["rows"] == [["1", "<2>"]]


def test_what_is_no_audit_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(DataError, match="mine"):
        write_audit(tmp_path / "mine", AUDIT)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
