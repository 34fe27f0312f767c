"""A conversation as token ids, through a model's own chat template."""

from __future__ import annotations

from typing import Any

from nemo_uecr.errors import DataError

__all__ = ["chat_ids", "rendered"]


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
