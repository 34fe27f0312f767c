"""Judges batches of conversations, the form in which an environment of NeMo-RL receives responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_uecr.verifier.batch import check_responses
from nemo_uecr.verifier.pool import ComparisonPool
from nemo_uecr.verifier.verdict import Checked


def check_conversations(
    conversations: Sequence[Sequence[Mapping[str, object]]], answers: Sequence[str], pool: ComparisonPool
) -> list[Checked]:
    """Judge what the assistant said; the prompt, which may hold a box of its own, is not looked at.

    Args:
        conversations: turns with ``role`` and ``content``.
        answers: reference answers.
        pool: where mathematics is compared.
    """
    spoken = ["".join(str(turn["content"]) for turn in turns if turn["role"] == "assistant") for turns in conversations]
    return check_responses(spoken, answers, pool)
