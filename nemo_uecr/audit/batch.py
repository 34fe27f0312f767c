"""Batch facts over a run: what was drawn, judged and trained on, against what the configuration says.

A run that changes the intended batch, draws a prompt twice, drops trajectories, or counts micro-batches as steps has
faults here. The facts come from the step records; where batches were saved, their tensors and texts must agree.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_uecr.audit.output import Audit, Numbers, Table
from nemo_uecr.audit.sources import saved_texts
from nemo_uecr.data.batch_file import load_batch
from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.problems import load_problems
from nemo_uecr.data.reproducible import step_indices
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nemo_uecr.config.schema import Config

Record = Mapping[str, Any]
Fault = tuple[int, str]

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


@dataclass(frozen=True)
class Lines:
    """Step records in the order of the file, and whether it ends in half of one."""

    steps: Sequence[Record]
    cut_off: bool


@dataclass(frozen=True)
class Intended:
    """The batch that the configuration asks for.

    Attributes:
        prompts: a step.
        responses: a prompt.
        minibatch: responses of one optimizer step.
        overlong_filter: whether truncated responses leave the loss.
        problems: how many there are to draw from; None where the file is not here.
        order: names of the problems of a step in drawing order; None where the file is not here.
        steps: training steps of the whole run.
        save_every: every how many steps a batch is saved; 0 for never.
    """

    prompts: int
    responses: int
    minibatch: int
    overlong_filter: bool
    problems: int | None
    order: Mapping[int, Sequence[str]] | None
    steps: int
    save_every: int

    @property
    def trajectories(self) -> int:
        """Responses a step."""
        return self.prompts * self.responses

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps a step."""
        return -(-self.trajectories // self.minibatch)


def read_lines(path: Path) -> Lines:
    """Every line of a run's ``metrics.jsonl``, a step that stands twice included.

    Raises:
        DataError: The run has not trained yet.
    """
    whole, _, rest = (path.read_bytes() if path.is_file() else b"").rpartition(b"\n")
    steps = [json.loads(line) for line in whole.splitlines() if line.strip()]
    if not steps:
        raise DataError(f"{path} has no step; expected the metrics of a run that has trained")
    return Lines(steps, cut_off=bool(rest))


def check_metrics(steps: Sequence[Record], names: Sequence[str], run: str) -> None:
    """Refuse the records of a run that did not measure what an audit reads.

    Raises:
        DataError: naming step and metric.
    """
    for step in steps:
        missing = next((name for name in names if name not in step), None)
        if missing is not None:
            raise DataError(f"step {step['step']} of {run} has no {missing}; expected a run of the back end `local`")


def intended_batch(config: Config, train: Path, saved_steps: Sequence[int]) -> Intended:
    """What the configuration asks for; the order of the problems where the data is on this machine.

    Args:
        config: of the run.
        train: where ``data.train`` lies here.
        saved_steps: steps whose batches were saved.
    """
    rollout, data = config.rollout, config.data
    names, order = None, None
    try:
        problems = load_problems(
            training_file(train, "data.train"),
            question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key,
        )  # fmt: skip
        names = [problem.id for problem in problems]
    except (DataError, OSError):
        pass  # the run came from another machine: the facts that need no data are still checked
    if names is not None:
        shape = {"problems": len(names), "per_step": rollout.prompts_per_step, "seed": config.run.seed}
        order = {
            step: [names[index] for index in step_indices(**shape, step=step, shuffle=data.shuffle)]
            for step in saved_steps
        }
    return Intended(
        prompts=rollout.prompts_per_step,
        responses=rollout.responses_per_prompt,
        minibatch=config.train.minibatch_responses,
        overlong_filter=rollout.overlong_filter,
        problems=None if names is None else len(names),
        order=order,
        steps=config.train.steps,
        save_every=config.telemetry.save_batch_every,
    )


def batch_audit(lines: Lines, batches: Sequence[tuple[int, Path]], intended: Intended) -> Audit:
    """Facts and faults of a run.

    Args:
        lines: step records; half of one is a fault, because what that step drew and trained on is not known.
        batches: step and tensors of each saved batch, with its texts beside it.
        intended: what the configuration asks for.

    Raises:
        DataError: A record lacks a metric, or a saved batch its texts.

    References:
        The paper's appendix on efficiency and batch-fact auditing.
    """
    steps = lines.steps
    filtered = ("response/truncated_share",) if intended.overlong_filter else ()
    check_metrics(steps, (*FACTS, "response/length_mean", "reward/task_mean", *filtered), "the run")
    faults = [
        *_cut_off(lines),
        *_sequence_faults(steps, intended.steps),
        *_lost_batches(steps, {number for number, _ in batches}, intended.save_every),
        *(fault for place, step in enumerate(steps) for fault in _step_faults(step, steps[:place], intended)),
        *(fault for number, path in batches for fault in _saved_faults(number, path, steps, intended)),
    ]
    numbers: Numbers = {
        "intended": {
            "prompts": intended.prompts,
            "responses_per_prompt": intended.responses,
            "trajectories": intended.trajectories,
            "optimizer_steps_per_step": intended.optimizer_steps,
        },
        "steps": [step["step"] for step in steps],
        "facts": {name: [step.get(name) for step in steps] for name in FACTS},
        "truncated_share": [step.get("response/truncated_share") for step in steps],
        "totals": _totals(steps),
        "saved_batches_checked": len(batches),
        "prompt_order_checked": intended.order is not None,
        "faults": [{"step": step, "fault": text} for step, text in faults],
    }
    return Audit("batch", "Batch facts", NOTE, numbers, summary_table(numbers), draw, (9.6, 3.0))


def _cut_off(lines: Lines) -> Iterator[Fault]:
    if lines.cut_off:
        yield lines.steps[-1]["step"] + 1, "the record ends in half a line"


def _sequence_faults(steps: Sequence[Record], last_step: int) -> Iterator[Fault]:
    seen: set[int] = set()
    for step in steps:
        number = step["step"]
        if number in seen:
            yield number, f"step {number} stands twice in the record"
        seen.add(number)
    before = 0
    for number in sorted({*seen, max(last_step, *seen) + 1}):
        if number == before + 2:
            yield number - 1, f"step {number - 1} is missing in the record"
        elif number > before + 1:
            yield before + 1, f"steps {before + 1} to {number - 1} are missing in the record"
        before = number


def _lost_batches(steps: Sequence[Record], found: set[int], save_every: int) -> Iterator[Fault]:
    """Batches that the run was to save at its steps, the first one included, and that are not there."""
    for number in sorted({step["step"] for step in steps} - found):
        if save_every and (number == 1 or number % save_every == 0):
            yield number, "saved batch: it is gone"


def _step_faults(step: Record, before: Sequence[Record], intended: Intended) -> Iterator[Fault]:
    number = step["step"]
    filtered = step["response/truncated_share"] * step["count/trajectories"] if intended.overlong_filter else 0
    different = intended.prompts if intended.problems is None else min(intended.prompts, intended.problems)
    expected = {
        "count/prompts": intended.prompts,
        "count/unique_prompts": different,
        "count/trajectories": intended.trajectories,
        "count/rewarded": step["count/trajectories"],
        "count/trained": round(step["count/trajectories"] - filtered),
        "count/global_steps": number,
    }
    if not filtered:
        expected["count/valid_tokens"] = round(step["response/length_mean"] * step["count/trajectories"])
    earlier = next((each for each in reversed(before) if each["step"] == number - 1), None)
    if earlier is not None or number == 1:
        done = 0 if earlier is None else earlier["count/optimizer_steps"]
        expected["count/optimizer_steps"] = done + intended.optimizer_steps
    for name, value in expected.items():
        if step.get(name) != value:
            yield number, f"{FACTS[name]}: {shown(step.get(name))}, expected {shown(value)}"


def _saved_faults(number: int, path: Path, steps: Sequence[Record], intended: Intended) -> Iterator[Fault]:
    tensors = load_batch(path).tensors
    group, mask = tensors["group"].numpy(), tensors["mask"].bool().numpy()
    _, sizes = np.unique(group, return_counts=True)
    if len(sizes) != intended.prompts or (sizes != intended.responses).any():
        yield number, f"saved batch: groups of {sorted(set(sizes.tolist()))} responses, {len(sizes)} of them"
    if not mask.any(axis=1).all():
        yield number, f"saved batch: response {int(np.flatnonzero(~mask.any(axis=1))[0])} is empty"
    record = next((step for step in steps if step["step"] == number), None)
    if record is not None:
        tokens, reward = record["count/valid_tokens"], float(tensors["task_reward"].double().mean())
        if not intended.overlong_filter and int(mask.sum()) != tokens:
            yield number, f"saved batch: {int(mask.sum())} tokens, {shown(tokens)} in the record"
        if not math.isclose(reward, record["reward/task_mean"], rel_tol=0.0, abs_tol=1e-6):
            yield number, f"saved batch: mean reward {reward:g}, {record['reward/task_mean']:g} in the record"
    if path.with_suffix(".json").is_file():
        yield from _prompt_faults(number, saved_texts(path), group, intended)


def _prompt_faults(number: int, rows: Sequence[Record], group: np.ndarray, intended: Intended) -> Iterator[Fault]:
    problem: dict[int, str] = {}
    for row, label in zip(rows, group.tolist(), strict=True):
        if problem.setdefault(label, row["problem"]) != row["problem"]:
            yield number, f"saved batch: group {label} has responses to {problem[label]!r} and {row['problem']!r}"
            return
    drawn = list(problem.values())
    name, count = Counter(drawn).most_common(1)[0]
    if count > 1 and (intended.problems is None or intended.problems >= intended.prompts):
        yield number, f"saved batch: problem {name!r} was drawn twice"
    if intended.order is not None and drawn != list(intended.order[number]):
        yield number, "saved batch: its problems are not those that seed and data give for this step"


def _totals(steps: Sequence[Record]) -> Numbers:
    names = ("count/prompts", "count/trajectories", "count/rewarded", "count/trained", "count/valid_tokens")
    return {FACTS[name]: sum(step.get(name, 0) for step in steps) for name in names} | {
        "steps": len(steps),
        "optimizer steps": steps[-1].get("count/optimizer_steps"),
    }


# The table and the figure


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
