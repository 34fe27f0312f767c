"""Score responses with a teacher and anchors, part by part: a kill loses one part at most.

Shape legend: B = responses, T = tokens (padded), N = tokens in a flat list, V = vocabulary.
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
from torch.nn.utils.rnn import pad_sequence

from nemo_uecr.audit import store
from nemo_uecr.audit.output import tracked
from nemo_uecr.audit.sources import Rollout
from nemo_uecr.audit.store import STUDENT, Scored
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.runner import model_digest
from nemo_uecr.files import file_sha256, locked
from nemo_uecr.local.probes import TokenRanks
from nemo_uecr.local.scores import score_teacher
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.token_model import TokenModel, check_same_tokens, load_model
from nemo_uecr.responses.table import ANCHOR, ROWS

log = logging.getLogger(__name__)

#: The row of a response, its token ids, and which of them were sampled.
Encoded = tuple[dict[str, Any], tuple[int, ...], tuple[bool, ...]]


@dataclass(frozen=True)
class Scoring:
    """How responses are scored."""

    teacher: str  # model folder or hub name
    student_of: Callable[[int], str]  # the model that generated the responses of a checkpoint
    anchors: Mapping[str, str]  # further anchors by name, the same for every checkpoint
    dtype: str  # "float32" or "bfloat16"
    device: torch.device
    max_length: int | None  # limit of prompt and response together; a longer response loses its end
    batch: int  # responses per forward pass
    part: int  # responses per part

    def load(self, model: str, role: str) -> TokenModel:
        """A model for inference."""
        return load_model(model, role=role, dtype=self.dtype, device=self.device, master_weights=False)


def score_rollouts(folder: Path, rollouts: Sequence[Rollout], files: Sequence[Path], scoring: Scoring) -> Scored:
    """Score the rollouts that the folder does not have yet, and return the whole folder.

    Log-probabilities and entropies are at temperature 1, from float32 logits; prompts and padding are not scored.
    The plan records the hashes of ``files``, the sources of the rollouts.
    """
    name, count = Counter(rollout.id for rollout in rollouts).most_common(1)[0]
    if count > 1:
        raise DataError(
            f"{count} responses are named {name!r}; expected names that differ. Score overlapping sources into "
            "separate folders, or give each line of a JSONL file its 'id'"
        )
    with locked(folder):
        plan, done = store.joined_plan(folder, _plan(rollouts, files, scoring), {rollout.id for rollout in rollouts})
        missing = sorted((each for each in rollouts if each.id not in done), key=lambda each: each.checkpoint)
        log.info("%d responses are scored, %d to score", len(rollouts) - len(missing), len(missing))
        if missing:
            _score(folder, missing, plan, scoring)
        else:
            store.write_plan(folder, plan)
    return store.read_scored(folder)


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
    """Score checkpoint by checkpoint, with one student in memory at a time."""
    teacher = scoring.load(scoring.teacher, "teacher")
    fixed = {name: scoring.load(model, f"anchor {name}") for name, model in scoring.anchors.items()}
    for step, own in groupby(missing, key=lambda each: each.checkpoint):
        student = scoring.load(scoring.student_of(step), STUDENT)
        anchors = {STUDENT: student, **fixed}
        for anchor in anchors.values():
            check_same_tokens(anchor, teacher)
        teacher = teacher.restrict_to_student_vocab(student.vocabulary)
        encoded = [_encode(each, student, scoring.max_length) for each in own]
        if from_text := sum(row["ids_from"] == "text" for row, _, _ in encoded):
            log.warning(
                "%d of %d responses of step %d have no token ids: their text is tokenized again, which may differ from "
                "the sampled tokens (column ids_from)", from_text, len(encoded), step,
            )  # fmt: skip
        store.write_plan(folder, plan)  # after the checks: a rejected call changes nothing
        encoded.sort(key=lambda each: len(each[0]["prompt_ids"]) + len(each[1]))
        for start in tracked(range(0, len(encoded), scoring.part), f"step {step}"):
            part = encoded[start : start + scoring.part]
            sequences = sequences_of([(row["prompt_ids"], ids) for row, ids, _ in part])
            sampled_BT = pad_sequence([torch.tensor(sampled) for _, _, sampled in part], batch_first=True)
            tokens = sequences.tokens | scores_of(sequences, teacher, anchors, batch=scoring.batch)
            rows = {name: [row[name] for row, _, _ in part] for name in part[0][0]}
            store.write_part(folder, rows, tokens | {"sampled": sampled_BT})


def _encode(rollout: Rollout, student: TokenModel, max_length: int | None) -> Encoded:
    """The row of a response, its token ids (sampled, or those of the text) and which were sampled, cut to the limit."""
    tokenizer = student.tokenizer
    prompt_ids, ids = tuple(rollout.prompt(tokenizer)), rollout.token_ids
    if ids is None:
        ids = tuple(tokenizer(rollout.response, add_special_tokens=False)["input_ids"])
        if not rollout.truncated:
            end = tokenizer.eos_token_id
            ids += (int(end) if end in student.tokens.end_ids else min(student.tokens.end_ids),)
    if not ids or not prompt_ids or max(*ids, *prompt_ids) >= student.vocabulary:
        raise DataError(
            f"response {rollout.id!r} or its prompt is empty or has a token outside the student's vocabulary; expected "
            f"ids below {student.vocabulary}. Give the student that generated it"
        )
    room = len(ids) if max_length is None else max_length - len(prompt_ids)
    if room < 1:
        raise DataError(
            f"the prompt of response {rollout.id!r} has {len(prompt_ids)} tokens and --max-length is {max_length}; "
            "expected room for a response token"
        )
    truncated = rollout.truncated if rollout.truncated is not None else ids[-1] not in student.tokens.end_ids
    sampled = (True,) * len(ids) if rollout.sampled is None else rollout.sampled
    if not any(sampled[:room]):
        raise DataError(f"response {rollout.id!r} has no sampled token to score; expected at least one")
    row = {name: value for name, value in vars(rollout).items() if name in ROWS} | {
        "prompt_ids": prompt_ids,
        "truncated": truncated,
        "cut": room < len(ids),
        "ids_from": "text" if rollout.token_ids is None else "sampled",
    }
    return row, ids[:room], sampled[:room]


def sequences_of(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Sequences:
    """Sequences of (prompt ids, response ids), without texts."""
    prompts = [Prompt(Problem("", "", ""), tuple(prompt)) for prompt, _ in pairs]
    return Sequences(prompts, [Response(tuple(ids), False, "") for _, ids in pairs])


def scores_of(
    sequences: Sequences, teacher: TokenModel, anchors: Mapping[str, TokenModel], *, batch: int
) -> dict[str, Tensor]:
    """[B, T] scores of every response token, by column."""
    mask_BT = sequences.mask_BT
    rows = torch.split(torch.arange(len(mask_BT)), batch)  # those of a part are sorted by length
    ranks = TokenRanks(mask_BT.shape, teacher.scored_vocab_size)
    found = score_teacher(teacher, sequences, rows, entropy=True, probes=[ranks])
    assert found.entropy_BT is not None
    if found.dropped_BT is not None:
        cut_N = found.dropped_BT[mask_BT]
        log.info(
            "the columns that the student lacks held %.2g of the teacher's probability on average, %.2g at most",
            cut_N.mean(),
            cut_N.max(),
        )
    rank_BT = ranks.rank_BT * found.logp_BT.isfinite()
    scores = {"teacher_logp": found.logp_BT, "teacher_entropy": found.entropy_BT, "teacher_rank": rank_BT}
    for name, model in anchors.items():
        column = "old_logp" if name == STUDENT else ANCHOR + name
        scores[column] = score_teacher(model, sequences, rows, entropy=False).logp_BT
    return scores
