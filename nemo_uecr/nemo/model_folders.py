"""Models as NeMo-RL takes them: without code of their own, and with the Megatron weights that it has made of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError
from nemo_uecr.files import replace_file
from nemo_uecr.generation import models
from nemo_uecr.generation.engines import check_model_place
from nemo_uecr.nemo import upstream
from nemo_uecr.verifier.extract import opens_thought

log = logging.getLogger(__name__)


def loaded_without_code(auto: Any, name: str) -> Any:
    """What one of transformers' Auto classes loads for a model inside NeMo-RL, which would run code of the model's."""
    check_model_place(name)
    loaded = models.load_pretrained(auto, name, local_files_only=models.only_here(name))
    if code := getattr(loaded, "init_kwargs", vars(loaded)).get("auto_map"):
        raise DataError(
            f"model {name!r} names code of its own ({str(code)[:80]}), which NeMo-RL would run; remove auto_map from "
            "its files if transformers knows the model type, or choose another model"
        )
    return loaded


def hidden_marks(tokenizer: Any) -> str:
    """In words: a mark of thoughts that NeMo-RL hides from the built-in verifier; empty where there is none."""
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    marks = [mark for mark in special if opens_thought(mark) or opens_thought(f"{mark}analysis")]  # gpt-oss's channels
    if not marks:
        return ""
    return (
        f"{marks[0]!r} is a special token, and NeMo-RL removes those before it asks for a reward: the built-in "
        "verifier cannot tell a thought from the answer, and pays for boxes in thoughts; take a reward of your own "
        "(reward=FILE.py:FUNCTION) or backend: local"
    )


def conversion(role: str, name: str) -> str:
    """NeMo-RL's conversion of a model has ended, and was made of the weights that the folder holds now.

    NeMo-RL finds its conversions by the model's name and takes any that has begun; without a tracker file Megatron
    would load none of its weights. Size and time of a folder's weight files stand beside each conversion that a run of
    ours begins; one of another hand is adopted where it is newer than the weights.
    """
    folder, converted = Path(name), upstream.conversion_folder(name)
    begun = (converted / "iter_0000000").exists()
    if begun and not all(any(converted.glob(last)) for last in ("iter_0000000/run_config.yaml", "latest_*")):
        raise DataError(
            f"{role}.model_name: NeMo-RL's conversion {converted} was interrupted; remove it, and the run makes it "
            "again, unless another run is making it now"
        )
    seen = f"{converted} {'is used' if begun else 'will be made'}"
    if not folder.is_dir():
        return seen
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    stats = {file.name: file.stat() for file in files}
    weights = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    record = converted.with_name(f"{converted.name}.weights.json")
    newest = max(stat.st_mtime_ns for stat in stats.values())
    if not begun:
        record.parent.mkdir(parents=True, exist_ok=True)
        replace_file(record, json.dumps(weights, indent=1).encode())
    elif record.is_file() and json.loads(record.read_bytes()) != weights:
        raise DataError(
            f"{role}.model_name: the weights in {folder} are not those, by size and time, that NeMo-RL's conversion "
            f"{converted} was made of; remove it, and the run makes it again when it starts"
        )
    elif not record.is_file() and (converted / "iter_0000000").stat().st_mtime_ns < newest:
        raise DataError(
            f"{role}.model_name: the weights in {folder} are newer than NeMo-RL's conversion {converted}; remove it, "
            "and the run makes it again when it starts"
        )
    elif not record.is_file():
        log.warning("%s: the conversion %s of another hand is adopted; it is newer than the weights", role, converted)
    return seen
