"""Scores responses with a teacher and the anchors, a part at a time, so that a kill loses one part at most.

Shape legend: B = responses, b = responses of one part, T = tokens (padded), N = tokens in a flat list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.audit.asked import check_asked, record_asked
from nemo_uecr.audit.encoding import Encoded, encode, row_of, warn_of_text
from nemo_uecr.audit.parts import keep_plan, merged_plan, next_number, write_part
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.responses import first_repeated
from nemo_uecr.audit.rollouts import Scores, read_scores, read_unfinished
from nemo_uecr.audit.schema import ANCHOR, PLAN, RESPONSES, STUDENT, part_numbers
from nemo_uecr.audit.sources import Rollout
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.settings import model_digest
from nemo_uecr.files import file_sha256, locked
from nemo_uecr.local.models import TokenModel, check_same_tokens, load_model
from nemo_uecr.local.scores import score
from nemo_uecr.local.sequences import Sequences, micro_slices

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scoring:
    """How responses are scored.

    Attributes:
        teacher: model folder or hub name.
        student_of: the model that generated the responses of a checkpoint.
        anchors: further anchors by name, the same for every checkpoint.
        dtype: "float32" or "bfloat16".
        device: where the forward passes run.
        max_length: longest prompt and response together; a longer response keeps its head. None for no limit.
        batch: responses of one forward pass.
        part: responses written at once.
    """

    teacher: str
    student_of: Callable[[int], str]
    anchors: Mapping[str, str]
    dtype: str
    device: torch.device
    max_length: int | None
    batch: int
    part: int


def score_rollouts(folder: Path, rollouts: Sequence[Rollout], files: Sequence[Path], scoring: Scoring) -> Scores:
    """Score what the folder does not hold yet.

    Log-probabilities and entropy are those of temperature 1, from float32 logits. Prompt and padding have none.

    Args:
        folder: the folder of scores, new or begun by the same call.
        rollouts: the responses.
        files: where they come from; their hashes are kept.
        scoring: models and limits.

    Returns:
        Everything that the folder now holds.

    Raises:
        DataError: If two responses have one name, or a model cannot be loaded or has another tokenizer.
        RunFolderError: If the folder is in use, was scored differently, or an interrupted call's rest is left out.
    """
    _check_unique(rollouts)
    with locked(folder):
        _score_missing(folder, rollouts, files, scoring)
    return read_scores(folder)


def _check_unique(rollouts: Sequence[Rollout]) -> None:
    twice = first_repeated(rollout.id for rollout in rollouts)
    if twice is not None:
        raise DataError(f"response {twice!r} is given twice; expected each once. Name the sources apart")


def _score_missing(folder: Path, rollouts: Sequence[Rollout], files: Sequence[Path], scoring: Scoring) -> None:
    steps = sorted({rollout.checkpoint for rollout in rollouts})
    begun = (folder / PLAN).is_file() and bool(part_numbers(folder))
    done = set(read_unfinished(folder).responses.ids) if begun else set()
    asked, plan = check_asked(folder, {each.id for each in rollouts}, done), _plan(steps, files, scoring)
    merged_plan(folder, plan)
    missing = sorted((each for each in rollouts if each.id not in done), key=lambda each: each.checkpoint)
    log.info("%d responses are scored, %d to score", len(done & {each.id for each in rollouts}), len(missing))
    pending = {str(each.checkpoint) for each in missing}
    students = {step: student for step, student in plan["students"].items() if step not in pending}
    if not missing:
        _record(folder, asked, plan)
        return
    teacher = _load(scoring.teacher, "teacher", scoring)
    fixed = {name: _load(model, f"anchor {name}", scoring) for name, model in scoring.anchors.items()}
    with ProgressLine("responses", len(missing)) as progress:
        for step, own in groupby(missing, key=lambda each: each.checkpoint):
            student = _load(scoring.student_of(step), STUDENT, scoring)
            anchors = {STUDENT: student, **fixed}
            for anchor in anchors.values():
                check_same_tokens(anchor, teacher)
            encoded = [encode(each, student, scoring.max_length) for each in own]
            warn_of_text(encoded, step)
            students[str(step)] = plan["students"][str(step)]
            _record(folder, asked, plan | {"students": students})  # a call refused so far is recorded nowhere
            encoded.sort(key=lambda each: len(each.prompt.token_ids) + len(each.response.token_ids))
            for start in range(0, len(encoded), scoring.part):
                part = encoded[start : start + scoring.part]
                tensors, nonfinite = _part_tensors(part, teacher, anchors, scoring.batch)
                rows = [row_of(each, count) for each, count in zip(part, nonfinite, strict=True)]
                write_part(folder, next_number(folder), rows, tensors)
                progress.advance(len(part))


def _record(folder: Path, asked: Set[str], plan: Mapping[str, Any]) -> None:
    """Write what is asked for and how it is scored, before the first scores that it is about."""
    record_asked(folder, asked)
    keep_plan(folder, {**plan, RESPONSES: len(asked)})


def _plan(steps: Sequence[int], files: Sequence[Path], scoring: Scoring) -> dict[str, Any]:
    def named(model: str) -> dict[str, str | None]:
        return {"name": model, "sha256": model_digest(model)}

    return {
        "teacher": named(scoring.teacher),
        "anchors": {STUDENT: "the checkpoint that generated the response"}
        | {name: named(model) for name, model in scoring.anchors.items()},
        "students": {str(step): named(scoring.student_of(step)) for step in steps},
        "sources": {str(path): file_sha256(path) for path in files},
        "dtype": scoring.dtype,
        "temperature": 1.0,
        "max_length": scoring.max_length,
        "engine": "transformers",
    }


def _load(model: str, role: str, scoring: Scoring) -> TokenModel:
    loaded = load_model(model, role=role, dtype=scoring.dtype, device=scoring.device, trained=False)
    loaded.module.requires_grad_(False)
    return loaded


def _part_tensors(
    part: Sequence[Encoded], teacher: TokenModel, anchors: Mapping[str, TokenModel], batch: int
) -> tuple[dict[str, Tensor], list[int]]:
    """The packed tokens of a part, and how many of each response have a score that is not finite."""
    sequences = Sequences([each.prompt for each in part], [each.response for each in part])
    slices = [rows for group in micro_slices(len(part), minibatch=len(part), microbatch=batch) for rows in group]
    mask_BT = sequences.mask()
    found = score(teacher, sequences, slices, temperatures=(1.0,), entropy=True, top1=True)
    if found.entropy_BT is None or found.top1_BT is None:
        raise AssertionError("both were asked for")
    lengths_b = mask_BT.sum(dim=1)
    fields = {"teacher_logp": found.logp[0], "teacher_entropy": found.entropy_BT}
    for name, model in anchors.items():
        fields[ANCHOR + name] = score(model, sequences, slices, temperatures=(1.0,), entropy=False).logp[0]
    bad_BT = ~torch.stack([value_BT.isfinite() for value_BT in fields.values()]).all(dim=0) & mask_BT
    tensors = {
        "offsets": torch.cat([torch.zeros(1, dtype=torch.long), lengths_b.cumsum(0)]),
        "token_ids": sequences.token_ids()[mask_BT].int(),
        "teacher_top1": found.top1_BT[mask_BT],
        **{name: value_BT[mask_BT] for name, value_BT in fields.items()},
    }
    return tensors, bad_BT.sum(dim=1).tolist()
