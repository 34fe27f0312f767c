"""The output of an audit: numbers, a figure drawn from them, and a section of the report."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nemo_uecr.errors import DataError
from nemo_uecr.files import new_folder

FORMAT = "nemo_uecr.audit/1"
NUMBERS = "numbers.json"
#: Why there is no interval.
LONE = "they are over problems, and all responses answer one"

Numbers = dict[str, Any]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Audit:
    """The result of one audit; the figure and the table show nothing that is not in ``numbers``."""

    name: str  # as in `nemo-uecr audit NAME`
    title: str
    note: str  # what the figure shows and what it does not
    numbers: Numbers
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    drawn: bool = True  # whether it has a figure
    title_suffix: str = ""  # in a report, which may have the audit of other steps or scores, too

    @property
    def remark(self) -> str:
        """Why no number has an interval, where none can have one."""
        problems = self.numbers.get("scores", self.numbers).get("problems")
        return f"No intervals: {LONE}." if problems == 1 else ""


def write_audit(out: Path, audit: Audit) -> None:
    """Write an audit's folder, complete or not at all."""
    if out.exists() and not (out / NUMBERS).is_file():
        raise DataError(f"{out} exists and holds no audit; choose another --out")
    numbers = plain(audit.numbers)
    section = {
        "title": audit.title + audit.title_suffix,
        "note": f"{audit.note} {audit.remark}".strip(),
        "heads": audit.columns,
        "rows": audit.rows,
    }
    record = {"format": FORMAT, "audit": audit.name, "title": audit.title, "numbers": numbers}
    with new_folder(out) as folder:
        for name, content in ((NUMBERS, record), ("section.json", section)):
            encoded = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
            (folder / name).write_text(encoded, encoding="utf-8")
        if audit.drawn:
            from nemo_uecr.audit.figures import write_figure

            write_figure(folder, audit.name, numbers)


def plain(value: Any) -> Any:
    """JSON form of the numbers: arrays as lists, NaN as null, infinities as "inf" and "-inf".

    An infinity is a result, such as a tie point that no alpha reaches; null means that there is no value.
    """
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def tracked(items: Sequence[Item], what: str) -> Iterable[Item]:
    """The items, with a progress bar if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import track

    return track(items, what, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
