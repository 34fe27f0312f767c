"""The picture and the table of the alpha sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_uecr.audit.figure import percent_axis
from nemo_uecr.audit.output import Numbers, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTE = (
    "Fixed rollouts: teacher score against the checkpoint that generated the response, clipped at 5 nats a token. "
    "(a) group-balanced share of correct-incorrect pairs in strictly wrong order, averaged over checkpoints, with the "
    "95% bootstrap interval over problems; (b) share of mixed groups in which every correct response stays above every "
    "incorrect one; (c) as (a) by checkpoint. Dashed: alpha = 1. Shaded: the checkpoints' first alpha at which a tenth "
    "of the mixed groups invert. An audit of orderings, not of what training at another alpha would give."
)


def summary_table(numbers: Numbers) -> Table:
    """One row a checkpoint, and one for all."""
    trained = int((numbers["alpha"] == 1.0).argmax())
    heads = (
        "checkpoint", "mixed groups", "pairs", "conflict % at 1", "sign change % at 1", "smallest a*", "5% a*",
        "median a*", "a* infinite %", "a10", "cut", "non-finite",
    )  # fmt: skip
    rows = [_row(row, trained) for row in numbers["checkpoints"]]
    whole = numbers["overall"]
    total = f"{100 * whole['conflict']['value'][trained]:.2f}"
    rows.append(
        ("all", str(whole["mixed_groups"]), str(whole["pairs"]), total, "", _number(whole["smallest_tie_point"]))
        + ("",) * 6
    )
    return Table(heads, tuple(rows))


def _row(row: Numbers, trained: int) -> tuple[str, ...]:
    counts = (str(row["cut"]), str(row["nonfinite_tokens"]))
    head = (str(row["checkpoint"]), str(row["mixed_groups"]), str(row["pairs"]))
    if "skipped" in row:
        return (*head, *("-",) * 7, *counts)
    ties = row["tie_point"]
    return (
        *head,
        f"{100 * row['conflict'][trained]:.2f}",
        f"{100 * row['sign_change'][trained]:.2f}",
        *(_number(ties[key]) for key in ("smallest", "q05", "median")),
        f"{100 * ties['infinite_share']:.1f}",
        _number(row["below_a10"]["a10"]),
        *counts,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def draw(figure: Figure, numbers: Numbers) -> None:
    """Three panels over alpha."""
    left, middle, right = figure.subplots(1, 3)
    alpha, whole = numbers["alpha"], numbers["overall"]
    for axes, key, title, label in (
        (left, "conflict", "(a) strict conflicts", "share of pairs, group-balanced"),
        (middle, "fully_safe", "(b) fully safe groups", "share of mixed groups"),
    ):
        percent_axis(axes, title, label)
        if whole[key]["value"][0] is not None:
            axes.plot(alpha, whole[key]["value"], color="C0")
            axes.fill_between(alpha, whole[key]["low"], whole[key]["high"], color="C0", alpha=0.18, linewidth=0)
    percent_axis(right, "(c) by checkpoint", "share of pairs, group-balanced")
    shown = [row for row in numbers["checkpoints"] if "conflict" in row]
    _lines(right, alpha, shown)
    highest = max((max(row["conflict"]) for row in shown), default=0.0)
    for axes in (left, right):
        axes.set_ylim(0, max(0.02, 1.3 * highest))
    _marks((left, middle, right), alpha, shown)


def _lines(axes: Axes, alpha: list[float], shown: list[dict[str, Any]]) -> None:
    from matplotlib import colormaps

    for number, row in enumerate(shown):
        colour = colormaps["viridis"](number / max(1, len(shown) - 1) * 0.9)
        axes.plot(alpha, row["conflict"], color=colour, linewidth=1.1, label=f"step {row['checkpoint']}")
    if shown:
        axes.legend(fontsize=6 if len(shown) > 8 else 7, ncols=3 if len(shown) > 4 else 1, loc="upper left")


def _marks(panels: tuple[Axes, ...], alpha: list[float], shown: list[dict[str, Any]]) -> None:
    tenths = [row["below_a10"]["a10"] for row in shown if row["below_a10"]["a10"] is not None]
    for axes in panels:
        axes.axvline(1.0, color="0.4", linestyle="--", linewidth=0.9)
        if tenths:
            axes.axvspan(min(tenths), max(tenths), color="0.5", alpha=0.15, linewidth=0)
        axes.set_xlim(0, max([alpha[-1], *(1.02 * each for each in tenths)]))
        axes.set_xlabel(r"$\alpha$")
