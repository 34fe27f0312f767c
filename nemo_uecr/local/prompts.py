"""Turns problems into prompt token ids through the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.config.schema import DataConfig
from nemo_uecr.data.models import fitting_prompts
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
        DataError: If a prompt is too long and ``data.long_prompts`` says refuse, or empty.
    """
    found = fitting_prompts(tokenizer, [(problem.id, problem.question) for problem in problems], data)
    prompts = [Prompt(problems[place], tuple(ids)) for place, ids in found.items()]
    for prompt in prompts:
        if not prompt.token_ids:
            raise DataError(f"problem {prompt.problem.id!r} has an empty prompt; expected at least one token")
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
