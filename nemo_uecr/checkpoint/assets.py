"""What belongs to a model beside its weights: configuration, generation configuration, tokenizer, chat template."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from nemo_uecr.checkpoint.hf_files import GENERATION, has_chat_template, tokenizer_files
from nemo_uecr.checkpoint.qwen3 import read_json
from nemo_uecr.checkpoint.work_folder import WorkFolder

logger = logging.getLogger(__name__)


def asset_files(model: Path, tokenizer: Path) -> tuple[Path, ...]:
    """The files to take over.

    Raises:
        CheckpointError: there is no config.json or no tokenizer.
    """
    read_json(model / "config.json")
    generation = (model / GENERATION,) if (model / GENERATION).is_file() else ()
    for path in generation:
        read_json(path)
    return (model / "config.json", *generation, *tokenizer_files(tokenizer))


def write_assets(work: WorkFolder, below: str, model: Path, tokenizer: Path, dtype: str) -> None:
    """Copy them; config.json names the dtype of the weights.

    Args:
        work: the folder.
        below: folder in it, "" for itself.
        model: folder of the configuration.
        tokenizer: folder of the tokenizer.
        dtype: of the weights.
    """
    prefix = f"{below}/" if below else ""
    (work.path / below).mkdir(exist_ok=True)
    for file in asset_files(model, tokenizer):
        content = file.read_bytes()
        if file.name == "config.json":
            config = {name: value for name, value in read_json(file).items() if name not in ("dtype", "torch_dtype")}
            content = json.dumps({**config, "torch_dtype": dtype}, indent=2).encode()
        (work.path / below / file.name).write_bytes(content)
        work.complete(prefix + file.name)
    if not has_chat_template(tokenizer):
        logger.warning("%s has no chat template; the converted model has none either", tokenizer)
    if not (model / GENERATION).is_file():
        logger.warning("%s has no %s; the converted model has none either", model, GENERATION)
