"""Which failed responses a judge is given, and the tokens of the steps that it calls invalid and valid.

Shape legend: N = tokens of one response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.audit.schema import STUDENT
from nemo_uecr.audit.segment import is_reasoning_free, segment, token_steps
from nemo_uecr.audit.step_judge import INVALID, VALID, Item, Labels
from nemo_uecr.audit.token_table import TokenTable, token_table
from nemo_uecr.core.groups import Groups
from nemo_uecr.errors import DataError

Array = np.ndarray

#: Responses to a prompt in a group of the audit.
GROUP_SIZE = 8


@dataclass(frozen=True)
class Candidates:
    """Failed responses of mixed groups: their rows in the token table and why others were left out."""

    rows: Array
    counts: dict[str, int]


@dataclass(frozen=True)
class Judged:
    """One response with both kinds of steps: its tokens in each."""

    row: int
    invalid_N: Array
    valid_N: Array
    first_error_N: Array
    valid_before_N: Array


def candidates(scores: Scores, table: TokenTable) -> Candidates:
    """Incorrect responses with A^task|U < 0 of mixed groups of eight, without empty or reasoning-free ones.

    Nothing of the teacher decides: the sign of ``A^task|U = (R - mean R) / (Std(R^U) + eps)`` is the numerator's.
    """
    texts = scores.column("response")
    kept: list[int] = []
    counts = dict.fromkeys(("groups", "mixed_groups_of_eight", "incorrect_in_them", "reasoning_free"), 0)
    for rows, batch in table.group_batches():
        counts["groups"] += 1
        if len(rows) != GROUP_SIZE or np.ptp(table.reward_B[rows]) == 0:
            continue
        counts["mixed_groups_of_eight"] += 1
        centred_b = Groups.of(batch.group_B).centre(batch.task_reward_B)
        for row in rows[(centred_b < 0).numpy() & (table.reward_B[rows] <= 0)]:
            counts["incorrect_in_them"] += 1
            free = is_reasoning_free(texts[table.rows[row]])
            counts["reasoning_free"] += free
            if not free:
                kept.append(int(row))
    return Candidates(np.asarray(sorted(kept), dtype=np.int64), counts)


def items_to_judge(scores: Scores, *, checkpoint: int, limit: int | None, seed: int) -> list[Item]:
    """The candidates for a judge; with a limit, that many drawn by the seed.

    Raises:
        DataError: If there is no candidate, or a problem's text is not known.
    """
    table = token_table(scores, STUDENT, checkpoint)
    rows = candidates(scores, table).rows
    if not len(rows):
        raise DataError(
            f"{scores.folder} has no failed response in a mixed group of {GROUP_SIZE} at checkpoint {checkpoint}; "
            "expected eight responses a prompt, for example `nemo-uecr score RUN --take batches --steps 1`"
        )
    if limit is not None:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:limit])
    columns = {name: scores.column(name) for name in ("question", "answer", "response")}
    places = table.rows[rows]
    if any(columns["question"][place] is None or columns["answer"][place] is None for place in places):
        raise DataError(f"{scores.folder} does not know every question and answer; expected both in the rollouts")
    return [
        Item(scores.responses.ids[place], *(columns[name][place] for name in ("question", "answer", "response")))
        for place in places
    ]


def judged_responses(
    scores: Scores, table: TokenTable, rows: Array, labels: Mapping[str, Labels], tokenizer: Any
) -> tuple[list[Judged], dict[str, int]]:
    """The labelled responses that have tokens in both kinds of steps, and how many were judged and left out.

    Args:
        scores: the scored responses.
        table: tokens of one checkpoint.
        rows: the candidates among the table's responses.
        labels: a judge's labels by response.
        tokenizer: of the policy that generated the responses.

    Raises:
        DataError: If a labelled response is no candidate, was cut otherwise, or none has both kinds of steps.
    """
    texts = scores.column("response")
    known = {table.ids[row]: int(row) for row in rows}
    strange = next((name for name in labels if name not in known), None)
    if strange is not None:
        raise DataError(
            f"the judge's response {strange!r} is no candidate of this audit; expected the labels of its items"
        )
    judged, nonfinite = [], 0
    for name, found in labels.items():
        row = known[name]
        if not _is_finite(table, row):  # the projection's mean runs over every token: one spoils all weights
            nonfinite += 1
            continue
        text = texts[table.rows[row]]
        steps = segment(text)
        if len(steps) != len(found.labels):
            raise DataError(f"response {name!r} has {len(steps)} steps, its labels {len(found.labels)}; judge it again")
        step_N = token_steps(text, steps, table.token_ids[table.span(row)].tolist(), tokenizer)
        each = _tokens_by_label(row, step_N, found)
        if each.invalid_N.any() and each.valid_N.any():
            judged.append(each)
    if not judged:
        raise DataError(
            "no judged response has tokens in a valid and in an invalid step; expected at least one"
            + (f" ({nonfinite} have a token without finite scores)" if nonfinite else "")
        )
    every = [label for found in labels.values() for label in found.labels]
    return judged, {"judged": len(labels), "left_out_nonfinite": nonfinite, "steps": len(every)} | {
        f"steps_{name}": every.count(name) for name in set(every)
    }


def _is_finite(table: TokenTable, row: int) -> bool:
    span = table.span(row)
    values = (table.teacher_logp[span], table.teacher_entropy[span], table.anchor_logp[span])
    return all(bool(value_N.isfinite().all()) for value_N in values)


def _tokens_by_label(row: int, step_N: Array, found: Labels) -> Judged:
    def tokens(chosen: Sequence[int]) -> Array:
        return np.isin(step_N, np.asarray(chosen, dtype=np.int64))

    valid = [number for number, label in enumerate(found.labels) if label == VALID]
    first = found.first_error
    return Judged(
        row=row,
        invalid_N=tokens([number for number, label in enumerate(found.labels) if label == INVALID]),
        valid_N=tokens(valid),
        first_error_N=tokens([] if first is None else [first]),
        valid_before_N=tokens([] if first is None else [number for number in valid if number < first]),
    )
