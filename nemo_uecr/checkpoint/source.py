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

STEP_PARTS = {
    "config.yaml": Path.is_file, "training_info.json": Path.is_file,
    "policy/weights": Path.is_dir, "policy/tokenizer": Path.is_dir,
}  # fmt: skip
"""What a finished step of NeMo-RL has."""

STEP = re.compile(r"(tmp_|old_)?step_\d+")
ITERATION_DIGITS = 12
ITERATION = re.compile(rf"iter_([0-9]{{1,{ITERATION_DIGITS}}})")
NAME = re.compile(r"[A-Za-z][\w.-]{0,100}", re.ASCII)
TRACKED = 1000
"""Bytes of a tracker that are looked at."""


@dataclass(frozen=True)
class Source:
    """Where a conversion reads.

    Attributes:
        kind: `huggingface` or `megatron`.
        weights: the Hugging Face folder, or the folder of one Megatron iteration.
        model: name or folder of the Hugging Face model that says the architecture; None: the checkpoint has none.
        tokenizer: folder of the tokenizer that was trained with; None: the model's.
    """

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
        return _megatron(ckpt, ckpt.resolve().parent)
    if (ckpt / TRACKER).is_file() or any(ITERATION.fullmatch(path.name) for path in ckpt.iterdir()):
        return _megatron(newest_iteration(ckpt), ckpt)
    if (ckpt / "config.json").is_file():
        return Source(HUGGINGFACE, ckpt, str(ckpt), ckpt)
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
        found = folder / _tracked(tracker)
        if not found.is_dir():
            raise CheckpointError(f"{tracker}: names {found.name}, and there is no {found.name}; incomplete")
        return found
    numbered = {int(match[1]): path for path in folder.iterdir() if (match := ITERATION.fullmatch(path.name))}
    if not numbered:
        raise CheckpointError(f"{folder}: no iter_ folder in it; the checkpoint is incomplete")
    return numbered[max(numbered)]


def _tracked(tracker: Path) -> str:
    """Name of the folder that a tracker means: Megatron writes a number, or a word such as "release"."""
    text = tracker.read_bytes()[:TRACKED].decode("utf-8", "replace").strip()
    if text.isascii() and text.isdigit() and len(text) <= ITERATION_DIGITS:
        return f"iter_{int(text):07d}"
    if NAME.fullmatch(text):
        return text
    raise CheckpointError(f"{tracker}: names no iteration ({text!r:.60}); the checkpoint is corrupt")


def _megatron(weights: Path, beside: Path) -> Source:
    assets = beside / ASSETS
    known = assets if (assets / "config.json").is_file() else None
    return Source(MEGATRON, weights, None if known is None else str(known), known)


def _nemo_rl_step(step: Path) -> Source:
    name = step.resolve().name
    if name.startswith(("tmp_", "old_")):
        raise CheckpointError(f"{step}: NeMo-RL had not finished this step; convert a folder named step_N")
    missing = [part for part, is_there in STEP_PARTS.items() if not is_there(step / part)]
    if missing:
        raise CheckpointError(f"{step}: no {missing[0]}; the NeMo-RL checkpoint is incomplete. Convert another step")
    model = _model_name(step / "config.yaml")
    tokenizer = step / "policy" / "tokenizer"
    return Source(MEGATRON, newest_iteration(step / "policy" / "weights"), model, tokenizer)


def _model_name(path: Path) -> str:
    """policy.model_name of NeMo-RL's own configuration."""
    import yaml

    try:
        found = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    policy = found.get("policy") if isinstance(found, dict) else None
    name = policy.get("model_name") if isinstance(policy, dict) else None
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{path}: no policy.model_name; expected NeMo-RL's configuration")
    return name
