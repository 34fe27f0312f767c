"""The figures of the audits, each drawn from the numbers in ``numbers.json``."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, PercentFormatter

from nemo_uecr.audit.output import Numbers
from nemo_uecr.audit.runs import FACTS, PHASES

#: The report's colours, in its order.
COLOURS = ("#0b62b0", "#c44d12", "#087f5b", "#94478a", "#8f6c00", "#217fa3", "#666a70", "#8b1e45")
STYLE = {
    "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "legend.edgecolor": "none", "legend.fontsize": 8, "axes.titlelocation": "left",
    "figure.facecolor": "white", "axes.prop_cycle": cycler(color=COLOURS),
}  # fmt: skip
#: Short dashes with wide gaps, which do not hide the line below.
SPARSE = (0, (4, 8))
#: Smaller differences are drawn at this value: log axes have no zero.
SMALLEST = 1e-8


def write_figure(folder: Path, name: str, numbers: Numbers) -> None:
    """Draw an audit as PNG and SVG; equal numbers give equal bytes."""
    draw, inches = FIGURES[name]
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=inches, layout=ConstrainedLayoutEngine(wspace=0.06))
        draw(figure, numbers)
        for axes in figure.axes:
            if axes.get_legend() is None and len(axes.get_legend_handles_labels()[0]) > 1:
                axes.legend()
        figure.savefig(folder / "figure.png", dpi=110, metadata={"Software": None})
        figure.savefig(folder / "figure.svg", metadata={"Date": None, "Creator": None})


def _line(axes: Axes, x: Sequence[float] | np.ndarray, share: Numbers, label: str, colour: int, **style: Any) -> None:
    """A line through the values with the interval as a band; missing values leave a gap."""
    value, low, high = (np.asarray(share[key], dtype=float) for key in ("value", "low", "high"))  # None becomes NaN
    axes.plot(x, value, color=f"C{colour}", label=label, linewidth=1.4, **style)
    axes.fill_between(x, low, high, color=f"C{colour}", alpha=0.16, linewidth=0)


def _by_checkpoint(axes: Axes, rows: Sequence[Numbers], label: str, colour: int, *keys: str) -> None:
    """A line through the share that each checkpoint's row has under these keys."""
    shares = [reduce(operator.getitem, keys, row) for row in rows]
    share = {end: [each[end] for each in shares] for end in ("value", "low", "high")}
    _line(axes, [row["checkpoint"] for row in rows], share, label, colour, marker="o", markersize=3.5)


def _percent_axis(axes: Axes, title: str, label: str, x: str = "checkpoint, training steps") -> None:
    axes.set(ylim=(0, 1.02), title=title, ylabel=label, xlabel=x)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


# Audits of scores


def _signal(figure: Figure, numbers: Numbers) -> None:
    left, middle, right = figure.subplots(1, 3)
    rows, judge = numbers["checkpoints"], numbers["judge"]
    _by_checkpoint(left, rows, "verifier-degenerate", 0, "degenerate")
    _by_checkpoint(left, rows, "of these, range of R$^T$ > 0.05", 1, "distinguished_degenerate_of_all")
    _by_checkpoint(middle, rows, "conflict rate", 0, "conflict")
    _percent_axis(left, "(a) groups without a verdict to compare", "share of groups")
    _percent_axis(middle, "(b) teacher against verifier", "share of pairs, group-balanced")
    _percent_axis(right, "(c) judge on verifier-tied pairs", "teacher agrees with judge")
    for axes in (middle, right):
        axes.axhline(0.5, color="0.5", linewidth=0.8, linestyle="--")
    _by_checkpoint(right, [] if judge is None else judge["checkpoints"], "by checkpoint", 0)
    if judge is None or judge["all"]["value"] is None:
        reason = "no judge's verdicts" if judge is None else "no preferences of the judge"
        right.text(0.5, 0.25, reason, ha="center", transform=right.transAxes, color="0.4")
        right.set(xticks=[], xlabel="")
    else:
        right.axhline(judge["all"]["value"], color="C1", linewidth=1, label=f"all {judge['all']['of']} pairs")


def _group_signal(figure: Figure, numbers: Numbers) -> None:
    left, middle, right = figure.subplots(1, 3)
    rows = numbers["checkpoints"]
    steps = [row["checkpoint"] for row in rows]
    wrong, correct = ([row[key]["value"] for row in rows] for key in ("all_wrong", "all_right"))
    width = 0.6 * min((b - a for a, b in itertools.pairwise(steps)), default=1)
    left.bar(steps, wrong, width, color="#e59a5c", label="all wrong")
    left.bar(steps, correct, width, bottom=wrong, color="#5b93c9", label="all right")
    _by_checkpoint(left, rows, "Std(R$^U$) > 0.1", 2, "std_above")
    _by_checkpoint(left, rows, "range(R$^T$) > 0.05", 3, "range_above")
    _percent_axis(left, "(a) all pseudo-groups", "share of groups")
    left.set(ylim=(0, 1.35), yticks=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    left.legend(fontsize=7, ncols=2, loc="upper right")
    _by_checkpoint(middle, rows, "$|A^{GRPO}|$", 0, "mean_absolute", "grpo")
    _by_checkpoint(middle, rows, "$|A^U|$", 1, "mean_absolute", "unified")
    _by_checkpoint(middle, rows, "$|A^{task|U}|$", 2, "mean_absolute", "task")
    _by_checkpoint(middle, rows, r"$|\alpha A^{T|U}|$", 3, "mean_absolute", "teacher")
    middle.set(title="(b) advantage in mixed groups", ylabel="mean absolute value", xlabel=left.get_xlabel())
    middle.set_ylim(bottom=0)
    _by_checkpoint(right, rows, "teacher share", 3, "teacher_share")
    _percent_axis(right, "(c) teacher's share of (b)", "share")


def _alpha_sweep(figure: Figure, numbers: Numbers) -> None:
    left, middle, right = panels = figure.subplots(1, 3)
    alpha, whole = numbers["alpha"], numbers["overall"]
    balanced, x = "share of pairs, group-balanced", r"$\alpha$"
    _percent_axis(left, "(a) strict conflicts", balanced, x)
    _percent_axis(middle, "(b) fully safe groups", "share of mixed groups", x)
    _percent_axis(right, "(c) by checkpoint", balanced, x)
    for axes, share in ((left, whole["conflict"]), (middle, whole["fully_safe"])):
        _line(axes, alpha, share, "", 0)
    drawn = [row for row in numbers["checkpoints"] if "conflict" in row]
    for number, row in enumerate(drawn):
        colour = colormaps["viridis"](number / max(1, len(drawn) - 1) * 0.9)
        right.plot(alpha, row["conflict"], color=colour, linewidth=1.1, label=f"step {row['checkpoint']}")
    if drawn:
        right.legend(fontsize=6 if len(drawn) > 8 else 7, ncols=3 if len(drawn) > 4 else 1, loc="upper left")
    highest = max((max(row["conflict"]) for row in drawn), default=0.0)
    for axes in (left, right):
        axes.set_ylim(0, max(0.02, 1.3 * highest))
    tenths = [row["below_a10"]["a10"] for row in drawn if row["below_a10"]["a10"] is not None]
    for axes in panels:
        axes.axvline(whole["trained_alpha"], color="0.4", linestyle="--", linewidth=0.9)
        if tenths:
            axes.axvspan(min(tenths), max(tenths), color="0.5", alpha=0.15, linewidth=0)
        axes.set_xlim(0, max([alpha[-1], *(1.02 * each for each in tenths)]))


def _token_credit(figure: Figure, numbers: Numbers) -> None:
    left, middle, right = figure.subplots(1, 3)
    tokens = numbers["strata"]["tokens"]
    places = np.arange(1, len(tokens) + 1)
    for colour, (key, label) in enumerate((("probability", "probability"), ("top1", "top-1 match"))):
        if numbers["strata"][key] is None:  # of a run that did not rank
            continue
        token, response = (numbers["strata"][key][way] for way in ("token_weighted", "response_balanced"))
        _line(left, places, token, label, colour, linestyle="--" if colour else "-")  # the two may coincide
        left.plot(places, np.asarray(response["value"], dtype=float), "o", markersize=3.5, color=f"C{colour}")
    x = "stratum of teacher entropy, low to high"
    _percent_axis(left, "(a) sampled token under the teacher", "mean in the stratum", x)
    width = 0.8 / len(numbers["large_gaps"])
    for number, row in enumerate(numbers["large_gaps"]):
        share, label = row["by_stratum"]["token_weighted"]["value"], f"top {100 * row['share']:g}% of |gap|"
        middle.bar(places - 0.4 + width * (number + 0.5), share, width, color=f"C{number}", label=label)
    expected = np.asarray(tokens) / sum(tokens)
    middle.step([0.5, *(places + 0.5)], [expected[0], *expected], color="0.3", linewidth=1, label="all tokens")
    _percent_axis(middle, "(b) location of the largest gaps", "share of these tokens", x)
    for axes in (left, middle):
        axes.set_xticks(places)
    _weights(right, numbers["weights"])


def _weights(axes: Axes, weights: Numbers) -> None:
    axes.set(title="(c) mean token weight of a response", xlabel=r"$B_i$", ylabel="responses")
    free, held = weights["unprojected"], weights["projected"]
    if "histogram" not in free:
        axes.text(0.5, 0.5, "no mixed group", ha="center", transform=axes.transAxes, color="0.4")
        return
    counts = free["histogram"]["counts"]
    axes.stairs(counts, free["histogram"]["edges"], fill=True, color="C1", alpha=0.75, label="without projection")
    axes.axvline(1.0, color="C0", linewidth=1.6, label=f"with: |B - 1| up to {held['largest_error']:.1e}")


def _localization(figure: Figure, numbers: Numbers) -> None:
    left, right = figure.subplots(1, 2)
    shuffles, variants = numbers["shuffles"], numbers["variants"]
    count, *others, full = len(shuffles["gap"]), "PUU", "no entropy", "shuffled, mean", "full ECR"
    left.hist(shuffles["gap"], bins=24, color="C6", alpha=0.75, label=f"{count} shuffles")
    left.axvline(shuffles["mean"], color="C6", linestyle=":", linewidth=1.4, label="their mean")
    left.axvline(variants[full]["gap"]["value"], color="C0", linewidth=2.0, label="original positions")
    left.set(
        title=f"(a) entropy positions: {shuffles['at_least_full']} of {count} shuffles reach the original",
        xlabel="invalid-minus-valid weight gap",
        ylabel="shuffles",
    )
    for place, name in enumerate((*others, full)):
        gap, colour = variants[name]["gap"], "C0" if name == full else "C6"
        low, high = (math.nan if gap[end] is None else gap[end] for end in ("low", "high"))
        right.plot([place, place], [low, high], color=colour, linewidth=2.0)
        right.plot([place], [gap["value"]], marker="o", color=colour)
        label, top = f"{100 * variants[name]['positive']['value']:.0f}%", np.nanmax([gap["value"], high, 0.0])
        right.annotate(label, (place, top), (0, 5), textcoords="offset points", ha="center", fontsize=8)
    right.axhline(0.0, color="black", linewidth=0.6)
    right.set_xticks(range(4), (*others, full))
    right.margins(y=0.18)
    right.set(xlim=(-0.6, 3.6), title="(b) gap with 95% interval; label: share above 0", ylabel=left.get_xlabel())


def _teacher(figure: Figure, numbers: Numbers) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    above = np.maximum(1.0 - np.asarray(numbers["probabilities"]), 5e-5)
    shown = [(name, each) for name, each in numbers["engines"].items() if "skipped" not in each]
    for axes, quantity, title in ((left, "logp", "(a) log-probability"), (right, "entropy", "(b) entropy")):
        for place, (name, engine) in enumerate(shown):
            if engine[quantity] is not None:
                curve = np.maximum(engine[quantity]["curve"], SMALLEST)
                axes.step(curve, above, where="post", color=f"C{place}", linewidth=1.5, label=name)
        axes.set(xscale="log", yscale="log", ylim=(5e-5, 1.5), title=title, xlabel="difference from float32, nats")
    left.set_ylabel("share of tokens above")


# Audits of a run


def _batch(figure: Figure, numbers: Numbers) -> None:
    counts, tokens, done = panels = figure.subplots(1, 3)
    steps, facts, intended = numbers["steps"], numbers["facts"], numbers["intended"]
    for place, name in enumerate(("count/trajectories", "count/rewarded", "count/trained")):
        line = {"linewidth": 4.5 - 1.6 * place, "label": FACTS[name]}  # equal lines stay visible
        counts.plot(steps, facts[name], color=f"C{(0, 2, 1)[place]}", **line)
    counts.plot(steps, facts["count/unique_prompts"], color="C3", label=FACTS["count/unique_prompts"])
    for wanted in (intended["trajectories"], intended["prompts"]):
        counts.axhline(wanted, color="black", linestyle=SPARSE, linewidth=0.8)
    counts.set(ylim=(0, 1.1 * intended["trajectories"]), title="(a) responses and problems")
    tokens.plot(steps, facts["count/valid_tokens"], color="C0")
    tokens.set_ylim(bottom=0)
    tokens.yaxis.set_major_formatter(EngFormatter(sep=""))  # 8M, instead of 8 and a factor
    tokens.set_title("(b) tokens in the loss")
    done.plot(steps, facts["count/global_steps"], color="C0", linewidth=3.0, label="global steps")
    done.plot(steps, facts["count/optimizer_steps"], color="C1", label="optimizer steps")
    due = np.multiply(steps, intended["optimizer_steps_per_step"])
    done.plot(steps, due, color="black", linestyle=SPARSE, linewidth=0.8)
    done.set_title("(c) steps counted")
    faulty = sorted({each["step"] for each in numbers["faults"]})
    for panel in panels:
        panel.set_xlabel("training step")
        if faulty:  # an empty line without clipping upsets the layout
            panel.plot(faulty, [0] * len(faulty), "x", color="red", markersize=8, clip_on=False, zorder=5)


def _efficiency(figure: Figure, numbers: Numbers) -> None:
    phases, speed, memory = figure.subplots(1, 3, width_ratios=(1.5, 1.3, 0.8))
    runs = numbers["runs"]
    left = np.zeros(len(runs))
    for colour, name in enumerate((*PHASES.values(), "other")):
        spent = [cost["other_s"] if name == "other" else cost["phase_s"].get(name, 0.0) for cost in runs.values()]
        seconds = np.maximum(spent, 0.0) / [cost["steps"] for cost in runs.values()]
        if seconds.any():
            phases.barh(range(len(runs)), seconds, left=left, color=f"C{colour}", label=name, height=0.55)
        left = left + seconds
    phases.set_yticks(range(len(runs)), list(runs))
    phases.set(ylim=(len(runs) - 0.4, -1.6), title="(a) seconds per step")  # room for the legend above the bars
    phases.legend(loc="upper left", fontsize=7, ncols=2)
    for place, (label, cost) in enumerate(runs.items()):
        rate, peak = cost["tokens_per_s_by_step"], cost["peak_memory_mb"]
        speed.plot(rate["step"], rate["value"], color=f"C{place}", linewidth=1.2, label=label)
        memory.bar(place, peak["process"], color=f"C{place}")
        if peak["gpu"] is not None:
            memory.bar(place, peak["gpu"], color=f"C{place}", width=0.4, hatch="//", edgecolor="white")
    speed.set_ylim(bottom=0)
    speed.set(title="(b) tokens per second", xlabel="training step")
    memory.set_xticks(range(len(runs)), list(runs))
    memory.set_title("(c) peak memory, MiB")
    if any(cost["peak_memory_mb"]["gpu"] is not None for cost in runs.values()):
        hatched = Patch(facecolor="0.6", hatch="//", edgecolor="white", label="GPU")
        memory.legend(handles=[Patch(facecolor="0.6", label="process"), hatched])


#: How each audit is drawn, and on how many inches.
FIGURES: dict[str, tuple[Callable[[Figure, Numbers], None], tuple[float, float]]] = {
    "signal": (_signal, (9.8, 3.4)),
    "group-signal": (_group_signal, (9.8, 3.4)),
    "alpha-sweep": (_alpha_sweep, (9.8, 3.3)),
    "token-credit": (_token_credit, (9.8, 3.3)),
    "localization": (_localization, (9.2, 3.3)),
    "teacher": (_teacher, (9.2, 3.2)),
    "batch": (_batch, (9.6, 3.0)),
    "efficiency": (_efficiency, (9.6, 3.0)),
}
