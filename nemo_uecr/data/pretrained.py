"""The one place that loads by `from_pretrained`: never with Python code that lies in the model's folder.

Unless it is told, transformers asks on standard input whether to run such code, and a pipe or a `y` answers it. What
`save_pretrained` meets on a full disk becomes the system's error again.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError

__all__ = ["load_pretrained", "own_code", "save_pretrained", "save_tokenizer"]

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def load_pretrained(kind: Any, name: str, *, local_files_only: bool, **options: Any) -> Any:
    """What ``kind.from_pretrained`` makes of a folder or hub name, its own code left alone.

    Args:
        kind: a class of transformers, such as `AutoTokenizer`.
        name: folder or hub name.
        local_files_only: whether the hub is left out.
        options: further options of `from_pretrained`.

    Raises:
        DataError: the model needs code of its own.
        Exception: whatever else transformers raises for a damaged or missing model.
    """
    try:
        return kind.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise DataError(_needs_code(name, local_files_only)) from error


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
    found = _SYSTEM_ERROR.search(str(error))
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
