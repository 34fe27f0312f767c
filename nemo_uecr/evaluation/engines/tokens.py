"""Prompts as token ids and responses as text: one reading for every engine."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.chat import chat_ids
from nemo_uecr.data.hub import only_here
from nemo_uecr.data.model_files import read_object
from nemo_uecr.data.pretrained import ModelLoadError, check_objects, load_pretrained, load_tokenizer
from nemo_uecr.errors import DataError, DependencyError

#: What the hub calls a model: one name, or an owner's.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class ChatSettings:
    """How a problem becomes a prompt.

    Attributes:
        template: the user's turn; ``{question}`` is replaced.
        system: the system turn; None for none.
        thinking: handed to the chat template.
    """

    template: str
    system: str | None
    thinking: bool


@dataclass(frozen=True)
class Tokens:
    """A model's tokenizer with the ids that end a response."""

    tokenizer: Any
    end_ids: frozenset[int]

    def prompt(self, question: str, chat: ChatSettings) -> tuple[int, ...]:
        """Token ids of the prompt; without a chat template the plain text.

        Raises:
            DataError: the chat template refuses it, or it has no token.
        """
        text = chat.template.replace("{question}", question)
        if self.tokenizer.chat_template is None:
            ids = self.tokenizer(text, verbose=False)["input_ids"]  # the engine says what is too long
        else:
            ids = chat_ids(self.tokenizer, text, system=chat.system, thinking=chat.thinking)
        if not ids:
            raise DataError(f"the prompt of {question!r:.60} has no token; expected one or more")
        return tuple(ids)

    def text(self, token_ids: tuple[int, ...]) -> str:
        """The response without special tokens."""
        decoded: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return decoded


def load_tokens(model: str) -> Tokens:
    """The tokenizer of a model folder or hub name, and its end tokens.

    Raises:
        DataError: If there is no such model, it has no tokenizer, or a file that says of its tokens is damaged.
    """
    check_model_place(model)
    try:
        from transformers import GenerationConfig
    except ImportError as missing:
        raise DependencyError("evaluating needs transformers; pip install 'nemo-uecr[local]'") from missing
    # Without a network the hub's client tells every attempt; the error says it once.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    local = only_here(model)
    check_objects(Path(model))
    try:
        tokenizer = load_tokenizer(model, local_files_only=local)
    except ModelLoadError as error:
        fault = "cannot be read" if Path(model).is_dir() else "is no folder here, and the hub did not give it"
        raise DataError(f"model {model!r} {fault}: {error.reason}") from error
    try:
        configured = load_pretrained(GenerationConfig, model, local_files_only=local).eos_token_id
    except ModelLoadError as error:
        if not isinstance(error.__cause__, OSError):  # it is there
            raise DataError(f"model {model!r}: generation_config.json cannot be read: {error.reason}") from error
        configured = _eos_of_config(model)
    return Tokens(tokenizer, _end_ids(configured, tokenizer.eos_token_id, model))


def _end_ids(configured: object, own: int | None, model: str) -> frozenset[int]:
    """Those of the model and the tokenizer's; a file may say anything, and without one no response would end."""
    ids = [each for each in (*(configured if isinstance(configured, list) else [configured]), own) if each is not None]
    odd = next((each for each in ids if type(each) is not int or each < 0), None)
    if odd is not None:
        raise DataError(
            f"model {model!r}: eos_token_id holds {odd!r:.40}; expected token ids, whole numbers from 0, in "
            "generation_config.json and config.json"
        )
    if not ids:
        raise DataError(
            f"model {model!r} names no end token; expected eos_token_id in generation_config.json or eos_token in "
            "tokenizer_config.json, because a response ends with it"
        )
    return frozenset(ids)


def check_model_place(model: str) -> None:
    """A path that is mistyped must not be taken for a name on the hub; a tokenizer may stand in a folder alone."""
    folder = Path(model)
    if folder.exists():
        if not any((folder / name).is_file() for name in ("config.json", "tokenizer.json", "tokenizer_config.json")):
            raise DataError(
                f"model {model!r} has no config.json; expected a model folder (of a run: RUN/checkpoints/step-NNNNNN)"
            )
    elif "/" in model and folder.parent.is_dir():
        raise DataError(
            f"model {model!r}: no such folder in {folder.parent}, which is a folder here and so no owner on the hub; "
            "correct the name, or run the command elsewhere"
        )
    elif _HUB_NAME.fullmatch(model) is None:
        raise DataError(f"model {model!r}: no such folder; expected a model folder, or a name on the hub (OWNER/NAME)")


def _eos_of_config(model: str) -> Any:
    file = Path(model) / "config.json"
    return read_object(file).get("eos_token_id") if file.is_file() else None
