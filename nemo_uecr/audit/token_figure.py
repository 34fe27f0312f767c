"""The picture and the table of the token-credit audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_uecr.audit.figure import percent_axis
from nemo_uecr.audit.output import Numbers, Table
from nemo_uecr.audit.share import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTE = (
    "Tokens by strata of the teacher's entropy (tied quantiles collapse). (a) the teacher's probability of the sampled "
    "token and how often it is the teacher's first choice, lines token-weighted and points response-balanced; neither "
    "is the correctness of a token. (b) where the tokens with the largest absolute gap to the policy lie, against the "
    "stratum's share of all tokens. (c) mean token weight of a response without the projection; with it the mean is 1. "
    "Intervals: 95% bootstrap over problems."
)
WAYS = ("token_weighted", "response_balanced")


def summary_table(numbers: Numbers) -> Table:
    """What the paper states of this audit."""
    heads = ("quantity", "token-weighted", "response-balanced")
    rows = []
    for row in numbers["large_gaps"]:
        name = f"top {100 * row['share']:g}% gaps"
        rows.append(
            (f"{name} in the highest entropy quartile, %", *(percent(row["in_highest_quartile"][w]) for w in WAYS))
        )
        shrunk = (percent(row["reduction"][way]) for way in WAYS)
        rows.append((f"{name}: calibration lowers |d| by, %", *shrunk))
    for name, row in numbers["weights"].items():
        if row["responses"]:
            means = (_weight(row[way]) for way in WAYS)
            rows.append((f"mean weight, {name}", *means))
            rows.append((f"largest |B - 1|, {name}", "", f"{row['largest_error']:.3g}"))
    return Table(heads, tuple(rows))


def _weight(found: Numbers) -> str:
    return f"{found['value']:.4f} [{found['low']:.4f}, {found['high']:.4f}]"


def draw(figure: Figure, numbers: Numbers) -> None:
    """Three panels."""
    left, middle, right = figure.subplots(1, 3)
    strata = numbers["strata"]
    count = len(strata["tokens"])
    for colour, (key, label) in enumerate((("probability", "probability"), ("top1", "top-1 match"))):
        _line(left, strata[key], label, colour, count)
    percent_axis(left, "(a) sampled token under the teacher", "mean in the stratum")
    left.legend(fontsize=8)
    _draw_location(middle, numbers["large_gaps"], strata["tokens"])
    for axes in (left, middle):
        axes.set_xlabel("stratum of teacher entropy, low to high")
        axes.set_xticks(range(1, count + 1))
    _draw_weights(right, numbers["weights"])


def _line(axes: Axes, found: Numbers, label: str, colour: int, count: int) -> None:
    x = list(range(1, count + 1))
    token, response = found["token_weighted"], found["response_balanced"]
    style = "--" if colour else "-"  # the two lines may coincide
    axes.plot(x, token["value"], style, color=f"C{colour}", linewidth=1.4, label=label)
    axes.fill_between(x, _numbers(token["low"]), _numbers(token["high"]), color=f"C{colour}", alpha=0.16, linewidth=0)
    axes.plot(x, _numbers(response["value"]), "o", markersize=3.5, color=f"C{colour}")


def _numbers(values: list[Any]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _draw_location(axes: Axes, rows: list[Numbers], tokens: list[int]) -> None:
    width = 0.8 / len(rows)
    total = sum(tokens)
    for number, row in enumerate(rows):
        share = row["by_stratum"]["token_weighted"]["value"]
        x = [place + 0.6 + width * (number + 0.5) for place in range(len(share))]
        axes.bar(x, share, width, color=f"C{number}", label=f"top {100 * row['share']:g}% of |gap|")
    expected = [count / total for count in tokens]
    axes.step(
        [0.5, *(place + 1.5 for place in range(len(tokens)))],
        [expected[0], *expected],
        color="0.3",
        linewidth=1,
        label="all tokens",
    )
    percent_axis(axes, "(b) where the largest gaps lie", "share of these tokens")
    axes.legend(fontsize=8, loc="upper left")


def _draw_weights(axes: Axes, weights: Numbers) -> None:
    axes.set_title("(c) mean token weight of a response")
    axes.set_xlabel(r"$B_i$")
    axes.set_ylabel("responses")
    free, held = weights["unprojected"], weights["projected"]
    if "histogram" not in free:
        axes.text(0.5, 0.5, "no mixed group", ha="center", transform=axes.transAxes, color="0.4")
        return
    edges, counts = free["histogram"]["edges"], free["histogram"]["counts"]
    axes.stairs(counts, edges, fill=True, color="C1", alpha=0.75, label="without projection")
    axes.axvline(1.0, color="C0", linewidth=1.6, label=f"with: |B - 1| up to {held['largest_error']:.1e}")
    axes.set_ylim(0, 1.35 * max(counts))
    # On white: the line at 1 runs below it.
    axes.legend(fontsize=8, loc="upper left", frameon=True, framealpha=1, edgecolor="none")
