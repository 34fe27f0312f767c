"""What CKPT is: a Megatron checkpoint, a step that NeMo-RL saved, or a Hugging Face model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.errors import CheckpointError

HUGGINGFACE, MEGATRON = "huggingface", "megatron"
TRACKER = "latest_checkpointed_iteration.txt"
ASSETS = "huggingface"
"""Folder beside Megatron weights that were converted: config.json, generation_config.json and the tokenizer."""

STEP_PARTS = ("config.yaml", "training_info.json", "policy/weights", "policy/tokenizer")
"""What a finished step of NeMo-RL has."""

STEP = re.compile(r"(tmp_|old_)?step_\d+")
ITERATION = re.compile(r"iter_(\d+)")


@dataclass(frozen=True)
class Source:
    """Where a conversion reads.

    Attributes:
        given: CKPT.
        kind: `huggingface` or `megatron`.
        weights: the Hugging Face folder, or the folder of one Megatron iteration.
        model: name or folder of the Hugging Face model that says the architecture; None: the checkpoint has none.
        tokenizer: folder of the tokenizer that was trained with; None: the model's.
    """

    given: Path
    kind: str
    weights: Path
    model: str | None
    tokenizer: Path | None


def find_source(ckpt: Path) -> Source:
    """Recognise CKPT.

    Raises:
        CheckpointError: it does not exist, is none of the three, or is incomplete.
    """
    if not ckpt.is_dir():
        raise CheckpointError(f"{ckpt}: no such folder; expected a checkpoint")
    if STEP.fullmatch(ckpt.resolve().name) or (ckpt / "policy").is_dir() or (ckpt / "training_info.json").is_file():
        return _nemo_rl_step(ckpt)
    if (ckpt / "metadata.json").is_file() or (ckpt / ".metadata").is_file() or ITERATION.fullmatch(ckpt.resolve().name):
        return _megatron(ckpt, ckpt, ckpt.resolve().parent)
    if (ckpt / TRACKER).is_file() or any(ITERATION.fullmatch(path.name) for path in ckpt.iterdir()):
        return _megatron(ckpt, newest_iteration(ckpt), ckpt)
    if (ckpt / "config.json").is_file():
        return Source(ckpt, HUGGINGFACE, ckpt, str(ckpt), ckpt)
    raise CheckpointError(
        f"{ckpt}: no checkpoint; expected a Megatron folder (iter_0000000, or the one above), a step_N that NeMo-RL "
        "saved, or a Hugging Face model (config.json)"
    )


def newest_iteration(folder: Path) -> Path:
    """The iteration that the tracker names, or the newest where there is no tracker.

    Raises:
        CheckpointError: there is none.
    """
    tracker = folder / TRACKER
    if tracker.is_file():
        text = tracker.read_text(encoding="utf-8").strip()
        found = folder / (f"iter_{int(text):07d}" if text.isdigit() else text)
        if not found.is_dir():
            raise CheckpointError(f"{tracker}: names iteration {text}, and there is no {found.name}; incomplete")
        return found
    numbered = {int(match[1]): path for path in folder.iterdir() if (match := ITERATION.fullmatch(path.name))}
    if not numbered:
        raise CheckpointError(f"{folder}: no iter_ folder in it; the checkpoint is incomplete")
    return numbered[max(numbered)]


def _megatron(given: Path, weights: Path, beside: Path) -> Source:
    assets = beside / ASSETS
    known = assets if (assets / "config.json").is_file() else None
    return Source(given, MEGATRON, weights, None if known is None else str(known), known)


def _nemo_rl_step(step: Path) -> Source:
    import yaml

    name = step.resolve().name
    if name.startswith(("tmp_", "old_")):
        raise CheckpointError(f"{step}: NeMo-RL had not finished this step; convert a folder named step_N")
    missing = [part for part in STEP_PARTS if not (step / part).exists()]
    if missing:
        raise CheckpointError(f"{step}: no {missing[0]}; the NeMo-RL checkpoint is incomplete. Convert another step")
    try:
        model = yaml.safe_load((step / "config.yaml").read_bytes())["policy"]["model_name"]
    except (yaml.YAMLError, KeyError, TypeError):
        raise CheckpointError(
            f"{step / 'config.yaml'}: no policy.model_name; expected NeMo-RL's configuration"
        ) from None
    tokenizer = step / "policy" / "tokenizer"
    return Source(step, MEGATRON, newest_iteration(step / "policy" / "weights"), str(model), tokenizer)
