"""What every audit ends in: numbers, a figure drawn from those numbers alone, and a section of the report."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_uecr.errors import DataError
from nemo_uecr.files import new_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "nemo_uecr.audit/1"
NUMBERS = "numbers.json"
DOTS_PER_INCH = 110
#: The report's colours, in its order.
COLOURS = ("#0b62b0", "#c44d12", "#087f5b", "#94478a", "#8f6c00", "#217fa3", "#666a70", "#8b1e45")

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Audit:
    """The outcome of one audit.

    Attributes:
        name: as in ``nemo-uecr audit NAME``.
        title: heading of the section.
        note: what the figure shows and what it does not, in sentences.
        numbers: everything the figure and the table show; in JSON an infinity is the text "inf" or "-inf", NaN null.
        heads: of the table for people.
        rows: of the table, as text.
        draw: draws on an empty figure, from the numbers as read back from JSON.
        size: of the figure, inches.
    """

    name: str
    title: str
    note: str
    numbers: Numbers
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    draw: Callable[[Figure, Numbers], None]
    size: tuple[float, float]


def write_audit(out: Path, audit: Audit) -> None:
    """Write the four files of an audit into a folder that is complete or absent.

    Raises:
        DataError: The folder holds something that is no audit.
    """
    if out.exists() and not (out / NUMBERS).is_file():
        raise DataError(f"{out} exists and holds no audit; choose another --out")
    numbers = {"format": FORMAT, "audit": audit.name, "title": audit.title, "numbers": plain(audit.numbers)}
    section = {"title": audit.title, "note": audit.note, "heads": audit.heads, "rows": audit.rows}
    with new_folder(out) as folder:
        for name, content in ((NUMBERS, numbers), ("section.json", section)):
            encoded = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
            (folder / name).write_text(encoded, encoding="utf-8")
        _draw(audit, json.loads((folder / NUMBERS).read_bytes())["numbers"], folder)


def plain(value: Any) -> Any:
    """The same content as JSON can say it: arrays as lists, infinities as "inf" and "-inf", NaN as null.

    An infinity is a result, such as a tie point that no alpha reaches; null is kept for what does not exist.
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


def _draw(audit: Audit, numbers: Numbers, folder: Path) -> None:
    """Draw as PNG and SVG; equal numbers give equal bytes."""
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    style = {
        "svg.hashsalt": audit.name, "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False,
        "axes.titlelocation": "left", "figure.facecolor": "white", "axes.prop_cycle": cycler(color=COLOURS),
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=audit.size, layout=ConstrainedLayoutEngine(wspace=0.06))
        audit.draw(figure, numbers)
        figure.savefig(folder / "figure.png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        figure.savefig(folder / "figure.svg", metadata={"Date": None, "Creator": None})


# What the audits' tables and figures share


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def shown(value: float | None, form: str = ".1f") -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def percent(share: Mapping[str, float]) -> str:
    """``41.3 [38.0, 44.9]``, in percent."""
    value, low, high = (shown(100 * share[key]) for key in ("value", "low", "high"))
    return "-" if value == "-" else f"{value} [{low}, {high}]"


def band(axes: Axes, steps: Sequence[float], shares: Sequence[dict[str, Any]], label: str, colour: int) -> None:
    """A line through the values with the interval as a band; what has no value leaves a gap."""
    found = [(x, each["value"], each["low"], each["high"]) for x, each in zip(steps, shares, strict=True)]
    if drawn := [row for row in found if row[1] is not None]:
        x, value, low, high = zip(*drawn, strict=True)
        axes.plot(x, value, marker="o", markersize=3.5, linewidth=1.4, color=f"C{colour}", label=label)
        if None not in (*low, *high):
            axes.fill_between(x, low, high, color=f"C{colour}", alpha=0.16, linewidth=0)


def percent_axis(axes: Axes, title: str, label: str) -> None:
    """A vertical axis from 0 to 100%."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(title)
    axes.set_ylabel(label)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal for work that a person waits for; the block is handed what advances it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)
