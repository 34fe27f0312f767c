"""The picture and the table of the credit-localization audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_uecr.audit.output import Numbers, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTE = (
    "Failed responses of mixed groups of eight; a judge who saw only problem, answer and steps labelled each step. "
    "Gap: mean token weight of invalid steps minus that of valid steps, averaged over responses. Their task advantage "
    "is negative, so a gap above 0 puts more of the blame on the invalid steps. (a) the entropies of each response "
    "permuted over its tokens; (b) 95% bootstrap intervals over prompts, with the share of responses whose gap is "
    "above 0. The audit says where weights lie, not what training with them would gain."
)
BINS = 24


def draw(figure: Figure, numbers: Numbers) -> None:
    """Shuffles against the original positions, and the variants."""
    left, right = figure.subplots(1, 2)
    _shuffles(left, numbers)
    _variants(right, numbers)


def _shuffles(axes: Axes, numbers: Numbers) -> None:
    found, full = numbers["shuffles"], numbers["variants"]["full ECR"]["gap"]["value"]
    count = len(found["gap"])
    axes.hist(found["gap"], bins=BINS, color="C6", alpha=0.75, label=f"{count} shuffles")
    axes.axvline(found["mean"], color="C6", linestyle=":", linewidth=1.4, label="their mean")
    axes.axvline(full, color="C0", linewidth=2.0, label="original positions")
    low, high = axes.get_ylim()
    axes.set_ylim(low, 1.35 * high)  # room for the legend above the bars
    axes.set_title(
        f"(a) entropy positions: {found['at_least_full']} of {len(found['gap'])} shuffles reach the original"
    )
    axes.set_xlabel("invalid-minus-valid weight gap")
    axes.set_ylabel("shuffles")
    # On white: the line of the original positions may run below it.
    axes.legend(loc="upper left", fontsize=8, ncols=3, columnspacing=1.0, frameon=True, framealpha=1, edgecolor="none")


def _variants(axes: Axes, numbers: Numbers) -> None:
    names = ["PUU", "no entropy", "shuffled, mean", "full ECR"]
    rows = [numbers["variants"][name] for name in names]
    tops = []
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        gap = row["gap"]
        colour = "C0" if name == "full ECR" else "C6"
        axes.plot([place, place], [gap["low"], gap["high"]], color=colour, linewidth=2.0)
        axes.plot([place], [gap["value"]], marker="o", color=colour)
        tops.append(max(gap["high"], 0.0))
        label = f"{100 * row['positive']['value']:.0f}%"
        axes.annotate(label, (place, tops[-1]), (0, 5), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(0.0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.margins(y=0.18)
    axes.set_title("(b) gap with 95% interval; label: share above 0")
    axes.set_ylabel("invalid-minus-valid weight gap")


def summary_table(numbers: Numbers) -> Table:
    """One row a variant."""
    heads = ("variant", "gap D", "95% interval", "D > 0 %", "first error", "95% interval", "largest |mean w - 1|")
    rows = []
    for name, row in numbers["variants"].items():
        first = row.get("first_error")
        rows.append(
            (
                name,
                f"{row['gap']['value']:+.5f}",
                _ends(row["gap"]),
                f"{100 * row['positive']['value']:.1f}",
                "-" if first is None or not first["of"] else f"{first['value']:+.5f}",
                "-" if first is None or not first["of"] else _ends(first),
                f"{row['budget_error']:.1e}" if "budget_error" in row else "-",
            )
        )
    return Table(heads, tuple(rows))


def _ends(share: Numbers) -> str:
    return f"[{share['low']:+.5f}, {share['high']:+.5f}]"
