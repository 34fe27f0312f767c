"""Models as NeMo-RL takes them: without code of their own, and with the Megatron weights that it has made of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, read_object, replace_file
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
        "(uecr.reward=FILE.py:FUNCTION), or the local back end"
    )


def conversion(role: str, name: str, overrides: Mapping[str, Any], *, hashed: bool) -> str:
    """NeMo-RL's conversion of a model has ended, and was made of the weights that the folder holds now.

    NeMo-RL finds its conversions by the model's name and ``hf_config_overrides``, and takes any that has begun; without
    a tracker file Megatron would load none of its weights. Size and time of a folder's weight files stand beside each
    conversion that a run of ours begins, and their sha256 where ``hashed``, which reads them all; another
    conversion is adopted where it is newer than the weights.
    """
    folder, converted = Path(name), upstream.conversion_folder(name, overrides)
    begun, last = (converted / "iter_0000000").exists(), converted / "iter_0000000" / "run_config.yaml"
    if begun and not (last.is_file() and any(converted.glob("latest_*"))):
        raise DataError(
            f"{role}.model_name: NeMo-RL's conversion {converted} was interrupted; remove it, and the run makes it "
            "again, unless another run is making it now"
        )
    seen = f"{converted} {'is used' if begun else 'will be made'}"
    if not folder.is_dir():
        return seen
    record, weights = converted.with_name(f"{converted.name}.weights.json"), _weights(folder, hashed=hashed)
    known = read_object(record) if record.is_file() else {}
    if begun and known and (changed := [each for each in known | weights if not _same(known, weights, each)]):
        raise DataError(
            f"{role}.model_name: {', '.join(changed)} in {folder} changed since NeMo-RL's conversion {converted} "
            "was made; remove it, and the run makes it again when it starts"
        )
    if begun and not known:
        if last.stat().st_mtime_ns < max(entry["changed_ns"] for entry in weights.values()):
            raise DataError(
                f"{role}.model_name: the weights in {folder} are newer than NeMo-RL's conversion {converted}; remove "
                "it, and the run makes it again when it starts"
            )
        log.warning(
            "%s: the conversion %s, which no run of this project's made, is adopted; it is newer than the weights",
            role,
            converted,
        )
    record.parent.mkdir(parents=True, exist_ok=True)
    kept = {each: known.get(each, {}) | entry for each, entry in weights.items()}  # a sha256 of before holds on
    replace_file(record, json.dumps(kept, indent=1).encode())
    return seen


def _weights(folder: Path, *, hashed: bool) -> dict[str, dict[str, Any]]:
    """What is known of each weight file and of the model's configuration."""
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    stats = {file: file.stat() for file in files}
    found: dict[str, dict[str, Any]] = {
        file.name: {"bytes": each.st_size, "changed_ns": each.st_mtime_ns} for file, each in stats.items()
    }
    if hashed:
        log.info("hashing the weight files of %s", folder)
        found = {file.name: found[file.name] | {"sha256": file_sha256(file)} for file in files}
    return found


def _same(known: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    """Whether a file is as it was: by its sha256 where both have one, else by size and time."""
    if name not in known or name not in now:
        return False
    keys = ["sha256"] if "sha256" in known[name] and "sha256" in now[name] else ["bytes", "changed_ns"]
    return all(known[name][key] == now[name][key] for key in keys)
