"""Batch facts over a run: what was drawn, judged and trained on, against what the configuration says.

A run that changes the intended batch, draws a prompt twice, drops trajectories, or counts micro-batches as steps has
faults here. The facts come from the step records; where batches were saved, their tensors and texts must agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_uecr.audit.batch_figure import FACTS, NOTE, draw, shown, summary_table
from nemo_uecr.audit.batch_texts import saved_texts
from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.record_checks import batch_arrays, check_records, mean_reward
from nemo_uecr.audit.responses import first_repeated
from nemo_uecr.data.problems import parse_row
from nemo_uecr.errors import DataError

Record = Mapping[str, Any]


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
        DataError: If there is none, or a line other than the last is no record.
    """
    found = path.read_bytes().split(b"\n") if path.is_file() else []
    steps: list[Record] = []
    for number, line in enumerate(found, start=1):
        if not line.strip():
            continue
        try:
            steps.append(parse_row(line, f"{path}:{number}"))
        except DataError:
            if number < len(found) or not steps:  # the last has no line break: it was being written
                raise
            return Lines(steps, cut_off=True)
    if not steps:
        raise DataError(f"{path} has no step; expected the metrics of a run that has trained")
    return Lines(steps, cut_off=False)


def batch_audit(lines: Lines, batches: Sequence[tuple[int, Path]], intended: Intended) -> Audit:
    """Facts and faults of a run.

    Args:
        lines: step records; half of one is a fault, because what that step drew and trained on is not known.
        batches: step and tensors of each saved batch, with its texts beside it.
        intended: what the configuration asks for.

    Raises:
        DataError: If a record or a saved batch cannot be read as one.

    References:
        The paper's appendix on efficiency and batch-fact auditing.
    """
    steps = lines.steps
    needed = (*FACTS, "response/length_mean", *(("response/truncated_share",) if intended.overlong_filter else ()))
    check_records(steps, needed)
    faults = [
        *_cut_off(lines),
        *_sequence_faults(steps, intended.steps),
        *_lost_batches(steps, {number for number, _ in batches}, intended.save_every),
        *(fault for place, step in enumerate(steps) for fault in _step_faults(step, steps[:place], intended)),
        *_faults_of_saved(batches, steps, intended),
    ]
    numbers: Numbers = {
        "intended": {
            "prompts": intended.prompts,
            "responses_per_prompt": intended.responses,
            "trajectories": intended.trajectories,
            "optimizer_steps_per_step": intended.optimizer_steps,
        },
        "steps": [int(step["step"]) for step in steps],
        "facts": {name: [step.get(name) for step in steps] for name in FACTS},
        "truncated_share": [step.get("response/truncated_share") for step in steps],
        "totals": _totals(steps),
        "saved_batches_checked": len(batches),
        "prompt_order_checked": intended.order is not None,
        "faults": [{"step": step, "fault": text} for step, text in faults],
    }
    return Audit("batch", "Batch facts", NOTE, numbers, summary_table(numbers), draw, (9.6, 3.0))


def _cut_off(lines: Lines) -> Iterator[tuple[int, str]]:
    if lines.cut_off:
        yield int(lines.steps[-1]["step"]) + 1, "the record ends in half a line"


def _sequence_faults(steps: Sequence[Record], last_step: int) -> Iterator[tuple[int, str]]:
    seen: set[int] = set()
    for step in steps:
        number = int(step["step"])
        if number in seen:
            yield number, f"step {number} stands twice in the record"
        seen.add(number)
    before = 0
    for number in sorted(
        {*seen, max(last_step, *seen) + 1}
    ):  # a gap is one fault: a damaged number would make a million
        if number == before + 2:
            yield number - 1, f"step {number - 1} is missing in the record"
        elif number > before + 1:
            yield before + 1, f"steps {before + 1} to {number - 1} are missing in the record"
        before = number


def _lost_batches(steps: Sequence[Record], found: set[int], save_every: int) -> Iterator[tuple[int, str]]:
    """Batches that the run was to save at its steps, the first one included, and that are not there."""
    for number in sorted({int(step["step"]) for step in steps} - found):
        if save_every and (number == 1 or number % save_every == 0):
            yield number, "saved batch: it is gone"


def _step_faults(step: Record, before: Sequence[Record], intended: Intended) -> Iterator[tuple[int, str]]:
    number = int(step["step"])
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
    earlier = next((each for each in reversed(before) if int(each["step"]) == number - 1), None)
    if earlier is not None or number == 1:
        done = 0 if earlier is None else earlier["count/optimizer_steps"]
        expected["count/optimizer_steps"] = done + intended.optimizer_steps
    for name, value in expected.items():
        if step.get(name) != value:
            yield number, f"{FACTS[name]}: {shown(step.get(name))}, expected {shown(value)}"


def _faults_of_saved(
    batches: Sequence[tuple[int, Path]], steps: Sequence[Record], intended: Intended
) -> Iterator[tuple[int, str]]:
    with ProgressLine("saved batches", len(batches)) as progress:
        for number, path in batches:
            yield from _saved_faults(number, path, steps, intended)
            progress.advance(1)


def _saved_faults(number: int, path: Path, steps: Sequence[Record], intended: Intended) -> Iterator[tuple[int, str]]:
    group, mask, reward_B = batch_arrays(path)
    _, sizes = np.unique(group, return_counts=True)
    if len(sizes) != intended.prompts or (sizes != intended.responses).any():
        yield number, f"saved batch: groups of {sorted(set(sizes.tolist()))} responses, {len(sizes)} of them"
    if not mask.any(axis=1).all():
        yield number, f"saved batch: response {int(np.flatnonzero(~mask.any(axis=1))[0])} is empty"
    record = next((step for step in steps if int(step["step"]) == number), None)
    tokens = None if record is None or intended.overlong_filter else record["count/valid_tokens"]
    if tokens is not None and int(mask.sum()) != tokens:
        yield number, f"saved batch: {int(mask.sum())} tokens, {shown(tokens)} in the record"
    reward = float(reward_B.mean()) if len(reward_B) else math.nan
    recorded = mean_reward(record, f"step {number}")
    if recorded is not None and not math.isclose(reward, recorded, rel_tol=0.0, abs_tol=1e-6):
        yield number, f"saved batch: mean reward {reward:g}, {recorded:g} in the record"
    texts = path.with_suffix(".json")
    if texts.is_file():
        yield from _prompt_faults(number, saved_texts(texts, responses=len(group)), group, intended)


def _prompt_faults(
    number: int, rows: Sequence[Record], group: np.ndarray, intended: Intended
) -> Iterator[tuple[int, str]]:
    problem: dict[int, str] = {}
    for row, label in zip(rows, group.tolist(), strict=True):
        if problem.setdefault(label, row["problem"]) != row["problem"]:
            yield number, f"saved batch: group {label} has responses to {problem[label]!r} and {row['problem']!r}"
            return
    drawn = list(problem.values())
    twice = first_repeated(drawn)
    if twice is not None and (intended.problems is None or intended.problems >= intended.prompts):
        yield number, f"saved batch: problem {twice!r} was drawn twice"
    if intended.order is not None and drawn != list(intended.order[number]):
        yield number, "saved batch: its problems are not those that seed and data give for this step"


def _totals(steps: Sequence[Record]) -> Numbers:
    names = ("count/prompts", "count/trajectories", "count/rewarded", "count/trained", "count/valid_tokens")
    return {FACTS[name]: sum(step.get(name, 0) for step in steps) for name in names} | {
        "steps": len(steps),
        "optimizer steps": steps[-1].get("count/optimizer_steps"),
    }
