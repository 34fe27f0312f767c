"""Prompts as token ids and responses as text: one reading for every engine."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.hub import only_here
from nemo_uecr.data.pretrained import load_pretrained
from nemo_uecr.data.rows import read_object
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
        """Token ids of the prompt; without a chat template the plain text."""
        text = chat.template.replace("{question}", question)
        if self.tokenizer.chat_template is None:
            return tuple(self.tokenizer(text)["input_ids"])
        turns = [{"role": "user", "content": text}]
        if chat.system is not None:
            turns.insert(0, {"role": "system", "content": chat.system})
        rendered = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, enable_thinking=chat.thinking
        )
        return tuple(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])

    def text(self, token_ids: tuple[int, ...]) -> str:
        """The response without special tokens."""
        decoded: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return decoded


def load_tokens(model: str) -> Tokens:
    """The tokenizer of a model folder or hub name, and its end tokens.

    Raises:
        DataError: If there is no such model, or it has no tokenizer.
    """
    check_model_place(model)
    try:
        from transformers import AutoTokenizer, GenerationConfig
    except ImportError as missing:
        raise DependencyError("evaluating needs transformers; pip install 'nemo-uecr[local]'") from missing
    # Without a network the hub's client tells every attempt; the error says it once.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    local = only_here(model)
    try:
        tokenizer = load_pretrained(AutoTokenizer, model, local_files_only=local)
    except DataError:
        raise
    except (OSError, ValueError, KeyError) as error:
        fault = "has no tokenizer" if Path(model).is_dir() else "is no folder here, and the hub did not give it"
        raise DataError(f"model {model!r} {fault}: {' '.join(str(error).split())[:200]}") from error
    try:
        configured = load_pretrained(GenerationConfig, model, local_files_only=local).eos_token_id
    except OSError:
        configured = _eos_of_config(model)
    ids = [*(configured if isinstance(configured, list) else [configured]), tokenizer.eos_token_id]
    return Tokens(tokenizer, frozenset(int(each) for each in ids if each is not None))


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
