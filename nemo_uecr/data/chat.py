"""A conversation as token ids, through a model's own chat template."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from nemo_uecr.errors import DataError

__all__ = ["chat_ids", "fitting_prompts", "rendered"]

log = logging.getLogger(__name__)


def fitting_prompts(
    tokenizer: Any,
    asked: Sequence[tuple[str, str]],
    *,
    template: str,
    system: str | None,
    thinking: bool,
    most: int,
    drop: bool,
) -> dict[int, list[int]]:
    """Token ids of the prompts that are not too long, by their places.

    Args:
        tokenizer: the student's; without a chat template it gets the plain text.
        asked: name and question of each problem.
        template: the user's turn, with `{question}`.
        system: the system turn; None for none.
        thinking: handed to the chat template.
        most: longest prompt in tokens.
        drop: leave the longer ones out, and say how many.

    Raises:
        DataError: prompts are longer and are not to be dropped: their number and the first.
    """
    encoded = [
        _ids(tokenizer, template.replace("{question}", text), system=system, thinking=thinking) for _, text in asked
    ]
    long = [place for place, ids in enumerate(encoded) if len(ids) > most]
    if long:
        said = (
            f"{len(long)} of {len(asked)} prompts have more than data.max_prompt_tokens={most} tokens; the first is "
            f"problem {asked[long[0]][0]!r} with {len(encoded[long[0]])}"
        )
        if not drop:
            raise DataError(f"{said}. Raise the limit, or leave them out: data.long_prompts=drop")
        log.warning("%s; they are dropped", said)
    return {place: ids for place, ids in enumerate(encoded) if len(ids) <= most}


def _ids(tokenizer: Any, text: str, *, system: str | None, thinking: bool) -> list[int]:
    if tokenizer.chat_template is not None:
        return chat_ids(tokenizer, text, system=system, thinking=thinking)
    if system is not None:
        raise DataError(
            "data.system_prompt is set, but the student's tokenizer has no chat template that could place it; write it "
            "into data.prompt_template"
        )
    return list(tokenizer(text)["input_ids"])


def chat_ids(tokenizer: Any, question: str, *, system: str | None, thinking: bool) -> list[int]:
    """Token ids of a prompt up to where the response begins; see `rendered`."""
    text = rendered(tokenizer, question, system=system, thinking=thinking)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def rendered(tokenizer: Any, question: str, *, system: str | None, thinking: bool) -> str:
    """A prompt as text, up to where the response begins.

    Args:
        tokenizer: with a chat template.
        question: the user's turn.
        system: the system turn; None for none.
        thinking: handed to the template.

    Raises:
        DataError: the template refuses the conversation.
    """
    turns = [{"role": "user", "content": question}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    try:
        text: str = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, enable_thinking=thinking
        )
    except Exception as error:  # a template is a program of the model's author and may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no message'}"
        raise DataError(
            f"the model's chat template refuses the prompt: {reason}; some templates take no system turn: leave the "
            "system prompt out"
        ) from error
    return text
