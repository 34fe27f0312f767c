"""Scores responses with a teacher and the anchors, a part at a time, so that a kill loses one part at most.

Shape legend: B = responses, b = responses of one part, T = tokens (padded), N = tokens in a flat list, V = vocabulary.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.audit.output import progress
from nemo_uecr.audit.sources import Rollout
from nemo_uecr.audit.store import (
    ANCHOR,
    STUDENT,
    Scores,
    joined_plan,
    part_paths,
    part_table,
    part_tensors,
    rank_path,
    read_scores,
    write_part,
    write_plan,
    write_ranks,
)
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.settings import model_digest
from nemo_uecr.files import file_sha256, locked
from nemo_uecr.local.models import TokenModel, check_same_tokens, load_model
from nemo_uecr.local.scores import score, token_logits
from nemo_uecr.local.sequences import Prompt, Response, Sequences, micro_slices

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
        DataError: Two responses have one name, or a model cannot be loaded or has another tokenizer.
        RunFolderError: The folder is in use, was scored differently, or an interrupted call's rest is left out.
    """
    counts = Counter(rollout.id for rollout in rollouts)
    name, count = counts.most_common(1)[0]
    if count > 1:
        raise DataError(f"response {name!r} is given {count} times; name the sources apart")
    with locked(folder):
        plan, done = joined_plan(folder, _plan(rollouts, files, scoring), counts.keys())
        missing = sorted((each for each in rollouts if each.id not in done), key=lambda each: each.checkpoint)
        log.info("%d responses are scored, %d to score", len(rollouts) - len(missing), len(missing))
        if missing:
            _score(folder, missing, plan, scoring)
        else:
            write_plan(folder, plan)
    return read_scores(folder)


def _plan(rollouts: Sequence[Rollout], files: Sequence[Path], scoring: Scoring) -> dict[str, Any]:
    def named(model: str) -> dict[str, str | None]:
        return {"name": model, "sha256": model_digest(model)}

    return {
        "teacher": named(scoring.teacher),
        "anchors": {STUDENT: "the checkpoint that generated the response"}
        | {name: named(model) for name, model in scoring.anchors.items()},
        "students": {str(step): named(scoring.student_of(step)) for step in sorted({r.checkpoint for r in rollouts})},
        "sources": {str(path): file_sha256(path) for path in files},
        "dtype": scoring.dtype,
        "temperature": 1.0,
        "max_length": scoring.max_length,
        "engine": "transformers",
    }


def _score(folder: Path, missing: Sequence[Rollout], plan: Mapping[str, Any], scoring: Scoring) -> None:
    """Score what is missing, checkpoint by checkpoint, so that one student is in memory at a time."""
    teacher = _load(scoring.teacher, "teacher", scoring)
    fixed = {name: _load(model, f"anchor {name}", scoring) for name, model in scoring.anchors.items()}
    with progress("responses", len(missing)) as advance:
        for step, own in groupby(missing, key=lambda each: each.checkpoint):
            student = _load(scoring.student_of(step), STUDENT, scoring)
            anchors = {STUDENT: student, **fixed}
            for anchor in anchors.values():
                check_same_tokens(anchor, teacher)
            encoded = [_encode(each, student, scoring.max_length) for each in own]
            _warn_of_text(encoded, step)
            write_plan(folder, plan)  # now that models and responses fit: a refused call leaves the folder as it was
            encoded.sort(key=lambda each: len(each.prompt.token_ids) + len(each.response.token_ids))
            for start in range(0, len(encoded), scoring.part):
                part = encoded[start : start + scoring.part]
                tensors, nonfinite = _part_tensors(part, teacher, anchors, scoring.batch)
                rows = [_row(each, count) for each, count in zip(part, nonfinite, strict=True)]
                write_part(folder, rows, tensors)
                advance(len(part))


def _load(model: str, role: str, scoring: Scoring) -> TokenModel:
    loaded = load_model(model, role=role, dtype=scoring.dtype, device=scoring.device, trained=False)
    loaded.module.requires_grad_(False)
    return loaded


@dataclass(frozen=True)
class _Encoded:
    """A response as token ids, cut to the length limit; ``sampled`` tokens before."""

    rollout: Rollout
    prompt: Prompt
    response: Response
    sampled: int


def _encode(rollout: Rollout, student: TokenModel, max_length: int | None) -> _Encoded:
    """The tokens that were sampled, or, where they were not kept, those of the text.

    Raises:
        DataError: There is no token to score, or one that the student does not know.
    """
    tokenizer = student.tokenizer
    prompt_ids = tuple(rollout.prompt(tokenizer))
    ids = rollout.token_ids
    if ids is None:
        ids = tuple(tokenizer(rollout.response, add_special_tokens=False)["input_ids"])
        ids += () if rollout.truncated else (_end_id(student),)
    if not ids or not prompt_ids:
        raise DataError(f"response {rollout.id!r} has no token, or its prompt has none; expected at least one of each")
    largest, vocabulary = max(*ids, *prompt_ids), student.module.get_input_embeddings().num_embeddings
    if largest >= vocabulary:
        raise DataError(
            f"response {rollout.id!r} or its prompt has token id {largest}; expected ids below {vocabulary}, the "
            "student's vocabulary. Give the student that generated it"
        )
    room = len(ids) if max_length is None else max_length - len(prompt_ids)
    if room < 1:
        raise DataError(
            f"the prompt of response {rollout.id!r} has {len(prompt_ids)} tokens and --max-length is {max_length}; "
            "expected room for a response token"
        )
    truncated = rollout.truncated if rollout.truncated is not None else ids[-1] not in student.end_ids
    problem = Problem(rollout.problem, rollout.question or "", rollout.answer or "")
    response = Response(ids[:room], rollout.response, truncated)
    return _Encoded(rollout, Prompt(problem, prompt_ids), response, len(ids))


def _end_id(student: TokenModel) -> int:
    own = student.tokenizer.eos_token_id
    return int(own) if own in student.end_ids else min(student.end_ids)


def _warn_of_text(encoded: Sequence[_Encoded], step: int) -> None:
    count = sum(each.rollout.token_ids is None for each in encoded)
    if count:
        log.warning(
            "%d of %d responses of step %d were kept as text only: their tokens are the tokenizer's, which may differ "
            "from those that were sampled (column ids_from)", count, len(encoded), step,
        )  # fmt: skip


def _part_tensors(
    part: Sequence[_Encoded], teacher: TokenModel, anchors: Mapping[str, TokenModel], batch: int
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


def _row(each: _Encoded, nonfinite: int) -> dict[str, Any]:
    """The row of a part; ``nonfinite`` tokens have a score that is not finite."""
    rollout, scored = each.rollout, len(each.response.token_ids)
    kept = ("id", "checkpoint", "benchmark", "problem", "sample", "group", "question", "answer", "response", "reward")
    return {
        **{name: getattr(rollout, name) for name in kept},
        "prompt_ids": list(each.prompt.token_ids),
        "sampled_tokens": each.sampled,
        "scored_tokens": scored,
        "truncated": each.response.truncated,
        "cut": scored < each.sampled,
        "ids_from": "text" if rollout.token_ids is None else "sampled",
        "nonfinite_tokens": nonfinite,
    }


# The second pass: exact ranks


def rank_parts(folder: Path, teacher: TokenModel, *, batch: int) -> None:
    """Rank the tokens of every part that has no ranks yet.

    ``rank_t = 1 + #{v : z_v > z_{y_t}}``, so that a top-1 match is rank 1 and ties share the better rank.

    Args:
        folder: the folder of scores.
        teacher: the model that scored them.
        batch: responses of one forward pass.
    """
    missing = [path for path in part_paths(folder) if not rank_path(path).is_file()]
    with progress("parts ranked", len(missing)) as advance:
        for path in missing:
            prompts = part_table(path, ["prompt_ids"])["prompt_ids"]
            tensors = part_tensors(path, ("offsets", "token_ids"))
            ids = torch.tensor_split(tensors["token_ids"], tensors["offsets"][1:-1])
            sequences = id_sequences(prompts, [own.tolist() for own in ids])
            groups = micro_slices(len(prompts), minibatch=len(prompts), microbatch=batch)
            write_ranks(path, torch.cat([_ranks(teacher, sequences, rows) for group in groups for rows in group]))
            advance(1)


@torch.no_grad()
def _ranks(teacher: TokenModel, sequences: Sequences, rows: slice) -> Tensor:
    ranks = []
    for _, logits_NV, target_N in token_logits(teacher, sequences.micro_batch(rows)):
        own_N1 = logits_NV.gather(1, target_N.unsqueeze(1))
        ranks.append(1 + (logits_NV > own_N1).sum(dim=1).cpu())
    return torch.cat(ranks)


def id_sequences(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Sequences:
    """Prompts and responses of which nothing but the token ids is known."""
    nothing = Problem("", "", "")
    return Sequences(
        [Prompt(nothing, tuple(ids)) for ids in prompts], [Response(tuple(ids), "", False) for ids in responses]
    )
