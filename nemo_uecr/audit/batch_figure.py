"""The picture and the table of the batch facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_uecr.audit.output import Numbers, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is shown a step, and how it is called.
FACTS = {
    "count/prompts": "prompts",
    "count/unique_prompts": "problems",
    "count/trajectories": "generated",
    "count/rewarded": "rewarded",
    "count/trained": "in the loss",
    "count/valid_tokens": "tokens in the loss",
    "count/global_steps": "global steps",
    "count/optimizer_steps": "optimizer steps",
}
#: Short dashes with wide gaps: what is intended must not hide the line that runs under it.
SPARSE = (0, (4, 8))
NOTE = (
    "What each step drew, judged and trained on, against the configuration (dashed). A fault is a step whose counts "
    "are not the configured ones, a prompt drawn twice in a step, a trajectory that was generated and not trained on, "
    "a step that is missing or counted twice, or a saved batch that disagrees with its record."
)


def summary_table(numbers: Numbers) -> Table:
    """The totals, what was checked, and every fault."""
    rows = [(name, shown(value)) for name, value in numbers["totals"].items()]
    rows.append(("saved batches checked", str(numbers["saved_batches_checked"])))
    rows.append(("prompts compared with the order of the data", "yes" if numbers["prompt_order_checked"] else "no"))
    rows.append(("faults", str(len(numbers["faults"]))))
    rows += [(f"fault at step {each['step']}", each["fault"]) for each in numbers["faults"]]
    return Table(("fact", "value"), tuple(rows))


def shown(value: Any) -> str:
    """A count as people write it."""
    return "nothing" if value is None else f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


def draw(figure: Figure, numbers: Numbers) -> None:
    """Trajectories, tokens and steps by training step; faults as red crosses."""
    from matplotlib.ticker import EngFormatter

    axes = figure.subplots(1, 3)
    steps, facts, intended = numbers["steps"], numbers["facts"], numbers["intended"]
    for place, name in enumerate(("count/trajectories", "count/rewarded", "count/trained")):
        line = {"linewidth": 4.5 - 1.6 * place, "label": FACTS[name]}  # equal lines stay visible under each other
        axes[0].plot(steps, facts[name], color=f"C{(0, 2, 1)[place]}", **line)
    axes[0].plot(steps, facts["count/unique_prompts"], color="C3", label=FACTS["count/unique_prompts"])
    for wanted in (intended["trajectories"], intended["prompts"]):
        axes[0].axhline(wanted, color="black", linestyle=SPARSE, linewidth=0.8)
    axes[0].set_ylim(0, 1.45 * intended["trajectories"])
    axes[0].set_title("(a) responses and problems")
    axes[0].legend(loc="upper left", fontsize=8, ncols=2, columnspacing=1.0, handlelength=1.4)
    axes[1].plot(steps, facts["count/valid_tokens"], color="C0")
    axes[1].set_ylim(bottom=0)
    axes[1].yaxis.set_major_formatter(EngFormatter(sep=""))  # 8M and not 8 under a factor beside the title
    axes[1].set_title("(b) tokens in the loss")
    axes[2].plot(steps, facts["count/global_steps"], color="C0", linewidth=3.0, label="global steps")
    axes[2].plot(steps, facts["count/optimizer_steps"], color="C1", label="optimizer steps")
    due = [step * intended["optimizer_steps_per_step"] for step in steps]
    axes[2].plot(steps, due, color="black", linestyle=SPARSE, linewidth=0.8)
    axes[2].set_title("(c) steps counted")
    axes[2].legend(loc="upper left", fontsize=8)
    faulty = sorted({each["step"] for each in numbers["faults"]})
    for panel in axes:
        panel.set_xlabel("training step")
        if faulty:  # an empty line without clipping upsets the layout
            panel.plot(faulty, [0] * len(faulty), "x", color="red", markersize=8, clip_on=False, zorder=5)
