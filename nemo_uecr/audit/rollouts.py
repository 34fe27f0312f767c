"""Reads scored responses: the table of responses at once, their tokens part by part.

Shape legend: b = responses of one part, N = their tokens in a flat list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nemo_uecr.audit.part_checks import check_finished, check_hash, check_parts, check_tensors, read_plan
from nemo_uecr.audit.part_files import part_table, part_tensors, read_tensors
from nemo_uecr.audit.responses import Responses, responses_of
from nemo_uecr.audit.schema import ANCHOR, COLUMNS, STUDENT, TENSORS, rank_path, row_path, token_path
from nemo_uecr.errors import DataError


@dataclass(frozen=True)
class Tokens:
    """Packed token scores of consecutive responses.

    Attributes:
        rows: which responses.
        offsets: [b + 1] first token of each response.
        token_ids: [N].
        teacher_logp: [N] log pi_T(y) at temperature 1, nats.
        teacher_entropy: [N] full-vocabulary entropy of the teacher, nats.
        teacher_top1: [N] bool, whether the token has the teacher's largest logit.
        anchor_logp: [N] log-probability of the anchor at temperature 1, nats.
    """

    rows: slice
    offsets: Tensor
    token_ids: Tensor
    teacher_logp: Tensor
    teacher_entropy: Tensor
    teacher_top1: Tensor
    anchor_logp: Tensor


@dataclass(frozen=True)
class Scores:
    """A folder that ``nemo-uecr score`` wrote.

    Attributes:
        folder: where it is.
        plan: how everything in it was scored.
        responses: the responses.
        parts: number of each part and its rows.
    """

    folder: Path
    plan: dict[str, Any]
    responses: Responses
    parts: tuple[tuple[int, slice], ...]

    def tokens(self, anchor: str) -> Iterator[Tokens]:
        """The tokens of each part with the log-probabilities of one anchor.

        Raises:
            DataError: If the anchor was not scored, or a part is damaged.
        """
        if anchor not in self.plan["anchors"]:
            have = ", ".join(self.plan["anchors"])
            hint = "--student MODEL" if anchor == STUDENT else f"--anchor {anchor}=MODEL"
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {have}); score into a new folder with {hint}"
            )
        for number, rows in self.parts:
            path = token_path(self.folder, number)
            check_hash(path, self.plan)
            tensors = part_tensors(self.folder, number, (*TENSORS, ANCHOR + anchor))
            tensors["anchor_logp"] = tensors.pop(ANCHOR + anchor)
            check_tensors(tensors, self.responses.scored_B[rows], path)
            yield Tokens(rows, **tensors)

    def provenance(self) -> dict[str, Any]:
        """What was scored and how, for the numbers of an audit."""
        found = self.responses
        return {
            "plan": self.plan,
            "responses": len(found.ids),
            "groups": int(found.group_B.max()) + 1,
            "problems": int(found.problem_B.max()) + 1,
            "checkpoints": found.checkpoints,
            "scored_tokens": int(found.scored_B.sum()),
            "responses_truncated_in_generation": int(found.truncated_B.sum()),
            "responses_cut_in_scoring": int(found.cut_B.sum()),
            "responses_with_token_ids_from_text": int(found.from_text_B.sum()),
        }

    def ranks(self) -> Iterator[Tensor] | None:
        """[N] rank of each token under the teacher, 1 the largest, part by part; None without that pass."""
        paths = [rank_path(self.folder, number) for number, _ in self.parts]
        if not all(path.is_file() for path in paths):
            return None
        plan = read_plan(self.folder)  # the ranks may be younger than what was read first
        for path in paths:
            check_hash(path, plan)
        return (read_tensors(path, ("rank",))["rank"] for path in paths)

    def column(self, name: str) -> list[Any]:
        """One column of the responses as Python values, for example ``response``."""
        return [value for number, _ in self.parts for value in part_table(self.folder, number, [name])[name]]


def read_scores(folder: Path) -> Scores:
    """Read the responses of a finished folder of scores; tokens are read when asked for.

    Raises:
        DataError: If the folder holds no scores, not all of them, or a file in it is damaged.
    """
    scores = _read(folder, finished=True)
    check_finished(folder, scores.plan, len(scores.responses.ids))
    return scores


def read_unfinished(folder: Path) -> Scores:
    """Read what a folder of scores holds so far, for the one who adds to it.

    Raises:
        DataError: If the folder holds no scores, or a file in it is damaged.
    """
    return _read(folder, finished=False)


def _read(folder: Path, *, finished: bool) -> Scores:
    plan = read_plan(folder)
    numbers = check_parts(folder, plan, finished=finished)
    if not numbers:
        raise DataError(f"{folder} holds no complete part; run the same `nemo-uecr score` again to finish it")
    names = [name for name in COLUMNS if name not in ("prompt_ids", "question", "answer", "response")]
    parts = [part_table(folder, number, names) for number in numbers]
    for number, part in zip(numbers, parts, strict=True):
        if not part["id"]:
            raise DataError(
                f"{row_path(folder, number)} has no response; expected at least one. Score into a new folder"
            )
    table = {name: [value for part in parts for value in part[name]] for name in names}
    ends = np.cumsum([0, *(len(part["id"]) for part in parts)])
    spans = tuple((number, slice(int(ends[i]), int(ends[i + 1]))) for i, number in enumerate(numbers))
    return Scores(folder, plan, responses_of(table, folder), spans)
