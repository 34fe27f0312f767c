"""Numbered reasoning steps for a judge who sees nothing of the method, and the judge's labels.

``steps.jsonl`` has problem, reference answer and numbered steps, in random order and under names that tell nothing.
``key.jsonl`` says which responses they are; the judge does not get it. The judge writes one line an item::

    {"item": "9c0f...", "labels": ["valid", "invalid", "uncertain", "not_reasoning"], "first_error": 2}

with one label a step, and the number of the first substantive error (from 1) or null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_uecr.audit.judging_folder import blind_name, check_judgement, key_rows, verdict_rows, write_judging
from nemo_uecr.audit.segment import segment
from nemo_uecr.errors import DataError

STEPS = "steps.jsonl"
VALID, INVALID, UNCERTAIN, NOT_REASONING = LABELS = ("valid", "invalid", "uncertain", "not_reasoning")


@dataclass(frozen=True)
class Labels:
    """A judge's word on one response: a label a step, and the first error's number from 0, None without one."""

    labels: tuple[str, ...]
    first_error: int | None


@dataclass(frozen=True)
class Item:
    """What a judge is shown of one response, and whose it is."""

    response_id: str
    question: str
    answer: str
    response: str


def write_items(items: Sequence[Item], folder: Path, *, seed: int) -> int:
    """Write the items to judge and their key.

    Returns:
        How many steps there are.

    Raises:
        DataError: If the folder has the key of another judgement.
    """
    shown, key = [], []
    for place in np.random.default_rng(seed).permutation(len(items)):
        item = items[place]
        name = blind_name(seed, item.response_id)
        steps = [{"number": n, "text": step.text(item.response)} for n, step in enumerate(segment(item.response), 1)]
        shown.append({"item": name, "question": item.question, "answer": item.answer, "steps": steps})
        key.append({"item": name, "response": item.response_id, "steps": len(steps)})
    write_judging(folder, STEPS, shown, key)
    return sum(len(row["steps"]) for row in shown)


def read_labels(verdicts: Path, key: Path) -> dict[str, Labels]:
    """The judge's labels by response; an item that the judge left out has none.

    Raises:
        DataError: naming file and line.
    """
    check_judgement(verdicts, key, "the judge's labels and the key of `--write-steps`")
    names = _key(key)
    found: dict[str, Labels] = {}
    for place, row in verdict_rows(verdicts, key, "item", names):
        own = names[row["item"]]
        found[own["response"]] = _labels(row, own["steps"], place)
    return found


def _key(path: Path) -> dict[str, Mapping[str, Any]]:
    names: dict[str, Mapping[str, Any]] = {}
    responses: set[str] = set()
    for place, row in key_rows(path, "item", {"response": str, "steps": int}):
        if row["response"] in responses:
            raise DataError(f"{place}: response {row['response']!r} stands twice; expected each once")
        names[row["item"]] = row
        responses.add(row["response"])
    return names


def _labels(row: Mapping[str, Any], steps: int, place: str) -> Labels:
    labels, first = row.get("labels"), row.get("first_error")
    if not isinstance(labels, list) or len(labels) != steps:
        got = len(labels) if isinstance(labels, list) else labels
        raise DataError(f"{place}: labels are {got!r}; expected a list of {steps}, one a step")
    odd = next((label for label in labels if label not in LABELS), None)
    if odd is not None:
        raise DataError(f"{place}: label {odd!r}; expected one of {', '.join(LABELS)}")
    if first is not None and (isinstance(first, bool) or not isinstance(first, int) or not 1 <= first <= steps):
        raise DataError(f"{place}: first_error is {first!r}; expected a step's number from 1 to {steps}, or null")
    if first is not None and labels[first - 1] != INVALID:
        raise DataError(f"{place}: first_error {first} is labelled {labels[first - 1]!r}; expected {INVALID!r}")
    if first is not None and INVALID in labels[: first - 1]:
        raise DataError(
            f"{place}: first_error is {first}, step {labels.index(INVALID) + 1} before it is labelled {INVALID!r}; "
            "expected the first invalid step"
        )
    return Labels(tuple(labels), None if first is None else first - 1)
