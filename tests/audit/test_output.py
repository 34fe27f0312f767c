"""What an audit leaves behind: four files or none, and a figure that knows only the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nemo_uecr.audit.output import Audit, write_audit
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib (extra 'plots')")

seen: list[dict[str, Any]] = []


def draw(figure: Figure, numbers: dict[str, Any]) -> None:
    seen.append(numbers)
    figure.subplots().plot(numbers["x"])


AUDIT = Audit(
    name="made",
    title="A <title>",
    note="Says & shows.",
    numbers={"x": np.asarray([1.0, 2.0]), "none": float("nan"), "far": [np.inf, -np.inf], 3: np.int64(4)},
    heads=("a", "b"),
    rows=[("1", "<2>")],
)


@pytest.fixture(autouse=True)
def figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.audit import figures

    monkeypatch.setitem(figures.FIGURES, "made", (draw, (3.0, 2.0)))


def test_numbers_figure_and_section(tmp_path: Path) -> None:
    """Equal numbers give equal bytes."""
    seen.clear()
    out = tmp_path / "audits" / "made"
    write_audit(out, AUDIT)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_audit(out, AUDIT)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in out.iterdir()) == ["figure.png", "figure.svg", "numbers.json", "section.json"]
    written = json.loads((out / "numbers.json").read_text())
    assert written["numbers"] == {"x": [1.0, 2.0], "none": None, "far": ["inf", "-inf"], "3": 4}
    assert seen == [written["numbers"]] * 2  # the figure is drawn from what stands in the file
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    section = json.loads((out / "section.json").read_text())
    assert section["title"] == "A <title>"
    assert "<2>" in section["rows"][0] + section["rows"][-1]


def test_what_is_no_audit_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(DataError, match="holds no audit"):
        write_audit(tmp_path / "mine", AUDIT)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
