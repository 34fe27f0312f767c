"""Turns problems into prompt token ids through the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.config.schema import DataConfig
from nemo_uecr.data.pretrained import rendered
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from nemo_uecr.local.models import TokenModel


@dataclass(frozen=True)
class Prompt:
    """A problem with the token ids the model reads."""

    problem: Problem
    token_ids: tuple[int, ...]


def encode_prompts(problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> list[Prompt]:
    """Encode every problem; a tokenizer without a chat template gets the plain text.

    Raises:
        DataError: If a prompt is longer than ``data.max_prompt_tokens``.
    """
    prompts = []
    for problem in problems:
        text = data.prompt_template.replace("{question}", problem.question)
        token_ids = _token_ids(text, tokenizer, data)
        if len(token_ids) > data.max_prompt_tokens:
            raise DataError(
                f"problem {problem.id!r} has a prompt of {len(token_ids)} tokens; expected at most "
                f"data.max_prompt_tokens={data.max_prompt_tokens}. Raise the limit or drop the problem"
            )
        if not token_ids:
            raise DataError(f"problem {problem.id!r} has an empty prompt; expected at least one token")
        prompts.append(Prompt(problem, tuple(token_ids)))
    return prompts


def check_context(prompts: Sequence[Prompt], model: TokenModel, key: str, response: int) -> None:
    """Refuse sequences that the model was not made for.

    Args:
        prompts: encoded problems.
        model: what reads prompt and response.
        key: the configuration's key of the longest response, for the message.
        response: longest response in tokens.

    Raises:
        DataError: naming the problem with the longest prompt, and the numbers.
    """
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    length = len(longest.token_ids)
    if model.context is not None and length + response > model.context:
        raise DataError(
            f"problem {longest.problem.id!r} has a prompt of {length} tokens, and with {key}={response} "
            f"a sequence of up to {length + response}; the {model.name} reads at most {model.context} "
            f"(max_position_embeddings in its config.json). Lower {key} or drop the long problems"
        )


def _token_ids(text: str, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> list[int]:
    if tokenizer.chat_template is None:
        if data.system_prompt is not None:
            raise DataError(
                "data.system_prompt is set, but the student's tokenizer has no chat template that could place it; "
                "write it into data.prompt_template"
            )
        return list(tokenizer(text)["input_ids"])
    turns = [{"role": "user", "content": text}]
    if data.system_prompt is not None:
        turns.insert(0, {"role": "system", "content": data.system_prompt})
    try:
        prompt = rendered(tokenizer, turns, thinking=data.enable_thinking)
    except DataError as error:
        raise DataError(f"the student's {error}: try data.system_prompt=null") from error
    return list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
