"""What a run costs: wall-clock, time by phase, tokens a second, peak memory, and the scorer's overhead against GRPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_uecr.audit.batch import check_metrics
from nemo_uecr.audit.output import Audit, Numbers, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

#: Phases of a step in order, and how they are called.
PHASES = {
    "time/rollout_s": "rollout",
    "time/verify_s": "verifier",
    "time/score_student_s": "score student",
    "time/score_teacher_s": "score teacher",
    "time/score_reference_s": "score reference",
    "time/advantage_s": "advantages",
    "time/update_s": "update",
}
#: What every step must say.
NEEDED = ("time/step_s", "time/rollout_s", "response/length_mean", "count/trajectories", "memory/peak_rss_mb")
QUANTILES = (0.25, 0.5, 0.75)
NOTE = (
    "Training time without evaluation and checkpoints. Scorer overhead inside the run: time of the teacher's scoring "
    "over all other training time. Overhead against the baseline: training time for each token over the baseline's, "
    "minus 1; per token, because two methods write responses of different lengths. Memory is the process's own peak "
    "and the peak on its GPU, where it has one."
)


@dataclass(frozen=True)
class Run:
    """A run's label, method and step records.

    Attributes:
        label: its name.
        method: name of the method.
        steps: complete step records.
        left_out: what of the record is left out, in sentences; the costs are those of the other steps.
    """

    label: str
    method: str
    steps: Sequence[Record]
    left_out: tuple[str, ...]


def efficiency_audit(runs: Sequence[Run], baseline: str | None) -> Audit:
    """Costs of one or several runs.

    Args:
        runs: at least one.
        baseline: label of the run that the others are compared with; None for no comparison.

    Raises:
        DataError: A run did not measure what is needed.

    References:
        The paper's appendix on efficiency and batch-fact auditing.
    """
    for run in runs:
        check_metrics(run.steps, NEEDED, run.label)
    costs = {run.label: _costs(run) for run in runs}
    base = None if baseline is None else costs[baseline]
    for label, cost in costs.items():
        cost["overhead_against_baseline"] = None if base is None or label == baseline else _overhead(cost, base)
    numbers: Numbers = {"baseline": baseline, "runs": costs}
    return Audit("efficiency", "Efficiency", NOTE, numbers, _table(numbers), draw, (9.6, 3.0))


def _costs(run: Run) -> Numbers:
    steps = run.steps
    training = np.asarray([_training_seconds(step) for step in steps])
    tokens = np.asarray([float(step["response/length_mean"] * step["count/trajectories"]) for step in steps])
    phases = {name: float(np.sum([step.get(key, 0.0) for step in steps])) for key, name in PHASES.items()}
    present = {name for key, name in PHASES.items() if any(key in step for step in steps)}
    scorer = phases["score teacher"] if "score teacher" in present else None
    total = float(training.sum())
    return {
        "method": run.method,
        "steps": len(steps),
        "left_out": list(run.left_out),
        "tokens": float(tokens.sum()),
        "wall_clock_s": float(sum(step["time/step_s"] + step.get("time/save_s", 0.0) for step in steps)),
        "training_s": total,
        "evaluation_s": float(sum(step.get("time/evaluate_s", 0.0) for step in steps)),
        "phase_s": {name: seconds for name, seconds in phases.items() if name in present},
        "other_s": total - sum(phases.values()),
        "rollout_s": phases["rollout"],
        "scorer_s": scorer,
        "tokens_per_s": float(tokens.sum()) / total,
        "rollout_tokens_per_s": float(tokens.sum()) / phases["rollout"],
        "tokens_per_s_by_step": {"step": [int(step["step"]) for step in steps], "value": tokens / training},
        "step_s_quantiles": dict(zip(map(str, QUANTILES), np.quantile(training, QUANTILES).tolist(), strict=True)),
        "scorer_overhead": None if scorer is None else scorer / (total - scorer),
        "peak_memory_mb": {
            "process": max(step["memory/peak_rss_mb"] for step in steps),
            "gpu": max((step["memory/peak_gpu_mb"] for step in steps if "memory/peak_gpu_mb" in step), default=None),
        },
    }


def _training_seconds(step: Record) -> float:
    return float(step["time/step_s"] - step.get("time/evaluate_s", 0.0))


def _overhead(cost: Numbers, base: Numbers) -> Numbers:
    """Relative to the baseline, for each token and for each step."""
    return {
        "per_token": base["tokens_per_s"] / cost["tokens_per_s"] - 1.0,
        "per_step": cost["training_s"] / cost["steps"] / (base["training_s"] / base["steps"]) - 1.0,
    }


def _table(numbers: Numbers) -> Table:
    heads = (
        "run", "method", "steps", "training s", "rollout s", "scorer s", "tokens/s", "scorer overhead %",
        "against baseline, per token %", "peak memory MiB", "peak GPU MiB",
    )  # fmt: skip
    rows = []
    for label, cost in numbers["runs"].items():
        against, memory = cost["overhead_against_baseline"], cost["peak_memory_mb"]
        rows.append(
            (
                label, cost["method"], _steps(cost), f"{cost['training_s']:.1f}", f"{cost['rollout_s']:.1f}",
                _one(cost["scorer_s"]), f"{cost['tokens_per_s']:.0f}", _percent(cost["scorer_overhead"]),
                _percent(None if against is None else against["per_token"]), f"{memory['process']:.0f}",
                "-" if memory["gpu"] is None else f"{memory['gpu']:.0f}",
            )
        )  # fmt: skip
    return Table(heads, tuple(rows))


def _steps(cost: Numbers) -> str:
    return f"{cost['steps']} and half a line" if cost["left_out"] else str(cost["steps"])


def _one(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


def draw(figure: Figure, numbers: Numbers) -> None:
    """Phases of a step, tokens a second by step, peak memory."""
    phases, speed, memory = figure.subplots(1, 3, width_ratios=(1.5, 1.3, 0.8))
    runs = numbers["runs"]
    _phases(phases, runs)
    for place, (label, cost) in enumerate(runs.items()):
        found = cost["tokens_per_s_by_step"]
        speed.plot(found["step"], found["value"], color=f"C{place}", linewidth=1.2, label=label)
        memory.bar(place, cost["peak_memory_mb"]["process"], color=f"C{place}")
        if cost["peak_memory_mb"]["gpu"] is not None:
            memory.bar(
                place, cost["peak_memory_mb"]["gpu"], color=f"C{place}", width=0.4, hatch="//", edgecolor="white"
            )
    speed.set_ylim(0, 1.3 * speed.get_ylim()[1])  # room for the legend above the curves
    speed.set_title("(b) tokens a second")
    speed.set_xlabel("training step")
    speed.legend(loc="upper left", fontsize=8)
    memory.set_xticks(range(len(runs)), list(runs))
    _memory_legend(memory, runs)


def _memory_legend(axes: Axes, runs: Mapping[str, Numbers]) -> None:
    """Say what the hatched bars are, where there are some."""
    from matplotlib.patches import Patch

    axes.set_title("(c) peak memory, MiB")
    if any(cost["peak_memory_mb"]["gpu"] is not None for cost in runs.values()):
        kinds = [
            Patch(facecolor="0.6", label="process"),
            Patch(facecolor="0.6", hatch="//", edgecolor="white", label="GPU"),
        ]
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend above the bars
        axes.legend(handles=kinds, loc="upper left", fontsize=8)


def _phases(axes: Axes, runs: Mapping[str, Numbers]) -> None:
    names = [*PHASES.values(), "other"]
    for place, cost in enumerate(runs.values()):
        left = 0.0
        for colour, name in enumerate(names):
            seconds = (cost["other_s"] if name == "other" else cost["phase_s"].get(name, 0.0)) / cost["steps"]
            label = name if place == 0 or name not in axes.get_legend_handles_labels()[1] else None
            if seconds > 0:
                axes.barh(place, seconds, left=left, color=f"C{colour}", label=label, height=0.55)
            left += max(seconds, 0.0)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    axes.set_ylim(len(runs) - 0.4, -1.6)  # room for the legend above the bars
    axes.set_title("(a) seconds a step")
    axes.legend(loc="upper left", fontsize=7, ncols=2, columnspacing=0.9, handlelength=1.2)
