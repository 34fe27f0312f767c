"""The one place that loads by `from_pretrained`: never with Python code that lies in the model's folder.

Unless it is told, transformers asks on standard input whether to run such code, and a pipe or a `y` answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemo_uecr.data.rows import read_object
from nemo_uecr.errors import DataError

__all__ = ["check_objects", "load_pretrained", "load_tokenizer", "own_code", "reason_of", "rendered"]

#: Files of a model folder that hold one JSON object, where they are there.
OBJECTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


class UnreadableModelError(ValueError):
    """What the libraries raise of their own kinds for files that they did not expect, in one line."""


def load_pretrained(kind: Any, name: str, *, local_files_only: bool, **options: Any) -> Any:
    """What ``kind.from_pretrained`` makes of a folder or hub name, its own code left alone.

    Args:
        kind: a class of transformers, such as `AutoModelForCausalLM`.
        name: folder or hub name.
        local_files_only: whether the hub is left out.
        options: further options of `from_pretrained`.

    Raises:
        DataError: the model needs code of its own.
        ImportError: it needs a package that is not installed.
        OSError: a file is missing or no such file.
        ValueError: whatever else a damaged model makes the libraries raise.
    """
    try:
        with _errors_of_libraries():
            return kind.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise DataError(_needs_code(name, local_files_only)) from error


def load_tokenizer(name: str, *, local_files_only: bool) -> Any:
    """The tokenizer of a folder or hub name, which was tried on a digit: some damage shows only then.

    Raises:
        DataError, ImportError, OSError, ValueError: as `load_pretrained` does.
    """
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, local_files_only=local_files_only)
    with _errors_of_libraries():
        tokenizer("0", add_special_tokens=False)
    return tokenizer


def check_objects(folder: Path) -> None:
    """Refuse files of a folder that are no JSON objects; of some of them transformers takes the content for absent.

    Raises:
        DataError: naming the file.
    """
    for file in OBJECTS:
        if (folder / file).is_file():
            read_object(folder / file)


def rendered(tokenizer: Any, turns: Sequence[dict[str, str]], *, thinking: bool) -> str:
    """A conversation in a tokenizer's chat template, up to where the response begins.

    Raises:
        DataError: the template refuses it; who calls says whose template it is, before the message.
    """
    try:
        text: str = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, enable_thinking=thinking
        )
    except Exception as error:  # a template is a program of the model's author and may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no message'}"
        raise DataError(f"chat template refuses the prompt: {reason}; some templates take no system turn") from error
    return text


def reason_of(error: Exception) -> str:
    """Kind and first line of what loading ended with."""
    if isinstance(error, UnreadableModelError):
        return str(error)
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no message'}"


def own_code(loaded: Any) -> object:
    """What a configuration or tokenizer that was loaded names of its folder's code; None where there is none.

    NeMo-RL loads models with ``trust_remote_code=True`` and prefers that code to transformers' own.
    """
    options = getattr(loaded, "init_kwargs", None)
    if isinstance(options, dict):
        return options.get("auto_map")
    return getattr(loaded, "auto_map", None)


@contextmanager
def _errors_of_libraries() -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError, ValueError):
        raise
    except Exception as error:  # down to a bare Exception of the tokenizers library: they have no class in common
        reason = " ".join(str(error).split())[:200] or "no message"
        raise UnreadableModelError(f"{type(error).__name__}: {reason}") from error


def _needs_code(name: str, local_files_only: bool) -> str:
    """Read without code: the base class takes any model type for data; both transformers 4 and 5 have this name."""
    from transformers import PretrainedConfig

    values, _ = PretrainedConfig.get_config_dict(name, local_files_only=local_files_only)
    return (
        f"model {name!r}: got model_type {str(values.get('model_type'))[:60]!r} with code of its own, which is never "
        "run; expected a model type that transformers knows, with its own tokenizer class; take a release of the model "
        "without auto_map, or a newer transformers"
    )
