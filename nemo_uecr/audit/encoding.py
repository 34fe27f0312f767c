"""A response as the token ids that are scored, and as the row that says where they come from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_uecr.audit.sources import Rollout
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.prompts import Prompt
from nemo_uecr.local.rollout import Response
from nemo_uecr.local.sequences import Sequences

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """A response as token ids, cut to the length limit."""

    rollout: Rollout
    prompt: Prompt
    response: Response
    sampled: int


def encode(rollout: Rollout, student: TokenModel, max_length: int | None) -> Encoded:
    """The tokens that were sampled, or, where they were not kept, those of the text.

    Raises:
        DataError: If there is no token to score, or one that the student does not know.
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
            f"the prompt of response {rollout.id!r} has {len(prompt_ids)} tokens; expected fewer than "
            f"--max-length {max_length}, so that a response token can be scored"
        )
    truncated = rollout.truncated if rollout.truncated is not None else ids[-1] not in student.end_ids
    problem = Problem(rollout.problem, rollout.question or "", rollout.answer or "")
    response = Response(ids[:room], rollout.response, truncated)
    return Encoded(rollout, Prompt(problem, prompt_ids), response, len(ids))


def _end_id(student: TokenModel) -> int:
    own = student.tokenizer.eos_token_id
    return int(own) if own in student.end_ids else min(student.end_ids)


def warn_of_text(encoded: Sequence[Encoded], step: int) -> None:
    """Say how many responses of a step were kept as text only."""
    count = sum(each.rollout.token_ids is None for each in encoded)
    if count:
        log.warning(
            "%d of %d responses of step %d were kept as text only: their tokens are the tokenizer's, which may differ "
            "from those that were sampled (column ids_from)", count, len(encoded), step,
        )  # fmt: skip


def row_of(each: Encoded, nonfinite: int) -> dict[str, Any]:
    """The row of a part; ``nonfinite`` tokens have a score that is not finite."""
    rollout, scored = each.rollout, len(each.response.token_ids)
    return {
        "id": rollout.id,
        "checkpoint": rollout.checkpoint,
        "benchmark": rollout.benchmark,
        "problem": rollout.problem,
        "sample": rollout.sample,
        "group": rollout.group,
        "question": rollout.question,
        "answer": rollout.answer,
        "response": rollout.response,
        "reward": rollout.reward,
        "prompt_ids": list(each.prompt.token_ids),
        "sampled_tokens": each.sampled,
        "scored_tokens": scored,
        "truncated": each.response.truncated,
        "cut": scored < each.sampled,
        "ids_from": "text" if rollout.token_ids is None else "sampled",
        "nonfinite_tokens": nonfinite,
    }


def id_sequences(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Sequences:
    """Prompts and responses of which nothing but the token ids is known."""
    nothing = Problem("", "", "")
    return Sequences(
        [Prompt(nothing, tuple(ids)) for ids in prompts], [Response(tuple(ids), "", False) for ids in responses]
    )
