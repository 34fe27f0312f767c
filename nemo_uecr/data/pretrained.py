"""The one place that loads by `from_pretrained`: never with code that a model's folder brings or names.

Unless it is told, transformers asks on standard input whether to run Python files of the folder, and a pipe or a `y`
answers it; and it fetches the compiled kernel that a config.json names in place of a kind of attention. What
`save_pretrained` meets on a full disk becomes the system's error again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.data.model_files import read_object
from nemo_uecr.errors import DataError, UecrError

__all__ = [
    "ModelLoadError",
    "check_objects",
    "load_pretrained",
    "load_tokenizer",
    "one_line",
    "own_code",
    "refuse_kernels",
    "save_pretrained",
    "save_tokenizer",
]

#: Files of a model folder that hold one JSON object, where they are there.
OBJECTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
#: Ends the names of keys that choose code: attn_implementation, experts_implementation, ...
CHOICE = "_implementation"
#: Key that puts another file in the place of model.safetensors.
OTHER_WEIGHTS = "transformers_weights"
#: How a library written in Rust tells of the system's error.
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


class ModelLoadError(DataError):
    """A model is damaged or missing.

    Attributes:
        reason: what transformers says of it, as one line without the model's name.
    """

    def __init__(self, name: str, error: Exception) -> None:
        """The name and what was raised under it."""
        self.reason = one_line(error)
        super().__init__(f"model {name!r} cannot be loaded: {self.reason}")


def load_pretrained(kind: Any, name: str, *, local_files_only: bool, **options: Any) -> Any:
    """What ``kind.from_pretrained`` makes of a folder or hub name, its own code left alone.

    Args:
        kind: a class of transformers, such as `AutoModelForCausalLM`.
        name: folder or hub name.
        local_files_only: whether the hub is left out.
        options: further options of `from_pretrained`.

    Raises:
        DataError: the model needs code of its own, or names a kernel.
        ModelLoadError: it is damaged or missing; the cause is what transformers raised.
    """
    refuse_kernels(name)
    try:
        return kind.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **options)
    except UecrError:
        raise
    except Exception as error:  # what a damaged folder makes the libraries raise has no common class
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise DataError(_needs_code(name, local_files_only)) from error
        raise ModelLoadError(name, error) from error


def load_tokenizer(name: str, *, local_files_only: bool) -> Any:
    """The tokenizer of a folder or hub name, which was tried on a digit: some damage shows only then.

    Raises:
        DataError, ModelLoadError: as `load_pretrained` does.
    """
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, local_files_only=local_files_only)
    try:
        tokenizer("0", add_special_tokens=False)
    except Exception as error:  # as above
        raise ModelLoadError(name, error) from error
    return tokenizer


def check_objects(folder: Path) -> None:
    """Refuse files of a folder that are no JSON objects; of some of them transformers takes the content for absent.

    Raises:
        DataError: naming the file.
    """
    for file in OBJECTS:
        if (folder / file).is_file():
            read_object(folder / file)


def refuse_kernels(name: str) -> None:
    """Refuse a folder whose config.json names a kernel of the hub for its attention, or another file of weights.

    Raises:
        DataError: naming the key.
    """
    file = Path(name) / "config.json"
    if not file.is_file():
        return
    values = read_object(file)
    if values.get(OTHER_WEIGHTS) is not None:
        raise DataError(
            f"model {name!r}: {OTHER_WEIGHTS} in config.json names another file of weights, which transformers reads "
            "and vLLM does not; expected them in model.safetensors: rename the file and take the key out"
        )
    for key, chosen in _choices(values):
        if "/" in chosen:
            raise DataError(
                f"model {name!r}: {key} in config.json is {chosen[:60]!r}, a kernel: code to be fetched and run; "
                "expected a kind of attention that transformers has, such as sdpa; take the key out"
            )


def _choices(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key that chooses code with each text in its value, which may hold one a part of the model."""
    for key, value in values.items():
        parts = value.values() if isinstance(value, dict) else [value]
        if key.endswith(CHOICE):
            yield from ((key, part) for part in parts if isinstance(part, str))
        elif isinstance(value, dict):
            yield from _choices(value)


def one_line(error: Exception) -> str:
    """What an error says, with its type, in one line."""
    if "ignore_mismatched_sizes" in str(error):
        return "the weights have other shapes than its config.json says"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no message'}"


def save_pretrained(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder.

    Raises:
        OSError: If it cannot be written, also where a library has an error of its own for that.
    """
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise _system_error(error, folder) from error
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer.

    Raises:
        OSError: If it cannot be written.
    """
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is Exception:  # all that the tokenizers library says when it cannot write
            raise _system_error(error, folder) from error
        raise


def _system_error(error: Exception, folder: Path) -> OSError:
    """What a library written in Rust tells of the system's error, as that error."""
    found = SYSTEM_ERROR.search(str(error))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number) if found else " ".join(str(error).split()), str(folder))


def own_code(loaded: Any) -> object:
    """What a configuration or tokenizer that was loaded names of its folder's code; None where there is none.

    NeMo-RL loads models with ``trust_remote_code=True`` and prefers that code to transformers' own.
    """
    options = getattr(loaded, "init_kwargs", None)
    if isinstance(options, dict):
        return options.get("auto_map")
    return getattr(loaded, "auto_map", None)


def _needs_code(name: str, local_files_only: bool) -> str:
    """Read without code: the base class takes any model type for data; both transformers 4 and 5 have this name."""
    from transformers import PretrainedConfig

    values, _ = PretrainedConfig.get_config_dict(name, local_files_only=local_files_only)
    return (
        f"model {name!r}: got model_type {str(values.get('model_type'))[:60]!r} with code of its own, which is never "
        "run; expected a model type that transformers knows, with its own tokenizer class; take a release of the model "
        "without auto_map, or a newer transformers"
    )
